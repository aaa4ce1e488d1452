"""Keys and values off the projections: nothing has to be undone, no cache is kept."""

# Tensor.unflatten is untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from lightning_modules.kv._probe import Probe, SiteRun, Stored, has_positions_embedded
from lightning_modules.kv._rotary import Rotation, difference, possible_rotations, spread, tolerance
from lightning_modules.kv._running import Hook, Runner
from lightning_modules.kv.families import SIDES, Side, Site, Split, splits
from lightning_modules.kv.layout import KVEntry, KVLayout, next_entry

Append = Callable[[Side, int | None, Tensor], None]
"""Takes the next entry of a row: side, layer if known, and ``[batch, seq, columns]``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A module whose output holds keys or values.

    Attributes:
        site: its attention.
        side: keys or values.
        module: the module.
        read: finds ``[batch, seq, columns]`` in the output.
    """

    site: Site
    side: Side
    module: nn.Module
    read: Callable[[Tensor], Tensor]

    @property
    def name(self) -> str:
        """What the attention calls the module."""
        children = self.site.attention.named_children()
        return next(name for name, child in children if child is self.module)


class HookRoute:
    """Reads modules that were seen to put out what goes into the cache.

    Args:
        sources: one for each module and side.
        layout: of the rows, in the order in which the modules run.

    Attributes:
        layout: as given, with the route and what it reads.
    """

    def __init__(self, sources: list[Source], layout: KVLayout) -> None:
        self._sources = sources
        read: dict[str, list[str]] = {}
        for source in sources:
            names = read.setdefault(type(source.site.attention).__name__, [])
            if source.name not in names:
                names.append(source.name)
        families = (f"{family} {', '.join(names)}" for family, names in read.items())
        self.layout = replace(layout, route=f"hooks: {'; '.join(families)}")

    def hooks(self, append: Append) -> list[tuple[nn.Module, Hook]]:
        """What has to hang on the model while it is captured."""

        def hook(source: Source) -> Hook:
            def read(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
                append(source.side, source.site.layer, source.read(output))

            return read

        return [(source.module, hook(source)) for source in self._sources]

    def run(
        self, runner: Runner, input_ids: Tensor, attention_mask: Tensor | None, append: Append
    ) -> None:
        """One forward pass; the hooks append."""
        runner.run(input_ids, attention_mask)


def hook_route(probe: Probe, rotations: Sequence[Rotation | None]) -> HookRoute | None:
    """The route, if modules of known names put out all that the model stores.

    Args:
        probe: of the model.
        rotations: how the keys of each store were turned, none where that is not known.
    """
    sources: dict[tuple[nn.Module, Side], Source] = {}
    loops: Counter[Site] = Counter()
    entries: dict[Side, list[KVEntry]] = {"keys": [], "values": []}
    runs = iter(probe.runs)
    for stored, rotation in zip(probe.stored, rotations, strict=True):
        expected = _Expected(stored, rotation, probe)
        # A run that stores nothing, as of linear attention, is passed over.
        found = next((pair for run in runs if (pair := expected.sources(run))), None)
        if found is None:
            return None
        for source in found:
            site = source.site
            sources.setdefault((source.module, source.side), source)
            entries[source.side].append(
                next_entry(
                    entries[source.side],
                    loop=0 if site.layer is None else loops[site],
                    layer=stored.layer if site.layer is None else site.layer,
                    heads=expected.heads,
                    head_dim=expected.head_dim[source.side],
                )
            )
        loops[site] += 1
    ran = Counter(run.site for run in probe.runs)
    if any(ran[site] != times for site, times in loops.items()):
        return None
    layout = KVLayout(keys=tuple(entries["keys"]), values=tuple(entries["values"]))
    return HookRoute(list(sources.values()), layout)


class _Expected:
    """What a store says that the rows of its attention should be.

    Args:
        stored: the store.
        rotation: how its keys were turned; none if that is not known.
        probe: that the store is part of.
    """

    def __init__(self, stored: Stored, rotation: Rotation | None, probe: Probe) -> None:
        self.heads = stored.distinct_heads()
        self.head_dim: dict[Side, int] = {
            "keys": stored.keys.shape[-1],
            "values": stored.values.shape[-1],
        }
        self._rotation = rotation
        self._probe = probe
        self._unturned = has_positions_embedded(stored, probe)
        self._stored = stored.keys
        keys = stored.keys if rotation is None else rotation.undo(stored.keys, probe.rotary)
        self._rows: dict[Side, Tensor] = {
            "keys": self._heads_last(keys),
            "values": self._heads_last(stored.values),
        }

    def _heads_last(self, stored: Tensor) -> Tensor:
        """Each head once, ``[batch, seq, heads, head_dim]``."""
        return stored[:, :: stored.shape[1] // self.heads].transpose(1, 2)

    def sources(self, run: SiteRun) -> list[Source] | None:
        """Where keys and values are read, if the run made them."""
        found = []
        for side in SIDES:
            for module, read in self._candidates(run, side):
                if self._agree(side, read(run.outputs[module])):
                    found.append(Source(site=run.site, side=side, module=module, read=read))
                    break
        return found if len(found) == len(SIDES) else None

    def _candidates(
        self, run: SiteRun, side: Side
    ) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
        site = run.site
        norm = site.norm.get(side)
        if norm in run.outputs:
            assert norm is not None
            yield norm, _clipped(_heads_last, site.clip)
            yield norm, _clipped(_heads_first, site.clip)
        projection = site.projection[side]
        if projection not in run.outputs:
            return
        if not site.fused:
            yield projection, _clipped(_heads_last, site.clip)
            return
        for split in splits(site):
            part = functools.partial(self._part, split, SIDES.index(side))
            yield projection, _clipped(part, site.clip)

    def _part(self, split: Split, index: int, output: Tensor) -> Tensor:
        return split(output, self.heads, self.head_dim["keys"], self.head_dim["values"])[index]

    def _agree(self, side: Side, rows: Tensor) -> bool:
        expected = self._rows[side]
        if rows.shape != expected.flatten(2).shape:
            return False
        rows = rows.unflatten(-1, (self.heads, -1))
        if side == "values" or self._rotation is not None or self._unturned:
            return difference(rows, expected) <= tolerance(rows.dtype)
        return self._turned(rows, expected) or any(
            difference(rows, self._heads_last(rotation.undo(self._stored, self._probe.rotary)))
            <= tolerance(rows.dtype)
            for rotation in possible_rotations(
                self._stored, self._probe.rotary, start=self._probe.at_start
            )
        )

    def _turned(self, rows: Tensor, expected: Tensor) -> bool:
        """Whether one is the other turned in an unknown way.

        So it is if they agree up to a factor at position 0, where nothing is turned, if no head
        of them is longer than in the other by more than that factor, and if rows, unlike keys
        in the cache, do not depend on their position.
        """
        probe, limit = self._probe, tolerance(rows.dtype)
        if not probe.takes_positions or spread(rows[:, 0], positions=probe.positions) > limit:
            return False
        start = list(probe.at_start)
        size = rows[start, 0].double().norm()
        factor = expected[start, 0].double().norm() / size if size else 1.0
        lengths = (part.double().norm(dim=-1) for part in (rows * factor, expected))
        return (
            difference(rows[start, 0] * factor, expected[start, 0]) <= limit
            and difference(*lengths) <= limit
        )


def _clipped(read: Callable[[Tensor], Tensor], clip: float | None) -> Callable[[Tensor], Tensor]:
    if clip is None:
        return read
    return lambda output: read(output).clamp(-clip, clip)


def _heads_last(output: Tensor) -> Tensor:
    return output.flatten(2)


def _heads_first(output: Tensor) -> Tensor:
    return output.transpose(1, 2).flatten(2)
