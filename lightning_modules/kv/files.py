"""Tensors in safetensors files that are whole or not there, and read only as they were written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from suite.atomic import replace_atomically
from suite.errors import SuiteError

_DIGEST = "sha256"


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str] | None = None
) -> None:
    """Write tensors, a text header and a digest of both; a reader sees the whole file or none.

    Args:
        path: file to write; its folder is made.
        tensors: by name, on any device.
        header: text by name.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = dict(header or {})
    text[_DIGEST] = _digest(whole, text)
    replace_atomically(path, lambda fresh: save_file(whole, fresh, text))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFileError: the file is cut short or damaged, or has another writer.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            header = file.metadata() or {}
    except SafetensorError as error:
        raise DamagedFileError(path, error) from error
    if header.pop(_DIGEST, None) != _digest(tensors, header):
        raise DamagedFileError(path, "its content does not have the digest in its header")
    return tensors, header


def _digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and values, and of the text; 0.7 s a gigabyte."""
    digest = hashlib.sha256(repr(sorted(header.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class DamagedFileError(SuiteError):
    """A file does not hold what was written to it, or something else.

    Attributes:
        path: the file.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path, reason: object) -> None:
        self.path = path
        self.reason = str(reason)
        super().__init__(
            f"{path} is damaged or holds something else ({reason}); delete it and run again to "
            "compute it anew"
        )
