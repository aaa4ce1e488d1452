"""What the law of a table says where it was asked: losses to expect, and a budget well spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from suite.laws.allocation import Allocation, allocate
from suite.laws.caveats import caveats
from suite.laws.costs import Costs
from suite.laws.fit import Fit, unidentified_symbols
from suite.laws.forms import DECAYS, DataConstrainedForm
from suite.laws.intervals import Interval, ResampledFit
from suite.laws.kept import KeptLaw, LastPoint
from suite.laws.repeated_data import untold_symbols
from suite.tables.points import TablePoints
from suite.tables.request import FitRequest


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers to ``--predict`` and ``--flops``.

    Attributes:
        predictions: each point, by variable, and its loss in nats.
        allocation: the best use of the budget, with C = 6 N D; none if not asked.
        warnings: where the answers extrapolate, in plain sentences.
    """

    predictions: tuple[tuple[Mapping[str, float], Interval], ...]
    allocation: Allocation | None
    warnings: tuple[str, ...]


def answer(found: ResampledFit | Fit, points: TablePoints, request: FitRequest) -> Answers:
    """Ask a fitted law what the request asks.

    Args:
        found: the fit, with its resamples if intervals are wanted.
        points: the points of the table.
        request: with ``predict`` and ``flops``.
    """
    law = _kept(found, points, request)
    places = request.places(law.law)
    predictions = []
    warnings: list[str] = []
    for place in places:
        band = law.predict({name: np.array([value]) for name, value in place.items()})
        ends = (float(part[0]) for part in (band.estimate, band.lower, band.upper))
        estimate, lower, upper = ends
        predictions.append(
            (place, Interval(estimate=estimate, lower=lower, upper=upper, level=band.level))
        )
        warnings += _caveats(law, place)
    allocation = None
    if request.flops is not None:
        sizes = points.fitted()["parameters"]
        allocation = allocate(law, Costs.six_n(sizes.min(), sizes.max()), request.flops)
        best = allocation.best
        warnings += allocation.warnings
        spent = {"parameters": best.parameters.estimate, "tokens": best.tokens.estimate}
        warnings += _caveats(law, spent)
    return Answers(
        predictions=tuple(predictions),
        allocation=allocation,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _kept(found: ResampledFit | Fit, points: TablePoints, request: FitRequest) -> KeptLaw:
    fit = found.fit if isinstance(found, ResampledFit) else found
    fitted, kept = points.fitted(), ~points.held_out
    if isinstance(fit.form, DataConstrainedForm):
        unidentified = untold_symbols(fit.form, fit.parameters, fitted, plain=bool(request.fixed))
    else:
        unidentified = unidentified_symbols(fit.form, fitted)
    return KeptLaw.of(
        found,
        run=points.group[kept],
        variables=fitted,
        loss=points.loss[kept],
        points=_last_points(points),
        unidentified=unidentified,
    )


def _last_points(points: TablePoints) -> list[LastPoint]:
    """The last fitted point of each group at each of its loops; none without both N and D.

    A law of the loop step counts its steps as loops.
    """
    fitted, group = points.fitted(), points.group[~points.held_out]
    if not {"parameters", "tokens"} <= fitted.keys():
        return []
    n, d = fitted["parameters"], fitted["tokens"]
    loops = fitted.get("recurrence", fitted.get("step", np.ones(len(n))))
    if (loops != np.rint(loops)).any():
        return []
    order = np.lexsort((d, loops, group))
    starts_another = (np.diff(group[order]) != 0) | (np.diff(loops[order]) != 0)
    last = order[np.append(starts_another, True)]
    return [
        LastPoint(
            cell=points.groups[group[row]],
            size=f"{n[row]:g}",
            recurrence=int(loops[row]),
            parameters=float(n[row]),
            tokens=float(d[row]),
        )
        for row in last
    ]


def _caveats(law: KeptLaw, place: Mapping[str, float]) -> tuple[str, ...]:
    found = caveats(
        law,
        parameters=place.get("parameters", 1.0),
        tokens=place.get("tokens", 1.0),
        recurrence=place.get("recurrence", place.get("step", 1.0)),
    )
    if not isinstance(law.law, DataConstrainedForm):
        return found
    at = {name: np.array([value]) for name, value in place.items()}
    not_needed = law.law.untold_decays(law.parameters, at)
    spent = [decay.name for decay in DECAYS if decay.name in law.unidentified]
    return (
        *(
            f"the answer hangs on {name}, which the points do not identify: trust neither it nor "
            "its interval"
            for name in spent
            if name not in not_needed
        ),
        *found,
    )
