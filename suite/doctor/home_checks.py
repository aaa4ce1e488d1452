"""Checks of the folder itself: whether it can be written, what it lies on, how full that is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.inventory import size_text, take_inventory
from suite.tracking.home import Home

_LEAST_SHARE = 0.05
_LEAST_BYTES = 2_000_000_000
_UNSAFE_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "cifs",
        "davfs",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "fuse.vmhgfs-fuse",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
        "vboxsf",
    }
)
"""File systems on which locks of sqlite are known to fail between machines, or at all."""


def check_folder(exam: Examination) -> Iterator[Finding]:
    """Whether the home can be written, and where it lies."""
    home = exam.home
    closed = [path for path in _written_to(home) if not os.access(path, os.W_OK)]
    if closed:
        yield Finding(
            severity="error",
            what=f"{len(closed)} part(s) of the home cannot be written",
            where=tuple(map(str, closed)),
            remedy="change who owns them (`chown`), or mount the disk for writing; or choose "
            "another home with --home or SUITE_HOME",
        )
    else:
        yield ok(f"{home.root} can be written")
    yield _file_system(home)
    found = take_inventory(home)
    if found.unreadable:
        yield Finding(
            severity="error",
            what=f"{len(found.unreadable)} folder(s) cannot be listed",
            where=tuple(map(str, found.unreadable)),
            remedy="change who owns them (`chown`) or who may read them (`chmod`)",
        )
    refused = [path for path in found.links if _is_written_through(home, path)]
    if refused:
        yield Finding(
            severity="error",
            what=f"{len(refused)} link(s) lead out of the home from where results are written; "
            "`suite run`, `suite report` and `suite export` refuse them",
            where=_led(refused),
            remedy="put what they lead to in their place, or remove them",
        )
    if others := [path for path in found.links if path not in refused]:
        yield note(
            f"{len(others)} link(s) lead out of the home",
            *_led(others),
            remedy="a copy of the home on another machine lacks what they lead to",
        )


def _is_written_through(home: Home, link: Path) -> bool:
    """Whether it stands for a folder of results; the folders of the home itself may be links."""
    parts = (home.artifacts, home.checkpoints, home.reports)
    return link.is_dir() and any(part in link.parents for part in parts)


def _led(links: list[Path]) -> tuple[str, ...]:
    return tuple(f"{path} -> {os.readlink(path)}" for path in links)


def _written_to(home: Home) -> list[Path]:
    parts = [
        home.root,
        home.database,
        home.optuna_journal,
        home.root / "store.lock",
        home.root / "locks",
        home.artifacts,
        home.checkpoints,
        home.cache,
        home.reports,
        home.spool,
    ]
    return [path for path in parts if path.exists()]


def _file_system(home: Home) -> Finding:
    kind = file_system(home.root)
    if kind in _UNSAFE_FILE_SYSTEMS and home.owns_database:
        return Finding(
            severity="warning",
            what=f"the home lies on {kind}, where locks of sqlite are not reliable: two processes "
            "that write at once can damage the database",
            remedy="let one machine at a time work on this home, or keep runs in a server "
            "(MLFLOW_TRACKING_URI=http://...), or move the home to a local disk",
        )
    return ok(f"it lies on {kind or 'a file system of unknown kind'}")


def file_system(folder: Path) -> str:
    """Kind of the file system that a folder lies on, such as ``ext4``; empty if not known."""
    import psutil

    real = folder.resolve()
    mounts = [
        (len(Path(part.mountpoint).parts), number, part.fstype)
        for number, part in enumerate(psutil.disk_partitions(all=True))
        if real.is_relative_to(part.mountpoint)
    ]
    return max(mounts)[2] if mounts else ""  # of two on one place the later hides the earlier


def check_disk(exam: Examination) -> Iterator[Finding]:
    """How much space there is, and what the home takes of it."""
    usage = shutil.disk_usage(exam.home.root)
    share = usage.free / usage.total if usage.total else 0.0
    text = f"{size_text(usage.free)} free of {size_text(usage.total)}, {share:.0%}"
    if share < _LEAST_SHARE or usage.free < _LEAST_BYTES:
        yield Finding(
            severity="warning",
            what=f"only {text}",
            remedy="make space before a run that takes hours: a full disk stops it; `cache` can "
            "be made again, `trash` and `backups` are yours to remove",
        )
    else:
        yield ok(text)
    sizes = take_inventory(exam.home).sizes
    if sizes:
        yield ok(", ".join(f"{name} {size_text(size)}" for name, size in sizes.items()))
    else:
        yield ok("the home is empty")
