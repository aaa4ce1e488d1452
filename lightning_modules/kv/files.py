"""Tensors in safetensors files that are whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from suite.atomic import replace_atomically
from suite.errors import SuiteError


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str] | None = None
) -> None:
    """Write tensors and a text header; a reader sees the whole file or none.

    Args:
        path: file to write; its folder is made.
        tensors: by name, on any device.
        header: text by name.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_atomically(path, lambda fresh: save_file(whole, fresh, dict(header or {})))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file.

    Raises:
        FileNotFoundError: there is no such file.
        SuiteError: the file is cut short or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        raise damaged(path, error) from error


def damaged(path: Path, reason: object) -> SuiteError:
    """The error for a file that does not hold what it should."""
    return SuiteError(
        f"{path} is damaged or holds something else ({reason}); delete it and run again to "
        "compute it anew"
    )
