"""A transformers cache, stretched from one layer stack to every loop over it."""

from __future__ import annotations

import copy

from transformers.cache_utils import Cache


def cover_loops(cache: Cache, num_hidden_layers: int, num_cache_layers: int) -> None:
    """Gives the cache a layer for every layer of every loop, in place.

    A cache made from a configuration (as ``generate`` does, for any of its implementations) has
    the layers of one loop; the others are made like them before anything is stored. A cache
    that grows by itself is left alone.

    Args:
        cache: empty, or filled by the same model.
        num_hidden_layers: layers of the stack.
        num_cache_layers: layers of all loops together.

    Raises:
        ValueError: the last loop has stored fewer tokens than the first, so the cache was filled
            with fewer loops and the missing keys cannot be made up.
    """
    if cache.layer_class_to_replicate is None and cache.get_seq_length() == 0:
        stack = cache.layers[:num_hidden_layers]
        for index in range(len(cache.layers), num_cache_layers):
            cache.layers.append(copy.deepcopy(stack[index % num_hidden_layers]))
    first, last = cache.get_seq_length(0), cache.get_seq_length(num_cache_layers - 1)
    if first != last:
        raise ValueError(
            f"the cache holds {int(first)} tokens for the first loop and {int(last)} for the "
            "last; it was filled with another total_ut_steps, start from an empty one"
        )
