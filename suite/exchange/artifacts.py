"""Artifacts of runs, out of a home or a server and into one, a file at a time."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from suite.atomic import replace_atomically
from suite.containment import contained, contained_folder
from suite.errors import SuiteError
from suite.exchange.layout import FileRecord, check_path
from suite.tracking.home import Home

if TYPE_CHECKING:
    from suite.tracking.store import Store

_IN_HOME = "mlflow-artifacts:/"


def is_server(home: Home) -> bool:
    """Whether the home's runs are kept by an MLflow server, which then keeps artifacts too."""
    return home.is_server


def local_folder(home: Home, artifact_uri: str) -> Path | None:
    """Where a run's artifacts lie in the home; none where MLflow's client must be asked.

    Raises:
        SuiteError: if the store names a place outside.
    """
    if is_server(home) or not artifact_uri.startswith(_IN_HOME):
        return None
    location = artifact_uri.removeprefix(_IN_HOME).strip("/")
    try:
        return home.artifacts / check_path(location)
    except ValueError as error:
        raise SuiteError(
            f"the store says that artifacts lie at {artifact_uri!r}, which is not in the home: "
            f"{error}"
        ) from None


def regular_files(root: Path) -> Iterator[str]:
    """Paths of all files below a folder, relative to it, with ``/``, in order; none if it is gone.

    Raises:
        ValueError: for anything that is neither a file nor a folder, such as a link, and for
            names that an export cannot hold.
    """
    if root.is_symlink():
        raise ValueError(f"{root} is a link; only what lies there itself is taken")
    if root.exists():
        yield from _walk(root, "")


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = check_path(f"{prefix}{entry.name}")
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, f"{path}/")
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            raise ValueError(f"{folder / entry.name} is a link or a special file, not a file")


def record_of(file: Path) -> FileRecord:
    """Digest and size of a file, read in pieces."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return FileRecord(sha256=digest, size=opened.tell())


def fetch(store: Store, run_id: str, artifact_uri: str, target: Path) -> list[str]:
    """Copy all artifacts of a run into a folder, which is made if there are any.

    Returns:
        Their paths in it, in order.

    Raises:
        SuiteError: if one of them is a link, or has a name that an export cannot hold.
    """
    source = local_folder(store.home, artifact_uri)
    try:
        if source is None:
            return sorted(_download(store, run_id, None, target))
        paths = list(regular_files(contained_folder(source, store.home.artifacts)))
    except ValueError as error:
        raise SuiteError(
            f"the artifacts of run {run_id} cannot be exported: {error}; rename or remove it"
        ) from None
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path, follow_symlinks=False)
    return paths


def _download(store: Store, run_id: str, folder: str | None, target: Path) -> Iterator[str]:
    for entry in store.client.list_artifacts(run_id, folder):
        path = check_path(entry.path)
        if entry.is_dir:
            yield from _download(store, run_id, path, target)
        else:
            target.mkdir(parents=True, exist_ok=True)
            store.client.download_artifacts(run_id, path, str(target))
            yield path


def keep(store: Store, run_id: str, artifact_uri: str, file: Path, path: str) -> None:
    """Put a copy of a file among the artifacts of a run; again is fine.

    Args:
        store: where the run is.
        run_id: the run.
        artifact_uri: what MLflow says of where its artifacts are.
        file: what is copied.
        path: the artifact's path, which ends with the name of the file.
    """
    target = local_folder(store.home, artifact_uri)
    if target is None:
        store.client.log_artifact(run_id, str(file), path.rpartition("/")[0] or None)
    else:
        kept = contained(target / path, store.home.artifacts)
        replace_atomically(kept, lambda fresh: shutil.copyfile(file, fresh))
