"""The stages of a study in order: run what is missing, resume what was cut off."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.materials import Materials
from suite.preflight import check_budgets, check_corpora, check_devices
from suite.progress import Display
from suite.reports.build import PAGE_NAME
from suite.stages.blind import predict_held_out
from suite.stages.calibration import run_calibration
from suite.stages.context import StageContext
from suite.stages.law import run_law
from suite.stages.pretraining import run_held_out_pretraining, run_pretraining
from suite.stages.report import run_report
from suite.stages.search import run_searches
from suite.stages.selection import select_runs
from suite.stopping import StopFlag
from suite.study_file import load_study
from suite.tracking.drain import replay
from suite.tracking.home import Home
from suite.tracking.recovery import cut_off_runs, end_cut_off
from suite.tracking.store import Store

_STAGES = (
    run_pretraining,
    predict_held_out,  # blind, because what it predicts has not begun
    run_held_out_pretraining,
    run_law,
    run_calibration,
    run_searches,
)


@dataclass(frozen=True, kw_only=True)
class StudyOutcome:
    """What a run of a study left behind.

    Attributes:
        page: the report's page.
        failures: names of cells that failed, with the reason.
    """

    page: Path
    failures: dict[str, str]


def run_study(
    study: str, home: Home, *, overrides: Sequence[str] = (), display: Display | None = None
) -> StudyOutcome:
    """Run every stage of a study that is not finished, then build its report.

    Args:
        study: shipped name or path.
        home: where state lives.
        overrides: ``key=value`` settings laid over the file.
        display: where progress is shown.

    Raises:
        InputError: if the study, its corpora or the home are not usable; nothing has started.
        SuiteError: if another process holds the study.
        TrackerAwayError: if the tracker does not answer; what was logged waits in the spool.
        StopRequested: after SIGINT or SIGTERM, with everything saved.
    """
    spec, base = load_study(study, overrides)
    check_devices(spec)
    materials = Materials(spec, base, home)
    check_corpora(materials)
    home.create()
    with home.hold(spec.name), StopFlag() as stop, display or Display() as shown:
        context = StageContext(
            study=spec,
            home=home,
            materials=materials,
            display=shown,
            stop=stop,
        )
        check_budgets(materials)
        with contextlib.closing(context):
            _recover(context)
            for stage in _STAGES:
                stage(context)
                stop.check()
            select_runs(context)
            run_report(context)
        return StudyOutcome(
            page=home.reports / spec.name / PAGE_NAME, failures=dict(context.failures)
        )


def _recover(context: StageContext) -> None:
    """Bring the store up to date with what earlier processes did before they were gone."""

    def store() -> Store:
        return context.store

    replay(context.home.spool, store, context.display.note)
    lost = cut_off_runs(context.reader, context.study.name)
    end_cut_off(lost, store, context.display.note)
