"""From moments to bases and errors, timed: what one calibration costs beyond its forward pass."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lightning_modules.kv.basis import Basis
from lightning_modules.kv.components import compute_basis
from lightning_modules.kv.errors import (
    HeadErrors,
    ReconstructionErrors,
    head_errors,
    reconstruction_errors,
)
from lightning_modules.kv.layout import Kind, KVLayout
from lightning_modules.kv.pair import PairOfMoments
from suite.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """One basis on one corpus.

    Attributes:
        errors: of whole rows.
        heads: head by head, where the layout is known.
    """

    errors: ReconstructionErrors
    heads: HeadErrors | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Bases of one budget.

    Attributes:
        bases: by kind.
        layout: what the columns are, where it is known.
        seconds: from scratch: the forward passes of these tokens, and the solve.
        device: what computes errors; none for where the moments are.
    """

    bases: Mapping[Kind, Basis]
    layout: KVLayout | None
    seconds: float
    device: torch.device | str | None = None

    @property
    def key(self) -> Basis:
        """Basis of keys, or of latents."""
        return self.bases["key"]

    @property
    def value(self) -> Basis:
        """Basis of values."""
        return self.bases["value"]

    def errors(self, evaluation: Mapping[str, PairOfMoments]) -> dict[str, float]:
        """Errors at the full rank, in all four definitions, on each evaluation corpus.

        Returns:
            Values by metric name, such as ``key/relative_error/pydocs``.
        """
        found: dict[str, float] = {}
        for kind, basis in self.bases.items():
            for corpus, moments in evaluation.items():
                errors = reconstruction_errors(basis, moments.of(kind), device=self.device)
                for name, value in errors.at(basis.rank).items():
                    found[f"{kind}/{name}/{corpus}"] = value
        return found

    def evaluate(self, moments: PairOfMoments) -> dict[Kind, Evaluated]:
        """Errors on one corpus at every rank, in all and head by head; one matrix at a time."""
        found: dict[Kind, Evaluated] = {}
        for kind, basis in self.bases.items():
            if self.layout is None:
                errors = reconstruction_errors(basis, moments.of(kind), device=self.device)
                found[kind] = Evaluated(errors=errors, heads=None)
            else:
                errors, heads = head_errors(
                    basis, moments.of(kind), self.layout.slices(kind), device=self.device
                )
                found[kind] = Evaluated(errors=errors, heads=heads)
        return found


def calibrate(
    moments: PairOfMoments,
    *,
    rank: int,
    niter: int | Literal["exact"],
    seed: int,
    oversampling: int = 0,
    device: torch.device | str | None = None,
) -> Calibration:
    """Solve for the bases of keys and of values, one matrix at a time.

    Args:
        moments: of the calibration tokens, with the seconds that they took.
        rank: components; fewer are kept where the data allow no more.
        niter: power iterations, or ``exact``.
        seed: seed of the random start.
        oversampling: columns of the random start beyond the rank.
        device: what computes; default where the moments are.
    """
    bases: dict[Kind, Basis] = {}
    seconds = moments.seconds
    for kind in moments.kinds:
        # reading a matrix back is no part of a run from scratch, which has it in memory
        of_kind = moments.of(kind)
        started = time.perf_counter()
        try:
            found = compute_basis(
                of_kind, rank=rank, niter=niter, seed=seed, oversampling=oversampling, device=device
            ).to("cpu")  # which waits for the device
        except InputError as error:
            raise InputError(f"{kind}s: {error}") from error
        seconds += time.perf_counter() - started
        del of_kind
        layout = moments.layout
        entries = () if layout is None else layout.keys if kind == "key" else layout.values
        bases[kind] = replace(found, kind=kind, layout=entries)
    return Calibration(bases=bases, layout=moments.layout, seconds=seconds, device=device)
