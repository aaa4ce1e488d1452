"""Whether a held-out curve was predicted blind, judged by what the store holds and nothing else.

A curve was predicted blind if a finished prediction run names its cell, was over before
anything of the cell was measured, had read only what was measured before it, and recorded the
very law and curve that the report draws. Whatever cannot be told from the store speaks against
it: a mark that is missing misleads nobody.

Deleted runs count as those that were not: MLflow keeps them. What was removed for good, as
``mlflow gc`` does, or never came along with an export, cannot be seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from suite.reports.points import Curve
from suite.reports.records import Blindness, PredictionRun

_SAME_PARAMETER = 1e-7  # relative; two fits of the same points agree to more digits
_SAME_CURVE = 1e-6  # relative; a curve sums terms whose parameters agree to the line above


@dataclass(frozen=True, kw_only=True)
class Clock:
    """When a run worked, in ms since 1970; None for what the store does not say.

    Attributes:
        start: start of the run.
        first_attempt: start of its first attempt.
        first_point: time of its first point, whether or not a later attempt overtook it.
        last_point: time of its last one.
        deleted: whether the run was deleted; of such a one, only the start is known.
    """

    start: int | None
    first_attempt: int | None = None
    first_point: int | None = None
    last_point: int | None = None
    deleted: bool = False

    @property
    def began(self) -> int | None:
        """The earliest of its times."""
        moments = (self.start, self.first_attempt, self.first_point)
        return min((moment for moment in moments if moment is not None), default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictedCurve:
    """What a run predicts of a cell; None for what it does not.

    Attributes:
        estimate: the losses.
        lower: lower ends of the intervals.
        upper: upper ends.
    """

    estimate: Curve | None = None
    lower: Curve | None = None
    upper: Curve | None = None

    @classmethod
    def of(cls, curves: Mapping[tuple[str, str], Curve], run_id: str, cell: str) -> PredictedCurve:
        """What a law or a prediction has recorded of a cell."""
        key = f"predicted/{cell}"
        return cls(
            estimate=curves.get((run_id, key)),
            lower=curves.get((run_id, f"{key}/lower")),
            upper=curves.get((run_id, f"{key}/upper")),
        )


@dataclass(frozen=True, kw_only=True)
class OtherRun:
    """Another run that may have told the outcome.

    Attributes:
        run_id: the run.
        start: when it started, in ms since 1970; None where the store does not say.
        measured: what it measured, such as "the same cell".
        deleted: whether it was deleted.
    """

    run_id: str
    start: int | None
    measured: str
    deleted: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """One prediction run with what it recorded.

    Attributes:
        run: the run.
        last_point: time of its last point, in ms since 1970; None where it has none.
        law: value of each parameter of its law, by symbol.
        curves: predicted curve of each cell, by fingerprint.
        deleted: whether the run was deleted; its law and curves are then not read.
    """

    run: PredictionRun
    last_point: int | None
    law: Mapping[str, float]
    curves: Mapping[str, PredictedCurve]
    deleted: bool = False

    @property
    def recorded(self) -> int | None:
        """When it was complete, in ms since 1970: its end, or a point that came after."""
        end = self.run.end_time
        return None if end is None else max(end, self.last_point or 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutCurve:
    """A curve that the report draws beside its prediction.

    Attributes:
        cell: fingerprint of the cell.
        run_id: the run that is drawn.
        other_runs: every other run of the same cell in the store, and those of the study at the
            same size and T_m; deleted ones too.
        predicted: what is drawn as its prediction.
        law: value of each parameter of the law that is drawn, by symbol.
        unidentified: symbols of which the points tell only combinations; that these are the same
            shows in the curve.
    """

    cell: str
    run_id: str
    other_runs: tuple[OtherRun, ...]
    predicted: PredictedCurve
    law: Mapping[str, float]
    unidentified: frozenset[str] = frozenset()


def judge(
    curve: HeldOutCurve, predictions: Sequence[Prediction], clocks: Mapping[str, Clock]
) -> Blindness:
    """Judge one held-out curve.

    Args:
        curve: the curve.
        predictions: every prediction run of the study, oldest first, the deleted ones before the
            others.
        clocks: the clock of every run that is still in the store, by run id.

    Returns:
        The newest prediction without an objection to it; else the first objection to the newest.
        One that was deleted earns no mark, and is counted where it was in time.
    """
    clock = clocks.get(curve.run_id, Clock(start=None))
    all_of_it = [prediction for prediction in predictions if curve.cell in prediction.run.predicts]
    own = [prediction for prediction in all_of_it if not prediction.deleted]
    if not own:
        words = (
            f"the prediction of this cell, run {all_of_it[-1].run.run_id}, was deleted"
            if all_of_it
            else "no prediction of this cell is on record"
        )
        return Blindness(blind=False, words=words, began=clock.began)
    objections = {
        prediction.run.run_id: next(_objections(curve, prediction, clock, clocks), None)
        for prediction in own
    }
    sound = [prediction for prediction in own if objections[prediction.run.run_id] is None]
    judged = sound[-1] if sound else own[-1]
    # Whoever records several predictions may draw the one that came true.
    in_time = [
        prediction for prediction in all_of_it if next(_too_late(prediction, clock), None) is None
    ]
    return Blindness(
        blind=bool(sound),
        words=objections[judged.run.run_id] or f"blind{_one_of(in_time)}",
        prediction=judged.run.run_id,
        recorded=judged.recorded,
        began=clock.began,
    )


def _one_of(in_time: Sequence[Prediction]) -> str:
    """What the mark says of the predictions that were in time, if there were several."""
    if len(in_time) < 2:
        return ""
    deleted = sum(prediction.deleted for prediction in in_time)
    gone = f", of which {deleted} {'was' if deleted == 1 else 'were'} deleted" if deleted else ""
    return f", one of {len(in_time)} predictions on record{gone}"


def time_of(milliseconds: int) -> str:
    """A time as the report writes it."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):  # of no year that a calendar has
        return f"{milliseconds} ms after 1970"
    return f"{moment.strftime('%Y-%m-%d %H:%M:%S')}.{milliseconds % 1000:03d} UTC"


