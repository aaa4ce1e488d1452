"""Digests of settings: the same for the same settings, on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


def fingerprint(settings: Mapping[str, object]) -> str:
    """Sixteen hex digits of the sha256 of settings in canonical JSON.

    Raises:
        TypeError: for a value without one stable text, such as a set or an object.
        ValueError: for NaN and the infinities.
    """
    text = json.dumps(
        _stable(settings), sort_keys=True, allow_nan=False, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stable(value: object) -> Json:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a fingerprint takes text keys, not {key!r}")
        return {str(key): _stable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_stable(part) for part in value]
    if value is None or type(value) in (str, int, float, bool):
        return value  # type: ignore[return-value]
    raise TypeError(f"a fingerprint cannot hold a {type(value).__name__}: {value!r}")
