"""SIGKILL at any moment, and again: the restarted study ends as if nothing had happened."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.faults.homes import complaints, write_study
from tests.faults.jobs import Cold, Faults, Job, Preloaded, kill, said, until, wait

# A word on standard error that shows that a stage has begun, in order.
STAGES = {
    "start": "",
    "pretrain 1": "start   pretrain narrow Tm=1",
    "pretrain 2": "start   pretrain wide Tm=1",
    "pretrain 3": "start   pretrain narrow Tm=2",
    "pretrain 4": "start   pretrain wide Tm=2",
    "law": "start   law",
    "forward": "start   forward",
    "calibrate 1": "start   calibrate wide Tm=2 on maths niter=1",
    "calibrate exact": "start   calibrate wide Tm=2 on maths niter=exact",
    "search": "start   search",
    "report": "done    search",
}
NAMES = list(STAGES)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One planned death.

    Attributes:
        stage: where it is due, as a position in ``NAMES``.
        delay: seconds after the stage has begun.
        touch: instead, before the process touches files of its home for this time.
        at: instead, at a call of a function: its path, ``before`` or ``after``, and which call.
        group: whether the companion dies as well.
        companion: whether there is one from the start.
        cold: whether the process is a new interpreter.
    """

    stage: int = 0
    delay: float = 0.0
    touch: int = 0
    at: tuple[str, str, int] | None = None
    group: bool = False
    companion: bool = False
    cold: bool = False

    @property
    def faults(self) -> Faults:
        kill: dict[str, object] = {}
        if self.touch:
            kill = {"kill": {"touch": self.touch}}
        elif self.at:
            kill = {"kill": dict(zip(("at", "when", "call"), self.at, strict=True))}
        after = {"companion_after": 0.0} if self.companion else {}
        return {"group": self.group, **kill, **after}


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """The study as it runs when nobody kills it.

    Attributes:
        study: its file.
        home: its home.
        seconds: that each stage took, in the order of ``NAMES``.
    """

    study: str
    home: Path
    seconds: tuple[float, ...]


def stage_of(text: str) -> int:
    """The stage that a process has reached, by what it said."""
    return max(number for number, mark in enumerate(STAGES.values()) if mark in text)


