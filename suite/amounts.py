"""Amounts as people write them: 1.36B parameters, 20B tokens, 1e21 FLOPs."""

from __future__ import annotations

import math

from suite.errors import InputError

_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read_amount(text: str) -> float:
    """The number that a text such as ``13e9``, ``1.36B`` or ``350K`` stands for.

    Raises:
        InputError: it is no positive finite number.
    """
    plain = text.strip().replace(",", "").replace("_", "")
    scale = _SCALES.get(plain[-1:].upper(), 1.0)
    try:
        value = float(plain if scale == 1.0 else plain[:-1]) * scale
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"{text!r} is not a positive number; write 13e9, or 13B with one of K, M, B and T"
        )
    return value


def shown_amount(value: float) -> str:
    """Three digits with the letter of its scale, or in powers of ten from a thousand T."""
    for letter, scale in reversed(_SCALES.items()):
        if scale * 0.9995 <= value < scale * 999.5:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"
