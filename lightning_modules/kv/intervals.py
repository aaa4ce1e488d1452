"""Intervals of error figures over evaluation documents, by a jackknife over groups of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit  # type: ignore[import-untyped]

from lightning_modules.kv.basis import Basis
from lightning_modules.kv.errors import DEFINITIONS, error_ratios
from lightning_modules.kv.stored_rows import StoredRows
from suite.errors import InputError

_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupSums:
    """What the error figures need of each group of documents.

    Attributes:
        count: rows, ``[groups]``.
        total: ``Σ z``, ``[groups, p]``.
        norm: ``Σ ||z||²``, ``[groups]``.
        squared: ``Σ ||z - ẑ||²`` at the basis's full rank, ``[groups]``.
    """

    count: NDArray[np.int64]
    total: NDArray[np.float64]
    norm: NDArray[np.float64]
    squared: NDArray[np.float64]

    def figures(self, without: int | None = None) -> NDArray[np.float64]:
        """The four figures of all groups, or of all but one, in the order of ``DEFINITIONS``."""
        kept = np.ones(len(self.count), dtype=bool)
        if without is not None:
            kept[without] = False
        count, norm = self.count[kept].sum(), self.norm[kept].sum()
        total = self.total[kept].sum(axis=0)
        ratios = error_ratios(
            float(self.squared[kept].sum()),
            norm=float(norm),
            centred_norm=float(norm - total @ total / count),
        )
        return np.array([float(ratios[name]) for name in DEFINITIONS])


def group_ends(documents: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """Last row, exclusive, of each group of whole neighbouring documents, as even as they allow.

    Documents come in a seeded random order, so neighbours have nothing else in common. A document
    that is longer than a group's share leaves fewer groups.

    Args:
        documents: rows of each document.
        groups: groups wanted, at least 2.
    """
    ends = documents.cumsum()
    share = ends[-1] / groups
    wanted = share * np.arange(1, groups + 1)
    # the document whose end lies nearest to each wanted one
    after = np.searchsorted(ends, wanted).clip(max=len(ends) - 1)
    before = (after - 1).clip(min=0)
    nearer = np.where(wanted - ends[before] < ends[after] - wanted, before, after)
    found = np.unique(ends[nearer])
    return np.unique(np.append(found[found < ends[-1]], ends[-1]))


def group_sums(
    basis: Basis, rows: StoredRows, groups: int, *, device: torch.device | str | None = None
) -> GroupSums:
    """Reconstruct stored rows once, group by group; ``4 n p r`` operations, a chunk in memory.

    Args:
        basis: at its full rank.
        rows: of the evaluation set.
        groups: as in ``group_ends``.
        device: what computes; default where the basis is.
    """
    placed = basis.to(device)
    ends = group_ends(rows.documents, groups)
    total = np.zeros((len(ends), basis.width))
    sums = np.zeros((2, len(ends)))
    at = 0
    for chunk in rows.chunks():
        data = chunk.to(placed.mean)
        # squares of what is left: their difference from what is kept has few digits, or a sign
        left = data - placed.reconstruct(placed.project(data))
        each = torch.stack([data.square().sum(dim=1), left.square().sum(dim=1)]).cpu().numpy()
        group = np.searchsorted(ends, np.arange(at, at + len(data)), side="right")
        for number in np.unique(group):
            mine = group == number
            total[number] += data[torch.from_numpy(mine).to(data.device)].sum(dim=0).cpu().numpy()
            sums[:, number] += each[:, mine].sum(axis=1)
        at += len(data)
    return GroupSums(count=np.diff(ends, prepend=0), total=total, norm=sums[0], squared=sums[1])


def jackknife(sums: GroupSums) -> dict[str, tuple[float, float]]:
    """95 % intervals of the four figures, by name.

    The delete-one-group jackknife for groups of unequal size (Busing, Meijer and van der Leeden
    1999), with Student's t at one degree of freedom fewer than groups, cut at 0. It tells how
    much the figures would move with other documents of the same kind; the basis is held fixed.

    Args:
        sums: of at least two groups.

    Raises:
        InputError: there is one group.
    """
    groups = len(sums.count)
    if groups < 2:
        raise InputError(
            "the evaluation tokens come from one document, so they tell nothing of others; raise "
            "evaluation_tokens, or set intervals to 0"
        )
    whole = sums.figures()
    left_out = np.stack([sums.figures(without=number) for number in range(groups)])
    shares = (sums.count / sums.count.sum())[:, None]
    pseudo = whole / shares - (1 / shares - 1) * left_out
    estimate = groups * whole - ((1 - shares) * left_out).sum(axis=0)
    variance = ((pseudo - estimate) ** 2 / (1 / shares - 1)).mean(axis=0)
    reach = stdtrit(groups - 1, (1 + _LEVEL) / 2) * np.sqrt(variance)
    return {
        name: (float(max(value - margin, 0.0)), float(value + margin))
        for name, value, margin in zip(DEFINITIONS, whole, reach, strict=True)
    }
