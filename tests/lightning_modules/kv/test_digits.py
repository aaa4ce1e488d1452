"""Right to the digit, from tokens to errors, against rows that are stored and seen twice.

The reference runs the model document by document, keeps every row in float64, subtracts the mean
in a second pass, takes a full SVD (or ``torch.svd_lowrank``), and projects at every rank.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lightning_modules.kv import DEFINITIONS, KVCapture, compute_basis, reconstruction_errors
from lightning_modules.kv.moments import CentredMoments, Moments
from lightning_modules.kv_calibration import piece_loader
from suite.corpora.tokens import CalibrationPiece

SINKS, RANK, SEED = 2, 40, 5
Niter = int | Literal["exact"]


def documents(seed: int) -> list[CalibrationPiece]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 64, generator.integers(4, 30)) for _ in range(60)]


CALIBRATION, EVALUATION = documents(0), documents(1)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Rows of one kind.

    Attributes:
        calibration: ``[n, p]``.
        evaluation: ``[m, p]``.
    """

    calibration: Tensor
    evaluation: Tensor


def make_model(dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


@pytest.fixture(scope="module", params=[torch.float64, torch.float32], ids=["64", "32"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    return make_model(request.param)


@pytest.fixture(scope="module")
def stored(model: LlamaForCausalLM) -> dict[str, Stored]:
    """By plain hooks on the projections, one document at a time, without padding."""
    rows: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[[object, object, Tensor], None]:
        return lambda module, inputs, output: rows.setdefault(name, []).append(output[0])

    handles = [
        layer.self_attn.get_submodule(name).register_forward_hook(keep(name))
        for layer in model.model.layers
        for name in ("k_proj", "v_proj")
    ]
    found: dict[str, dict[str, Tensor]] = {"k_proj": {}, "v_proj": {}}
    for side, pieces in (("calibration", CALIBRATION), ("evaluation", EVALUATION)):
        parts: dict[str, list[Tensor]] = {"k_proj": [], "v_proj": []}
        for piece in pieces:
            rows.clear()
            with torch.no_grad():
                model(torch.from_numpy(piece)[None])
            for name, layers in rows.items():
                parts[name].append(torch.cat(layers, dim=1)[SINKS:].double())
        for name, each in parts.items():
            found[name][side] = torch.cat(each)
    for handle in handles:
        handle.remove()
    return {kind: Stored(**found[name]) for kind, name in (("key", "k_proj"), ("value", "v_proj"))}


def reference(rows: Stored, niter: Niter) -> dict[str, NDArray[np.float64]]:
    mean = rows.calibration.mean(dim=0)
    centred = rows.calibration - mean
    if niter == "exact":
        V = torch.linalg.svd(centred, full_matrices=False).Vh[:RANK].T
    else:
        torch.manual_seed(SEED)
        _, _, V = torch.svd_lowrank(centred, q=RANK, niter=niter)
    Z = rows.evaluation
    left = torch.stack(
        [
            ((Z - mean) - (Z - mean) @ V[:, :rank] @ V[:, :rank].T).norm()
            for rank in range(1, RANK + 1)
        ]
    )
    relative, spread = left / Z.norm(), left / (Z - Z.mean(dim=0)).norm()
    found = (relative, relative.square(), spread, spread.square())
    return {name: value.numpy() for name, value in zip(DEFINITIONS, found, strict=True)}


def moments_of(
    model: LlamaForCausalLM,
    pieces: list[CalibrationPiece],
    *,
    batch_size: int = 4,
    block: int = 1024,
    stop: int | None = None,
    processes: int = 1,
) -> dict[str, CentredMoments]:
    """Moments as a pass makes them, stopped and gone on with, or split over processes."""
    totals: dict[str, CentredMoments] = {}
    with KVCapture(model) as capture:
        for rank in range(processes):
            running = {"key": Moments(48, block=block), "value": Moments(48, block=block)}
            for batch in piece_loader(
                pieces, batch_size=batch_size, sinks=SINKS, rank=rank, ranks=processes
            ):
                captured = capture.capture(batch.input_ids, batch.attention_mask)
                kept = batch.kept(SINKS)
                for kind, rows in (("key", captured.keys), ("value", captured.values)):
                    running[kind].update(rows[kept])
                if stop is not None and batch.first <= stop < batch.following:
                    running = {kind: reborn(each) for kind, each in running.items()}
            for kind, each in running.items():
                part = each.snapshot()
                totals[kind] = totals[kind] + part if kind in totals else part
    return totals


def reborn(moments: Moments) -> Moments:
    """What a process that goes on from a checkpoint has."""
    file = io.BytesIO()
    torch.save(moments.state_dict(), file)
    file.seek(0)
    fresh = Moments(moments.width, block=moments.block)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


@pytest.mark.parametrize("niter", [1, 8, "exact"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"batch_size": 1},
        {"batch_size": 13},
        {"block": 7},
        {"block": 333, "stop": 500},
        {"stop": 10},
        {"processes": 2},
        {"processes": 3, "batch_size": 7, "block": 50, "stop": 200},
    ],
    ids=str,
)
def test_errors_at_every_rank_are_those_of_stored_rows(
    model: LlamaForCausalLM, stored: dict[str, Stored], niter: Niter, how: dict[str, int]
) -> None:
    calibration = moments_of(model, CALIBRATION, **how)
    evaluation = moments_of(model, EVALUATION, **how)
    for kind, rows in stored.items():
        assert calibration[kind].count == len(rows.calibration)
        basis = compute_basis(calibration[kind], rank=RANK, niter=niter, seed=SEED)
        identity = torch.eye(RANK, dtype=torch.float64)
        assert float((basis.components.T @ basis.components - identity).abs().max()) < 1e-12
        errors = reconstruction_errors(basis, evaluation[kind])
        for name, expected in reference(rows, niter).items():
            np.testing.assert_allclose(getattr(errors, name), expected, rtol=1e-6, err_msg=name)


def test_padding_is_what_a_batch_adds() -> None:
    """The passes above do pad: otherwise their batch sizes would show nothing."""
    [batch, *_] = piece_loader(CALIBRATION, batch_size=13, sinks=SINKS)
    assert not bool(batch.attention_mask.all())
