"""A transformers cache that tells what layers store in it."""

# transformers is partly untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

Store = Callable[[int, Tensor, Tensor], None]
"""Takes cache layer, keys ``[batch, heads, seq, head_dim]`` and values of one store."""


@contextmanager
def recording_cache(model: nn.Module, store: Store) -> Iterator[DynamicCache]:
    """The cache that the model would make, watched while the context is open.

    What a layer stores is seen before a sliding window cuts it, and nothing is seen of layers
    that store nothing: those that read the cache of another, and those without attention.

    Args:
        model: whose cache it is.
        store: called at each store, with what may be views of what the model goes on with: copy
            to keep them.
    """
    own = _own_class(model)
    cache = DynamicCache(config=getattr(model, "config", None)) if own is None else own()
    keep = cache.update

    def update(
        key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        store(layer_idx, key_states, value_states)
        return keep(key_states, value_states, layer_idx, *args, **kwargs)

    # On the object, as some models refuse any class but their own.
    cache.update = update  # type: ignore[method-assign]
    try:
        yield cache
    finally:
        # A cache that refers to itself would keep its memory until the garbage collector comes.
        del cache.update


def _own_class(model: nn.Module) -> type[DynamicCache] | None:
    """The class of cache that comes with the code of the model (MiniMax)."""
    module = inspect.getmodule(type(model))
    for found in vars(module).values():
        if (
            isinstance(found, type)
            and issubclass(found, DynamicCache)
            and found.__module__ == type(model).__module__
        ):
            return found
    return None
