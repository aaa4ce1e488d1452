"""The spool: what an attempt has to say to the tracker, on disk before it is sent.

One file an attempt, one JSON object a line, only ever appended to. A line is on disk for the
operating system when ``append`` returns, so it outlives the process, however that ends; a
power cut may take what was written since ``sync``. A second small file holds how far the
tracker has it. Sending a line twice changes nothing, so that one may lag behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suite.atomic import replace_atomically, sync_folder
from suite.errors import SuiteError
from suite.tracking.processes import WorkingProcess

SUFFIX = ".spool"


@dataclass(frozen=True, kw_only=True)
class Points:
    """Metrics at one step.

    Attributes:
        step: tokens.
        at: ms since the epoch, when they were logged.
        values: by metric.
    """

    step: int
    at: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Tags:
    """Tags to set."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Params:
    """Parameters to log."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Artifact:
    """A file kept beside the spool, for a folder of the run's artifacts."""

    file: str
    folder: str


@dataclass(frozen=True)
class End:
    """How the attempt ended: MLflow's status, and the time in ms. Nothing comes after it."""

    status: str
    at: int


Record = Points | Tags | Params | Artifact | End
_KINDS: Mapping[str, type[Any]] = {
    "points": Points,
    "tags": Tags,
    "params": Params,
    "artifact": Artifact,
    "end": End,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class SpoolFile:
    """One attempt's spool on disk, as whoever drains it sees it.

    Attributes:
        path: the file; its name holds the run id and the number of the attempt.
    """

    path: Path

    @classmethod
    def of(cls, folder: Path, run_id: str, attempt: int) -> SpoolFile:
        """The spool of an attempt."""
        return cls(folder / f"{run_id}.{attempt}{SUFFIX}")

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""
        return self.path.name.split(".")[0]

    @property
    def attempt(self) -> int:
        """The attempt that wrote it."""
        return int(self.path.name.split(".")[1])

    @property
    def lock(self) -> Path:
        """Held by whoever drains it."""
        return self.path.with_suffix(".lock")

    @property
    def files(self) -> Path:
        """Artifacts that wait for a server."""
        return self.path.with_suffix(".files")

    @property
    def damaged(self) -> Path:
        """Lines that could not be read."""
        return self.path.with_suffix(".damaged")

    @property
    def _offset(self) -> Path:
        return self.path.with_suffix(".offset")

    def owner(self) -> WorkingProcess | None:
        """The process that writes it; none if its first line is damaged or not there yet."""
        try:
            with self.path.open("rb") as file:
                return WorkingProcess(**json.loads(file.readline())["owner"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def begun(self) -> bool:
        """Whether its first line is there; whoever opens it has yet to write who that is."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            return file.readline().endswith(b"\n")
        return False

    @property
    def sent(self) -> int:
        """Bytes of it that the tracker has."""
        try:
            return int(self._offset.read_text())
        except (OSError, ValueError):
            return 0

    def mark_sent(self, offset: int) -> None:
        """Remember how far the tracker has it."""
        fresh = self._offset.with_suffix(".offset-new")
        # what is not remembered is sent again, which changes nothing: a full disk does not matter
        with contextlib.suppress(OSError):
            fresh.write_text(str(offset))
            fresh.replace(self._offset)

    def records(self, offset: int) -> Iterator[tuple[Record | bytes, int]]:
        """Whole lines from an offset on, each with the offset behind it; a damaged one as bytes.

        A line without an end is being written, or was cut off: it is not given.
        """
        with self.path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                record = _parse(line)
                if record is not None:
                    yield record, offset

    def waiting(self) -> int:
        """How many metric values the tracker does not have yet."""
        try:
            records = list(self.records(self.sent))
        except FileNotFoundError:
            return 0
        return sum(len(record.values) for record, _ in records if isinstance(record, Points))

    def delete(self) -> None:
        """Remove it, before what it cannot be sent again without; its lock is the last to go."""
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.files, ignore_errors=True)
        for path in (self._offset, self.lock):
            path.unlink(missing_ok=True)


def spools(folder: Path) -> list[SpoolFile]:
    """The spools of a home, by run and attempt."""
    found = [
        SpoolFile(path)
        for path in folder.glob(f"*{SUFFIX}")
        if len(parts := path.name.split(".")) == 3 and parts[1].isdigit()
    ]
    return sorted(found, key=lambda spool: (spool.run_id, spool.attempt))


def sweep(folder: Path) -> None:
    """Remove what a process that died while it deleted a spool has left of it."""
    for beside in (*folder.glob("*.lock"), *folder.glob("*.offset*"), *folder.glob("*.files")):
        spool = SpoolFile(beside.with_suffix(SUFFIX))
        if not spool.path.exists():
            spool.delete()


class SpoolWriter:
    """The appending side of an attempt's spool.

    Args:
        spool: where it lies; the folder is made.
        owner: the process that works on the attempt.

    Raises:
        SuiteError: if it cannot be written.
    """

    def __init__(self, spool: SpoolFile, owner: WorkingProcess) -> None:
        self.spool = spool
        self._artifacts = 0
        try:
            spool.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                spool.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise _unwritable(spool.path, error) from error
        try:
            self._write({"owner": asdict(owner)})
            sync_folder(spool.path.parent)
        except SuiteError:
            self.close()
            if not spool.begun:
                spool.path.unlink()
            raise

    def append(self, record: Record) -> None:
        """Put a record on disk.

        Raises:
            SuiteError: if the disk does not take it; then nothing of it is there.
        """
        self._write({"kind": _NAMES[type(record)], **vars(record)})

    def keep(self, file: Path, folder: str) -> None:
        """Copy an artifact beside the spool, and put it on record."""
        self._artifacts += 1
        name = f"{self._artifacts}/{file.name}"
        try:
            replace_atomically(self.spool.files / name, lambda copy: shutil.copyfile(file, copy))
        except OSError as error:
            raise _unwritable(self.spool.files / name, error) from error
        self.append(Artifact(name, folder))

    def sync(self) -> None:
        """See that a power cut does not take what was appended.

        Raises:
            SuiteError: if the disk does not take it.
        """
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _unwritable(self.spool.path, error) from error

    def close(self) -> None:
        """Append no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, document: Mapping[str, object]) -> None:
        line = json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        there = os.fstat(self._file)
        if there.st_nlink == 0:
            raise SuiteError(
                f"{self.spool.path} was removed while its attempt works: another process has taken "
                "this one for gone, and the run with it; run the same command again"
            )
        before = there.st_size
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, before)  # a half line would swallow the next one
            raise _unwritable(self.spool.path, error) from error


def _parse(line: bytes) -> Record | bytes | None:
    """A line as a record; as it is where it is none; nothing for the line of the owner."""
    try:
        document = json.loads(line)
        if "owner" in document:
            return None
        return _checked(_KINDS[document.pop("kind")](**document))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return line


def _checked(record: Record) -> Record:
    """The record, of which every part is what it should be.

    Raises:
        TypeError: if one is not.
    """
    match record:
        case Points(step=int(), at=int(), values=dict(values)):
            floats = {key: float(value) for key, value in values.items()}
            return Points(step=record.step, at=record.at, values=floats)
        case Tags(values=dict(values)) | Params(values=dict(values)):
            if all(isinstance(value, str) for value in values.values()):
                return record
        case Artifact(file=str(), folder=str()) | End(status=str(), at=int()):
            return record
    raise TypeError(f"not a record: {record!r}")


def _unwritable(path: Path, error: OSError) -> SuiteError:
    return SuiteError(
        f"{path} cannot be written ({error.strerror or error}), so nothing more can be put on "
        "record; see that the disk has space, and run the same command again: what was recorded "
        "before is kept"
    )
