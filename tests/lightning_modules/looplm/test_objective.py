from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from lightning_modules.looplm.objective import (
    exit_distribution,
    first_exit_step,
    gate_loss,
    gate_target,
    looped_objective,
    step_cross_entropy,
)

logits = st.floats(-1e4, 1e4, allow_nan=False, width=32)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def slow_exit_distribution(gates: list[float]) -> list[float]:
    probabilities, left = [], 1.0
    for gate in gates[:-1]:
        leave = 1.0 / (1.0 + math.exp(-gate))
        probabilities.append(leave * left)
        left *= 1.0 - leave
    return [*probabilities, left]


def slow_objective(losses: Tensor, gates: Tensor, beta: float) -> dict[str, float]:
    steps, positions = losses.shape
    sums = {"expected": 0.0, "entropy": 0.0, "step": 0.0}
    for position in range(positions):
        exits = slow_exit_distribution(gates[:, position].tolist())
        for step in range(steps):
            sums["expected"] += exits[step] * losses[step, position].item()
            sums["entropy"] -= exits[step] * math.log(exits[step])
            sums["step"] += exits[step] * (step + 1)
    means = {name: value / positions for name, value in sums.items()}
    return means | {"total": means["expected"] - beta * means["entropy"]}


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_objective_equals_a_loop_over_positions_and_steps(steps: int) -> None:
    losses, gates = random(steps, 3, 5).abs(), random(steps, 3, 5, seed=1)
    value = looped_objective(losses, gates, beta=0.07, form="entropy")
    slow = slow_objective(losses.flatten(1), gates.flatten(1), 0.07)
    assert value.total_loss.item() == pytest.approx(slow["total"], abs=1e-13)
    assert value.expected_loss.item() == pytest.approx(slow["expected"], abs=1e-13)
    assert value.exit_entropy.item() == pytest.approx(slow["entropy"], abs=1e-13)
    assert value.expected_exit_step.item() == pytest.approx(slow["step"], abs=1e-13)
    torch.testing.assert_close(value.loss_at_step, losses.mean(dim=(1, 2)))
    assert value.exit_probability.sum().item() == pytest.approx(1.0, abs=1e-13)


def test_even_gates_give_one_half_one_quarter_one_quarter() -> None:
    losses = torch.tensor([[4.0], [2.0], [1.0]])
    value = looped_objective(losses, torch.zeros(3, 1), beta=0.5, form="entropy")
    assert value.exit_probability.tolist() == [0.5, 0.25, 0.25]
    assert value.expected_loss.item() == pytest.approx(2.75)
    assert value.expected_exit_step.item() == pytest.approx(1.75)
    assert value.exit_entropy.item() == pytest.approx(1.5 * math.log(2.0))
    assert value.total_loss.item() == pytest.approx(2.75 - 0.75 * math.log(2.0))


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_uniform_exits_have_entropy_log_t_and_no_kl(steps: int) -> None:
    leave = 1.0 / torch.arange(steps, 0, -1, dtype=torch.float64)
    gates = torch.logit(leave.clamp(max=0.9))[:, None]
    losses = random(steps, 1)
    value = looped_objective(losses, gates, beta=0.1, form="kl")
    assert value.exit_entropy.item() == pytest.approx(math.log(steps), abs=1e-14)
    assert value.total_loss.item() == pytest.approx(losses.mean().item(), abs=1e-14)


@pytest.mark.parametrize(("steps", "constant"), [(1, 0.0), (2, 0.0693), (4, 0.1386), (8, 0.2079)])
def test_forms_differ_by_beta_log_t_and_share_their_gradient(steps: int, constant: float) -> None:
    losses, gates = random(steps, 6), random(steps, 6, seed=1).requires_grad_()
    entropy = looped_objective(losses, gates, beta=0.1, form="entropy").total_loss
    kl = looped_objective(losses, gates, beta=0.1, form="kl").total_loss
    assert (kl - entropy).item() == pytest.approx(0.1 * math.log(steps), abs=1e-14)
    assert (kl - entropy).item() == pytest.approx(constant, abs=5e-5)
    torch.testing.assert_close(
        torch.autograd.grad(entropy, gates), torch.autograd.grad(kl, gates), atol=1e-15, rtol=0.0
    )


