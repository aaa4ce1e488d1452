"""The looped language model as a native transformers model.

Parameter names and shapes are those of released Ouro checkpoints (arXiv 2510.25741, section 3).
Importing this module lets ``AutoModelForCausalLM`` load them without remote code.
"""

# transformers is partly untyped.
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from lightning_modules.looplm.configuration import LoopLMConfig
from lightning_modules.looplm.layers import (
    LoopLMAttention,
    LoopLMDecoderLayer,
    LoopLMRMSNorm,
)
from lightning_modules.looplm.loop_cache import cover_loops
from lightning_modules.looplm.objective import first_exit_step


@dataclass(frozen=True, kw_only=True)
class LoopSteps:
    """What every loop leaves behind.

    Attributes:
        hidden: states after the final norm, ``[T, batch, seq, hidden]``.
        gate_logits: exit gate before its sigmoid, ``[T, batch, seq]``.
    """

    hidden: Tensor
    gate_logits: Tensor


@dataclass
class LoopLMOutput(BaseModelOutputWithPast):
    """Output of the stack; ``hidden_states`` and ``attentions`` cover every layer of every loop.

    Attributes:
        hidden_states_list: normed states of every loop, T tensors ``[batch, seq, hidden]``.
        gate_logits: ``[T, batch, seq]``.
    """

    hidden_states_list: tuple[Tensor, ...] | None = None
    gate_logits: Tensor | None = None


@dataclass
class LoopLMCausalOutput(CausalLMOutputWithPast):
    """Output of the language model; ``logits`` are those of the loop each position exits at.

    Attributes:
        hidden_states_list: normed states of every loop, T tensors ``[batch, seq, hidden]``.
        gate_logits: ``[T, batch, seq]``.
    """

    hidden_states_list: tuple[Tensor, ...] | None = None
    gate_logits: Tensor | None = None


class LoopLMPreTrainedModel(PreTrainedModel):
    """Loading, saving and initial weights, shared by the stack and the language model."""

    config: LoopLMConfig
    config_class = LoopLMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LoopLMDecoderLayer"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {  # noqa: RUF012 - read by transformers under this name
        "hidden_states": OutputRecorder(
            LoopLMDecoderLayer, num_hidden_layers_key="num_cache_layers"
        ),
        "attentions": OutputRecorder(LoopLMAttention, index=1),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LoopLMRMSNorm):
            init.constant_(module.weight, module.initial_gain)


class LoopLMModel(LoopLMPreTrainedModel):
    """The embedding and the looped stack, without the head."""

    def __init__(self, config: LoopLMConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            LoopLMDecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = LoopLMRMSNorm(config)
        self.early_exit_gate = nn.Linear(config.hidden_size, 1)
        self.rotary_emb = LlamaRotaryEmbedding(cast(Any, config))
        self.gradient_checkpointing = False
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.early_exit_gate:
            init.constant_(self.early_exit_gate.bias, self.config.gate_bias)

    def steps(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Cache | None = None,
        **attention: Any,
    ) -> LoopSteps:
        """Runs every loop; mask and rotary angles are made once for all of them.

        Args:
            input_ids: token ids, ``[batch, seq]``.
            attention_mask: ``[batch, seen + seq]``, 0 at padding; default no padding.
            position_ids: ``[batch, seq]``; default counts on from the cache.
            inputs_embeds: ``[batch, seq, hidden]``, in place of ``input_ids``.
            cache: keys and values; layer ``l`` of loop ``t``, both from 0, is its layer
                ``t * num_hidden_layers + l``.
            attention: further arguments of the attention implementation.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given, or the
                cache was filled with fewer loops than the model runs.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if cache is not None:
            cover_loops(cache, self.config.num_hidden_layers, self.config.num_cache_layers)
        if position_ids is None:
            seen = cache.get_seq_length() if cache is not None else 0
            position_ids = torch.arange(hidden.shape[1], device=hidden.device)[None] + seen
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
        )
        # [batch, 1, seq, head_dim / 2]: transformers repeats each angle in the second half.
        cos, sin = (
            angle.unsqueeze(1).chunk(2, dim=-1)[0]
            for angle in self.rotary_emb(hidden, position_ids)
        )
        normed = []
        for loop in range(self.config.total_ut_steps):
            for layer in self.layers:
                hidden = layer(
                    hidden,
                    rotation=(cos, sin),
                    attention_mask=mask,
                    cache=cache,
                    cache_offset=loop * self.config.num_hidden_layers,
                    **attention,
                )
            hidden = self.norm(hidden)
            normed.append(hidden)
        stacked = torch.stack(normed)
        return LoopSteps(hidden=stacked, gate_logits=self.early_exit_gate(stacked).squeeze(-1))

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> LoopLMOutput:
        """As ``steps``, with a cache of its own where ``use_cache`` asks for one."""
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        steps = self.steps(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            **kwargs,
        )
        return LoopLMOutput(
            last_hidden_state=steps.hidden[-1],
            cache=cache,
            hidden_states_list=steps.hidden.unbind(),
            gate_logits=steps.gate_logits,
        )


class LoopLMForCausalLM(LoopLMPreTrainedModel, GenerationMixin):
    """The looped language model: the stack and one head for all loops."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LoopLMConfig) -> None:
        super().__init__(config)
        self.model = LoopLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def steps(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> LoopSteps:
        """Every loop's states and gates, for training; no cache and no logits are made.

        Args:
            input_ids: token ids, ``[batch, seq]``.
            attention_mask: ``[batch, seq]``, 0 at padding; default no padding.
            position_ids: ``[batch, seq]``; default 0, 1, 2, ...
        """
        model: LoopLMModel = self.model
        return model.steps(input_ids, attention_mask=attention_mask, position_ids=position_ids)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> LoopLMCausalOutput:
        """Logits of the loop at which each position exits; every loop is run for the cache.

        Args:
            input_ids: token ids, ``[batch, seq]``.
            attention_mask: ``[batch, seen + seq]``, 0 at padding; default no padding.
            position_ids: ``[batch, seq]``; default counts on from the cache.
            cache: keys and values of every layer of every loop.
            inputs_embeds: ``[batch, seq, hidden]``, in place of ``input_ids``.
            labels: ``[batch, seq]``, -100 where none; gives ``loss``, the next-token
                cross-entropy of the logits, which is not the looped training objective.
            use_cache: keep keys and values; default as configured.
            logits_to_keep: last positions to make logits for, or their indices; 0 is all.
            kwargs: ``output_hidden_states``, ``output_attentions`` and the like.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        threshold = self.config.early_exit_threshold
        if threshold < 1.0:
            step = first_exit_step(outputs.gate_logits, threshold)[None, ..., None]
            states = torch.stack(outputs.hidden_states_list)
            hidden = states.take_along_dim(step - 1, dim=0).squeeze(0)
        logits = self.lm_head(slice_logits_to_keep(hidden, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return LoopLMCausalOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            hidden_states_list=outputs.hidden_states_list,
            gate_logits=outputs.gate_logits,
        )


AutoModel.register(LoopLMConfig, LoopLMModel, exist_ok=True)
AutoModelForCausalLM.register(LoopLMConfig, LoopLMForCausalLM, exist_ok=True)
