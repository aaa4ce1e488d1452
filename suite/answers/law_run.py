"""The study's newest finished law, as its run keeps it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from suite.errors import InputError, SuiteError
from suite.laws.kept import ARTIFACT, KeptLaw
from suite.reports.tracked import selection_times
from suite.tracking.home import Home
from suite.tracking.reader import Reader

_CELL_TAGS = ("suite.input.", "suite.held_out.")


@dataclass(frozen=True, kw_only=True, eq=False)
class LawRun:
    """A finished law run.

    Attributes:
        run_id: the run.
        law: what it keeps.
        counts: which parameters its N counts: ``total`` or ``non_embedding``.
        cells: run id of each pretraining cell that it fitted or held out, by fingerprint.
    """

    run_id: str
    law: KeptLaw
    counts: str
    cells: Mapping[str, str]


def read_law_run(reader: Reader, home: Home, study: str) -> LawRun:
    """The law run of a study that finished last, or was selected last, with its law.

    Raises:
        InputError: there is none yet, or it keeps no law.
        SuiteError: what it keeps cannot be read.
    """
    runs = reader.runs(study).filter(pl.col("kind") == "law")
    finished = runs.filter(pl.col("status") == "FINISHED")
    if finished.is_empty():
        others = sorted(set(runs["status"].to_list()))
        seen = f" (there are law runs with status {', '.join(others)})" if others else ""
        raise InputError(
            f"the study {study!r} has no finished law in {home.root}{seen}; a study with a `law` "
            f"stage gets one with `suite run {study}`"
        )
    tags = reader.tags(finished["run_id"].to_list())
    times = selection_times(finished, tags)
    run_id = max(finished["run_id"], key=lambda found: (times[found], found))
    params = dict(reader.params([run_id]).select("key", "value").iter_rows())
    cells = {
        key.removeprefix(prefix): value
        for key, value in tags.filter(pl.col("run_id") == run_id).select("key", "value").iter_rows()
        for prefix in _CELL_TAGS
        if key.startswith(prefix)
    }
    kept = _artifact(home, study, run_id)
    try:
        law = KeptLaw.from_json(kept)
    except InputError as error:
        raise SuiteError(
            f"{ARTIFACT} of law run {run_id}: {error}; it was edited or damaged"
        ) from None
    if not law.points:
        raise SuiteError(f"{ARTIFACT} of law run {run_id} names no fitted cell; it was edited")
    return LawRun(run_id=run_id, law=law, counts=params.get("parameters", "total"), cells=cells)


def _artifact(home: Home, study: str, run_id: str) -> str:
    """Text of the kept law of a run, out of the home or from the server."""
    try:
        if not home.is_server:
            file = home.artifacts / study / run_id / "artifacts" / ARTIFACT
            return file.read_text(encoding="utf-8")
        from suite.tracking.mlflow_client import make_client

        with tempfile.TemporaryDirectory() as scratch:
            client = make_client(home.tracking_uri)
            path = client.download_artifacts(run_id, ARTIFACT, scratch)
            return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SuiteError(f"{ARTIFACT} of law run {run_id} is not UTF-8 text") from None
    except Exception as error:  # MLflow's client raises whatever its transport does
        raise InputError(
            f"law run {run_id} keeps no {ARTIFACT} that can be read here "
            f"({type(error).__name__}): an older version fitted it, or its artifacts are in "
            f"another home; run `suite run {study}` here to fit it again"
        ) from error
