"""Which layer and which heads the columns of a cache row come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class KVEntry:
    """One layer of one loop: a run of ``heads * head_dim`` columns, head by head.

    Attributes:
        loop: pass through the stack, from 0; always 0 for a model that is not looped.
        layer: number of the layer in the model, from 0.
        heads: key-value heads.
        head_dim: width of one head.
        offset: first column.
    """

    loop: int
    layer: int
    heads: int
    head_dim: int
    offset: int

    @property
    def width(self) -> int:
        """Columns of this entry."""
        return self.heads * self.head_dim

    @property
    def columns(self) -> slice:
        """Where this entry lies in a row."""
        return slice(self.offset, self.offset + self.width)


@dataclass(frozen=True, kw_only=True)
class KVLayout:
    """How the rows of keys and of values are laid out, in the order the model computes them.

    Attributes:
        keys: entries of a key row, gapless from column 0.
        values: entries of a value row, gapless from column 0.

    Raises:
        ValueError: the entries of a row are empty, leave a gap or overlap.
    """

    keys: tuple[KVEntry, ...]
    values: tuple[KVEntry, ...]

    def __post_init__(self) -> None:
        for kind, entries in (("keys", self.keys), ("values", self.values)):
            _check_gapless(kind, entries)

    @property
    def key_width(self) -> int:
        """Columns of a key row."""
        return self.keys[-1].offset + self.keys[-1].width

    @property
    def value_width(self) -> int:
        """Columns of a value row."""
        return self.values[-1].offset + self.values[-1].width

    def to_dict(self) -> dict[str, list[dict[str, int]]]:
        """Plain lists and numbers, ready for JSON."""
        return {
            kind: [dict(vars(entry)) for entry in entries]
            for kind, entries in (("keys", self.keys), ("values", self.values))
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Iterable[Mapping[str, Any]]]) -> KVLayout:
        """Reads what ``to_dict`` wrote.

        Raises:
            ValueError: a field is missing, unknown or not a number, or the entries do not fit.
        """
        try:
            return cls(
                keys=tuple(_entry(entry) for entry in record["keys"]),
                values=tuple(_entry(entry) for entry in record["values"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a cache layout: {error!r}") from error


def _entry(record: Mapping[str, Any]) -> KVEntry:
    return KVEntry(**{name: int(value) for name, value in record.items()})


def _check_gapless(kind: str, entries: tuple[KVEntry, ...]) -> None:
    if not entries:
        raise ValueError(f"the layout has no {kind}")
    expected = 0
    for entry in entries:
        if entry.offset != expected or entry.width < 1:
            raise ValueError(
                f"{kind} of loop {entry.loop}, layer {entry.layer} start at column "
                f"{entry.offset} with width {entry.width}; expected start {expected}"
            )
        expected += entry.width
