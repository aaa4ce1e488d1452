"""Token counts as steps, and learning rates against their closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_modules.schedule import PretrainingPlan, learning_rate_share
from suite.study import OptimizerSpec, PretrainingSpec, SizeSpec

SIZES = (SizeSpec(name="tiny", num_hidden_layers=1, hidden_size=16),)


def plan_of(**settings: Any) -> PretrainingPlan:
    defaults = {"corpus": "c", "sizes": SIZES, "batch_size": 4, "sequence_length": 8}
    return PretrainingPlan.of(PretrainingSpec(**{**defaults, **settings}))


def shares(plan: PretrainingPlan, **optimizer: Any) -> list[float]:
    spec = OptimizerSpec(**optimizer)
    return [learning_rate_share(step, spec, plan) for step in range(plan.steps)]


@pytest.mark.parametrize(
    ("settings", "steps", "evaluate", "checkpoint", "log"),
    [
        # batches of 32 tokens
        ({"tokens": 32}, 1, 1, 1, 1),
        ({"tokens": 33}, 2, 1, 1, 1),
        ({"tokens": 64_000}, 2000, 100, 100, 1),
        ({"tokens": 64_001}, 2001, 100, 100, 2),
        ({"tokens": 640, "evaluate_every": 33}, 20, 2, 2, 1),
        ({"tokens": 640, "evaluate_every": 33, "checkpoint_every": 96}, 20, 2, 3, 1),
        ({"tokens": 640, "evaluate_every": 10**9}, 20, 20, 20, 1),
        ({"tokens": 640, "checkpoint_every": 10**6}, 20, 1, 31_250, 1),
        # points of two steps: evaluations and checkpoints wait for a whole one
        ({"tokens": 64_001, "evaluate_every": 33, "checkpoint_every": 65}, 2001, 2, 4, 2),
    ],
)
def test_token_counts_are_rounded_up_to_whole_steps(
    settings: dict[str, int], steps: int, evaluate: int, checkpoint: int, log: int
) -> None:
    assert plan_of(**settings) == PretrainingPlan(
        batch_tokens=32,
        steps=steps,
        evaluate_every=evaluate,
        checkpoint_every=checkpoint,
        log_every=log,
    )


@pytest.mark.parametrize(
    ("settings", "logged", "evaluated"),
    [
        ({"tokens": 32}, (32,), (32,)),
        ({"tokens": 129, "evaluate_every": 64}, (32, 64, 96, 128, 160), (64, 128, 160)),
        ({"tokens": 128, "evaluate_every": 64}, (32, 64, 96, 128), (64, 128)),
    ],
)
def test_points_are_at_whole_intervals_and_at_the_end(
    settings: dict[str, int], logged: tuple[int, ...], evaluated: tuple[int, ...]
) -> None:
    plan = plan_of(**settings)
    assert plan.points(plan.log_every) == logged
    assert plan.points(plan.evaluate_every) == evaluated


@given(tokens=st.integers(1, 10**12), batch=st.integers(1, 4096), length=st.integers(2, 4096))
def test_a_plan_covers_the_tokens_within_one_batch_and_logs_at_most_2000_points(
    tokens: int, batch: int, length: int
) -> None:
    plan = plan_of(tokens=tokens, batch_size=batch, sequence_length=length)
    assert 0 <= plan.tokens - tokens < plan.batch_tokens == batch * length
    assert math.ceil(plan.steps / plan.log_every) <= 2000
    assert 1 <= plan.evaluate_every <= plan.steps
    assert plan.evaluate_every % plan.log_every == 0 or plan.evaluate_every == plan.steps


def test_warm_up_rises_linearly_and_reaches_the_peak_at_its_last_token() -> None:
    plan = plan_of(tokens=320)
    rising = shares(plan, warmup_tokens=128, schedule="constant")
    assert rising == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], rel=1e-15)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_without_warm_up_the_first_step_is_not_held_back(schedule: str) -> None:
    plan = plan_of(tokens=320)
    first = shares(plan, warmup_tokens=0, schedule=schedule, final_share=0.0)[0]
    expected = {"constant": 1.0, "linear": 0.9, "cosine": (1 + math.cos(math.pi / 10)) / 2}
    assert first == pytest.approx(expected[schedule], rel=1e-14)


@pytest.mark.parametrize("warmup", [320, 321, 640, 10**9])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_a_warm_up_as_long_as_the_run_or_longer_only_rises(warmup: int, schedule: str) -> None:
    plan = plan_of(tokens=320)
    expected = [32 * step / warmup for step in range(1, 11)]
    assert shares(plan, warmup_tokens=warmup, schedule=schedule) == pytest.approx(expected)


@pytest.mark.parametrize("final_share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_fall_ends_at_the_final_share_at_the_last_token(
    schedule: str, final_share: float
) -> None:
    plan = plan_of(tokens=320)
    falling = shares(plan, warmup_tokens=64, schedule=schedule, final_share=final_share)
    assert falling[1] == 1.0
    assert falling[-1] == pytest.approx(final_share, abs=1e-15)
    assert falling[5] == pytest.approx((1 + final_share) / 2)  # half-way, in both shapes


def test_shapes_between_the_ends_are_those_of_their_names() -> None:
    plan = plan_of(tokens=320)
    share = 0.2
    done = [(step - 2) / 8 for step in range(3, 11)]
    cosine = shares(plan, warmup_tokens=64, schedule="cosine", final_share=share)[2:]
    linear = shares(plan, warmup_tokens=64, schedule="linear", final_share=share)[2:]
    assert cosine == pytest.approx(
        [share + (1 - share) * math.cos(math.pi * d / 2) ** 2 for d in done]
    )
    assert linear == pytest.approx([1 * (1 - d) + share * d for d in done])


@given(
    tokens=st.integers(1, 10**6),
    warmup=st.integers(0, 10**6),
    schedule=st.sampled_from(["constant", "cosine", "linear"]),
    final_share=st.floats(0.0, 1.0),
    data=st.data(),
)
def test_every_step_has_a_rate_between_nothing_and_the_peak(
    tokens: int, warmup: int, schedule: str, final_share: float, data: st.DataObject
) -> None:
    plan = plan_of(tokens=tokens)
    spec = OptimizerSpec(warmup_tokens=warmup, schedule=schedule, final_share=final_share)
    # PyTorch's scheduler also asks for the step after the last.
    step = data.draw(st.integers(0, plan.steps))
    share = learning_rate_share(step, spec, plan)
    assert 0.0 <= share <= 1.0
    if (step + 1) * plan.batch_tokens > warmup:
        assert share >= final_share - 1e-12
