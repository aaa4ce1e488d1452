"""Tensors in safetensors files that are whole or not there, and read only as they were written."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from suite.atomic import replace_atomically
from suite.errors import SuiteError

_DIGEST = "sha256"
_TYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str] | None = None
) -> None:
    """Write tensors, a text header and a digest of both; a reader sees the whole file or none.

    safetensors' own writer takes a copy of all of them in memory, which at p = 32,768 are 17 GB;
    this one takes none, or one at a time of those that lie on a device.

    Args:
        path: file to write; its folder is made.
        tensors: by name, on any device.
        header: text by name.
    """
    # as safetensors orders them: the widest types first, so that all are aligned
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    text = dict(header or {})
    text[_DIGEST] = _digest(tensors, text)
    shapes = {name: (tensors[name].dtype, tuple(tensors[name].shape)) for name in names}

    def write(fresh: Path) -> None:
        with fresh.open("wb") as file:
            file.write(header_bytes(shapes, text))
            for name in names:
                file.write(bytes_of(tensors[name]))

    replace_atomically(path, write)


def header_bytes(
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], text: Mapping[str, str]
) -> bytes:
    """What stands before the tensors in a safetensors file.

    Args:
        shapes: type and shape by name, in the order in which the tensors follow.
        text: header text by name.
    """
    content: dict[str, object] = {"__metadata__": dict(text)}
    at = 0
    for name, (dtype, shape) in shapes.items():
        end = at + dtype.itemsize * math.prod(shape)
        content[name] = {"dtype": _TYPES[dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(content).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def bytes_of(tensor: Tensor) -> memoryview:
    """The content of a tensor, copied only where it is on a device or has gaps."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


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
        # not mapped: what is given back is the caller's to write to, and is in memory once
        with safe_open(path, framework="pt", backend="pread") as file:
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
    digest.update(bytes_of(tensor))


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
            f"{path} is damaged or holds something else ({reason}); if the suite has "
            "written it, delete it and run again to compute it anew"
        )
