"""What a law stage tracks beside its fit, for a reader in memory that has tracked a law."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

PREDICTED = "predict looplm_total"
BOUND = 0.02  # half the width of an interval, relative
SPLITS = (
    "size:medium",
    "size:small",
    "recurrence:4",
    "recurrence:16",
    "first:0.25",
    "first:0.75",
    "cell:000000020000",
)
RATIOS = {
    "full": 1.0,
    "without_parameters": 4.5,
    "without_tokens": 9.25,
    "without_recurrence": 0.75,
    "without_constant": 1.5,
}


def log_intervals(reader: Any, law: str, *, unidentified: Sequence[str] = ()) -> None:
    """Intervals of parameters and of predicted curves."""
    reader.texts[law]["tags"]["suite.law.unidentified"] = json.dumps(list(unidentified))
    for point in [point for point in reader.points if point["run_id"] == law]:
        key, value = point["key"], point["value"]
        symbol = key.removeprefix("law/")
        if symbol in unidentified or not (symbol.isalpha() or key.startswith("predicted/")):
            continue
        if symbol not in ("objective", "agreeing_share"):
            reader.log(law, f"{key}/lower", [point["step"]], [value * (1 - BOUND)])
            reader.log(law, f"{key}/upper", [point["step"]], [value * (1 + BOUND)])
    reader.log(law, "law/resamples", [0], [500.0])
    reader.log(law, "law/converged_share", [0], [0.996])
    reader.log(law, "law/condition_number", [0], [12_345.0])


def log_tests(reader: Any, law: str) -> None:
    """Held-out tests of the full law, and pooled errors of it without each term."""
    for place, split in enumerate(SPLITS):
        for name, ratio in RATIOS.items():
            metric = f"law/held_out/{split}/{name}"
            reader.log(law, f"{metric}/mean_relative_error", [0], [0.01 * (place + 1) * ratio])
            reader.log(law, f"{metric}/r2_all", [0], [0.99 - 0.001 * place])
    for kind, error in (("size", 0.015), ("recurrence", 0.035), ("first", 0.055)):
        for name, ratio in RATIOS.items():
            reader.log(law, f"law/held_out/{kind}/{name}/pooled_error", [0], [error * ratio])


def predict(reader: Any, law: str, *, name: str = PREDICTED, ago: int = 25_000) -> str:
    """A prediction run of every cell that a law holds out, finished before the first of them.

    Args:
        reader: the store.
        law: the law's run.
        name: name of the run.
        ago: ms between its start and the start of the first of these cells.
    """
    tags = reader.texts[law]["tags"]
    held_out = {
        key.removeprefix("suite.held_out."): run_id
        for key, run_id in tags.items()
        if key.startswith("suite.held_out.")
    }
    begins = min(row["start_time"] for row in reader.rows if row["run_id"] in held_out.values())
    start = begins - ago
    run = reader.add(
        "prediction",
        name,
        start=start,
        tags={
            **{key: value for key, value in tags.items() if key.startswith("suite.input.")},
            **{f"suite.predicts.{cell}": "true" for cell in held_out},
        },
    )
    reader.rows[-1]["end_time"] = start + 10_000
    wanted = {f"predicted/{cell}{end}" for cell in held_out for end in ("", "/lower", "/upper")}
    for point in [point for point in reader.points if point["run_id"] == law]:
        key = point["key"]
        of_the_law = key.count("/") == 1 and key.startswith("law/")
        scores = ("law/objective", "law/agreeing_share")
        if (of_the_law and key not in scores) or key in wanted:
            reader.points.append({**point, "run_id": run, "timestamp": start + 5_000})
    return run
