"""The looped objective and the exit gate, as pure functions of tensors.

Notation of arXiv 2510.25741, section 3: lambda_t = sigmoid(gate logit of step t) is the chance
of leaving at step t when it is reached, p(t) the exit distribution, L(t) the loss of step t.
Losses are in nats, steps are numbered from 1, and T is always the first axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_LOGITS_AT_ONCE = 2**27
"""Most logits held at a time, 512 MiB in 32 bits, before positions are taken in chunks."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveValue:
    """The stage-I objective and its parts, as means over positions; gradients flow through all.

    Attributes:
        total_loss: what is minimised, a scalar in nats.
        expected_loss: sum over t of p(t) L(t), a scalar in nats.
        exit_entropy: H(p), a scalar in nats between 0 and log T.
        expected_exit_step: sum over t of t p(t), a scalar between 1 and T.
        loss_at_step: L(t), ``[T]`` in nats.
        exit_probability: p(t), ``[T]``; sums to 1.
    """

    total_loss: Tensor
    expected_loss: Tensor
    exit_entropy: Tensor
    expected_exit_step: Tensor
    loss_at_step: Tensor
    exit_probability: Tensor


def exit_distribution(gate_logits: Tensor) -> Tensor:
    """Log-probabilities of leaving at each step.

    p(t) = lambda_t * prod_{j<t} (1 - lambda_j) for t < T; the last step takes what is left, so
    its own lambda is not used. Worked out in log space, hence finite for any finite logit.

    Args:
        gate_logits: ``[T, ...]``, in any floating type; 16-bit types are widened to 32 bits.

    Returns:
        log p, ``[T, ...]``.
    """
    logits = _widen(gate_logits)
    leave = functional.logsigmoid(logits[:-1])
    survive = torch.cumsum(functional.logsigmoid(-logits[:-1]), dim=0)
    # log 1, twice. Tied to the unused gate so that it has a gradient, of zero, also at T = 1:
    # distributed training waits for the gradient of every parameter.
    certain = 0.0 * logits[-1:]
    return torch.cat((leave, certain)) + torch.cat((certain, survive))


def looped_objective(
    step_losses: Tensor,
    gate_logits: Tensor,
    *,
    beta: float,
    form: Literal["entropy", "kl"],
    mask: Tensor | None = None,
) -> ObjectiveValue:
    """Stage I: the expected loss under the exit distribution, regularised towards uniform exits.

    ``entropy`` is sum_t p(t) L(t) - beta H(p); ``kl`` is sum_t p(t) L(t) + beta KL(p || uniform),
    which is larger by beta log T and has the same gradient.

    Args:
        step_losses: L(t) of every position, ``[T, ...]`` in nats.
        gate_logits: ``[T, ...]``, the same shape.
        beta: weight of the regulariser, in nats per nat.
        form: which of the two is ``total_loss``.
        mask: ``[...]``, true where a position counts; default everywhere. With no true entry
            every mean is NaN.
    """
    if mask is not None:
        # Before anything is multiplied: 0 times an infinite loss would make gradients NaN.
        step_losses = step_losses.masked_fill(~mask.bool(), 0.0)
    log_probability = exit_distribution(gate_logits)
    probability = log_probability.exp()
    steps = step_losses.shape[0]
    losses = _mean_over_positions(step_losses, mask)
    expected_loss = _mean_over_positions(probability * step_losses, mask).sum()
    exit_entropy = -_mean_over_positions(probability * log_probability, mask).sum()
    exit_probability = _mean_over_positions(probability, mask)
    offset = math.log(steps) if form == "kl" else 0.0
    return ObjectiveValue(
        total_loss=expected_loss + beta * (offset - exit_entropy),
        expected_loss=expected_loss,
        exit_entropy=exit_entropy,
        expected_exit_step=exit_probability @ torch.arange(1, steps + 1).to(exit_probability),
        loss_at_step=losses,
        exit_probability=exit_probability,
    )