def _objections(
    curve: HeldOutCurve, prediction: Prediction, clock: Clock, clocks: Mapping[str, Clock]
) -> Iterator[str]:
    """What speaks against the mark, the clock of the cell first."""
    yield from _too_late(prediction, clock)
    recorded = prediction.recorded
    for other in curve.other_runs:
        if recorded is not None and (other.start is None or other.start <= recorded):
            gone = ", which was deleted," if other.deleted else ""
            yield (
                f"run {other.run_id}{gone} had measured {other.measured} before the prediction "
                "was complete"
            )
    yield from _seen(curve, prediction, clocks)
    yield from _another_law(curve, prediction)
    yield from _another_curve(curve, prediction)


def _too_late(prediction: Prediction, clock: Clock) -> Iterator[str]:
    if prediction.run.status != "FINISHED":
        yield f"the prediction is {prediction.run.status}, not FINISHED"
    recorded = prediction.recorded
    if recorded is None:
        yield "the prediction does not say when it ended"
        return
    what = "ended" if recorded == prediction.run.end_time else "got its last point"
    for moment, event in (
        (clock.first_attempt, "the first attempt at the cell began"),
        (clock.start, "the run of the cell began"),
        (clock.first_point, "the first point of the cell was logged"),
    ):
        if moment is None:
            yield f"the store does not say when {event}"
        elif moment <= recorded:
            yield f"the prediction {what} at {time_of(recorded)}, but {event} at {time_of(moment)}"


def _seen(
    curve: HeldOutCurve, prediction: Prediction, clocks: Mapping[str, Clock]
) -> Iterator[str]:
    if not prediction.run.inputs:
        yield "the prediction does not say which runs it was fitted to"
    own = {curve.run_id, *(other.run_id for other in curve.other_runs)}
    if curve.cell in prediction.run.inputs or own & set(prediction.run.inputs.values()):
        yield "the prediction was fitted to this very cell"
    for _, run_id in sorted(prediction.run.inputs.items()):
        clock = clocks.get(run_id, Clock(start=None))
        last = clock.last_point
        if clock.deleted:
            yield f"run {run_id}, which the prediction was fitted to, was deleted"
        elif last is None:
            yield f"the points of run {run_id}, which the prediction was fitted to, are gone"
        elif last > prediction.run.start_time:
            yield (
                f"run {run_id}, which the prediction was fitted to, has a point of "
                f"{time_of(last)}, but the prediction began at {time_of(prediction.run.start_time)}"
            )


def _another_law(curve: HeldOutCurve, prediction: Prediction) -> Iterator[str]:
    for symbol in sorted(curve.law.keys() | prediction.law.keys()):
        here, there = curve.law.get(symbol), prediction.law.get(symbol)
        if here is None or there is None:
            which = "drawn law" if here is None else "law of the prediction"
            yield f"the {which} has no {symbol}"
        elif symbol in curve.unidentified:
            continue
        elif not math.isclose(here, there, rel_tol=_SAME_PARAMETER):
            yield f"{symbol} is {here!r} in the law drawn here and was {there!r} in the prediction"
    if not curve.law:
        yield "the law drawn here has no parameters on record"


def _another_curve(curve: HeldOutCurve, prediction: Prediction) -> Iterator[str]:
    there = prediction.curves.get(curve.cell, PredictedCurve())
    drawn, recorded = curve.predicted.estimate, there.estimate
    if drawn is None or recorded is None or not len(recorded):
        which = "drawn" if drawn is None else "on record"
        yield f"no predicted curve of this cell is {which}"
        return
    steps = np.intersect1d(drawn.step, recorded.step, assume_unique=True)
    if drawn.last_step not in steps:
        yield f"no prediction for {drawn.last_step} tokens, where the curve ends, is on record"
    for here, then, what in (
        (drawn, recorded, ""),
        (curve.predicted.lower, there.lower, " as the lower end of the interval"),
        (curve.predicted.upper, there.upper, " as the upper end of the interval"),
    ):
        yield from _other_value(steps, here, then, what)


def _other_value(
    steps: NDArray[np.int64], drawn: Curve | None, recorded: Curve | None, what: str
) -> Iterator[str]:
    """The first of the steps at which one curve has another value than the other, or none."""
    for step in steps.tolist():
        here, there = (curve.at(step) if curve else None for curve in (drawn, recorded))
        if here is None and there is None:
            continue
        if here is None or there is None or not math.isclose(here, there, rel_tol=_SAME_CURVE):
            is_drawn, was_predicted = (
                "nothing" if value is None else repr(value) for value in (here, there)
            )
            yield (
                f"at {step} tokens {is_drawn} is drawn here, and {was_predicted} was "
                f"predicted{what}"
            )
            return
