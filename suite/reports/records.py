"""What a study has tracked, as records: cells, law, searches, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from suite.reports.points import Curve

PREDICTS_TAG = "suite.predicts."
"""Followed by the fingerprint of a cell that a prediction run predicts."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """One MLflow run.

    Attributes:
        run_id: its id.
        name: readable name, such as "pretrain 53M Tm=2".
        status: MLflow's status: FINISHED, FAILED, KILLED, RUNNING or SCHEDULED.
        failure: why a FAILED run failed, where that is known.
        attempts: processes that have worked on it.
        start_time: start of its first attempt, in ms since 1970.
    """

    run_id: str
    name: str
    status: str
    failure: str | None
    attempts: int
    start_time: int

    @property
    def finished(self) -> bool:
        """Whether the run came to its planned end."""
        return self.status == "FINISHED"


@dataclass(frozen=True, kw_only=True)
class PretrainingCell(TrackedRun):
    """One size at one recurrence.

    Attributes:
        cell: fingerprint.
        size: name of the size.
        recurrence: T_m.
        parameters: all parameters, N.
        non_embedding: parameters but embedding and head; 0 where it was not tracked.
        tokens: planned training tokens.
        objective: form of the tracked loss and its weight, such as "entropy, beta 0.05".
    """

    cell: str
    size: str
    recurrence: int
    parameters: int
    non_embedding: int
    tokens: int
    objective: str


@dataclass(frozen=True, kw_only=True)
class CalibrationCell(TrackedRun):
    """One model calibrated on one corpus with one niter, over all budgets.

    Attributes:
        cell: fingerprint.
        model: label of the model.
        calibrate_on: corpus of the basis.
        evaluate_on: corpora of the errors, in the study's order.
        niter: power iterations as text, or "exact".
        rank: components kept.
        budgets: calibration tokens, increasing.
    """

    cell: str
    model: str
    calibrate_on: str
    evaluate_on: tuple[str, ...]
    niter: str
    rank: int
    budgets: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LawRun(TrackedRun):
    """One fit of a scaling law.

    Attributes:
        form: name of the law.
        metric: the curve that was fitted.
        parameters: which count is N: "total" or "non_embedding".
        fit_from: share of each curve's tokens, from its start, that the fit left out.
        settings: every other setting of the fit, by name, sorted.
        inputs: run id of each cell that was fitted, by fingerprint.
        held_out: run id of each cell that was kept for the test, by fingerprint.
        warnings: what the fit warned of, in sentences.
        unidentified: symbols of the parameters that the points do not tell.
        caveats: why the prediction of a held-out cell is not to be trusted, in sentences, by
            fingerprint.
    """

    form: str
    metric: str
    parameters: str
    fit_from: float
    settings: tuple[tuple[str, str], ...]
    inputs: Mapping[str, str]
    held_out: Mapping[str, str]
    warnings: tuple[str, ...]
    unidentified: tuple[str, ...]
    caveats: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class PredictionRun(TrackedRun):
    """One prediction, recorded before the cells that it is about.

    Attributes:
        end_time: when it ended, in ms since 1970; None where it has not.
        inputs: run id of each cell that its law was fitted to, by fingerprint.
        predicts: fingerprints of the cells that it predicts.
    """

    end_time: int | None
    inputs: Mapping[str, str]
    predicts: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Blindness:
    """Whether a held-out curve was predicted blind.

    Attributes:
        blind: the judgement.
        words: "blind", or why not.
        prediction: the prediction run that was judged; None where there is none.
        recorded: when that was complete, in ms since 1970; None where it is not.
        began: when the cell began, in ms since 1970; None where the store does not say.
    """

    blind: bool
    words: str
    prediction: str | None = None
    recorded: int | None = None
    began: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trial(TrackedRun):
    """One trial of a search.

    Attributes:
        number: Optuna's number.
        niter: power iterations as text, or "exact".
        tokens: calibration tokens.
        rank: components kept.
    """

    number: int
    niter: str
    tokens: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Search(TrackedRun):
    """One search and its trials.

    Attributes:
        search: name of the search.
        objectives: names of what is minimised.
        model: label of the model.
        calibrate_on: corpus of the basis.
        evaluate_on: corpus of the error.
        trials: all trials by number, whatever their status.
    """

    search: str
    objectives: tuple[str, ...]
    model: str
    calibrate_on: str
    evaluate_on: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that the report does not draw, and why."""

    run_id: str
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Tracked:
    """Everything that a report may show of one study.

    Attributes:
        study: name of the study.
        pretraining: one run for each size and recurrence.
        calibration: one run for each model, calibration corpus and niter.
        law: the newest finished fit.
        blindness: judgement on each cell that the law held out, by run id.
        foretold: status of the newest run of each cell that a finished prediction names, by
            fingerprint; "not begun" where it has none.
        searches: one run for each name.
        left_out: runs that are not shown.
        notes: what a reader of the figures must know, in sentences.
        curves: live curves by run id and metric.
    """

    study: str
    pretraining: tuple[PretrainingCell, ...] = ()
    calibration: tuple[CalibrationCell, ...] = ()
    law: LawRun | None = None
    blindness: Mapping[str, Blindness] = field(default_factory=dict)
    foretold: Mapping[str, str] = field(default_factory=dict)
    searches: tuple[Search, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    curves: Mapping[tuple[str, str], Curve] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to report on."""
        return not (self.pretraining or self.calibration or self.law or self.searches)

    @property
    def loss_metric(self) -> str:
        """The curve that losses are drawn from: the law's, else ``train/total_loss``."""
        return self.law.metric if self.law else "train/total_loss"

    def curve(self, run_id: str, key: str) -> Curve:
        """One metric of one run; empty where nothing was logged."""
        found = self.curves.get((run_id, key))
        if found is None:
            return Curve(run_id=run_id, key=key, step=np.empty(0, np.int64), value=np.empty(0))
        return found

    def predicted(self, cell: PretrainingCell) -> Curve | None:
        """The law's curve for a cell, or None where there is no law or it says nothing."""
        if self.law is None:
            return None
        curve = self.curve(self.law.run_id, f"predicted/{cell.cell}")
        return curve if len(curve) else None

    def predicted_interval(self, cell: PretrainingCell) -> tuple[Curve, Curve] | None:
        """Lower and upper end of the law's 95 % interval at the same steps, where it has one."""
        if self.law is None:
            return None
        keys = (f"predicted/{cell.cell}/{end}" for end in ("lower", "upper"))
        lower, upper = (self.curve(self.law.run_id, key) for key in keys)
        _, in_lower, in_upper = np.intersect1d(
            lower.step, upper.step, assume_unique=True, return_indices=True
        )
        return (lower.select(in_lower), upper.select(in_upper)) if len(in_lower) else None

    def held_out(self, cell: PretrainingCell) -> bool:
        """Whether the law was fitted without a cell."""
        return self.law is not None and cell.cell in self.law.held_out

    def blind(self, cell: PretrainingCell) -> bool:
        """Whether the curve of a cell was predicted blind."""
        judgement = self.blindness.get(cell.run_id)
        return judgement is not None and judgement.blind
