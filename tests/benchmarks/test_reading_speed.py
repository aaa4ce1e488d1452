"""Curves into polars, against MLflow's own client; and what very many of them cost."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.tracking.sql_reader import SqlReader

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1_800)]

KEYS = [f"train/metric_{number}" for number in range(5)]
POINTS = 1_000
FEW, MANY = 200, 1_000
GIGABYTE = 1 << 30

_READ_ALONE = """
import json, re, resource, sys, time
from pathlib import Path
from suite.tracking.curves import live
from suite.tracking.sql_reader import SqlReader

def peak():
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts what the process was started from as well
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

reader = SqlReader(sys.argv[1])
ids = reader.runs("study")["run_id"].to_list()
begun = time.perf_counter(), time.process_time()
curves = reader.curves(ids)
seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
told = {"points": len(curves), "wall": seconds[0], "cpu": seconds[1], "peak": peak()}
print(json.dumps({**told, "live": len(live(curves)), "peak_live": peak()}))
"""


def filled(fill: Any, curves_of: Any, blank: Path, path: Path, runs: int) -> list[str]:
    shutil.copyfile(blank, path)
    ids: list[str] = fill(path, "study", curves_of(runs, KEYS, POINTS))
    return ids


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    begun = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - begun[0], time.process_time() - begun[1], result


def test_curves_are_read_fifteen_times_faster_than_by_mlflows_client(
    tmp_path: Path, blank: Path, fill: Any, curves_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client reads an eighth and a quarter of the runs: it costs the same for each point."""
    from mlflow import MlflowClient

    database = tmp_path / "few.db"
    ids = filled(fill, curves_of, blank, database, FEW)
    reader, client = SqlReader(f"sqlite:///{database}"), MlflowClient(f"sqlite:///{database}")
    client.search_experiments(max_results=1)

    def by_client(runs: list[str]) -> dict[tuple[str, str], list[tuple[int, float, int]]]:
        return {
            (run, key): [
                (p.step, p.value, p.timestamp) for p in client.get_metric_history(run, key)
            ]
            for run in runs
            for key in KEYS
        }

    ours, theirs = [], {}
    for share in (8, 4):
        ours.append(timed(lambda: reader.curves(ids)))
        theirs[share] = timed(lambda share=share: by_client(ids[::share]))  # type: ignore[misc]
    ours.append(timed(lambda: reader.curves(ids)))

    curves = ours[-1][2]
    assert len(curves) == FEW * len(KEYS) * POINTS
    some = {key: sorted(points) for key, points in theirs[8][2].items()}
    for (run, key), frame in curves.partition_by("run_id", "key", as_dict=True).items():
        if (run, key) in some:
            assert frame.select("step", "value", "timestamp").rows() == some[run, key]

    rows = {}
    for clock, name in enumerate(("wall clock", "processor")):
        per_point = {
            share: seconds[clock] * share / len(curves) for share, seconds in theirs.items()
        }
        our = statistics.median(seconds[clock] for seconds in ours) / len(curves)
        rows[name] = (our, per_point[8], per_point[4])
    with capsys.disabled():
        print(f"\n{FEW} runs x {len(KEYS)} metrics x {POINTS} points on sqlite, us a point")
        print(f"{'':12}{'suite':>8}{'client, 1/8':>13}{'client, 1/4':>13}{'ratio':>7}")
        for name, (our, eighth, quarter) in rows.items():
            print(
                f"{name:12}{our * 1e6:8.2f}{eighth * 1e6:13.1f}{quarter * 1e6:13.1f}"
                f"{quarter / our:7.1f}"
            )
    our, eighth, quarter = rows["processor"]  # the wall clock tells of a machine's other users too
    assert min(eighth, quarter) / our >= 15
    assert quarter / eighth == pytest.approx(1, abs=0.25)


def test_five_million_points_fit_in_two_gigabytes_at_the_same_cost_each(
    tmp_path: Path, blank: Path, fill: Any, curves_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    told: dict[int, list[dict[str, Any]]] = {FEW: [], MANY: []}
    for runs in told:
        filled(fill, curves_of, blank, tmp_path / f"{runs}.db", runs)
    for _ in range(3):
        for runs, measured in told.items():
            uri = f"sqlite:///{tmp_path / f'{runs}.db'}"
            done = subprocess.run(
                [sys.executable, "-c", _READ_ALONE, uri], capture_output=True, check=True
            )
            measured.append(json.loads(done.stdout))
    with capsys.disabled():
        print(
            f"\nreading {len(KEYS)} metrics x {POINTS} points a run, each in a process of its own"
        )
        print(f"{'runs':>6}{'points':>11}{'seconds':>9}{'us a point':>12}{'peak GiB':>10}", end="")
        print(f"{'and drawn from':>16}")
        for runs, measured in told.items():
            best = min(measured, key=lambda one: one["cpu"])
            print(
                f"{runs:6}{best['points']:11,}{best['wall']:9.2f}"
                f"{best['cpu'] / best['points'] * 1e6:12.2f}"
                f"{max(m['peak'] for m in measured) / GIGABYTE:10.2f}"
                f"{max(m['peak_live'] for m in measured) / GIGABYTE:16.2f}"
            )
        cost = {
            runs: min(one["cpu"] / one["points"] for one in measured)
            for runs, measured in told.items()
        }
        print(f"ratio of the cost of a point, {MANY} runs to {FEW}: {cost[MANY] / cost[FEW]:.2f}")
    for runs, measured in told.items():
        assert {one["points"] for one in measured} == {runs * len(KEYS) * POINTS}
        assert {one["live"] for one in measured} == {runs * len(KEYS) * POINTS}
    assert max(one["peak"] for one in told[MANY]) <= 2 * GIGABYTE
    assert cost[MANY] / cost[FEW] == pytest.approx(1, abs=0.3)
