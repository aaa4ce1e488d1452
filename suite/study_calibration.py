"""The words of the sections ``calibration`` and ``searches`` of a study file; data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, MaxLen, MinLen

from suite.study_values import Niter, Positive, Share, TrainerSpec


@dataclass(frozen=True, kw_only=True)
class KVShape:
    """The declared shape of a model that is planned before it is loaded.

    Attributes:
        layers: layers with a cache (for a looped model: layers x loops).
        heads: key-value heads a layer.
        head_dim: width of one head.
        parameters: parameters of the model.
    """

    layers: Positive
    heads: Positive
    head_dim: Positive
    parameters: Positive


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model to calibrate: a pretraining cell of this study, or a checkpoint.

    Attributes:
        size: with ``recurrence``, names a pretraining cell of this study.
        recurrence: T_m of that cell.
        path: hub id, or a local folder (relative to the study file).
        revision: commit or tag of a hub model.
        gguf_file: name of a GGUF file in ``path``.
        label: how figures call the model; default made from the fields above.
        trust_remote_code: run code that comes with the checkpoint.
        shape: declared shape, for planning without the model; checked when it is loaded.
    """

    size: str | None = None
    recurrence: Positive | None = None
    path: str | None = None
    revision: str | None = None
    gguf_file: str | None = None
    label: str | None = None
    trust_remote_code: bool = False
    shape: KVShape | None = None


@dataclass(frozen=True, kw_only=True)
class DocumentsSpec:
    """Which documents a calibration takes, by their length in tokens of the model.

    Attributes:
        least: shorter documents are left out.
        most: longer ones are left out; none keeps them all.
        long_from: documents of at least this many tokens are the long ones of ``long_share``.
        long_share: share of the tokens that comes from long documents; none takes documents as
            they come.
    """

    least: Positive = 1
    most: Positive | None = None
    long_from: Positive | None = None
    long_share: Share | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationSpec:
    """KV-cache bases: models x calibration corpora x niter, over token budgets.

    Attributes:
        models: see ModelSpec.
        calibrate_on: corpora whose training documents give the bases.
        evaluate_on: corpora whose held-out documents give the errors.
        budgets: calibration tokens, increasing, at most 200; sinks are not counted.
        niter: power iterations of the randomised SVD, or ``exact``.
        rank: components kept.
        sequence_length: tokens a sequence, at most; longer documents are cut into pieces.
        batch_size: sequences a forward pass.
        sinks: first positions of each sequence that are left out (attention sinks).
        drop_last: last positions of each sequence that are left out.
        documents: see DocumentsSpec; for calibration and for evaluation.
        oversampling: columns of the randomised SVD beyond the rank.
        intervals: groups of evaluation documents for the jackknife interval of the errors; 0
            gives none.
        evaluation_tokens: kept tokens of each evaluation corpus.
        trainer: see TrainerSpec.
    """

    models: Annotated[tuple[ModelSpec, ...], MinLen(1)]
    calibrate_on: Annotated[tuple[str, ...], MinLen(1)]
    evaluate_on: Annotated[tuple[str, ...], MinLen(1)]
    budgets: Annotated[tuple[Positive, ...], MinLen(1), MaxLen(200)]
    niter: Annotated[tuple[Niter, ...], MinLen(1)] = (1, 8, "exact")
    rank: Positive
    sequence_length: Annotated[int, Ge(2)] = 1024
    batch_size: Positive = 4
    sinks: Annotated[int, Ge(0)] = 4
    drop_last: Annotated[int, Ge(0)] = 0
    documents: DocumentsSpec = field(default_factory=DocumentsSpec)
    oversampling: Annotated[int, Ge(0)] = 0
    intervals: Annotated[int, Ge(0)] = 0
    evaluation_tokens: Positive = 16_384
    trainer: TrainerSpec = field(default_factory=TrainerSpec)


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The choices that a search draws from.

    Attributes:
        niter: power iterations, or ``exact``.
        tokens: calibration tokens.
        rank: components kept.
    """

    niter: Annotated[tuple[Niter, ...], MinLen(1)]
    tokens: Annotated[tuple[Positive, ...], MinLen(1)]
    rank: Annotated[tuple[Positive, ...], MinLen(1)]


@dataclass(frozen=True, kw_only=True)
class SearchSpec:
    """An Optuna search over calibration settings; every objective is minimised.

    Attributes:
        name: name of the search, unique in the study.
        model: index of the model in ``calibration.models``.
        calibrate_on: corpus; default the first of ``calibration.calibrate_on``.
        evaluate_on: corpus; default the first of ``calibration.evaluate_on``.
        over: see SearchSpace.
        objectives: held-out error and ``calibration_seconds``, the honest cost from scratch.
        trials: finished trials in total, over all invocations.
    """

    name: Annotated[str, MinLen(1)]
    model: Annotated[int, Ge(0)] = 0
    calibrate_on: str | None = None
    evaluate_on: str | None = None
    over: SearchSpace
    objectives: Annotated[
        tuple[Literal["key/relative_error", "value/relative_error", "calibration_seconds"], ...],
        MinLen(1),
    ] = ("value/relative_error", "calibration_seconds")
    trials: Positive = 30
