"""The basis of one matrix of a cache: what it is, how it is applied, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lightning_modules.kv.files import DamagedFileError, load_tensors, save_tensors
from lightning_modules.kv.layout import KVEntry

_FORMAT = "loopkv-basis-2"
_APPLY = (
    "coefficients = (x - mean) @ components[:, :rank]; "
    "reconstruction = coefficients @ components[:, :rank].T + mean. "
    "x is a row of one token: entries of layout in their order, each heads x head_dim columns "
    "from its offset on, keys before rotary position embedding."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Basis:
    """The leading principal components: ``x`` becomes ``(x - mean) V Vᵀ + mean``.

    Every leading part of the components is itself the basis of that rank.

    Attributes:
        mean: mean of the calibration rows, ``[p]``, float64.
        components: V, orthonormal columns ``[p, r]``, float64, most important first; the
            largest entry of each is positive.
        spectrum: ``[r]``, falling: eigenvalues of the scatter ``Σ (x - mean)(x - mean)ᵀ``, that
            is squared singular values of the centred rows, as the solver sees them.
        niter: power iterations of the randomised SVD, or ``exact``.
        seed: seed of the random start; none for ``exact``.
        oversampling: columns of the random start beyond r.
        kind: whether rows are keys, before rotary embedding, or values; none where not said.
        layout: what the columns are, layer by layer; empty where not said.
        about: where it comes from, such as model, corpus and tokens, for people to read.
    """

    mean: Tensor
    components: Tensor
    spectrum: Tensor
    niter: int | Literal["exact"]
    seed: int | None
    oversampling: int = 0
    kind: Literal["key", "value"] | None = None
    layout: tuple[KVEntry, ...] = ()
    about: Mapping[str, str] | None = None

    @property
    def rank(self) -> int:
        """Components r; fewer than were asked for where the data allow no more."""
        return self.components.shape[1]

    @property
    def width(self) -> int:
        """Columns p of a row."""
        return self.components.shape[0]

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Basis:
        """The basis on another device, or in another precision."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device=device or tensor.device, dtype=dtype or tensor.dtype)

        return replace(
            self,
            mean=moved(self.mean),
            components=moved(self.components),
            spectrum=moved(self.spectrum),
        )

    def project(self, rows: Tensor, rank: int | None = None) -> Tensor:
        """Coefficients of rows, in the precision and on the device of the basis.

        Args:
            rows: ``[..., p]``, any floating-point type.
            rank: leading components to use; all of them by default.

        Returns:
            ``[..., rank]``.

        Raises:
            ValueError: the width or the rank does not fit.
        """
        if rows.shape[-1] != self.width:
            raise ValueError(f"rows have {rows.shape[-1]} columns; this basis is of {self.width}")
        return (rows.to(self.mean) - self.mean) @ self._leading(rank)

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """Rows ``[..., p]`` from coefficients ``[..., rank]`` of the leading components.

        Raises:
            ValueError: there are more coefficients than components.
        """
        leading = self._leading(coefficients.shape[-1])
        return coefficients.to(self.mean) @ leading.T + self.mean

    def error(self, rows: Tensor, rank: int | None = None) -> dict[str, float]:
        """What reconstruction loses of rows, in the four definitions of ``DEFINITIONS``.

        Args:
            rows: ``[..., p]``; computed in float64 whatever their type.
            rank: as in ``project``.

        Raises:
            ValueError: the width or the rank does not fit.
        """
        from lightning_modules.kv.errors import error_ratios  # which needs this module

        exact = self.to(dtype=torch.float64)
        data = rows.detach().reshape(-1, rows.shape[-1]).to(exact.mean)
        left = data - exact.reconstruct(exact.project(data, rank))
        ratios = error_ratios(
            float(left.square().sum()),
            norm=float(data.square().sum()),
            centred_norm=float((data - data.mean(dim=0)).square().sum()),
        )
        return {name: float(value) for name, value in ratios.items()}

    def _leading(self, rank: int | None) -> Tensor:
        if rank is None:
            return self.components
        if not 1 <= rank <= self.rank:
            raise ValueError(f"rank is {rank}; this basis has 1 to {self.rank} components")
        return self.components[:, :rank]

    def save(self, path: Path) -> None:
        """Write a safetensors file whose header says how to apply it."""
        save_tensors(
            path,
            {"mean": self.mean, "components": self.components, "spectrum": self.spectrum},
            {
                "format": _FORMAT,
                "apply": _APPLY,
                "kind": json.dumps(self.kind),
                "niter": json.dumps(self.niter),
                "seed": json.dumps(self.seed),
                "oversampling": json.dumps(self.oversampling),
                "layout": json.dumps([asdict(entry) for entry in self.layout]),
                "about": json.dumps(dict(self.about or {})),
            },
        )

    @classmethod
    def load(cls, path: Path) -> Basis:
        """Read what ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            SuiteError: the file is damaged, or holds something else.
        """
        tensors, header = load_tensors(path)
        if header.get("format") != _FORMAT:
            raise DamagedFileError(path, f"its header names the format {header.get('format')!r}")
        return cls(
            mean=tensors["mean"],
            components=tensors["components"],
            spectrum=tensors["spectrum"],
            niter=json.loads(header["niter"]),
            seed=json.loads(header["seed"]),
            oversampling=json.loads(header["oversampling"]),
            kind=json.loads(header["kind"]),
            layout=tuple(KVEntry(**entry) for entry in json.loads(header["layout"])),
            about=json.loads(header["about"]),
        )
