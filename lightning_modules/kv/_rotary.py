"""Rotary embedding undone with the angles of the model's own rotary module.

Which call of which module turned the keys of a layer, and how it pairs their columns, is not
guessed from names: the same tokens are run at several positions, and the one way of undoing that
gives the same keys at all of them is taken. Scaling of any kind (linear, dynamic, YaRN with its
attention factor, LongRoPE, Llama 3) is in the angles already. Source of the embedding: RoFormer
(arXiv 2104.09864), eq. 34.
"""

# Tensor.unflatten is untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

Pairs = Literal["none", "halves", "neighbours"]
"""Column i turns with column i + width / 2, or columns 2 i and 2 i + 1 turn together."""

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_HALF_TOLERANCE = 2e-2


def tolerance(dtype: torch.dtype) -> float:
    """Largest relative difference that rounding makes between two routes to the same keys.

    Keys that are turned the wrong way, or not at all, are off by 0.1 and more.
    """
    return _TOLERANCE.get(dtype, _HALF_TOLERANCE)


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Modules that may make the angles of rotary embedding."""
    return [
        module
        for module in model.modules()
        if re.search("rotary|rope", type(module).__name__, re.IGNORECASE)
    ]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the output of a rotary module is read.

    Attributes:
        form: complex numbers; or cosines and sines with each angle once, repeated in the second
            half, or repeated in the next column.
        sines_first: whether sines come before cosines.
    """

    form: Literal["complex", "once", "halves", "neighbours"]
    sines_first: bool = False

    def angles(self, output: Any) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each ``[batch, seq, pairs]``."""
        if self.form == "complex":
            return output.real, output.imag
        cos, sin = (_plain(part) for part in (output[::-1] if self.sines_first else output))
        if self.form == "halves":
            return cos[..., : cos.shape[-1] // 2], sin[..., : sin.shape[-1] // 2]
        step = 2 if self.form == "neighbours" else 1
        return cos[..., ::step], sin[..., ::step]


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """How the keys of a layer were turned.

    Attributes:
        pairs: which columns turn together; ``none`` if the keys were not turned.
        call: the call of a rotary module in a pass, from 0, that gave the angles.
        reading: how its output is read.
        from_end: whether the turned columns are the last of a head, as opposed to the first.
        backwards: whether they turned against the usual sense.
        gain: of a norm after the turn, ``[head_dim]``; undone first (Hunyuan).
    """

    pairs: Pairs = "none"
    call: int = 0
    reading: Reading = Reading(form="once")
    from_end: bool = False
    backwards: bool = False
    gain: Tensor | None = field(default=None, compare=False)

    def undo(self, keys: Tensor, outputs: Sequence[Any]) -> Tensor:
        """Turns keys back, in 32 bits or more.

        Args:
            keys: ``[batch, heads, seq, head_dim]``.
            outputs: of the rotary modules in the same pass.
        """
        if self.pairs == "none":
            return keys
        cos, sin = self.reading.angles(outputs[self.call])
        wide = torch.promote_types(keys.dtype, torch.float32)
        cos, sin = (part.to(keys.device, wide).unsqueeze(1) for part in (cos, sin))
        if self.backwards:
            sin = -sin
        # The factors of YaRN and LongRoPE make cos^2 + sin^2 differ from 1.
        square = cos.square() + sin.square()
        result = keys.to(wide, copy=True)
        if self.gain is not None:
            result /= self.gain.to(result)
        width = 2 * cos.shape[-1]
        turned = result[..., -width:] if self.from_end else result[..., :width]
        if self.pairs == "halves":
            left, right = turned.chunk(2, dim=-1)
        else:
            left, right = turned[..., ::2], turned[..., 1::2]
        was_left = (left * cos + right * sin) / square
        right.copy_((right * cos - left * sin) / square)
        left.copy_(was_left)
        return result


def find_rotation(
    keys: Tensor,
    outputs: Sequence[Any],
    *,
    positions: int,
    start: Sequence[int],
    gain: Tensor | None = None,
) -> Rotation | None:
    """The rotation whose undoing makes keys the same wherever their token stands.

    Args:
        keys: ``[tokens * positions, heads, seq, head_dim]`` of sequences whose first token, which
            sees no other, stands at each of several positions.
        outputs: of the rotary modules in that pass.
        positions: how many positions.
        start: rows of the batch whose first token stands at position 0.
        gain: of a norm that came after, ``[head_dim]``.

    Returns:
        The rotation, or none if there is no such.
    """
    candidates = possible_rotations(keys, outputs, start=start)
    if gain is None:
        candidates = [Rotation(), *candidates]
    else:
        candidates = [replace(rotation, gain=gain) for rotation in candidates]
    spreads = [
        spread(rotation.undo(keys, outputs)[:, :, 0], positions=positions)
        for rotation in candidates
    ]
    best = min(spreads, default=math.inf)
    return candidates[spreads.index(best)] if best <= tolerance(keys.dtype) else None


def spread(rows: Tensor, *, positions: int) -> float:
    """How much rows of the same token differ between positions, relative to their size.

    Args:
        rows: ``[tokens * positions, ...]``.
        positions: how many positions.
    """
    grouped = rows.unflatten(0, (-1, positions)).flatten(2)
    return difference(grouped, grouped[:, :1].expand_as(grouped))


def difference(one: Tensor, other: Tensor) -> float:
    """Relative Frobenius norm of the difference, where both are finite."""
    finite = one.isfinite() & other.isfinite()
    one, other = (part.double().where(finite, 0.0) for part in (one, other))
    size = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) / size if size else 0.0


def possible_rotations(
    keys: Tensor, outputs: Sequence[Any], *, start: Sequence[int]
) -> list[Rotation]:
    """Ways in which keys may have been turned by what rotary modules put out.

    Args:
        keys: ``[batch, heads, seq, head_dim]``.
        outputs: of the rotary modules in that pass.
        start: rows of the batch whose first token stands at position 0.
    """
    found = []
    pairs: tuple[Pairs, Pairs] = ("halves", "neighbours")
    for call, output in enumerate(outputs):
        for reading in _readings(output, start):
            width = 2 * reading.angles(output)[0].shape[-1]
            if not 0 < width <= keys.shape[-1]:
                continue
            ends = (False, True) if width < keys.shape[-1] else (False,)
            for pairing, from_end, backwards in itertools.product(pairs, ends, (False, True)):
                found.append(
                    Rotation(
                        pairs=pairing,
                        call=call,
                        reading=reading,
                        from_end=from_end,
                        backwards=backwards,
                    )
                )
    return found


def _readings(output: Any, start: Sequence[int]) -> Iterator[Reading]:
    """The ways in which an output of a rotary module may be read; none if it is something else."""
    if isinstance(output, Tensor) and output.is_complex():
        yield Reading(form="complex")
    if not isinstance(output, tuple) or len(output) != 2:
        return
    if not all(isinstance(part, Tensor) and part.ndim >= 3 for part in output):
        return
    first, second = (_plain(part) for part in output)
    if first.shape != second.shape or not first.is_floating_point():
        return
    # At position 0 every angle is 0: its sines are what vanishes there.
    rows = [row for row in start if row < len(first)]
    sines_first = bool((first[rows, 0] == 0).all()) and not bool((second[rows, 0] == 0).all())
    left, right = first.chunk(2, dim=-1) if first.shape[-1] % 2 == 0 else (first, first[..., :0])
    if torch.equal(left, right):
        yield Reading(form="halves", sines_first=sines_first)
    if torch.equal(first[..., ::2], first[..., 1::2]):
        yield Reading(form="neighbours", sines_first=sines_first)
    yield Reading(form="once", sines_first=sines_first)


def _plain(angles: Tensor) -> Tensor:
    """Drops the axis of time, height and width, which are one and the same for text."""
    return angles[0] if angles.ndim == 4 else angles
