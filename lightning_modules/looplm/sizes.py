"""From the size a study asks for to shapes, parameter counts and training FLOPs.

Everything here is arithmetic: a plan can be costed without torch and without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from suite.errors import InputError
from suite.study import SizeSpec

PRESET_VOCAB_SIZE = 32_000
"""Vocabulary for which the preset names are the total parameter counts."""

PRESETS = MappingProxyType(
    {
        name: SizeSpec(name=name, num_hidden_layers=layers, hidden_size=hidden)
        for name, layers, hidden in (
            ("53M", 6, 512),
            ("134M", 12, 768),
            ("374M", 24, 1024),
            ("778M", 24, 1536),
            ("1.36B", 24, 2048),
        )
    }
)
"""The sizes of Ouro's scaling grid (arXiv 2510.25741, Figure 15), by the name it gives them."""

_SMALL = 256  # below this width, heads of 64 and steps of 256 would be too coarse


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Every width of a looped model; the recurrence is not part of it.

    Attributes:
        num_hidden_layers: layers of the looped stack.
        hidden_size: width of the residual stream.
        intermediate_size: width inside the SwiGLU.
        num_attention_heads: attention heads; keys and values have as many.
        head_dim: width of one head; even, because rotary embedding turns pairs.
        vocab_size: rows of the embedding and of the head.
    """

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    head_dim: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """How many parameters a looped model has, and where; none depends on the recurrence.

    Attributes:
        embedding: input embedding, a lookup.
        looped: the layer stack, which is applied T_m times.
        matrices: the part of ``looped`` that multiplies (all of it but the norms' gains).
        final_norm: gains of the norm that closes every loop.
        gate: weight and bias of the exit gate.
        head: output projection, not tied to the embedding.
    """

    embedding: int
    looped: int
    matrices: int
    final_norm: int
    gate: int
    head: int

    @property
    def total(self) -> int:
        """All parameters: the N of the published grid."""
        return self.embedding + self.looped + self.final_norm + self.gate + self.head

    @property
    def non_embedding(self) -> int:
        """All parameters but the input embedding and the head."""
        return self.total - self.embedding - self.head


def resolve(spec: SizeSpec, *, vocab_size: int) -> Shape:
    """Fills in the widths that a size leaves out.

    Args:
        spec: the size a study asks for.
        vocab_size: size of the study's tokenizer, used when the size names no vocabulary.

    Raises:
        InputError: the hidden size is not a multiple of the number of heads, the head width
            is odd, or the size's vocabulary has no room for the tokenizer's.
    """
    hidden = spec.hidden_size
    small = hidden < _SMALL
    heads = spec.num_attention_heads
    if heads is None:
        width = 16 if small else 64
        if hidden % width:
            raise InputError(
                f"size {spec.name!r} has hidden_size {hidden}, which is not a multiple of the "
                f"default head width {width}; choose a multiple of {width} or give "
                "num_attention_heads",
                key="pretraining.sizes",
            )
        heads = hidden // width
    if hidden % heads:
        raise InputError(
            f"size {spec.name!r} has hidden_size {hidden}, which is not a multiple of its "
            f"num_attention_heads {heads}",
            key="pretraining.sizes",
        )
    if (hidden // heads) % 2:
        raise InputError(
            f"size {spec.name!r} has heads of width {hidden // heads} (hidden_size {hidden} / "
            f"num_attention_heads {heads}); rotary embedding needs an even width",
            key="pretraining.sizes",
        )
    if spec.vocab_size is not None and spec.vocab_size < vocab_size:
        raise InputError(
            f"size {spec.name!r} has vocab_size {spec.vocab_size}, fewer than the tokenizer's "
            f"{vocab_size} tokens; raise it or leave it out",
            key="pretraining.sizes",
        )
    multiple = 16 if small else 256
    return Shape(
        num_hidden_layers=spec.num_hidden_layers,
        hidden_size=hidden,
        intermediate_size=spec.intermediate_size or -(-8 * hidden // (3 * multiple)) * multiple,
        num_attention_heads=heads,
        head_dim=hidden // heads,
        vocab_size=spec.vocab_size or vocab_size,
    )


def count_parameters(shape: Shape) -> ParameterCounts:
    """Counts the parameters of a looped model in closed form.

    A layer has four attention projections, three SwiGLU projections and four norms; one final
    norm, one gate and one head serve all loops.
    """
    hidden = shape.hidden_size
    attention = 4 * hidden * shape.num_attention_heads * shape.head_dim
    swiglu = 3 * hidden * shape.intermediate_size
    matrices = shape.num_hidden_layers * (attention + swiglu)
    return ParameterCounts(
        embedding=shape.vocab_size * hidden,
        looped=matrices + shape.num_hidden_layers * 4 * hidden,
        matrices=matrices,
        final_norm=hidden,
        gate=hidden + 1,
        head=shape.vocab_size * hidden,
    )


def training_flops_per_token(shape: Shape, recurrence: int, sequence_length: int) -> int:
    """Floating-point operations of one training token, forward and backward.

    T_m * (6 * (block matrices + head) + 12 * layers * hidden * sequence_length): 2 operations a
    weight forward and 4 backward, and attention scores and values counted without the causal
    mask's saving, as is customary (PaLM, arXiv 2204.02311, appendix B). The head runs after
    every loop; the input embedding is a lookup and costs nothing. Norms, rotary embedding,
    softmax and the gate are left out.

    Args:
        shape: the model.
        recurrence: T_m.
        sequence_length: tokens a sequence.
    """
    counts = count_parameters(shape)
    width = shape.num_attention_heads * shape.head_dim
    attention = 12 * shape.num_hidden_layers * width * sequence_length
    return recurrence * (6 * (counts.matrices + counts.head) + attention)


def format_count(count: int) -> str:
    """Writes a count as people name models: ``53M``, ``1.36B``, ``60K``; below 1,000 in full."""
    for scale, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        digits = 2 if letter == "B" else 0
        # Half a unit of the last digit below the scale already rounds up to the larger unit:
        # 999,600 is 1M, not 1000K.
        if count >= scale - (scale // 1000) // 2 and count >= 1000:
            return f"{count / scale:.{digits}f}{letter}"
    return str(count)
