"""One fit of a study's law, with intervals where the cells are enough for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from suite.laws.caveats import caveats
from suite.laws.fit import Fit, fit, unidentified_symbols
from suite.laws.forms import get_form
from suite.laws.intervals import FEWEST_RUNS, Band, bootstrap
from suite.laws.kept import KeptLaw
from suite.stages.context import StageContext
from suite.stages.law_points import Array, LawPoints, judged_metric
from suite.study import LawSpec
from suite.tracking.recorder import RunRecorder

CAVEATS_TAG = "suite.law.caveats"
"""JSON object: why a prediction is not to be trusted, and the fingerprints that it is about."""

_NOT_OF_THE_FIT = ("hold_out", "tests", "ablations", "test_starts")
_MOST_CONVERGED = 0.99


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedLaw:
    """A law fitted to the points of a study.

    Attributes:
        fit: the fit.
        kept: the same law with its resamples.
        converged_share: share of the resamples whose fit converged; none without resamples.
        warnings: what a reader should know, in plain sentences.
    """

    fit: Fit
    kept: KeptLaw
    converged_share: float | None
    warnings: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """Parameters with their intervals, where there are any, by the names of metrics."""
        values = {f"law/{symbol}": value for symbol, value in self.kept.parameters.items()}
        for symbol in self.kept.symbols:
            interval = self.kept.interval(symbol)
            if interval.identified:
                values[f"law/{symbol}/lower"] = interval.lower
                values[f"law/{symbol}/upper"] = interval.upper
        return values


def fit_settings(context: StageContext, law: LawSpec) -> dict[str, object]:
    """What decides the fit and its intervals, the cells aside."""
    assert context.study.pretraining is not None
    settings = {key: value for key, value in asdict(law).items() if key not in _NOT_OF_THE_FIT}
    return {
        **settings,
        "form": get_form(law.form).name,
        "metric": judged_metric(law, context.study.pretraining),
        "seed": context.study.seed,
    }


def fit_law(context: StageContext, name: str, law: LawSpec, points: LawPoints) -> FittedLaw:
    """Fit the law, and its resamples over runs unless they are switched off or runs too few.

    Args:
        context: the stage's.
        name: what the bar is called.
        law: settings.
        points: what is fitted.

    Raises:
        InputError: the points cannot determine the law.
        StopRequested: a signal has asked to stop.
    """
    form, runs = get_form(law.form), len(np.unique(points.run))
    reason = _no_intervals(law, runs)
    found = None
    with context.display.task(name, law.starts + (0 if reason else law.resamples)) as advance:

        def on_start(done: int) -> None:
            context.stop.check()
            advance(done, "starts")

        def on_resample(done: int) -> None:
            context.stop.check()
            advance(law.starts + done, "resamples")

        if reason:
            fitted = fit(
                form,
                points.variables,
                points.loss,
                huber_delta=law.huber_delta,
                starts=law.starts,
                seed=context.study.seed,
                on_start=on_start,
            )
        else:
            found = bootstrap(
                form,
                points.variables,
                points.loss,
                points.run,
                huber_delta=law.huber_delta,
                starts=law.starts,
                resamples=law.resamples,
                seed=context.study.seed,
                on_start=on_start,
                on_resample=on_resample,
            )
            fitted = found.fit
            if found.converged_share < _MOST_CONVERGED:
                reason = (
                    f"only {found.converged_share:.0%} of the resamples converged: the intervals "
                    f"are rough"
                )
    return FittedLaw(
        fit=fitted,
        kept=KeptLaw.of(
            found or fitted,
            run=points.run,
            variables=points.variables,
            loss=points.loss,
            points=points.last_points(),
            unidentified=unidentified_symbols(form, points.variables),
        ),
        converged_share=found.converged_share if found else None,
        warnings=(
            *fitted.warnings,
            *(found.warnings if found else ()),
            *points.warnings,
            *((reason,) if reason else ()),
        ),
    )


def _no_intervals(law: LawSpec, runs: int) -> str:
    """Why no intervals are made; empty where they are."""
    if law.resamples == 0:
        return "no intervals were made: law.resamples is 0"
    if runs < FEWEST_RUNS:
        return (
            f"no intervals were made: {runs} cells were fitted, and intervals over cells need at "
            f"least {FEWEST_RUNS}"
        )
    return ""


def untrusted(kept: KeptLaw, row: Mapping[str, Any], tokens: Array) -> tuple[str, ...]:
    """Why the prediction of a held-out cell, with its interval, is not to be trusted.

    Args:
        kept: the law.
        row: of ``law_grid``.
        tokens: where on the curve [points].

    Returns:
        Sentences about parameters that the points do not identify; none where it is trusted.
    """
    place = {
        "parameters": float(row["parameters"]),
        "tokens": float(tokens.max()),
        "recurrence": float(row["recurrence"]),
    }
    anyway = caveats(replace(kept, unidentified=()), **place)
    return tuple(sentence for sentence in caveats(kept, **place) if sentence not in anyway)


def caveat_tag(found: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The tag that says which cells each sentence of ``untrusted`` is about.

    Args:
        found: sentences by fingerprint.
    """
    cells: dict[str, list[str]] = {}
    for cell, sentences in found.items():
        for sentence in sentences:
            cells.setdefault(sentence, []).append(cell)
    return {CAVEATS_TAG: json.dumps(cells)}


def log_prediction(
    recorder: RunRecorder, cell: str, steps: Array, band: Band, *, trusted: bool = True
) -> None:
    """Put a predicted curve on record, with its interval where there is one to be trusted.

    Args:
        recorder: of the law or the prediction.
        cell: fingerprint of the cell that is predicted.
        steps: token counts [points].
        band: the law's losses there [points].
        trusted: whether the interval covers what the points leave open; see ``untrusted``.
    """
    key = f"predicted/{cell}"
    for step, loss, lower, upper in zip(steps, band.estimate, band.lower, band.upper, strict=True):
        values = {key: float(loss)}
        if trusted and np.isfinite(lower) and np.isfinite(upper):
            values |= {f"{key}/lower": float(lower), f"{key}/upper": float(upper)}
        recorder.log(values, int(step))
