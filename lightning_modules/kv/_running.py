"""A model run for what its modules put out: evaluation mode, hooks, and the words it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from suite.errors import InputError

Hook = Callable[[nn.Module, tuple[Any, ...], Any], None]


class Runner:
    """Runs the backbone of a causal language model on tokens.

    The head is left out: logits cost time and memory, and nothing here reads them.

    Args:
        model: a transformers model.

    Attributes:
        takes_positions: whether the positions of tokens can be given.

    Raises:
        InputError: it is no model of text, or takes no cache of keys and values.
    """

    def __init__(self, model: nn.Module) -> None:
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise unsupported(model, "is an encoder-decoder")
        causal = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
        if causal and not any(causal):
            raise unsupported(model, "does not attend causally")
        self._backbone = _backbone(model)
        words = inspect.signature(self._backbone.forward).parameters
        cache = next((word for word in ("cache", "past_key_values") if word in words), None)
        if cache is None:
            raise unsupported(model, "takes no cache of keys and values")
        self._cache_word = cache
        self.takes_positions = "position_ids" in words

    def run(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> None:
        """One forward pass, with no gradient and no head.

        Args:
            input_ids: ``[batch, seq]``.
            attention_mask: ``[batch, seq]``, 0 at padding; none if all are tokens.
            position_ids: ``[batch, seq]``, for a model that takes them; default from 0 on.
            cache: takes the keys and values; none if nobody wants them.
        """
        given: dict[str, Any] = {} if cache is None else {self._cache_word: cache}
        if position_ids is not None:
            given["position_ids"] = position_ids
        with torch.inference_mode():
            self._backbone(
                input_ids=input_ids,
                attention_mask=attention_mask,
                use_cache=cache is not None,
                **given,
            )


def _backbone(model: nn.Module) -> nn.Module:
    """The model without its head; of a decoder in a wrapper (Bart), the decoder."""
    backbone: nn.Module = getattr(model, "base_model", model)
    for module in (backbone, getattr(backbone, "decoder", None)):
        if module is not None and "input_ids" in inspect.signature(module.forward).parameters:
            return module
    raise unsupported(model, "takes no input_ids")


def unsupported(module: nn.Module, reason: str) -> InputError:
    """The one line that refuses a model.

    Args:
        module: the model, or the module at fault.
        reason: what it does or lacks, as the rest of a sentence that starts with its class.
    """
    return InputError(
        f"{type(module).__name__} {reason}; supported are decoder-only models that keep keys and "
        "values of every token in a transformers cache, in all of their layers or in some"
    )


def hooked(model: nn.Module, hooks: Iterable[tuple[nn.Module, Hook]]) -> ExitStack:
    """Puts the model in evaluation mode and hooks on it, until the stack is closed."""
    with ExitStack() as stack:
        stack.enter_context(_evaluation_mode(model))
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(hook).remove)
        return stack.pop_all()


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
