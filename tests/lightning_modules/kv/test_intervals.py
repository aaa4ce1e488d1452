"""Jackknife intervals: the sums of groups, and what they say of other documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_modules.kv import stored_rows as stored_module
from lightning_modules.kv.basis import Basis
from lightning_modules.kv.components import compute_basis
from lightning_modules.kv.errors import DEFINITIONS
from lightning_modules.kv.files import DamagedFileError
from lightning_modules.kv.intervals import GroupSums, group_ends, group_sums, jackknife
from lightning_modules.kv.moments import CentredMoments
from lightning_modules.kv.stored_rows import RowsWriter, StoredRows
from suite.errors import InputError

P, R = 12, 4
DOCUMENTS = np.array([5, 1, 30, 2, 2, 40, 7, 13, 20, 30])


def text(seed: int, documents: NDArray[np.int64], *, between: float = 1.0) -> Tensor:
    """Rows whose documents differ from each other by shifts of size ``between``."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, P + 1, dtype=torch.float64) ** -1.0
    parts = [
        (
            torch.randn(count, P, generator=generator, dtype=torch.float64)
            + between * torch.randn(P, generator=generator, dtype=torch.float64)
        )
        * weights
        for count in documents.tolist()
    ]
    return torch.cat(parts) + 1.0


def stored(path: Path, rows: Tensor, documents: NDArray[np.int64], cuts: int = 7) -> StoredRows:
    with path.open("wb") as file:
        writer = RowsWriter(file, count=len(rows), documents=documents)
        for part in rows.split(cuts):
            writer.append(part)
        writer.close()
    return StoredRows.open(path)


