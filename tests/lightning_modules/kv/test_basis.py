"""A basis as people use it: from a file, on rows, at any rank."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import suite
from lightning_modules.kv.basis import Basis
from lightning_modules.kv.components import compute_basis
from lightning_modules.kv.errors import DEFINITIONS, reconstruction_errors
from lightning_modules.kv.layout import KVEntry
from lightning_modules.kv.moments import Moments
from suite.errors import SuiteError

N, P, R = 200, 24, 10
LAYOUT = (
    KVEntry(loop=0, layer=0, heads=2, head_dim=8, offset=0),
    KVEntry(loop=0, layer=3, heads=1, head_dim=8, offset=16),
)


def rows(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    deviations = torch.arange(1, P + 1, dtype=torch.float64) ** -1.0
    return torch.randn(N, P, generator=generator, dtype=torch.float64) * deviations + 0.5


def moments(seed: int) -> Moments:
    found = Moments(P, block=64)
    found.update(rows(seed))
    return found


@pytest.fixture
def basis() -> Basis:
    found = compute_basis(moments(0).snapshot(), rank=R, niter=2, seed=3, oversampling=4)
    return dataclasses.replace(found, kind="value", layout=LAYOUT, about={"model": "m"})


def test_a_file_gives_back_every_bit(basis: Basis, tmp_path: Path) -> None:
    basis.save(tmp_path / "basis" / "value.safetensors")
    again = suite.load_basis(str(tmp_path / "basis" / "value.safetensors"))
    for field in dataclasses.fields(Basis):
        one, other = getattr(basis, field.name), getattr(again, field.name)
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other, field.name


def test_any_reader_can_apply_the_file_from_its_header(basis: Basis, tmp_path: Path) -> None:
    """With nothing of ours: the header's own words, run as they stand."""
    path = tmp_path / "value.safetensors"
    basis.save(path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        mean, components = file.get_tensor("mean"), file.get_tensor("components")
    x, rank = rows(1), 6
    scope = {"x": x, "mean": mean, "components": components, "rank": rank}
    for statement in header["apply"].split(". ")[0].split("; "):
        exec(statement, scope)
    expected = basis.reconstruct(basis.project(x, rank))
    torch.testing.assert_close(scope["reconstruction"], expected, rtol=1e-14, atol=1e-14)
    assert json.loads(header["layout"])[1] == dataclasses.asdict(LAYOUT[1])
    assert json.loads(header["kind"]) == "value"
    assert json.loads(header["about"]) == {"model": "m"}


@pytest.mark.parametrize("rank", [1, 4, R, None])
def test_projection_and_reconstruction_are_those_of_the_leading_components(
    basis: Basis, rank: int | None
) -> None:
    data = rows(1)
    V = basis.components[:, : rank or R]
    coefficients = basis.project(data, rank)
    torch.testing.assert_close(coefficients, (data - basis.mean) @ V)
    reconstruction = basis.reconstruct(coefficients)
    torch.testing.assert_close(reconstruction, (data - basis.mean) @ V @ V.T + basis.mean)
    # batches of sequences, too
    torch.testing.assert_close(
        basis.project(data.reshape(10, 20, P), rank), coefficients.reshape(10, 20, -1)
    )


@pytest.mark.parametrize("rank", [1, 4, R, None])
def test_the_error_of_rows_is_the_one_that_moments_give(basis: Basis, rank: int | None) -> None:
    found = basis.error(rows(1).reshape(4, 50, P), rank)
    expected = reconstruction_errors(basis, moments(1).snapshot()).at(rank or R)
    assert tuple(found) == DEFINITIONS
    assert found == pytest.approx(expected, rel=1e-10)


def test_half_precision_rows_are_taken_and_single_precision_is_offered(basis: Basis) -> None:
    half = rows(1).bfloat16()
    assert basis.error(half) == pytest.approx(basis.error(half.double()), rel=1e-12)
    single = basis.to(dtype=torch.float32)
    assert single.project(half).dtype == torch.float32
    assert basis.components.dtype == torch.float64
    torch.testing.assert_close(
        single.project(half).double(), basis.project(half), rtol=1e-5, atol=1e-6
    )


def test_what_does_not_fit_is_refused(basis: Basis) -> None:
    with pytest.raises(ValueError, match="rows have 3 columns; this basis is of 24"):
        basis.project(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="rank is 11; this basis has 1 to 10"):
        basis.project(rows(1), 11)
    with pytest.raises(ValueError, match="rank is 11"):
        basis.reconstruct(torch.zeros(2, 11))


def test_other_files_are_refused(basis: Basis, tmp_path: Path) -> None:
    path = tmp_path / "value.safetensors"
    basis.save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SuiteError, match="is damaged or holds something else"):
        suite.load_basis(path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(SuiteError, match="holds something else"):
        suite.load_basis(path)
    moments(0).snapshot().save(path)
    with pytest.raises(SuiteError, match="names the format None"):
        suite.load_basis(path)
    with pytest.raises(FileNotFoundError):
        suite.load_basis(tmp_path / "none.safetensors")


def test_the_package_loads_torch_only_with_a_basis() -> None:
    code = "import sys, suite; suite.load_basis; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
