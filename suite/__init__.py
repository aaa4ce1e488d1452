"""Experiment tracking for looped-language-model scaling laws and KV-cache calibration.

In: a study, one YAML file. Out: MLflow runs in a home folder, and a report built from
those runs alone. Importing this package loads neither torch nor mlflow.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_modules.kv.basis import Basis

__version__ = "0.1.0"

__all__ = ["__version__", "load_basis"]


def load_basis(path: str | Path) -> Basis:
    """The basis of keys or of values that a calibration run has kept, as ``basis/*.safetensors``.

    Args:
        path: the file.

    Returns:
        An object with ``project``, ``reconstruct`` and ``error``; its ``layout`` says what the
        columns of a row are.

    Raises:
        FileNotFoundError: there is no such file.
        SuiteError: the file is damaged, or holds something else.
    """
    from lightning_modules.kv.basis import Basis

    return Basis.load(Path(path))
