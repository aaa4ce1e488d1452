"""Rows of an evaluation set in a file, for what moments cannot tell: document by document.

Kept only where intervals are asked for. A set of n tokens takes ``n (p_k + p_v)`` numbers on
disk, in the precision of the model: 0.75 GB for 16,384 tokens of SmolLM2-135M in 32 bits, 10.5 GB
for 80,000 of Llama 3.1 8B in 16. Neither writing nor reading holds more than one batch in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lightning_modules.kv.files import DamagedFileError, bytes_of, header_bytes
from lightning_modules.kv.layout import Kind

_FORMAT = "loopkv-rows-2"  # 2: with a digest of the rows
_CHUNK = 1024  # rows read at once
_SUFFIX = "-rows.safetensors"
_NO_DIGEST = "0" * 64  # stands in the header until all rows have come


class RowsWriter:
    """Writes rows of one kind into a safetensors file as they come.

    The file is whole once ``close`` has returned; ``StoredRows.check`` refuses it before.

    Args:
        file: an open, empty binary file.
        count: rows that there will be.
        documents: rows of each document, which add up to ``count``.
    """

    def __init__(self, file: BinaryIO, *, count: int, documents: NDArray[np.int64]) -> None:
        self._file = file
        self._count = count
        self._documents = documents
        self._written = 0
        self._shape: tuple[int, int] = (count, 0)
        self._dtype = torch.float32
        self._digest = _begin_digest(documents)

    def append(self, rows: Tensor) -> None:
        """Adds rows ``[n, p]``, all calls of one precision and width."""
        if not self._written:
            self._shape, self._dtype = (self._count, rows.shape[1]), rows.dtype
            self._file.write(self._header(_NO_DIGEST))
        content = bytes_of(rows)
        self._file.write(content)
        self._digest.update(content)
        self._written += len(rows)

    def _header(self, digest: str) -> bytes:
        """What comes before the rows; as long whatever the digest."""
        documents = ",".join(map(str, self._documents))
        text = {"format": _FORMAT, "documents": documents, "sha256": digest}
        return header_bytes({"rows": (self._dtype, self._shape)}, text)

    def close(self) -> None:
        """Checks that all rows have come, and puts their digest into the header.

        Raises:
            ValueError: they have not.
        """
        if self._written != self._count:
            raise ValueError(f"{self._written} rows came of {self._count}")
        self._file.seek(0)
        self._file.write(self._header(self._digest.hexdigest()))
        self._file.seek(0, 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredRows:
    """Rows in a file.

    Attributes:
        path: the file.
        documents: rows of each document, in order.
        digest: SHA-256 of the documents' rows and of the rows as bytes.
    """

    path: Path
    documents: NDArray[np.int64]
    digest: str

    @classmethod
    def open(cls, path: Path) -> Self:
        """Looks at a file without reading its rows.

        Raises:
            FileNotFoundError: there is no such file.
            SuiteError: it is cut short, or holds something else.
        """
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                shape = file.get_slice("rows").get_shape()
        except SafetensorError as error:
            raise DamagedFileError(path, error) from error
        told = header.get("documents") or "0"
        try:
            counts = np.array([int(count) for count in told.split(",")], dtype=np.int64)
        except ValueError as error:
            raise DamagedFileError(path, error) from error
        if header.get("format") != _FORMAT or counts.sum() != shape[0]:
            raise DamagedFileError(path, f"{shape[0]} rows, of which {counts.sum()} are told")
        return cls(path=path, documents=counts, digest=header.get("sha256", _NO_DIGEST))

    def check(self) -> None:
        """Read all rows and see that they are those that were written.

        Raises:
            SuiteError: they are not.
        """
        digest = _begin_digest(self.documents)
        for rows in self.chunks():
            digest.update(bytes_of(rows))
        if digest.hexdigest() != self.digest:
            raise DamagedFileError(self.path, "its rows do not have the digest in its header")

    def chunks(self) -> Iterator[Tensor]:
        """All rows in order, some ``[n, p]`` at a time."""
        with safe_open(self.path, framework="pt") as file:
            rows = file.get_slice("rows")
            count = rows.get_shape()[0]
            for start in range(0, count, _CHUNK):
                yield rows[start : min(start + _CHUNK, count)]


def _begin_digest(documents: NDArray[np.int64]) -> hashlib._Hash:
    return hashlib.sha256(repr(documents.tolist()).encode())


def is_rows_path(path: Path) -> bool:
    """Whether a file of the cache is one of rows, by its name."""
    return path.name.endswith(_SUFFIX)


def rows_path(moments: Path, kind: Kind) -> Path:
    """The file of rows beside a file of moments."""
    return moments.with_name(f"{moments.stem}.{kind}{_SUFFIX}")
