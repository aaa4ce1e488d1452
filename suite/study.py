"""The words of a study file: frozen records of what a person asks for.

These records are data only, here and in ``suite.study_calibration`` (the sections
``calibration`` and ``searches``) and ``suite.study_values`` (what sections share). They import
nothing else of the project and no heavy library, so every other module may read them. Reading
YAML and checking it live in ``suite.study_file``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt, MinLen

from suite.study_calibration import (
    CalibrationSpec,
    DocumentsSpec,
    KVShape,
    ModelSpec,
    SearchSpace,
    SearchSpec,
)
from suite.study_values import (
    Niter,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Share,
    TrainerSpec,
)

__all__ = [
    "CalibrationSpec",
    "CorpusSpec",
    "DocumentsSpec",
    "HoldOut",
    "KVShape",
    "LawSpec",
    "LawTest",
    "ModelSpec",
    "Niter",
    "ObjectiveSpec",
    "OptimizerSpec",
    "PretrainingSpec",
    "ReportSpec",
    "SearchSpace",
    "SearchSpec",
    "SizeSpec",
    "Study",
    "TrainerSpec",
]

LawTest = Literal["size", "recurrence", "first", "cell"]


@dataclass(frozen=True, kw_only=True)
class CorpusSpec:
    """Where text comes from and how it is split.

    Attributes:
        source: ``embedded`` (shipped text), ``files`` (txt, jsonl, parquet), ``hub``
            (Hugging Face ``datasets``) or ``mixture`` (other corpora of the study, for
            calibration).
        path: embedded name (default: the corpus's own key), a glob of files relative to the
            study file, or a hub dataset id or local folder of parquet files.
        name: configuration of a hub dataset, such as ``sample-10BT``.
        split: split of a hub dataset.
        column: text column of jsonl, parquet and hub rows; one that holds lists of texts gives
            a document for each.
        where: row filters such as ``language_score >= 0.95``; all must hold.
        shuffle_seed: seed of the streaming shuffle of a hub dataset; none keeps its order.
        revision: commit or tag of a hub dataset.
        max_documents: at most this many documents are read.
        held_out: share of documents kept for evaluation, chosen by a stable hash of the text.
        of: corpora of a mixture, and their shares of its tokens, relative to each other.
    """

    source: Literal["embedded", "files", "hub", "mixture"]
    path: str | None = None
    name: str | None = None
    split: str = "train"
    column: str = "text"
    where: tuple[str, ...] = ()
    shuffle_seed: int | None = None
    revision: str | None = None
    max_documents: Positive | None = None
    held_out: Share = 0.1
    of: dict[str, PositiveFloat] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SizeSpec:
    """The shape of one looped model; widths that are left out follow the published family.

    Attributes:
        name: how the study calls the size.
        num_hidden_layers: layers of the looped stack.
        hidden_size: width of the residual stream; a multiple of the number of heads.
        intermediate_size: SwiGLU width; default 256 * ceil(8 * hidden / 3 / 256), and for a
            hidden size below 256 the nearest multiple of 16 above 8 * hidden / 3.
        num_attention_heads: default hidden / 64, and hidden / 16 below a hidden size of 256.
        vocab_size: default the size of the study's tokenizer.
    """

    name: Annotated[str, MinLen(1)]
    num_hidden_layers: Positive
    hidden_size: Positive
    intermediate_size: Positive | None = None
    num_attention_heads: Positive | None = None
    vocab_size: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """The looped objective, stage I of Ouro (arXiv 2510.25741, section 3).

    Attributes:
        form: ``entropy`` logs sum_t p(t) L(t) - beta H(p); ``kl`` logs the form with
            KL(p || uniform), which is larger by the constant beta log T_m.
        beta: weight of the regulariser, in nats per nat.
    """

    form: Literal["entropy", "kl"] = "entropy"
    beta: NonNegativeFloat = 0.05


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """AdamW and its schedule; every length is in tokens.

    Attributes:
        learning_rate: peak learning rate.
        betas: AdamW's two decay rates.
        weight_decay: applied to matrices, not to gains and biases.
        gradient_clip: largest global gradient norm.
        warmup_tokens: linear warm-up length.
        schedule: what follows the warm-up, until the last token.
        final_share: share of the peak rate at the last token of ``cosine`` and ``linear``.
    """

    learning_rate: PositiveFloat = 3e-3
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.1
    gradient_clip: PositiveFloat = 1.0
    warmup_tokens: Annotated[int, Ge(0)] = 20_000
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    final_share: Annotated[float, Ge(0.0), Le(1.0)] = 0.1


@dataclass(frozen=True, kw_only=True)
class PretrainingSpec:
    """A grid of looped models, sizes x recurrences, trained on one corpus.

    Attributes:
        corpus: name of a corpus of the study; its held-out documents give ``val/*``.
        tokenizer: ``byte``, ``bpe-<vocabulary>`` (trained on the training split) or the path
            of a Hugging Face tokenizer.
        sizes: preset names (53M, 134M, 374M, 778M, 1.36B) or explicit shapes.
        recurrences: values of T_m.
        tokens: training tokens a cell; rounded up to whole batches.
        sequence_length: tokens a sequence.
        batch_size: sequences an optimiser step, over all devices.
        micro_batch_size: sequences a forward pass on one device; smaller values accumulate
            gradients. Default: the whole batch divided over the devices.
        evaluate_every: tokens between evaluations; default a twentieth of ``tokens``.
        checkpoint_every: tokens between checkpoints; default ``evaluate_every``.
        evaluation_tokens: held-out tokens an evaluation, at most.
        branch_gain: initial gain of the two norms that close each branch.
        gate_bias: initial bias of the exit gate.
        objective: see ObjectiveSpec.
        optimizer: see OptimizerSpec.
        trainer: see TrainerSpec.
    """

    corpus: str
    tokenizer: str = "bpe-512"
    sizes: Annotated[tuple[SizeSpec, ...], MinLen(1)]
    recurrences: Annotated[tuple[Positive, ...], MinLen(1)] = (2, 4, 8)
    tokens: Positive
    sequence_length: Annotated[int, Ge(2)] = 128
    batch_size: Positive = 16
    micro_batch_size: Positive | None = None
    evaluate_every: Positive | None = None
    checkpoint_every: Positive | None = None
    evaluation_tokens: Positive = 16_384
    branch_gain: NonNegativeFloat = 1.0
    gate_bias: float = 0.0
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    trainer: TrainerSpec = field(default_factory=TrainerSpec)


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Cells that the law does not see; a cell is held out if its size or T_m is named.

    Attributes:
        sizes: names of sizes.
        recurrences: values of T_m.
    """

    sizes: tuple[str, ...] = ()
    recurrences: tuple[int, ...] = ()

    def covers(self, size: str, recurrence: int) -> bool:
        """Whether the cell of this size and T_m is held out."""
        return size in self.sizes or recurrence in self.recurrences


@dataclass(frozen=True, kw_only=True)
class LawSpec:
    """A scaling law fitted to the tracked curves of the study's pretraining cells.

    Where cells are held out, they are trained last, after the law has put its prediction of them
    on record.

    Attributes:
        form: a law of ``suite.laws.forms.FORMS`` whose variables the cells have:
            ``looplm_total`` (N, D and T_m; 10 parameters), ``chinchilla`` (N and D),
            ``recurrence_equivalence`` (N within and outside the loop, D and T_m),
            ``looplm_stepwise`` (N, D and the loop step, for a study of one T_m), or a sum of
            terms, such as ``parameters + tokens + rising recurrence`` (``looplm_total`` without
            its shifts).
        metric: the tracked curve that is fitted; laws of the loop step read ``loss_at_step``,
            the curves of all steps, and predict that of the last.
        parameters: which count is N: all parameters, or all but embedding and head.
        fit_from: share of each curve's tokens, from its start, that the fit leaves out.
        smoothing: width of the moving average, in logged points, taken before the fit.
        points_per_curve: at most this many points a curve, evenly spaced in tokens.
        huber_delta: threshold of the Huber loss on log loss, in nats.
        starts: seeded starts of the optimiser.
        hold_out: cells kept for the held-out test.
        resamples: resamples of the fitted cells, for 95 % intervals: at least 100, or 0 for no
            intervals.
        tests: further held-out tests, within the cells that are fitted: without each ``size``
            or ``recurrence`` in turn, from the ``first`` 25, 50 and 75 % of the tokens (smoothed
            and thinned from these alone), and without each ``cell``.
        ablations: whether every test is also made of the law without each of its terms.
        test_starts: starts of each fit of a test.
    """

    form: str = "looplm_total"
    metric: Literal[
        "train/total_loss", "val/total_loss", "train/loss_at_step", "val/loss_at_step"
    ] = "train/total_loss"
    parameters: Literal["total", "non_embedding"] = "total"
    fit_from: Annotated[float, Ge(0.0), Lt(1.0)] = 0.1
    smoothing: Positive = 1
    points_per_curve: Annotated[int, Ge(2)] = 200
    huber_delta: PositiveFloat = 1e-3
    starts: Positive = 64
    hold_out: HoldOut = field(default_factory=HoldOut)
    resamples: Annotated[int, Ge(0)] = 500
    tests: tuple[LawTest, ...] = ("size", "recurrence", "first")
    ablations: bool = True
    test_starts: Positive = 16


@dataclass(frozen=True, kw_only=True)
class ReportSpec:
    """The panels of the report, in order.

    Attributes:
        panels: panels whose stage the study does not have are refused.
    """

    panels: (
        tuple[Literal["loss_grid", "error_grid", "parity", "residuals", "pareto"], ...] | None
    ) = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study file.

    Attributes:
        name: letters, digits, ``-``, ``_`` and ``.``; also the MLflow experiment's name.
        title: one line that says what the study is for.
        seed: seed of every random choice.
        corpora: corpora by name.
        pretraining: optional stage.
        law: optional stage; needs ``pretraining``.
        calibration: optional stage.
        searches: optional stage; needs ``calibration``.
        report: see ReportSpec.
    """

    name: str
    title: str = ""
    seed: Annotated[int, Ge(0), Lt(2**32)] = 0
    corpora: dict[str, CorpusSpec]
    pretraining: PretrainingSpec | None = None
    law: LawSpec | None = None
    calibration: CalibrationSpec | None = None
    searches: tuple[SearchSpec, ...] = ()
    report: ReportSpec = field(default_factory=ReportSpec)
