from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

Columns = dict[str, np.ndarray]


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], pl.DataFrame]:
    """Reads one of the public tables that correct fits are known for."""
    default = Path(__file__).resolve().parents[4] / "shared" / "oracles"
    folder = Path(os.environ.get("SUITE_ORACLES", default))

    def read(name: str) -> pl.DataFrame:
        if not (folder / name).is_file():
            pytest.skip(f"there is no {name} in {folder}; SUITE_ORACLES names another folder")
        return pl.read_csv(folder / name)

    return read


@pytest.fixture(scope="session")
def grid() -> Callable[..., Columns]:
    """Columns of a full grid of sizes, recurrences and tokens."""

    def build(parameters: list[float], recurrence: list[float], tokens: np.ndarray) -> Columns:
        axes = np.meshgrid(parameters, recurrence, tokens, indexing="ij")
        names = ("parameters", "recurrence", "tokens")
        return {name: axis.ravel().astype(float) for name, axis in zip(names, axes, strict=True)}

    return build
