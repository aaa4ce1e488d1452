"""Checkpoints: a run that was stopped or killed ends as if it had not been."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_modules.callbacks import ProgressReport, TokenCheckpoint
from lightning_modules.checkpoint_files import checkpoint_path, checkpoints, newest_checkpoint
from suite.errors import SuiteError
from suite.stopping import StopFlag, StopRequested
from suite.study import TrainerSpec

# Lightning's own use of a name that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*")

FitBuilder = Callable[..., Any]
Points = list[tuple[int, str, float]]


class Killed(Exception):  # noqa: N818 - not an error: it stands for a lost process
    """Ends a fit as a lost process would: nothing is saved on the way out."""


class AtStep(Callback):
    """Does something when an optimiser step has ended.

    Args:
        step: the step.
        action: what to do.
    """

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self.step, self.action = step, action

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            self.action()


def kill() -> None:
    raise Killed


Undisturbed = Callable[..., Any]


@pytest.fixture(scope="module")
def finished() -> dict[str, Any]:
    """Cells that have been trained without a break, by their settings."""
    return {}


@pytest.fixture
def undisturbed(pretrain: FitBuilder, finished: dict[str, Any], tmp_path: Path) -> Undisturbed:
    """Trains a cell without a break, once for all tests that ask for it."""

    def train(**settings: Any) -> Any:
        key = repr(sorted(settings.items()))
        if key not in finished:
            finished[key] = pretrain(**settings).run(tmp_path / "undisturbed")
        return finished[key]

    return train


def timeless(points: Points) -> Points:
    """Points without those that tell the speed of the machine."""
    return [point for point in points if not point[1].startswith("speed/")]


def assert_same_weights(one: LightningModule, other: LightningModule) -> None:
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


CELLS: dict[str, dict[str, Any]] = {
    # evaluations after steps 4, 8, 12 and 16; checkpoints after every third
    "plain": {},
    "accumulated": {"micro_batch_size": 2},
    # evaluations after steps 5, 10 and 15; a checkpoint after step 10
    "points of five steps": {
        "plan": {"log_every": 5, "evaluate_every": 5, "checkpoint_every": 10},
        "micro_batch_size": 2,
    },
    "workers": {"trainer": TrainerSpec(num_workers=2)},
}


@pytest.mark.parametrize(
    ("cell", "signal", "step"),
    [
        ("plain", 1, 1),
        ("plain", 6, 6),  # with a checkpoint
        ("plain", 12, 12),  # with a checkpoint and an evaluation
        ("plain", 16, 16),  # the end
        ("accumulated", 5, 5),
        ("accumulated", 8, 8),  # with an evaluation
        ("workers", 5, 5),
        ("points of five steps", 7, 10),  # where the point under way is whole
    ],
)
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(
    pretrain: FitBuilder,
    tmp_path: Path,
    undisturbed: Undisturbed,
    cell: str,
    signal: int,
    step: int,
) -> None:
    whole = undisturbed(**CELLS[cell])
    stop = StopFlag()
    request = AtStep(signal, lambda: setattr(stop, "requested", True))
    first = pretrain(callbacks=[request], **CELLS[cell])
    with pytest.raises(StopRequested):
        first.run(tmp_path / "cut", stop=stop)
    assert first.trainer.global_step == step
    found = newest_checkpoint(tmp_path / "cut")
    assert found is not None
    path, tokens = found
    assert tokens == 32 * step
    second = pretrain(**CELLS[cell]).run(tmp_path / "cut", resume=path)
    # Together the two logged every point once: none is missing, none is doubled.
    assert timeless(first.logger.points + second.logger.points) == timeless(whole.logger.points)
    assert_same_weights(second.module, whole.module)
    assert second.module.evaluated_at == whole.module.evaluated_at


@pytest.mark.parametrize(
    ("cell", "settings", "killed", "resumed"),
    [
        ("plain", {}, 6, 3),  # between the step and its checkpoint
        ("plain", {}, 8, 6),
        ("plain", {"checkpoint_every": 4 * 32}, 7, 4),  # all checkpoints after evaluations
        ("accumulated", {}, 13, 12),
        ("points of five steps", {}, 14, 10),
    ],
)
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    pretrain: FitBuilder,
    tmp_path: Path,
    undisturbed: Undisturbed,
    cell: str,
    settings: dict[str, int],
    killed: int,
    resumed: int,
) -> None:
    settings = CELLS[cell] | settings
    whole = undisturbed(**settings)
    first = pretrain(callbacks=[AtStep(killed, kill)], **settings)
    with pytest.raises(Killed):
        first.run(tmp_path / "cut")
    found = newest_checkpoint(tmp_path / "cut")
    assert found is not None
    path, tokens = found
    assert tokens == 32 * resumed
    # What had reached the store by the time of the checkpoint is all there is up to it.
    assert first.logger.stored == [point for point in first.logger.points if point[0] <= tokens]
    second = pretrain(**settings).run(tmp_path / "cut", resume=path)
    assert timeless(first.logger.stored + second.logger.points) == timeless(whole.logger.points)
    assert_same_weights(second.module, whole.module)


def test_a_resumed_run_ends_with_the_same_optimiser_state(
    pretrain: FitBuilder, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    whole = undisturbed()
    first = pretrain(callbacks=[AtStep(5, kill)])
    with pytest.raises(Killed):
        first.run(tmp_path / "cut")
    second = pretrain().run(tmp_path / "cut", resume=checkpoints(tmp_path / "cut")[0])
    one, other = (fit.trainer.optimizers[0].state_dict() for fit in (whole, second))
    assert one["param_groups"] == other["param_groups"]
    for number, state in one["state"].items():
        for name, value in state.items():
            assert torch.equal(value, other["state"][number][name])


def test_the_last_two_checkpoints_are_kept_and_hold_plain_tensors(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    kept: list[list[str]] = []

    def look() -> None:
        kept.append([path.name for path in checkpoints(tmp_path)])

    pretrain(callbacks=[AtStep(step, look) for step in (2, 5, 8, 11, 14)]).run(tmp_path)
    names = [f"tokens-{32 * step:015d}.ckpt" for step in (3, 6, 9, 12, 15)]
    assert kept == [[], names[:1], names[1::-1], names[2:0:-1], names[3:1:-1]]
    assert sorted(path.name for path in tmp_path.iterdir()) == names[3:]
    for path in checkpoints(tmp_path):
        state = torch.load(path, weights_only=True)
        assert state["global_step"] * 32 == int(path.stem.removeprefix("tokens-"))


def test_a_run_goes_on_before_a_damaged_checkpoint_and_keeps_two_good_ones(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    whole = pretrain().run(tmp_path)
    newest, before = checkpoints(tmp_path)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    said: list[str] = []
    found = newest_checkpoint(tmp_path, report=said.append)
    assert found == (before, 384)
    assert [str(newest) in sentence for sentence in said] == [True]
    # It was taken right after the evaluation at its step, which is not made again.
    stop = StopFlag()
    again = pretrain(callbacks=[AtStep(14, lambda: setattr(stop, "requested", True))])
    with pytest.raises(StopRequested):
        again.run(tmp_path, resume=before, stop=stop)
    expected = [point for point in timeless(whole.logger.points) if 384 < point[0] <= 14 * 32]
    assert timeless(again.logger.points) == expected
    # The damaged one no longer takes the place of one of the two that are kept.
    assert checkpoints(tmp_path) == [checkpoint_path(tmp_path, 14 * 32), before]
    assert newest.with_suffix(".damaged").read_bytes() == content


def test_what_a_killed_process_left_half_written_is_gone_at_the_next_attempt(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    half = tmp_path / f".{checkpoint_path(tmp_path, 96).name}.0123456789abcdef.part"
    half.write_bytes(b"half")
    assert newest_checkpoint(tmp_path) is None
    pretrain(checkpoint_every=10**6).run(tmp_path)
    assert [*tmp_path.iterdir()] == []


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_does_not_fit_is_one_clear_error_and_the_earlier_ones_stay(
    pretrain: FitBuilder, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    whole = undisturbed()
    with contextlib.ExitStack() as full:
        fit = pretrain(callbacks=[AtStep(7, lambda: full.enter_context(files_of_at_most(10_000)))])
        with pytest.raises(SuiteError) as caught:
            fit.run(tmp_path)
    assert str(caught.value).startswith(
        f"the checkpoint {checkpoint_path(tmp_path, 288)} cannot be written (File too large; "
    )
    assert "those before it are kept: make room and run again" in str(caught.value)
    kept = [checkpoint_path(tmp_path, tokens) for tokens in (192, 96)]
    assert checkpoints(tmp_path) == kept
    assert sorted(tmp_path.iterdir()) == sorted(kept), "nothing is left of the one that failed"
    again = pretrain().run(tmp_path, resume=kept[0])
    assert_same_weights(again.module, whole.module)


def test_without_a_request_nothing_is_saved_between_checkpoints(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    pretrain(checkpoint_every=10**6).run(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_progress_is_told_in_tokens_with_the_loss_of_the_last_point(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    told: list[tuple[int, float]] = []
    report = ProgressReport(lambda tokens, loss: told.append((tokens, loss)))
    fit = pretrain(micro_batch_size=2, callbacks=[report]).run(tmp_path)
    losses = fit.logger.curve("train/total_loss")
    assert [tokens for tokens, _ in told] == [32 * (batch // 2) for batch in range(1, 33)]
    # Told before the step's own point: the loss is that of the step before.
    assert [loss for _, loss in told[3:]] == [
        losses[32 * (batch // 2 - (batch % 2 == 0))] for batch in range(4, 33)
    ]


def test_checkpoints_come_after_every_other_callback(pretrain: FitBuilder, tmp_path: Path) -> None:
    fit = pretrain(callbacks=[AtStep(99, kill)]).run(tmp_path)
    assert isinstance(fit.trainer.callbacks[-1], TokenCheckpoint)