@pytest.fixture(scope="module")
def undisturbed(
    preloaded: Preloaded, blank_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    study, home = write_study(folder), folder / "home"
    home.mkdir()
    shutil.copyfile(blank_database, home / "mlflow.db")
    begun: dict[int, float] = {}
    job = preloaded.start("run", study, "--home", str(home))
    while job.code() is None:
        begun.setdefault(stage_of(said(job)), time.monotonic())
        time.sleep(0.02)
    assert job.code() == 0, said(job)
    assert len(begun) == len(NAMES), f"a stage was not seen: {begun}"
    times = [begun[number] for number in range(len(NAMES))] + [time.monotonic()]
    seconds = tuple(after - before for before, after in itertools.pairwise(times))
    return Undisturbed(study=study, home=home, seconds=seconds)


class Matrix:
    """Carries out planned kills in as few homes as they need, and keeps count.

    Attributes:
        hits: deaths by the stage in which they came.
        problems: what was wrong with the homes afterwards.
    """

    def __init__(
        self, preloaded: Preloaded, undisturbed: Undisturbed, new_home: Callable[[str], Path]
    ) -> None:
        self._preloaded = preloaded
        self._undisturbed = undisturbed
        self._new_home = new_home
        self._homes = 0
        self.hits: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, plan: list[Kill]) -> None:
        """Kill in one home as planned; what comes too late for it is done in another."""
        for _ in range(10):
            plan = self._in_one_home(plan)
            if not plan:
                return
        raise AssertionError(f"these never hit: {plan}")

    def _in_one_home(self, plan: list[Kill]) -> list[Kill]:
        self._homes += 1
        home = self._new_home(f"home {self._homes}")
        late = []
        for planned in plan:
            job = self._start(home, planned)
            if self._killed(job, planned):
                self.hits[NAMES[stage_of(said(job))]] += 1
            else:
                assert job.code() == 0, said(job)
                assert planned.at is None, f"{planned} was not hit: {said(job)}"
                late.append(replace(planned, delay=planned.delay / 2, touch=planned.touch // 2))
        job = self._preloaded.run("run", self._undisturbed.study, "--home", str(home))
        assert job.code() == 0, said(job)
        verified = self._preloaded.run("verify", self._undisturbed.study, "--home", str(home))
        found = complaints(home, self._undisturbed.home)
        if verified.code() != 0:
            found.append(said(verified))
        self.problems += [f"{home.name} after {plan}: {text}" for text in found]
        if not found:
            shutil.rmtree(home)
        return late

    def _start(self, home: Path, planned: Kill) -> Job:
        arguments = ("run", self._undisturbed.study, "--home", str(home))
        if planned.cold:
            return Cold(home.parent / f"{home.name}.log", *arguments)
        return self._preloaded.start(*arguments, faults=planned.faults)

    def _killed(self, job: Job, planned: Kill) -> bool:
        if planned.touch or planned.at:
            return wait(job) == -signal.SIGKILL
        until(lambda: stage_of(said(job)) >= planned.stage or job.code() is not None, seconds=240)
        time.sleep(planned.delay)
        return kill(job, group=planned.group)


@pytest.fixture
def matrix(
    preloaded: Preloaded, undisturbed: Undisturbed, new_home: Callable[[str], Path]
) -> Matrix:
    return Matrix(preloaded, undisturbed, new_home)


def moments(chance: random.Random, seconds: Sequence[float], stages: Sequence[int]) -> list[Kill]:
    """Kills at random moments of stages, in order; the companion dies in every other one."""
    drawn = [
        Kill(
            stage=stage,
            delay=seconds[stage] * chance.uniform(0.0, 0.9),
            group=position % 2 == 0,
            companion=chance.random() < 0.5,
        )
        for position, stage in enumerate(stages)
    ]
    return sorted(drawn, key=lambda planned: (planned.stage, planned.delay))


def test_a_few_kills_leave_no_trace(matrix: Matrix, undisturbed: Undisturbed) -> None:
    stages = [NAMES.index("pretrain 2"), NAMES.index("search")]
    early, late = moments(random.Random(11), undisturbed.seconds, stages)
    plan = [early, Kill(at=AIMED["its end is sent, and not noted"], companion=True), late]
    matrix.run(plan)
    assert matrix.problems == []
    assert matrix.hits.total() == len(plan)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_forty_kills_over_all_stages_leave_no_trace(
    matrix: Matrix, undisturbed: Undisturbed, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(40)
    stages = [number % len(NAMES) for number in range(40)]
    chance.shuffle(stages)
    done = 0
    for number in range(10):
        plan = moments(chance, undisturbed.seconds, stages[4 * number : 4 * number + 4])
        if number % 3 == 1:  # moments by what the disk has, not by the clock
            plan = [replace(each, touch=chance.randrange(1, 500), stage=0) for each in plan]
        elif number % 5 == 0:
            plan = [replace(each, cold=True) for each in plan]
        matrix.run(plan)
        done += len(plan)
        with capsys.disabled():
            print(f"\n{done} of 40 kills: {dict(matrix.hits)}", end="", flush=True)
    with capsys.disabled():
        print()
        for name in NAMES:
            print(f"  {name:16} {matrix.hits[name]:3} kills")
    assert matrix.problems == []
    assert matrix.hits.total() == 40
    assert len(matrix.hits) > len(NAMES) / 2, "they are spread over the study"


# What the process has just done, or is about to do, when it dies; in the order of a study.
AIMED = {
    "the run is made": ("suite.tracking.store:Store.create_run", "after", 1),
    "its parameters are due": ("suite.tracking.store:Store.log_params", "before", 1),
    "its attempt is open": ("suite.tracking.recorder:RunRecorder.begin", "after", 1),
    "its first points are on disk": ("suite.tracking.spool:SpoolWriter.append", "after", 1),
    "a checkpoint is due its name": ("lightning.pytorch:Trainer.save_checkpoint", "after", 1),
    "what was left is sent, and not noted": (
        "suite.tracking.spool:SpoolFile.mark_sent",
        "before",
        1,
    ),
    "an older checkpoint is due to go": ("lightning_modules.callbacks:checkpoints", "before", 2),
    "a run is found cut off": ("suite.tracking.store:Store.end_run", "before", 1),
    "its model is saved": ("transformers:PreTrainedModel.save_pretrained", "after", 1),
    "its end is sent, and not noted": ("suite.tracking.store:Store.end_run", "after", 2),
    "its spool is due to go": ("suite.tracking.spool:SpoolFile.delete", "before", 1),
    "the law is fitted": ("suite.stages.law:fit_law", "after", 1),
    "a prediction is on disk": ("suite.stages.law:_predict", "after", 2),
    "moments are saved": ("lightning_modules.kv.pair:MomentsPair.save", "after", 2),
    "the bases are kept": ("suite.tracking.recorder:RunRecorder.end", "before", 1),
    "a trial is due": ("suite.stages.search:_tracked_trial", "before", 2),
    "a trial is evaluated": ("suite.stages.search:_tracked_trial", "after", 2),
    "the report is due its place": ("suite.reports.build:_publish", "before", 1),
    "the report is built": ("suite.stages.report:build_report", "after", 1),
    "the report's files are kept": ("suite.tracking.recorder:RunRecorder.end", "before", 1),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_at_the_worst_moments_leave_no_trace(matrix: Matrix) -> None:
    matrix.run([Kill(at=at, group=at[2] == 1) for at in AIMED.values()])
    assert matrix.problems == []
    assert matrix.hits.total() == len(AIMED)
