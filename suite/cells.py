"""A study's cells: every grid point with the settings that decide its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

from lightning_modules.looplm.sizes import Shape, count_parameters, resolve
from lightning_modules.schedule import PretrainingPlan
from suite.fingerprint import fingerprint
from suite.materials import Materials
from suite.study import CalibrationSpec, ModelSpec, Niter, PretrainingSpec, SizeSpec
from suite.study_rules import model_label

Kind = Literal["pretraining", "prediction", "law", "calibration", "search", "trial", "report"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a study's grid; one MLflow run.

    Attributes:
        kind: stage that it belongs to.
        name: readable name of the run.
        settings: everything that decides the result; enters the fingerprint.
        labels: what the study calls its parts; logged, but not in the fingerprint.
    """

    kind: Kind
    name: str
    settings: Mapping[str, object]
    labels: Mapping[str, object]

    @cached_property
    def fingerprint(self) -> str:
        """Digest of kind and settings."""
        return fingerprint({"kind": self.kind, **self.settings})

    @property
    def parameters(self) -> dict[str, object]:
        """Labels and settings as the run's nested parameters."""
        return _merged(self.labels, self.settings)


def _merged(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    merged = dict(one)
    for key, value in other.items():
        here = merged.get(key)
        if isinstance(here, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(here, value)
        else:
            merged[key] = value
    return merged


def pretraining_cell(
    materials: Materials, spec: PretrainingSpec, size: SizeSpec, recurrence: int
) -> Cell:
    """The cell of one size and one T_m."""
    tokenizer = materials.tokenizer()
    shape = resolve(size, vocab_size=tokenizer.vocab_size)
    plan = PretrainingPlan.of(spec)
    return Cell(
        kind="pretraining",
        name=f"pretrain {size.name} Tm={recurrence}",
        settings={
            "shape": asdict(shape),
            "recurrence": recurrence,
            "tokens": plan.tokens,
            "sequence_length": spec.sequence_length,
            "batch_size": spec.batch_size,
            "evaluate_every": plan.evaluate_every * plan.batch_tokens,
            "log_every": plan.log_every * plan.batch_tokens,
            "evaluation_tokens": spec.evaluation_tokens,
            "branch_gain": spec.branch_gain,
            "gate_bias": spec.gate_bias,
            "objective": asdict(spec.objective),
            "optimizer": asdict(spec.optimizer),
            "precision": spec.trainer.precision,
            "seed": materials.study.seed,
            "corpus": {"digest": materials.corpus(spec.corpus).digest},
            "tokenizer_digest": tokenizer.digest,
        },
        labels={
            "size": {
                "name": size.name,
                "num_hidden_layers": shape.num_hidden_layers,
                "hidden_size": shape.hidden_size,
            },
            "corpus": {"name": spec.corpus},
            "tokenizer": spec.tokenizer,
            "parameters": _counts(shape),
        },
    )


def _counts(shape: Shape) -> dict[str, int]:
    counts = count_parameters(shape)
    return {
        "total": counts.total,
        "non_embedding": counts.non_embedding,
        "head": counts.head,
        "looped": counts.looped,
    }


def pretraining_cells(materials: Materials) -> dict[tuple[str, int], Cell]:
    """All pretraining cells of a study, by size name and recurrence; T_m varies slowest."""
    spec = materials.study.pretraining
    if spec is None:
        return {}
    return {
        (size.name, recurrence): pretraining_cell(materials, spec, size, recurrence)
        for recurrence in spec.recurrences
        for size in spec.sizes
    }


def calibration_cell(
    materials: Materials,
    spec: CalibrationSpec,
    model: ModelSpec,
    *,
    identity: str,
    corpus: str,
    niter: Niter,
) -> Cell:
    """The cell of one model, one calibration corpus and one niter.

    Args:
        materials: the study's materials.
        spec: the calibration stage.
        model: the model.
        identity: fingerprint of the pretraining cell, or digest of the checkpoint.
        corpus: calibration corpus.
        niter: power iterations, or ``exact``.
    """
    label = model_label(model)
    return Cell(
        kind="calibration",
        name=f"calibrate {label} on {corpus} niter={niter}",
        settings={
            **moments_settings(materials, spec, identity=identity),
            "calibration_digest": materials.corpus(corpus).digest,
            "evaluation_digests": {
                name: materials.corpus(name).digest for name in spec.evaluate_on
            },
            "budgets": list(spec.budgets),
            "niter": str(niter),
            "rank": spec.rank,
            "oversampling": spec.oversampling,
            "evaluation_tokens": spec.evaluation_tokens,
            "intervals": spec.intervals,
        },
        labels={
            "model": {"label": label},
            "calibrate_on": corpus,
            "evaluate_on": list(spec.evaluate_on),
        },
    )


def moments_settings(
    materials: Materials, spec: CalibrationSpec, *, identity: str
) -> dict[str, object]:
    """What decides the moments of a model over a corpus, the corpus aside."""
    return {
        "model_identity": identity,
        "sequence_length": spec.sequence_length,
        "batch_size": spec.batch_size,
        "cutting": 2,  # sequences begin with the special tokens of the tokenizer
        "sinks": spec.sinks,
        "drop_last": spec.drop_last,
        "documents": asdict(spec.documents),
        "precision": spec.trainer.precision,
        "seed": materials.study.seed,
    }