def step_cross_entropy(
    hidden: Tensor, head: Tensor, targets: Tensor, *, logits_at_once: int = _LOGITS_AT_ONCE
) -> Tensor:
    """Cross-entropy of every step at every position, through one head.

    All logits are held at once when they are few. Otherwise positions are taken in chunks and
    the logits of a chunk are computed again in the backward pass, so that memory does not grow
    with T times the vocabulary.

    Args:
        hidden: normed states of every step, ``[T, ..., hidden]``.
        head: weight of the head, ``[vocab, hidden]``.
        targets: token ids, ``[...]``; -100 gives loss 0.
        logits_at_once: most logits held at a time.

    Returns:
        Losses, ``[T, ...]`` in nats and at least 32 bits.
    """
    states = hidden.flatten(0, -2)
    flat_targets = targets.expand(hidden.shape[:-1]).flatten()
    rows = max(1, logits_at_once // head.shape[0])
    if len(states) <= rows:
        return _cross_entropy(states, head, flat_targets).view(hidden.shape[:-1])
    losses = [
        checkpoint(
            _cross_entropy,
            chunk,
            head,
            chunk_targets,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for chunk, chunk_targets in zip(
            torch.split(states, rows), torch.split(flat_targets, rows), strict=True
        )
    ]
    return torch.cat(losses).view(hidden.shape[:-1])


def first_exit_step(gate_logits: Tensor, threshold: float) -> Tensor:
    """First step whose cumulative exit probability reaches the threshold.

    Args:
        gate_logits: ``[T, ...]``.
        threshold: between 0 (always the first step) and 1 (always the last).

    Returns:
        Steps from 1 to T, ``[...]`` of 64-bit integers.

    Raises:
        ValueError: the threshold is not between 0 and 1.
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"the exit threshold is {threshold}; allowed is 0 to 1")
    logits = _widen(gate_logits)
    # Cumulative probability q is reached when the logarithm of survival falls to log(1 - q);
    # a sum of rounded probabilities could miss or overshoot it.
    log_survival = torch.cumsum(functional.logsigmoid(-logits[:-1]), dim=0)
    left = math.log1p(-threshold) if threshold < 1.0 else -math.inf
    return (log_survival > left).sum(dim=0) + 1


def gate_target(step_losses: Tensor) -> Tensor:
    """Stage II: how much a position should want to go on after each step from the second.

    I_t = max(0, L(t-1) - L(t)) and w_t = sigmoid(50 (I_t - 0.005)): near 1 where step t improved
    the loss, sigmoid(-0.25) where it did not.

    Args:
        step_losses: ``[T, ...]`` in nats; taken as constants.

    Returns:
        w for t = 2..T, ``[T - 1, ...]``, between 0 and 1.
    """
    losses = step_losses.detach()
    improvement = (losses[:-1] - losses[1:]).clamp(min=0.0)
    return torch.sigmoid(50.0 * (improvement - 0.005))


def gate_loss(step_losses: Tensor, gate_logits: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Stage II: binary cross-entropy of 1 - lambda_t against ``gate_target``, for t = 2..T.

    Args:
        step_losses: ``[T, ...]`` in nats, from the frozen model.
        gate_logits: ``[T, ...]``.
        mask: ``[...]``, true where a position counts; default everywhere.

    Returns:
        Mean over steps and positions, a scalar in nats.

    Raises:
        ValueError: T is 1, where there is nothing to decide.
    """
    if len(step_losses) < 2:
        raise ValueError("a gate needs at least two steps to choose from, got 1")
    logits = _widen(gate_logits)
    losses = functional.binary_cross_entropy_with_logits(
        -logits[1:], gate_target(step_losses).to(logits), reduction="none"
    )
    return _mean_over_positions(losses, mask).mean()


def _widen(values: Tensor) -> Tensor:
    """Raises 16-bit values to 32 bits: a loss of 3.1 nats has steps of 0.016 in bfloat16."""
    return values if values.dtype == torch.float64 else values.float()


def _cross_entropy(states: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    logits = _widen(functional.linear(states, head))
    return functional.cross_entropy(logits, targets, reduction="none")


def _mean_over_positions(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of ``[T, ...]`` over all axes but the first, where the mask is true."""
    rows = values.reshape(len(values), -1)
    if mask is None:
        return rows.mean(dim=1)
    kept = mask.flatten().bool()
    return rows.masked_fill(~kept, 0.0).sum(dim=1) / kept.sum()
