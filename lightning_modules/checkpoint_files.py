"""Checkpoint files of one cell: written whole, read only when every byte is as written.

A file is what ``torch.save`` writes, followed by a seal: a mark and the SHA-256 of all before
it. ``torch.load`` reads past the seal. The checksums inside torch's archive are not enough: no
loader compares them, and the archive's own table of contents has none.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from suite.atomic import write_atomically
from suite.errors import SuiteError

_NAME = re.compile(r"tokens-([0-9]{15,})\.ckpt")
_DAMAGED = ".damaged"
_MARK = b"suite sha256 "
_DIGEST_SIZE = hashlib.sha256().digest_size
_READ_AT_ONCE = 1 << 20


class WholeFileIO(TorchCheckpointIO):
    """Lightning's checkpoint files, each whole or not there.

    Lightning's own writer makes the file in the system's temporary folder, which may be small
    or on another disk, and moves it from there: a copy that can be cut off.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write, sync and rename; only rank zero comes here.

        Raises:
            SuiteError: if the file cannot be written, such as on a full disk. Nothing of it is
                left, and checkpoints from before are as they were.
        """
        assert storage_options is None
        target = Path(path)
        try:
            write_atomically(target, lambda file: _write_sealed(checkpoint, file))
        except (OSError, RuntimeError) as error:
            reason = _system_error(error)
            if reason is None:
                raise
            free = shutil.disk_usage(target.parent).free
            raise SuiteError(
                f"the checkpoint {target} cannot be written ({reason.strerror}; "
                f"{free / 1e9:.2f} GB are free); those before it are kept: make room and run "
                "again to go on from there"
            ) from error


class _Digesting:
    """A file that digests what is written to it.

    Args:
        file: open for writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def seal(self) -> None:
        self._file.write(_MARK + self._digest.digest())


def _write_sealed(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    digesting = _Digesting(file)
    torch.save(checkpoint, digesting)  # type: ignore[arg-type]
    digesting.seal()


def _system_error(error: BaseException | None) -> OSError | None:
    """The system's reason; torch says only that its archive has an unexpected position."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def checkpoint_path(folder: Path, tokens: int) -> Path:
    """Where the state after ``tokens`` training tokens is kept."""
    return folder / f"tokens-{tokens:015d}.ckpt"


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints of a run, newest first."""
    return [path for _, path in _numbered(folder)]


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    def found() -> Iterator[tuple[int, Path]]:
        for path in folder.glob("tokens-*"):
            name = _NAME.fullmatch(path.name)
            if name and path.is_file():
                yield int(name[1]), path

    return sorted(found(), reverse=True)


def newest_checkpoint(
    folder: Path, *, report: Callable[[str], object] = warnings.warn
) -> tuple[Path, int] | None:
    """The newest checkpoint that is whole, and its training tokens; none if there is none.

    Args:
        folder: of one run.
        report: takes a sentence for each one that is cut short or damaged.
    """
    numbered = _numbered(folder)
    for position, (tokens, path) in enumerate(numbered):
        reason = damage(path)
        if reason is None:
            return path, tokens
        older = len(numbered) - position - 1
        cure = "the one before it is used" if older else "none is left, so the cell starts afresh"
        report(f"the checkpoint {path} cannot be read ({reason}); {cure}")
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or none if each byte of its content is as written.

    All of it is read, at a bit more than a gigabyte a second, and then its outline is loaded.
    """
    try:
        with path.open("rb") as file:
            seal = _read_seal(file)
        if seal is not None:
            return seal
        torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except Exception as error:  # what is no checkpoint fails in many ways, all with one cure
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None


def _read_seal(file: BinaryIO) -> str | None:
    left = os.fstat(file.fileno()).st_size - len(_MARK) - _DIGEST_SIZE
    digest = hashlib.sha256()
    while left > 0 and (part := file.read(min(left, _READ_AT_ONCE))):
        digest.update(part)
        left -= len(part)
    seal = file.read()
    if not seal.startswith(_MARK):
        return "it is cut short or damaged: its end is not what it should be"
    if seal != _MARK + digest.digest():
        return "it is damaged: its bytes do not have the checksum at its end"
    return None


def set_aside_beyond(folder: Path, tokens: int) -> None:
    """Rename checkpoints with more tokens than an attempt starts from: they were not whole."""
    for found, path in _numbered(folder):
        if found > tokens:
            path.replace(path.with_suffix(_DAMAGED))
