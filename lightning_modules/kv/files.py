"""Tensors in safetensors files that are whole or not there, and read only as they were written."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
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


def load_tensors(
    path: Path, names: Collection[str] | None = None, *, verify: bool = True
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file.

    Args:
        path: the file.
        names: tensors to give back, those of them that are there; all by default. One of the
            others is in memory at a time.
        verify: whether to check the digest; only for a file that was checked before.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFileError: the file is cut short or damaged, or has another writer.
    """
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            expected = header.pop(_DIGEST, None)
            digest = _begin_digest(header)
            for name in sorted(file.keys()):
                wanted = names is None or name in names
                if not (verify or wanted):
                    continue
                tensor = file.get_tensor(name)
                if verify:
                    _add_to_digest(digest, name, tensor)
                if wanted:
                    tensors[name] = tensor
    except SafetensorError as error:
        raise DamagedFileError(path, error) from error
    if verify and expected != digest.hexdigest():
        raise DamagedFileError(path, "its content does not have the digest in its header")
    return tensors, header


def _digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and values, and of the text; 0.7 s a gigabyte."""
    digest = _begin_digest(header)
    for name, tensor in sorted(tensors.items()):
        _add_to_digest(digest, name, tensor)
    return digest.hexdigest()


def _begin_digest(header: Mapping[str, str]) -> hashlib._Hash:
    return hashlib.sha256(repr(sorted(header.items())).encode())


def _add_to_digest(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)


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
