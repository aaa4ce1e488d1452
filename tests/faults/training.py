"""A study of one cell against a server, whose pace a test sets."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from suite.tracking.spool import spools
from tests.faults.homes import TRAINING, frames_of, repeatable, untrue_attempts, write_study
from tests.faults.jobs import Job, Preloaded
from tests.faults.proxy import UnreliableProxy
from tests.faults.server import Server


class Training:
    """The study, before a proxy that may fail.

    Attributes:
        name: of the study.
        home: its home, without a database of its own.
    """

    def __init__(
        self, preloaded: Preloaded, server: Server, proxy: UnreliableProxy, folder: Path, name: str
    ) -> None:
        self.name, self.home, self.server = name, folder / "home", server
        self._preloaded, self._proxy, self._pace = preloaded, proxy, folder / "pace"
        self._study = write_study(folder, TRAINING, name=name)

    def start(self, *, patience: float, tokens: int = 10**9, at_home: bool = False) -> Job:
        """Start it; it goes no further than ``tokens``; ``at_home``: without the server."""
        self.allow(tokens)
        tracker = {} if at_home else {"MLFLOW_TRACKING_URI": self._proxy.url}
        return self._preloaded.start(
            "run",
            self._study,
            "--home",
            str(self.home),
            faults={"pace": str(self._pace), "companion_after": 0.0},
            **tracker,
            MLFLOW_HTTP_REQUEST_TIMEOUT="10",
            SUITE_TRACKER_PATIENCE=str(patience),
        )

    def allow(self, tokens: int) -> None:
        """Let it go on."""
        fresh = self._pace.with_suffix(".new")
        fresh.write_text(str(tokens))
        fresh.replace(self._pace)

    def saved(self, tokens: int) -> bool:
        """Whether there is a checkpoint of so many tokens."""
        return bool(list(self.home.glob(f"checkpoints/*/tokens-*{tokens}.ckpt")))

    def arrived(self) -> int:
        """Points that the server has."""
        (count,) = self.server.rows(
            "SELECT count(*) FROM metrics JOIN runs USING (run_uuid) JOIN experiments USING "
            "(experiment_id) WHERE experiments.name = ?",
            self.name,
        )
        return int(str(count[0]))

    def complaints(self, expected: pl.DataFrame) -> list[str]:
        """What is not true of the server once the study is done."""
        runs, tags, curves = frames_of(self.server.root, self.name)
        found = untrue_attempts(runs, tags)
        if sorted(runs.select("kind", "status").iter_rows()) != [
            ("pretraining", "FINISHED"),
            ("report", "FINISHED"),
        ]:
            found.append(f"runs: {runs.rows()}")
        counted = curves.filter(~pl.col("superseded")).select("run_id", "key", "step")
        if not counted.is_unique().all():
            found.append("doubled points")
        if not repeatable(self.server.root, self.name).equals(expected, null_equal=True):
            found.append(f"curves differ: {repeatable(self.server.root, self.name)}")
        if spools(self.home / "spool"):
            found.append("a spool is left")
        return found
