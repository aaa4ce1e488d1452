"""Token counts as whole optimiser steps, and the learning rate of each step; no torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from suite.study import OptimizerSpec, PretrainingSpec

_MOST_POINTS = 2_000


@dataclass(frozen=True, kw_only=True)
class PretrainingPlan:
    """Lengths of a pretraining cell in whole optimiser steps.

    Attributes:
        batch_tokens: tokens an optimiser step, over all devices.
        steps: optimiser steps.
        evaluate_every: optimiser steps between evaluations.
        checkpoint_every: optimiser steps between checkpoints.
        log_every: optimiser steps that one logged point averages over.
    """

    batch_tokens: int
    steps: int
    evaluate_every: int
    checkpoint_every: int
    log_every: int

    @classmethod
    def of(cls, spec: PretrainingSpec) -> PretrainingPlan:
        """Round a study's token counts up to whole steps; a curve has at most 2,000 points."""
        batch = spec.batch_size * spec.sequence_length
        steps = _whole(spec.tokens, batch)
        # a point averages over log_every steps, so state is saved only where a point ends
        log = _whole(steps, _MOST_POINTS)
        evaluate = log * _whole(spec.evaluate_every or max(spec.tokens // 20, 1), batch * log)
        checkpoint = log * _whole(spec.checkpoint_every or 0, batch * log)
        return cls(
            batch_tokens=batch,
            steps=steps,
            evaluate_every=min(evaluate, steps),
            checkpoint_every=checkpoint or min(evaluate, steps),
            log_every=log,
        )

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return self.steps * self.batch_tokens

    def points(self, every: int) -> tuple[int, ...]:
        """Token counts at every so many optimiser steps, and at the last step.

        Args:
            every: ``log_every`` for the points of ``train/*``, ``evaluate_every`` for ``val/*``.
        """
        steps = (*range(every, self.steps, every), self.steps)
        return tuple(step * self.batch_tokens for step in steps)


def _whole(length: int, unit: int) -> int:
    return -(-length // unit)


def learning_rate_share(step: int, spec: OptimizerSpec, plan: PretrainingPlan) -> float:
    """Learning rate of an optimiser step as a share of the peak.

    Args:
        step: optimiser steps done before this one.
        spec: warm-up, shape and final share.
        plan: length of the run.
    """
    # PyTorch asks for one step more than there are.
    tokens = min(step + 1, plan.steps) * plan.batch_tokens
    if tokens <= spec.warmup_tokens:
        return tokens / spec.warmup_tokens
    if spec.schedule == "constant":
        return 1.0
    done = (tokens - spec.warmup_tokens) / (plan.tokens - spec.warmup_tokens)
    fall = done if spec.schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
    return 1.0 - (1.0 - spec.final_share) * fall
