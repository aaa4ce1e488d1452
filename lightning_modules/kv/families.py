"""What attention modules call their projections, and how fused projections are laid out.

This table is all that is known about families by name. Whether an entry fits a given model is
never taken on trust: its rows are compared with what the model stores in its cache.
"""

# Tensor.unflatten is untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

Side = Literal["keys", "values"]
SIDES: tuple[Side, Side] = ("keys", "values")

_SEPARATE: tuple[tuple[str, str], ...] = (
    ("k_proj", "v_proj"),  # Llama and most others
    ("key", "value"),  # BERT and its kin as decoders
    ("k_lin", "v_lin"),  # XLM
    ("Wk", "Wv"),  # CTRL
    ("wk", "wv"),  # Llama as first released
    ("project_k", "project_v"),  # CPM-Ant
)
_FUSED: tuple[str, ...] = (
    "qkv_proj",  # Phi-3, CodeGen
    "kv_proj",  # JetMoE
    "c_attn",  # GPT-2, GPT-BigCode
    "query_key_value",  # GPT-NeoX, Bloom, Falcon, Persimmon
    "Wqkv",  # MPT, DBRX
    "wqkv",  # InternLM2
)
_NORMS: dict[Side, tuple[str, ...]] = {
    "keys": ("k_norm", "k_layernorm", "key_layernorm"),
    "values": ("v_norm",),
}

Split = Callable[[Tensor, int, int, int], tuple[Tensor, Tensor]]
"""Takes a fused output ``[batch, seq, columns]``, heads, and head widths of keys and of values.

Gives keys and values, empty ones if the output cannot be split that way.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """An attention module and where in it keys and values might be read.

    Attributes:
        attention: the module.
        layer: number of the layer in the model, where the module has one; a module that stands
            in several layers (Zamba) has none.
        projection: module that makes keys, and the one that makes values; the same if fused.
        norm: norm after the projection, where the attention has one.
        clip: bound that the attention clips keys and values to after that, if any.
    """

    attention: nn.Module
    layer: int | None
    projection: dict[Side, nn.Module]
    norm: dict[Side, nn.Module]
    clip: float | None

    @property
    def fused(self) -> bool:
        """Whether one projection makes keys and values."""
        return self.projection["keys"] is self.projection["values"]

    @property
    def modules(self) -> set[nn.Module]:
        """All modules whose output may have to be read."""
        return {*self.projection.values(), *self.norm.values()}


def find_sites(model: nn.Module) -> list[Site]:
    """All attention modules with projections of known names; not each need run on text.

    Args:
        model: a transformers model.
    """
    sites: list[Site] = []
    for module in model.modules():
        projection = _projections(module)
        if projection is None:
            continue
        layer = getattr(module, "layer_idx", None)
        sites.append(
            Site(
                attention=module,
                layer=layer if isinstance(layer, int) and layer >= 0 else None,
                projection=projection,
                norm=dict(_norms(module)),
                clip=_clip(module),
            )
        )
    return sites


def _projections(module: nn.Module) -> dict[Side, nn.Module] | None:
    for names in (*_SEPARATE, *((name, name) for name in _FUSED)):
        keys, values = (getattr(module, name, None) for name in names)
        if isinstance(keys, nn.Module) and isinstance(values, nn.Module):
            return {"keys": keys, "values": values}
    return None


def _norms(module: nn.Module) -> Iterator[tuple[Side, nn.Module]]:
    for side in SIDES:
        for name in _NORMS[side]:
            if isinstance(norm := getattr(module, name, None), nn.Module):
                yield side, norm
                break


def _clip(module: nn.Module) -> float | None:
    for owner in (module, getattr(module, "config", None)):
        bound = getattr(owner, "clip_qkv", None)
        if isinstance(bound, int | float) and bound:
            return float(bound)
    return None


def splits(site: Site) -> list[Split]:
    """Ways in which the fused projection of a site may hold keys and values."""
    shards = getattr(site.attention, "mp_num", None)
    return [_in_blocks, _in_groups, *([_in_shards(shards)] if isinstance(shards, int) else [])]


def _in_blocks(output: Tensor, heads: int, key_dim: int, value_dim: int) -> tuple[Tensor, Tensor]:
    """All queries, all keys, all values: Phi-3, GPT-2, MPT, DBRX; without queries, JetMoE."""
    start = output.shape[-1] - heads * (key_dim + value_dim)
    stop = start + heads * key_dim
    return output[..., start:stop], output[..., stop:]


def _in_groups(output: Tensor, heads: int, key_dim: int, value_dim: int) -> tuple[Tensor, Tensor]:
    """Queries of a key-value head, then its key and value: GPT-NeoX, Bloom, Falcon, InternLM2."""
    if output.shape[-1] % heads:
        return output[..., :0], output[..., :0]
    groups = output.unflatten(-1, (heads, -1))
    keys = groups[..., -key_dim - value_dim : -value_dim]
    return keys.flatten(-2), groups[..., -value_dim:].flatten(-2)


def _in_shards(shards: int) -> Split:
    """Queries, values and keys of each shard that the model was trained in: CodeGen."""

    def split(output: Tensor, heads: int, key_dim: int, value_dim: int) -> tuple[Tensor, Tensor]:
        if output.shape[-1] % (3 * shards):
            return output[..., :0], output[..., :0]
        _, values, keys = output.unflatten(-1, (shards, -1)).chunk(3, dim=-1)
        return keys.flatten(-2), values.flatten(-2)

    return split
