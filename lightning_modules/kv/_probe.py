"""A few tokens through a model, and all that is needed to decide how to read its cache."""

# Tensor.unflatten is untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.kv._recording import recording_cache
from lightning_modules.kv._rotary import difference, rotary_modules, spread, tolerance
from lightning_modules.kv._running import Hook, Runner, hooked, unsupported
from lightning_modules.kv.families import Site, find_sites

_TOKENS = 4
# The first two must be 0; one that turns the fastest columns by several radians tells most.
_POSITIONS = (0, 0, 1, 5, 11)
_NO_POSITIONS = (0, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """What one layer stored in the cache.

    Attributes:
        layer: number of the cache layer.
        keys: ``[batch, heads, seq, head_dim]``.
        values: as wide as the keys, or not.
    """

    layer: int
    keys: Tensor
    values: Tensor

    def distinct_heads(self) -> int:
        """Heads that differ: some models store each head once for every query head it serves."""
        heads = self.keys.shape[1]
        for distinct in (count for count in range(1, heads) if heads % count == 0):
            if all(_repeats(part, distinct) for part in (self.keys, self.values)):
                return distinct
        return heads


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteRun:
    """One run of an attention module, with what its projections and norms put out."""

    site: Site
    outputs: dict[nn.Module, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """Four tokens, each at the start of sequences of two, at several positions.

    The first token of a sequence sees no other, so whatever is computed of it before rotary
    embedding is the same at every position, to the bit. Twice it stands at position 0, before
    different tokens: what differs between the two has looked ahead. Once it is repeated.

    Attributes:
        positions: sequences that begin with the same token, at positions that do not fall.
        takes_positions: whether the model was told them; if not, all are 0.
        stored: what went into the cache, in order.
        runs: runs of attention modules with projections of known names, in order.
        rotary: outputs of rotary modules, in order.
    """

    positions: int
    takes_positions: bool
    stored: list[Stored]
    runs: list[SiteRun]
    rotary: list[Any]

    @property
    def at_start(self) -> range:
        """Rows of the batch whose first token stands at position 0."""
        return range(0, _TOKENS * self.positions, self.positions)


def has_positions_embedded(stored: Stored, probe: Probe) -> bool:
    """Whether positions come with the embedding of tokens, so that keys are not turned.

    Rotary embedding leaves no trace in values; where values tell their position, and no rotary
    module ran, they have it from the embedding (GPT-2, OPT).
    """
    moved = spread(stored.values[:, :, 0], positions=probe.positions)
    return moved > tolerance(stored.values.dtype) and not probe.rotary


def first_keys_stay(probe: Probe) -> bool:
    """Whether the first layer stores the same keys for a token and for its repetition.

    It does unless it turns them by their position, or tokens are embedded with theirs.
    """
    twice = probe.stored[0].keys[1 :: probe.positions]
    return difference(twice[:, :, 0], twice[:, :, 1]) <= tolerance(twice.dtype)


def run_probe(model: nn.Module, runner: Runner) -> Probe:
    """Runs the probe.

    Args:
        model: a transformers model.
        runner: the same model's.

    Raises:
        InputError: the model stores nothing in its cache.
    """
    sites = find_sites(model)
    stored: list[Stored] = []
    runs: list[SiteRun] = []
    rotary: list[Any] = []

    def store(layer: int, keys: Tensor, values: Tensor) -> None:
        kept = keys.clone()
        same = values is keys
        stored.append(Stored(layer=layer, keys=kept, values=kept if same else values.clone()))

    device = next(model.parameters()).device
    positions = _POSITIONS if runner.takes_positions else _NO_POSITIONS
    starts = torch.tensor(positions, device=device)
    first = torch.arange(_TOKENS, device=device).repeat_interleave(len(positions))
    # The second token is the next one, and once the same.
    step = torch.ones_like(starts)
    step[1] = 0
    second = first + step.repeat(_TOKENS)
    hooks = [(module, _keep(runs, site)) for site in sites for module in site.modules]
    hooks += [(module, keep_output(rotary)) for module in rotary_modules(model)]
    with hooked(model, hooks), recording_cache(model, store) as cache:
        try:
            runner.run(
                torch.stack((first, second % _TOKENS), dim=1),
                position_ids=torch.stack((starts, starts + 1), dim=1).repeat(_TOKENS, 1)
                if runner.takes_positions
                else None,
                cache=cache,
            )
        except Exception as error:
            # A model that wants more than text, or another cache, may fail in any way.
            what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise unsupported(model, f"does not run on text with a cache ({what})") from error
    if not stored:
        raise unsupported(model, "stores no keys and values on text")
    probe = Probe(
        positions=len(positions),
        takes_positions=runner.takes_positions,
        stored=stored,
        runs=runs,
        rotary=rotary,
    )
    _check_stores(model, probe)
    return probe


def _check_stores(model: nn.Module, probe: Probe) -> None:
    """Refuses a model whose stores are not one row a token, or depend on later tokens."""
    for stored in probe.stored:
        tokens = stored.keys.shape[2]
        if tokens != 2:
            raise unsupported(model, f"stores {tokens} rows for 2 tokens in layer {stored.layer}")
        for part in (stored.keys, stored.values):
            same = part[:, :, 0].unflatten(0, (-1, probe.positions))[:, :2].flatten(0, 1)
            if spread(same, positions=2) > tolerance(part.dtype):
                raise unsupported(model, "does not attend causally")


def keep_output(outputs: list[Any]) -> Hook:
    """A hook that appends what a module puts out."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        outputs.append(output)

    return hook


def _keep(runs: list[SiteRun], site: Site) -> Hook:
    """A hook for the modules of a site; one that has run before begins another run."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        mine = next((run for run in reversed(runs) if run.site is site), None)
        if mine is None or module in mine.outputs:
            mine = SiteRun(site=site)
            runs.append(mine)
        if isinstance(output, Tensor) and output.ndim in (3, 4):
            mine.outputs[module] = output.clone()

    return hook


def _repeats(part: Tensor, distinct: int) -> bool:
    """Whether every so many heads in a row are one head; heads of nothing but zeros are not."""
    grouped = part.unflatten(1, (distinct, -1))
    return torch.equal(grouped, grouped[:, :, :1].expand_as(grouped)) and bool(part.any())