@pytest.fixture
def basis() -> Basis:
    data = text(0, DOCUMENTS)
    mean = data.mean(dim=0)
    moments = CentredMoments(count=len(data), mean=mean, scatter=(data - mean).T @ (data - mean))
    return compute_basis(moments, rank=R, niter="exact", seed=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cuts", [1, 7, 1000])
def test_rows_come_back_from_their_file(tmp_path: Path, dtype: torch.dtype, cuts: int) -> None:
    rows = text(1, DOCUMENTS).to(dtype)
    found = stored(tmp_path / "rows", rows, DOCUMENTS, cuts)
    assert found.documents.tolist() == DOCUMENTS.tolist()
    assert torch.equal(torch.cat([*found.chunks()]), rows)
    found.check()


def test_one_changed_bit_of_the_rows_is_found(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    stored(path, text(1, DOCUMENTS), DOCUMENTS)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="do not have the digest"):
        StoredRows.open(path).check()


def test_a_file_of_rows_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    rows = text(1, DOCUMENTS)
    with path.open("wb") as file:
        writer = RowsWriter(file, count=len(rows), documents=DOCUMENTS)
        writer.append(rows[:-1])
        with pytest.raises(ValueError, match="149 rows came of 150"):
            writer.close()
    with pytest.raises(DamagedFileError):
        StoredRows.open(path)
    with pytest.raises(DamagedFileError, match="150 rows, of which 10 are told"):
        stored(path, rows, np.array([10]))
    with pytest.raises(FileNotFoundError):
        StoredRows.open(tmp_path / "none")


@pytest.mark.parametrize(
    ("documents", "groups", "ends"),
    [
        ([10, 10, 10, 10], 4, [10, 20, 30, 40]),
        ([10, 10, 10, 10], 2, [20, 40]),
        ([10, 10, 10, 10], 9, [10, 20, 30, 40]),
        ([37, 1, 1, 1], 4, [37, 40]),
        ([1, 1, 1, 37], 4, [3, 40]),
        ([7], 3, [7]),
        ([1] * 12, 3, [4, 8, 12]),
    ],
)
def test_groups_are_whole_documents_as_even_as_they_allow(
    documents: list[int], groups: int, ends: list[int]
) -> None:
    assert group_ends(np.array(documents), groups).tolist() == ends


@pytest.mark.parametrize("chunk", [3, 64, 1024])
def test_sums_of_groups_equal_explicit_reconstruction(
    basis: Basis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(stored_module, "_CHUNK", chunk)
    rows = text(1, DOCUMENTS)
    sums = group_sums(basis, stored(tmp_path / "rows", rows, DOCUMENTS), 5)
    ends = group_ends(DOCUMENTS, 5)
    parts = rows.tensor_split(ends[:-1].tolist())
    assert sums.count.tolist() == [len(part) for part in parts]
    for number, part in enumerate(parts):
        left = part - basis.reconstruct(basis.project(part))
        assert sums.squared[number] == pytest.approx(float(left.square().sum()), rel=1e-11)
        assert sums.norm[number] == pytest.approx(float(part.square().sum()), rel=1e-12)
        np.testing.assert_allclose(sums.total[number], part.sum(dim=0).numpy(), rtol=1e-12)
    # all groups, and all but each, are the errors of those very rows
    for without in (None, 0, 3):
        kept = torch.cat([part for number, part in enumerate(parts) if number != without])
        expected = basis.error(kept)
        found = dict(zip(DEFINITIONS, sums.figures(without).tolist(), strict=True))
        assert found == pytest.approx(expected, rel=1e-10)


def test_a_basis_of_full_rank_has_intervals_from_zero_on(tmp_path: Path) -> None:
    """What is left is rounding alone, which a difference of squares would give a sign."""
    rows = text(1, DOCUMENTS)
    mean = rows.mean(dim=0)
    moments = CentredMoments(count=len(rows), mean=mean, scatter=(rows - mean).T @ (rows - mean))
    full = compute_basis(moments, rank=P, niter="exact", seed=0)
    sums = group_sums(full, stored(tmp_path / "rows", rows, DOCUMENTS), 5)
    assert (sums.squared >= 0).all()
    for low, high in jackknife(sums).values():
        assert 0 <= low <= high < 1e-6


def test_a_header_that_tells_no_numbers_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    stored(path, text(1, DOCUMENTS), DOCUMENTS)
    told = ",".join(map(str, DOCUMENTS)).encode()
    content = path.read_bytes()
    assert told in content
    path.write_bytes(content.replace(told, told.replace(b",", b"x", 1), 1))
    with pytest.raises(DamagedFileError):
        StoredRows.open(path)
    # two documents that have changed places are not those of the rows
    first, second, *others = DOCUMENTS
    assert first != second
    swapped = ",".join(map(str, [second, first, *others])).encode()
    path.write_bytes(content.replace(told, swapped, 1))
    with pytest.raises(DamagedFileError, match="digest"):
        StoredRows.open(path).check()


def test_the_jackknife_of_a_mean_is_its_textbook_interval() -> None:
    """With equal groups of one norm, the squared error is a plain mean of their values."""
    values = np.array([0.1, 0.4, 0.2, 0.3, 0.25])
    sums = GroupSums(count=np.full(5, 10), total=np.zeros((5, P)), norm=np.ones(5), squared=values)
    low, high = jackknife(sums)["relative_squared_error"]
    reach = 2.7764451 * values.std(ddof=1) / 5**0.5  # Student's t at 4 degrees of freedom
    assert (low, high) == pytest.approx((0.25 - reach, 0.25 + reach), rel=1e-7)


def test_groups_without_differences_leave_no_doubt() -> None:
    counts = np.array([10, 20, 30])
    sums = GroupSums(count=counts, total=np.zeros((3, P)), norm=counts * 2.0, squared=counts * 0.5)
    for low, high in jackknife(sums).values():
        assert low == pytest.approx(0.25**0.5 if low > 0.3 else 0.25)
        assert high == pytest.approx(low)


def test_one_document_has_no_interval() -> None:
    sums = GroupSums(
        count=np.array([9]), total=np.zeros((1, P)), norm=np.ones(1), squared=np.ones(1)
    )
    with pytest.raises(InputError, match="come from one document"):
        jackknife(sums)


@pytest.mark.slow
def test_intervals_hold_the_true_error_as_often_as_they_say(basis: Basis, tmp_path: Path) -> None:
    """Of documents that differ much, so that their rows are far from independent."""
    generator = np.random.default_rng(0)
    everything = basis.error(text(99, np.full(20_000, 10), between=2.0))["relative_error"]
    held = 0
    for trial in range(300):
        documents = generator.integers(5, 16, 80)
        rows = stored(tmp_path / "rows", text(trial, documents, between=2.0), documents)
        low, high = jackknife(group_sums(basis, rows, 20))["relative_error"]
        held += low <= everything <= high
    assert 0.91 <= held / 300 <= 0.98
