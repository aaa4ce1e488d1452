"""From tracked curves to the points of a fit: smoothed, cut to the window, thinned.

Order matters and is fixed. Points that are not finite go first; then the moving average, over
logged points, of the whole curve; then the window; then the thinning. So neither the window
nor the thinning changes what a point is worth.

A curve that is split, to fit its beginning and to predict its end, is cut before all of that:
a moving average across the cut would tell the fit of what it is to predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from suite.errors import InputError, SuiteError
from suite.laws._terms import Term
from suite.laws.forms import Form, get_form
from suite.study import LawSpec

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class FitPoints:
    """Points of several runs' curves, run after run, by tokens within a run.

    Attributes:
        run_ids: runs that gave points.
        run: index of each point's run in ``run_ids`` [points].
        parameters: N of each point's run [points].
        tokens: tokens trained on [points].
        recurrence: T_m of each point's run [points].
        parameters_once: parameters of each point's run outside the loop [points].
        parameters_recurrent: its parameters within the loop [points].
        loss: smoothed loss in nats [points].
        held_out: whether the point is kept from the fit [points].
        num_dropped: logged points that were not finite.
        excluded: runs that gave no point.
        warnings: what was dropped or excluded, in plain sentences.
    """

    run_ids: tuple[str, ...]
    run: NDArray[np.intp]
    parameters: Array
    tokens: Array
    recurrence: Array
    parameters_once: Array
    parameters_recurrent: Array
    loss: Array
    held_out: NDArray[np.bool_]
    num_dropped: int
    excluded: tuple[str, ...]
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.loss)

    def variables(self, mask: NDArray[np.bool_] | None = None) -> dict[str, Array]:
        """Columns by name, as a law reads them; of the points in ``mask``, or of all."""
        chosen = slice(None) if mask is None else mask
        return {
            "parameters": self.parameters[chosen],
            "tokens": self.tokens[chosen],
            "recurrence": self.recurrence[chosen],
            "parameters_once": self.parameters_once[chosen],
            "parameters_recurrent": self.parameters_recurrent[chosen],
        }


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """One row of the cells table."""

    run_id: str
    parameters: float
    looped: float
    recurrence: float
    held_out: bool

    @property
    def parameters_once(self) -> float:
        """Parameters outside the loop, of those that the law counts."""
        return self.parameters - self.looped

    @property
    def parameters_recurrent(self) -> float:
        """Parameters within the loop."""
        return self.looped


@dataclass(frozen=True, kw_only=True, eq=False)
class _Curve:
    """Points of one cell: as logged, of which only finite ones stay, or as prepared.

    Attributes:
        cell: the cell.
        last: tokens of its last logged point, finite or not.
        tokens: increasing [points].
        loss: in nats [points].
    """

    cell: _Cell
    last: int
    tokens: Array
    loss: Array

    def within(self, mask: NDArray[np.bool_], *, held_out: bool) -> _Curve:
        """Some of the points, which are held out or not."""
        cell = replace(self.cell, held_out=held_out)
        return replace(self, cell=cell, tokens=self.tokens[mask], loss=self.loss[mask])


def prepare_points(cells: pl.DataFrame, curves: pl.DataFrame, law: LawSpec) -> FitPoints:
    """Points of the fit, and of its held-out test, from tracked curves.

    - Points that are NaN or infinite are dropped and counted; so is the point at 0 tokens, an
      evaluation before training, silently: laws diverge there.
    - ``law.smoothing``: see ``moving_average``.
    - ``law.fit_from``: points before this share of the run's last logged tokens are left out.
    - ``law.points_per_curve``: see ``evenly_spaced``.

    Args:
        cells: one row a run: ``run_id``, ``parameters`` (N), ``looped`` (those of N within the
            loop), ``recurrence``, ``held_out``.
        curves: live points of one metric: ``run_id``, ``step`` (tokens), ``value``; points of
            runs that are not in ``cells`` are ignored.
        law: settings of the fit.

    Raises:
        InputError: a loss is not positive (key ``law.metric``), or what ``law.hold_out``
            leaves cannot determine the law.
        SuiteError: there are no cells, or no run has a finite point to fit.
    """
    planned = _planned(cells)
    if not planned:
        raise SuiteError(
            "there are no cells to fit the law to; run the pretraining of the study first"
        )
    if all(cell.held_out for cell in planned):
        raise InputError(
            f"all {len(planned)} cells are held out; the law needs some to be fitted on",
            key="law.hold_out",
        )
    warnings: list[str] = []
    logged, num_dropped = _logged(planned, curves, law, warnings)
    prepared = [_prepare(curve, law) for curve in logged]
    usable = [curve for curve in prepared if len(curve.loss)]
    excluded = [curve.cell.run_id for curve in prepared if not len(curve.loss)]
    warnings += [
        f"run {run_id} was left out: {law.metric} has no finite point in the window of the fit"
        for run_id in excluded
    ]
    if not any(not curve.cell.held_out for curve in usable):
        raise SuiteError(
            f"none of the {sum(not cell.held_out for cell in planned)} cells has a finite "
            f"{law.metric} in the window of the fit"
        )
    _check_hold_out(get_form(law.form), usable)
    return replace(
        _collected(usable),
        num_dropped=num_dropped,
        excluded=tuple(excluded),
        warnings=tuple(warnings),
    )


def prepare_first_share(
    cells: pl.DataFrame, curves: pl.DataFrame, law: LawSpec, share: float
) -> FitPoints:
    """Points of a test that fits the beginning of every curve and holds out the rest.

    Each curve is cut at this share of its run's last logged tokens. Both sides are prepared by
    themselves, as ``prepare_points`` prepares a curve, with the window where it is for the whole
    curve: nothing that was logged after the cut can reach a fitted point, nor the other way round.
    A run that has no point on one of its sides takes no part.

    Args:
        cells: as for ``prepare_points``, none of them held out.
        curves: likewise.
        law: likewise.
        share: up to which points are fitted.

    Raises:
        InputError: as ``prepare_points``; the share is not between 0 and 1; or no run has points
            on both sides, where the window opens too late for it with the key ``law.fit_from``.
    """
    if not 0 < share < 1:
        raise InputError(f"the share of tokens is {share}; it must lie between 0 and 1")
    usable: list[_Curve] = []
    windowed = False
    for curve in _logged(_planned(cells), curves, law, [])[0]:
        later = curve.tokens > share * curve.last
        sides = (curve.within(~later, held_out=False), curve.within(later, held_out=True))
        prepared = [_prepare(side, law) for side in sides]
        if all(len(side.loss) for side in prepared):
            usable += prepared
        else:
            windowed |= all((side.tokens > 0).any() for side in sides)
    if not usable and windowed:
        raise InputError(
            f"it is {law.fit_from:g}, and no run has a point from there to the first {share:.0%} "
            f"of its tokens; a value below {share:g} leaves some to fit, where the points are "
            "dense enough",
            key="law.fit_from",
        )
    if not usable:
        raise InputError(
            f"no run has points both within and after the first {share:.0%} of its tokens; curves "
            "of several points are needed"
        )
    return _collected(usable)


def _planned(cells: pl.DataFrame) -> list[_Cell]:
    known = cells.select("run_id", "parameters", "looped", "recurrence", "held_out")
    return [_Cell(**row) for row in known.iter_rows(named=True)]


def _logged(
    planned: list[_Cell], curves: pl.DataFrame, law: LawSpec, warnings: list[str]
) -> tuple[list[_Curve], int]:
    """Finite points of each cell by tokens, and how many were not; adds to the warnings."""
    by_run = curves.select("run_id", "step", "value").partition_by("run_id", as_dict=True)
    nothing = pl.DataFrame(schema={"run_id": pl.String, "step": pl.Int64, "value": pl.Float64})
    found: list[_Curve] = []
    num_dropped = 0
    for cell in planned:
        points = by_run.get((cell.run_id,), nothing).sort("step")
        finite = points.filter(pl.col("value").is_finite())
        dropped = len(points) - len(finite)
        num_dropped += dropped
        if dropped:
            warnings.append(
                f"run {cell.run_id}: {dropped} of {len(points)} points of {law.metric} are not "
                f"finite and were dropped"
            )
        curve = _Curve(
            cell=cell,
            last=int(points["step"][-1]) if len(points) else 0,
            tokens=finite["step"].to_numpy().astype(np.float64),
            loss=finite["value"].to_numpy().astype(np.float64),
        )
        _check_positive(curve, law)
        found.append(curve)
    return found, num_dropped


def _check_positive(curve: _Curve, law: LawSpec) -> None:
    if (curve.loss <= 0).any():
        row = int(np.argmax(curve.loss <= 0))
        raise InputError(
            f"{law.metric} is {curve.loss[row]:g} at {curve.tokens[row]:.0f} tokens of run "
            f"{curve.cell.run_id}; a law needs positive losses (objective.form 'kl' logs a loss "
            f"that is never negative)",
            key="law.metric",
        )


def _prepare(curve: _Curve, law: LawSpec) -> _Curve:
    """Smooth, cut and thin the finite points of one run, or of one side of it."""
    loss = moving_average(curve.loss, law.smoothing)
    window = (curve.tokens > 0) & (curve.tokens >= law.fit_from * curve.last)
    tokens, loss = curve.tokens[window], loss[window]
    kept = evenly_spaced(tokens, law.points_per_curve)
    return replace(curve, tokens=tokens[kept], loss=loss[kept])


def _collected(usable: list[_Curve]) -> FitPoints:
    """Prepared curves, of which those of one run follow each other, as points."""
    sizes = [len(curve.loss) for curve in usable]
    run_ids = tuple(dict.fromkeys(curve.cell.run_id for curve in usable))
    number = {run_id: index for index, run_id in enumerate(run_ids)}

    def by_point(name: str) -> Array:
        return np.repeat([float(getattr(curve.cell, name)) for curve in usable], sizes)

    return FitPoints(
        run_ids=run_ids,
        run=np.repeat([number[curve.cell.run_id] for curve in usable], sizes),
        parameters=by_point("parameters"),
        tokens=np.concatenate([curve.tokens for curve in usable]),
        recurrence=by_point("recurrence"),
        parameters_once=by_point("parameters_once"),
        parameters_recurrent=by_point("parameters_recurrent"),
        loss=np.concatenate([curve.loss for curve in usable]),
        held_out=np.repeat([curve.cell.held_out for curve in usable], sizes),
        num_dropped=0,
        excluded=(),
        warnings=(),
    )


def _check_hold_out(form: Form, usable: list[_Curve]) -> None:
    """Refuse a hold-out that leaves a term of the law with one setting, or too few points."""
    fitted = [curve.cell for curve in usable if not curve.cell.held_out]
    if len(fitted) == len(usable):
        return
    for term in form.terms:
        if not {"tokens", "step"}.isdisjoint(term.variables):  # which vary within a run
            continue
        left = {_setting(cell, term) for cell in fitted}
        everything = {_setting(curve.cell, term) for curve in usable}
        if len(left) == 1 and len(everything) > 1:
            values = zip(term.variables, left.pop(), strict=True)
            seen = " and ".join(f"{name} {value:g}" for name, value in values)
            raise InputError(
                f"only cells with {seen} are left to fit, and the law {form.name!r} needs at "
                f"least two {'levels of it' if len(term.variables) == 1 else 'such settings'}; "
                f"hold out fewer cells",
                key="law.hold_out",
            )
    points = sum(len(curve.loss) for curve in usable if not curve.cell.held_out)
    if points < len(form.symbols):
        raise InputError(
            f"{points} points are left to fit, and the law {form.name!r} has "
            f"{len(form.symbols)} parameters; hold out fewer cells",
            key="law.hold_out",
        )


def _setting(cell: _Cell, term: Term) -> tuple[float, ...]:
    """What a term that reads nothing that varies within a run sees of a cell."""
    return tuple(float(getattr(cell, name)) for name in term.variables)


def moving_average(values: Array, width: int) -> Array:
    """Centred moving average over ``width`` points.

    Centred, so that a falling curve is not shifted to later tokens, as a trailing average
    shifts it. Near either end the window shrinks on both sides alike and stays centred: the
    first and the last point are their own averages, and a straight line stays as it is. An even
    width counts the two outermost points half.

    Args:
        values: [points], finite.
        width: points in the window; 1 changes nothing.
    """
    if width == 1 or len(values) < 3:
        return values
    # Point i fills the stretch from i to i + 1 of a step function, whose integral is piecewise
    # linear: any window, of any real width, is a difference of two values of it.
    mean = values.mean()
    borders = np.arange(len(values) + 1)
    integral = np.concatenate([[0.0], np.cumsum(values - mean)])
    centre = borders[:-1] + 0.5
    half = np.minimum(width / 2, np.minimum(centre, len(values) - centre))
    rise = np.interp(centre + half, borders, integral) - np.interp(centre - half, borders, integral)
    smooth: Array = mean + rise / (2 * half)
    return smooth


def evenly_spaced(tokens: Array, count: int) -> NDArray[np.intp]:
    """Indices of at most ``count`` points, evenly spaced in tokens, first and last among them.

    For each of ``count`` equally spaced marks the nearest point is kept, the earlier of two
    that are equally near; where points are sparse, fewer remain.

    Args:
        tokens: increasing [points].
        count: at least 2.
    """
    if len(tokens) <= count:
        return np.arange(len(tokens))
    marks = np.linspace(tokens[0], tokens[-1], count)
    after = np.clip(np.searchsorted(tokens, marks), 1, len(tokens) - 1)
    nearer_before = marks - tokens[after - 1] <= tokens[after] - marks
    return np.unique(np.where(nearer_before, after - 1, after))
