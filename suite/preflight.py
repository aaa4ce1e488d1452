"""What can be wrong with a study's inputs, found before any work starts."""

from __future__ import annotations

from suite.errors import InputError
from suite.materials import Materials
from suite.models import find_checkpoint
from suite.study import CalibrationSpec, Study


def check_corpora(materials: Materials) -> None:
    """Read every corpus of the study.

    Raises:
        InputError: for the first that cannot be read, is empty, or cannot be split.
    """
    for name in materials.study.corpora:
        _ = materials.corpus(name).parts("train")


def check_devices(study: Study) -> None:
    """Refuse devices that are not there, and several of them.

    A run does not yet start the processes that several devices need: the modules divide batches
    over ranks, but the runner has no notion of a rank that must not write to the store.

    Raises:
        InputError: if a stage asks for more than one device, or for one that is not there.
    """
    for stage, spec in (("pretraining", study.pretraining), ("calibration", study.calibration)):
        if spec is None:
            continue
        for key in ("devices", "num_nodes"):
            asked = getattr(spec.trainer, key)
            if asked not in (1, "auto"):
                raise InputError(
                    f"got {asked}; `suite run` uses 1 for now. To fill a machine, run several "
                    "studies side by side, each with its own name",
                    key=f"{stage}.trainer.{key}",
                )
        if not _is_there(spec.trainer.accelerator):
            raise InputError(
                f"got {spec.trainer.accelerator!r}; this machine has no such device, so use auto "
                "or cpu",
                key=f"{stage}.trainer.accelerator",
            )


def _is_there(accelerator: str) -> bool:
    if accelerator in ("auto", "cpu"):
        return True
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return any(there.values()) if accelerator == "gpu" else there[accelerator]


def check_budgets(materials: Materials) -> None:
    """Check that sequences and budgets fit into the corpora, and that checkpoints exist.

    Raises:
        InputError: for the first that does not.
    """
    pretraining = materials.study.pretraining
    if pretraining is not None:
        for split in ("train", "held_out"):
            materials.stream(split).windows(
                pretraining.sequence_length, key="pretraining.sequence_length"
            )
    calibration = materials.study.calibration
    if calibration is not None:
        for position in range(len(calibration.models)):
            _check_model(materials, calibration, position)


def _check_model(materials: Materials, spec: CalibrationSpec, position: int) -> None:
    model = spec.models[position]
    if model.path is None:
        tokenizer = materials.tokenizer()
    else:
        key = f"calibration.models[{position}]"
        tokenizer = find_checkpoint(model, base=materials.base, key=key).tokenizer()
    for corpus in spec.calibrate_on:
        materials.pieces(corpus, "train", tokenizer, spec.budgets[-1], spec)
    for corpus in spec.evaluate_on:
        materials.pieces(corpus, "held_out", tokenizer, spec.evaluation_tokens, spec)
    for number, search in enumerate(materials.study.searches):
        if search.model == position:
            materials.pieces(
                search.calibrate_on or spec.calibrate_on[0],
                "train",
                tokenizer,
                max(search.over.tokens),
                spec,
                key=f"searches[{number}].over.tokens",
            )
            materials.pieces(
                search.evaluate_on or spec.evaluate_on[0],
                "held_out",
                tokenizer,
                spec.evaluation_tokens,
                spec,
            )
