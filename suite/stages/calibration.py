"""The calibration stage: models x calibration corpora x niter, each over all budgets."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from suite.cells import Cell, calibration_cell, pretraining_cells
from suite.models import MODEL_DIGEST_TAG, ModelSource, find_checkpoint
from suite.stages.context import StageContext, TrackedCell
from suite.stages.moments import MomentsCache
from suite.stages.pretraining import model_folder
from suite.study import CalibrationSpec, Niter
from suite.study_rules import model_label
from suite.tracking.curves import live
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import DatasetRecord

if TYPE_CHECKING:
    from lightning_modules.kv.figures import ErrorFigures
    from lightning_modules.kv.solve import Calibration


WEIGHTS_TAG = "suite.weights"


def run_calibration(context: StageContext) -> None:
    """Calibrate what is missing."""
    spec = context.study.calibration
    if spec is None:
        return
    tracked = context.tracked("calibration")
    small = [budget for budget in spec.budgets if budget <= spec.rank]
    if small:
        context.display.note(
            f"warning: calibration.rank is {spec.rank:,}, more than {small[-1]:,} tokens allow; "
            "bases of so few have one component less than they have tokens"
        )
    cache = MomentsCache(context, spec)
    for source in model_sources(context, spec):
        for corpus in spec.calibrate_on:
            for niter in spec.niter:
                cell = calibration_cell(
                    context.materials,
                    spec,
                    source.spec,
                    identity=source.identity,
                    corpus=corpus,
                    niter=niter,
                )
                found = tracked.get(cell.fingerprint)
                of_these_weights = _is_of(context, found, source)
                if of_these_weights and not context.needs_work(cell, found):
                    continue
                context.stop.check()
                met = _met_budgets(context, found, spec) if of_these_weights else ()
                recorder = context.begin(
                    cell,
                    found,
                    resumed_from=met[-1] if met else -1,
                    trainer=spec.trainer,
                    datasets=calibration_datasets(context, corpus, spec.evaluate_on),
                )
                recorder.set_tags({WEIGHTS_TAG: _weights(source)})
                left = spec.budgets[len(met) :]
                _calibrate(context, cache, source, corpus, niter, cell, recorder, left)


def _weights(source: ModelSource) -> str:
    """What tells weights: of a cell of the study, whose settings others may share, its digest."""
    return source.digest or source.identity


def _is_of(context: StageContext, found: TrackedCell | None, source: ModelSource) -> bool:
    """Whether what is tracked is of the weights that there are now.

    A fingerprint tells how a model was trained. One that was deleted and trained again may have
    other weights, and its old errors are not the new one's.
    """
    if found is None:
        return True
    tags = context.reader.tags([found.run_id]).filter(pl.col("key") == WEIGHTS_TAG)
    return tags.is_empty() or tags["value"].item() == _weights(source)


def _met_budgets(
    context: StageContext, found: TrackedCell | None, spec: CalibrationSpec
) -> tuple[int, ...]:
    """The first budgets whose figures an earlier attempt has put on record.

    Never the last: its bases are what the run keeps, and they are solved for with its figures.
    """
    if found is None:
        return ()
    figure = f"key/relative_error/{spec.evaluate_on[-1]}"
    points = live(context.reader.curves([found.run_id], [figure]))
    on_record = set(points["step"])
    met = itertools.takewhile(on_record.__contains__, spec.budgets[:-1])
    return tuple(met)


def calibration_datasets(
    context: StageContext, calibrate_on: str, evaluate_on: Sequence[str]
) -> list[DatasetRecord]:
    """The corpora of a calibration with what each is for."""
    uses = {calibrate_on: ["calibration"]}
    for name in evaluate_on:
        uses.setdefault(name, []).append("evaluation")
    return [context.materials.dataset(name, " and ".join(what)) for name, what in uses.items()]


def model_sources(context: StageContext, spec: CalibrationSpec) -> list[ModelSource]:
    """The models of the stage that can be calibrated; a cell that failed is left out, and said.

    Raises:
        InputError: if a checkpoint does not exist.
    """
    pretrained = pretraining_cells(context.materials)
    tracked = context.tracked("pretraining")
    sources = []
    for position, model in enumerate(spec.models):
        key = f"calibration.models[{position}]"
        if model.size is None:
            sources.append(find_checkpoint(model, base=context.materials.base, key=key))
            continue
        assert model.recurrence is not None
        cell = pretrained[model.size, model.recurrence]
        found = tracked.get(cell.fingerprint)
        if found is None or found.status != "FINISHED":
            context.failures[f"calibrate {model.size} Tm={model.recurrence}"] = (
                f"its cell {cell.name!r} did not finish"
            )
            continue
        tags = context.reader.tags([found.run_id]).filter(pl.col("key") == MODEL_DIGEST_TAG)
        sources.append(
            ModelSource(
                spec=model,
                folder=model_folder(context, found.run_id),
                identity=cell.fingerprint,
                key=key,
                digest=tags["value"].item() if tags.height else None,
            )
        )
    return sources


def _calibrate(
    context: StageContext,
    cache: MomentsCache,
    source: ModelSource,
    corpus: str,
    niter: Niter,
    cell: Cell,
    recorder: RunRecorder,
    budgets: Sequence[int],
) -> None:
    from lightning_modules.kv.solve import calibrate

    spec = context.study.calibration
    assert spec is not None

    def work() -> None:
        cache.ensure(
            source,
            corpus,
            budgets=budgets,
            evaluate_on=spec.evaluate_on,
            keep_rows=spec.intervals > 0,
        )
        met = len(spec.budgets) - len(budgets)
        with context.display.task(cell.name, len(spec.budgets)) as advance:
            for done, budget in enumerate(budgets, start=met + 1):
                moments = cache.at(source, corpus, budget)
                solved = calibrate(
                    moments,
                    rank=spec.rank,
                    niter=niter,
                    seed=context.study.seed,
                    oversampling=spec.oversampling,
                    device=cache.device,
                )
                figures = _evaluate(cache, source, spec, solved, budget)
                for name, table in (("curve", figures.curve), ("by_layer", figures.by_layer)):
                    text = json.dumps(table, allow_nan=False).encode()
                    recorder.keep_text("errors", f"{name}-{budget}.json", text)
                # last, so that a budget with figures on record has its tables, too
                recorder.log(
                    {
                        **figures.metrics,
                        "calibration/seconds": solved.seconds,
                        "calibration/rank": solved.key.rank,
                        "speed/tokens_per_second": budget / moments.seconds,
                    },
                    budget,
                )
                advance(done, f"{budget:,} tokens")
                context.stop.check()
        about = {
            "model": model_label(source.spec),
            "model_identity": source.identity,
            "calibrated_on": corpus,
            "tokens": str(spec.budgets[-1]),
        }
        if solved.layout is not None:
            recorder.log_params({"capture.route": solved.layout.route})
        with tempfile.TemporaryDirectory() as folder:
            for kind, basis in solved.bases.items():
                file = Path(folder) / f"{kind}.safetensors"
                replace(basis, about=about).save(file)
                recorder.log_artifact(file, "basis")

    if context.attempt(cell, recorder, work):
        context.display.note(f"done    {cell.name}")


def _evaluate(
    cache: MomentsCache,
    source: ModelSource,
    spec: CalibrationSpec,
    solved: Calibration,
    budget: int,
) -> ErrorFigures:
    """Errors on every evaluation corpus, with intervals where the study asks for them."""
    from lightning_modules.kv.figures import ErrorFigures
    from lightning_modules.kv.intervals import group_sums, jackknife

    figures = ErrorFigures(tokens=budget)
    for name in spec.evaluate_on:
        intervals = None
        if spec.intervals:
            sums = {
                kind: group_sums(
                    basis, cache.rows(source, name, kind), spec.intervals, device=cache.device
                )
                for kind, basis in solved.bases.items()
            }
            intervals = {kind: jackknife(found) for kind, found in sums.items()}
            groups = min(len(found.count) for found in sums.values())
            figures.metrics[f"calibration/interval_groups/{name}"] = groups
        figures.add(name, solved.evaluate(cache.evaluation(source, name)), intervals)
    return figures
