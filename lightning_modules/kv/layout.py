"""Which layer and which heads the columns of a cache row come from.

Multi-head latent attention (DeepSeek) caches one vector a token and layer, out of which keys and
values are both made. It is laid out under ``keys`` as a single head; there are then no entries of
``values``, ``value_width`` is 0 and rows of values have no column. ``KVLayout.kinds`` says which
of ``key`` and ``value`` there are to calibrate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["key", "value"]


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


def next_entry(
    entries: Sequence[KVEntry], *, loop: int, layer: int, heads: int, head_dim: int
) -> KVEntry:
    """The entry that follows others without a gap; arguments as the fields of ``KVEntry``."""
    return KVEntry(
        loop=loop,
        layer=layer,
        heads=heads,
        head_dim=head_dim,
        offset=entries[-1].columns.stop if entries else 0,
    )


@dataclass(frozen=True, kw_only=True)
class HeadColumns:
    """One head of one layer, and where it lies in a row.

    Attributes:
        loop: pass through the stack, from 0.
        layer: number of the layer in the model, from 0.
        head: number of the head in the layer, from 0.
        columns: its columns.
    """

    loop: int
    layer: int
    head: int
    columns: slice


@dataclass(frozen=True, kw_only=True)
class KVLayout:
    """How the rows of keys and of values are laid out, in the order the model computes them.

    A layer without a cache, or one that reads the cache of another layer, has no entry.

    Attributes:
        keys: entries of a key row, gapless from column 0.
        values: entries of a value row, gapless from column 0; none if all layers are latent.
        route: how and where rows are read, as ``KVCapture.route`` says it; for the record, and
            no part of what makes two layouts equal.

    Raises:
        ValueError: there are no keys, or the entries of a row leave a gap or overlap.
    """

    keys: tuple[KVEntry, ...]
    values: tuple[KVEntry, ...]
    route: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("the layout has no keys")
        for kind, entries in (("keys", self.keys), ("values", self.values)):
            _check_gapless(kind, entries)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What there is to calibrate: ``key`` and ``value``, or ``key`` alone (latents)."""
        return ("key", "value") if self.values else ("key",)

    @property
    def key_width(self) -> int:
        """Columns of a key row."""
        last = self.keys[-1]
        return last.offset + last.width

    @property
    def value_width(self) -> int:
        """Columns of a value row; 0 where there are no values."""
        return self.values[-1].columns.stop if self.values else 0

    def slices(self, kind: Kind) -> tuple[HeadColumns, ...]:
        """Every head of every layer with its columns, in the order of the row."""
        return tuple(
            HeadColumns(
                loop=entry.loop,
                layer=entry.layer,
                head=head,
                columns=slice(start, start + entry.head_dim),
            )
            for entry in (self.keys if kind == "key" else self.values)
            for head, start in enumerate(range(entry.offset, entry.columns.stop, entry.head_dim))
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and text, ready for JSON."""
        return {
            "keys": [dict(vars(entry)) for entry in self.keys],
            "values": [dict(vars(entry)) for entry in self.values],
            "route": self.route,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> KVLayout:
        """Reads what ``to_dict`` wrote.

        Raises:
            ValueError: a field is missing, unknown or not a number, or the entries do not fit.
        """
        try:
            return cls(
                keys=tuple(_entry(entry) for entry in record["keys"]),
                values=tuple(_entry(entry) for entry in record["values"]),
                route=str(record.get("route", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a cache layout: {error!r}") from error


def _entry(record: Mapping[str, Any]) -> KVEntry:
    return KVEntry(**{name: int(value) for name, value in record.items()})


def _check_gapless(kind: str, entries: tuple[KVEntry, ...]) -> None:
    expected = 0
    for entry in entries:
        if entry.offset != expected or entry.width < 1:
            raise ValueError(
                f"{kind} of loop {entry.loop}, layer {entry.layer} start at column "
                f"{entry.offset} with width {entry.width}; expected start {expected}"
            )
        expected += entry.width
