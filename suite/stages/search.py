"""The search stage: Optuna trials over calibration settings, each a child run of its search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import polars as pl

from suite.cells import Cell, moments_settings
from suite.errors import SuiteError
from suite.models import ModelSource
from suite.stages.calibration import calibration_datasets, model_sources
from suite.stages.context import StageContext, TrackedCell
from suite.stages.moments import MomentsCache
from suite.study import CalibrationSpec, SearchSpec
from suite.study_rules import model_label
from suite.tracking.curves import live


def run_searches(context: StageContext) -> None:
    """Run every search that has trials left."""
    spec = context.study.calibration
    if spec is None or not context.study.searches:
        return
    sources = {source.key: source for source in model_sources(context, spec)}
    tracked = context.tracked("search")
    cache = MomentsCache(context, spec)
    for search in context.study.searches:
        source = sources.get(f"calibration.models[{search.model}]")
        if source is None:
            context.failures[f"search {search.name}"] = "its model did not finish"
            continue
        cell = search_cell(context, spec, search, source)
        found = tracked.get(cell.fingerprint)
        if (
            context.needs_work(cell, found)
            or found is None
            or _finished_trials(context, found) < search.trials
        ):
            context.stop.check()
            context.failures.pop(cell.name, None)  # of an earlier attempt, which is made again
            _search(context, spec, search, source, cell, found, cache)


def _finished_trials(context: StageContext, search: TrackedCell) -> int:
    """Finished trials of a search; a study that now asks for more goes on with it."""
    runs = context.reader.runs(context.study.name)
    mine = runs.filter(pl.col("parent_run_id") == search.run_id, pl.col("status") == "FINISHED")
    return mine.height


def search_cell(
    context: StageContext, spec: CalibrationSpec, search: SearchSpec, source: ModelSource
) -> Cell:
    """The cell of a search."""
    calibrate_on, evaluate_on = _corpora(spec, search)
    return Cell(
        kind="search",
        name=f"search {search.name}",
        settings={
            **moments_settings(context.materials, spec, identity=source.identity),
            "calibration_digest": context.materials.corpus(calibrate_on).digest,
            "evaluation_digest": context.materials.corpus(evaluate_on).digest,
            "evaluation_tokens": spec.evaluation_tokens,
            "oversampling": spec.oversampling,
            "over": {
                "niter": [str(niter) for niter in search.over.niter],
                "tokens": list(search.over.tokens),
                "rank": list(search.over.rank),
            },
            "objectives": list(search.objectives),
        },
        labels={
            "name": search.name,
            "model": {"label": model_label(source.spec)},
            "calibrate_on": calibrate_on,
            "evaluate_on": evaluate_on,
        },
    )


def _corpora(spec: CalibrationSpec, search: SearchSpec) -> tuple[str, str]:
    return search.calibrate_on or spec.calibrate_on[0], search.evaluate_on or spec.evaluate_on[0]


def _search(
    context: StageContext,
    spec: CalibrationSpec,
    search: SearchSpec,
    source: ModelSource,
    cell: Cell,
    found: TrackedCell | None,
    cache: MomentsCache,
) -> None:
    from lightning_modules.kv.solve import calibrate
    from tuning import Combination, combinations, run_trials

    calibrate_on, evaluate_on = _corpora(spec, search)
    parent = context.begin(
        cell, found, datasets=calibration_datasets(context, calibrate_on, [evaluate_on])
    )

    def work() -> None:
        cache.ensure(source, calibrate_on, budgets=search.over.tokens, evaluate_on=[evaluate_on])
        evaluation = {evaluate_on: cache.evaluation(source, evaluate_on)}
        with context.display.task(cell.name, search.trials) as advance:

            def evaluate(number: int, combination: Combination) -> list[float]:
                advance(number, f"trial {number}")
                trial = Cell(
                    kind="trial",
                    name=f"{search.name} trial {number}",
                    settings={"search": cell.fingerprint, **asdict(combination)},
                    labels={"trial": {"number": number}},
                )
                moments = cache.at(source, calibrate_on, combination.tokens)

                def objectives() -> dict[str, float]:
                    solved = calibrate(
                        moments,
                        rank=combination.rank,
                        niter=combination.iterations,
                        seed=context.study.seed,
                        oversampling=spec.oversampling,
                        device=cache.device,
                    )
                    errors = solved.errors(evaluation)
                    return {
                        name: solved.seconds
                        if name == "calibration_seconds"
                        else errors[f"{name}/{evaluate_on}"]
                        for name in search.objectives
                    }

                values = _tracked_trial(
                    context, trial, parent.run_id, combination.tokens, objectives
                )
                return [values[name] for name in search.objectives]

            run_trials(
                storage=context.home.optuna_journal,
                name=f"{context.study.name}/{search.name}/{cell.fingerprint}",
                space=combinations(search.over),
                trials=search.trials,
                seed=context.study.seed,
                objectives=len(search.objectives),
                evaluate=evaluate,
                between=context.stop.check,
            )

    if context.attempt(cell, parent, work):
        context.display.note(f"done    {cell.name}, {search.trials} trials")


def _tracked_trial(
    context: StageContext,
    trial: Cell,
    parent: str,
    tokens: int,
    objectives: Callable[[], dict[str, float]],
) -> dict[str, float]:
    """The objectives of a trial: from its run where that is finished, else computed into it."""
    prefix = "objective/"
    found = context.tracked("trial").get(trial.fingerprint)
    if found is not None and found.status == "FINISHED":
        points = live(context.reader.curves([found.run_id]))
        return {
            key.removeprefix(prefix): value
            for key, value in points.select("key", "value").iter_rows()
            if key.startswith(prefix)
        }
    recorder = context.begin(trial, found, parent=parent)
    values: dict[str, float] = {}

    def work() -> None:
        values.update(objectives())
        recorder.log({f"{prefix}{name}": value for name, value in values.items()}, tokens)

    if not context.attempt(trial, recorder, work):
        raise SuiteError(f"{trial.name}: {context.failures[trial.name]}")
    return values