def test_gradients_agree_with_finite_differences() -> None:
    losses = random(4, 5).abs().requires_grad_()
    gates = random(4, 5, seed=1).requires_grad_()

    def total(losses: Tensor, gates: Tensor) -> Tensor:
        return looped_objective(losses, gates, beta=0.3, form="entropy").total_loss

    assert torch.autograd.gradcheck(total, (losses, gates))
    assert torch.autograd.gradcheck(exit_distribution, gates)
    assert torch.autograd.gradcheck(lambda gates: gate_loss(losses.detach(), gates), gates)


@given(st.lists(logits, min_size=1, max_size=8))
def test_exits_are_a_distribution_for_any_gates(gates: list[float]) -> None:
    log_probability = exit_distribution(torch.tensor(gates))
    assert log_probability.isfinite().all()
    assert (log_probability <= 0.0).all()
    assert log_probability.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extreme_gates_leave_value_and_gradient_finite(dtype: torch.dtype) -> None:
    extremes = torch.tensor([-1e4, 0.0, 1e4])
    gates = torch.cartesian_prod(extremes, extremes, extremes).T.to(dtype).requires_grad_()
    losses = torch.full_like(gates, 3.0, dtype=torch.float32).requires_grad_()
    value = looped_objective(losses, gates, beta=0.1, form="kl")
    value.total_loss.backward()
    assert value.total_loss.isfinite()
    assert gates.grad is not None
    assert losses.grad is not None
    assert gates.grad.isfinite().all()
    assert losses.grad.isfinite().all()
    assert value.expected_loss.item() == pytest.approx(3.0)


def test_one_step_is_the_plain_loss_and_leaves_the_gate_a_gradient_of_zero() -> None:
    losses, gates = random(1, 7), random(1, 7, seed=1).requires_grad_()
    value = looped_objective(losses, gates, beta=0.1, form="entropy")
    value.total_loss.backward()
    assert value.total_loss.item() == pytest.approx(losses.mean().item(), abs=1e-15)
    assert value.exit_entropy.item() == 0.0
    assert value.expected_exit_step.item() == 1.0
    assert gates.grad is not None
    assert gates.grad.tolist() == [[0.0] * 7]


def test_masked_positions_change_nothing_even_when_not_finite() -> None:
    losses, gates = random(3, 4).abs(), random(3, 4, seed=1)
    mask = torch.tensor([True, False, True, True])
    expected = looped_objective(losses[:, mask], gates[:, mask], beta=0.2, form="entropy")
    losses[:, 1] = torch.inf
    gates.requires_grad_()
    value = looped_objective(losses, gates, beta=0.2, form="entropy", mask=mask)
    (gradient,) = torch.autograd.grad(value.total_loss, gates)
    assert gradient[:, 1].tolist() == [0.0] * 3
    assert gradient[:2, mask].abs().min() > 0.0
    for name in ("total_loss", "exit_entropy", "loss_at_step", "exit_probability"):
        torch.testing.assert_close(getattr(value, name), getattr(expected, name))
    torch.testing.assert_close(
        gate_loss(losses[:, mask], gates[:, mask]), gate_loss(losses, gates, mask=mask)
    )


@pytest.mark.parametrize("logits_at_once", [1, 11 * 4, 11 * 7, 10**9])
def test_cross_entropy_in_chunks_has_the_value_and_gradient_of_the_whole(
    logits_at_once: int,
) -> None:
    hidden = random(3, 2, 5, 4).requires_grad_()
    head = random(11, 4, seed=1).requires_grad_()
    targets = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(2))
    targets[1, 4] = -100
    weights = random(3, 2, 5, seed=3)
    losses = step_cross_entropy(hidden, head, targets, logits_at_once=logits_at_once)
    log_probability = (hidden @ head.T).log_softmax(dim=-1)
    found, scores = losses.detach(), log_probability.detach()
    for step, row, column in torch.cartesian_prod(
        torch.arange(3), torch.arange(2), torch.arange(5)
    ):
        target = targets[row, column]
        expected = 0.0 if target < 0 else -scores[step, row, column, target].item()
        assert found[step, row, column].item() == pytest.approx(expected, abs=1e-12)
    kept = (targets >= 0) * weights
    picked = log_probability.gather(-1, targets.clamp(min=0).expand(3, 2, 5)[..., None])[..., 0]
    torch.testing.assert_close(
        torch.autograd.grad((losses * weights).sum(), (hidden, head)),
        torch.autograd.grad(-(picked * kept).sum(), (hidden, head)),
    )


