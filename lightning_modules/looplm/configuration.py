"""Configuration of the looped language model, in the layout of released Ouro checkpoints."""

# transformers is partly untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from lightning_modules.looplm.sizes import Shape

_WINDOW_SETTINGS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")


@strict
class LoopLMConfig(PreTrainedConfig):
    """A looped decoder: one stack of layers, applied ``total_ut_steps`` times.

    A released Ouro ``config.json`` (``model_type: ouro``) loads as this class, without remote
    code. Source: arXiv 2510.25741, section 3.

    Attributes:
        vocab_size: rows of the embedding and of the head.
        hidden_size: width of the residual stream.
        intermediate_size: width inside the SwiGLU.
        num_hidden_layers: layers of the stack, counted once.
        num_attention_heads: query heads.
        num_key_value_heads: key-value heads; default as many as query heads.
        head_dim: width of one head; default hidden_size / num_attention_heads.
        hidden_act: activation of the SwiGLU.
        max_position_embeddings: longest sequence the rotary embedding is meant for.
        rope_parameters: rotary embedding; ``rope_theta`` and ``rope_scaling`` of older files
            are read into it.
        rms_norm_eps: added to the mean square in every norm.
        initializer_range: standard deviation of the initial matrices.
        attention_dropout: dropout of attention weights while training.
        attention_bias: biases in the attention projections.
        mlp_bias: biases in the SwiGLU.
        tie_word_embeddings: share the embedding and the head.
        use_cache: keep keys and values by default.
        total_ut_steps: T_m, how often the stack is applied.
        early_exit_threshold: cumulative exit probability at which a position takes its logits;
            1 means the last loop's.
        branch_gain: initial gain of the two norms that close each layer's branches.
        gate_bias: initial bias of the exit gate.

    The four settings that describe sliding windows are read from a file, refused where they would
    switch a window on, and dropped.
    """

    model_type = "ouro"

    vocab_size: int = 49_152
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096
    rope_parameters: RopeParameters | dict[str, Any] | None = None
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    attention_dropout: float | int = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    total_ut_steps: int = 4
    early_exit_threshold: float | int = 1.0
    branch_gain: float | int = 1.0
    gate_bias: float | int = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        # Kept as attributes, they would make transformers build a cache that forgets old keys.
        window = {name: kwargs.pop(name, None) for name in _WINDOW_SETTINGS}
        if window["use_sliding_window"] or set(window["layer_types"] or ()) - {"full_attention"}:
            raise ValueError(
                "sliding-window attention is not supported: use_sliding_window must be false and "
                f"every entry of layer_types full_attention, got {window}"
            )
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Refuses shapes and settings that the model does not have.

        Raises:
            ValueError: a setting is out of range; reaches the caller of the constructor as
                ``huggingface_hub.errors.StrictDataclassClassValidationError``.
        """
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}"
            )
        if self.num_attention_heads % (self.num_key_value_heads or 1):
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.total_ut_steps < 1:
            raise ValueError(f"total_ut_steps is {self.total_ut_steps}; at least 1 is needed")
        if not 0.0 <= self.early_exit_threshold <= 1.0:
            raise ValueError(
                f"early_exit_threshold is {self.early_exit_threshold}; allowed is 0 to 1"
            )

    @property
    def num_cache_layers(self) -> int:
        """Layers of the key-value cache: one for every layer of every loop."""
        return self.num_hidden_layers * self.total_ut_steps

    @classmethod
    def from_shape(cls, shape: Shape, *, recurrence: int, **settings: Any) -> LoopLMConfig:
        """Builds the configuration of one size at one recurrence.

        Args:
            shape: every width of the model.
            recurrence: T_m.
            settings: any other attribute, such as ``branch_gain`` or ``gate_bias``.
        """
        return cls(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.num_hidden_layers,
            num_attention_heads=shape.num_attention_heads,
            head_dim=shape.head_dim,
            total_ut_steps=recurrence,
            **settings,
        )


AutoConfig.register(LoopLMConfig.model_type, LoopLMConfig, exist_ok=True)