@given(st.lists(st.floats(-8.0, 8.0), min_size=1, max_size=6), st.floats(0.01, 0.99))
def test_exit_is_the_first_step_to_reach_the_threshold(gates: list[float], q: float) -> None:
    cumulative, expected = 0.0, len(gates)
    for step, probability in enumerate(slow_exit_distribution(gates)[:-1], start=1):
        cumulative += probability
        assume(abs(cumulative - q) > 1e-9)  # Closer, rounding may decide.
        if cumulative >= q:
            expected = step
            break
    step = first_exit_step(torch.tensor(gates, dtype=torch.float64), q)
    assert step.item() == expected


def test_threshold_one_is_the_last_step_and_zero_the_first_whatever_the_gates() -> None:
    gates = torch.tensor([1e4, 100.0, 0.0, -1e4]).expand(3, 4)
    assert first_exit_step(gates, 1.0).tolist() == [3, 3, 3, 3]
    assert first_exit_step(gates, 0.0).tolist() == [1, 1, 1, 1]
    assert first_exit_step(gates, 0.5).tolist() == [1, 1, 1, 3]


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_thresholds_that_are_no_probability_are_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="allowed is 0 to 1"):
        first_exit_step(torch.zeros(2, 1), threshold)


def test_gate_target_rises_with_the_improvement_of_the_step() -> None:
    losses = torch.tensor([3.0, 3.5, 3.495, 2.0], dtype=torch.float64)
    sigmoid = [1.0 / (1.0 + math.exp(-50.0 * (gain - 0.005))) for gain in (0.0, 0.005, 1.495)]
    assert gate_target(losses).tolist() == pytest.approx(sigmoid, abs=1e-12)
    assert gate_target(losses)[1].item() == pytest.approx(0.5, abs=1e-12)


def test_gate_loss_is_the_cross_entropy_of_going_on() -> None:
    losses, gates = random(4, 3).abs(), random(4, 3, seed=1)
    target, go_on = gate_target(losses), 1.0 - torch.sigmoid(gates[1:])
    expected = -(target * go_on.log() + (1.0 - target) * (1.0 - go_on).log()).mean()
    assert gate_loss(losses, gates).item() == pytest.approx(expected.item(), abs=1e-13)


def test_gate_loss_trains_the_gates_alone() -> None:
    losses, gates = random(3, 4).requires_grad_(), random(3, 4, seed=1).requires_grad_()
    gate_loss(losses, gates).backward()
    assert losses.grad is None
    assert gates.grad is not None
    assert gates.grad[0].tolist() == [0.0] * 4
    assert (gates.grad[1:] != 0.0).all()


def test_gate_loss_needs_two_steps() -> None:
    with pytest.raises(ValueError, match="at least two steps"):
        gate_loss(torch.ones(1, 3), torch.ones(1, 3))


def test_sixteen_bit_gates_and_logits_give_results_in_32_bits() -> None:
    gates = torch.tensor([[0.5], [1.5], [-2.0]])
    assert exit_distribution(gates.bfloat16()).equal(exit_distribution(gates))
    # Logits 0 and 4 are exact in 16 bits, their cross-entropy is not.
    hidden, head = torch.tensor([[[1.0]]]), torch.tensor([[0.0], [4.0]])
    losses = step_cross_entropy(hidden.bfloat16(), head.bfloat16(), torch.tensor([1]))
    assert losses.item() == pytest.approx(math.log1p(math.exp(-4.0)), rel=1e-5)
