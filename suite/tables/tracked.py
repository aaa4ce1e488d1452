"""The runs of an MLflow experiment as a table, whoever logged them and under which names."""

from __future__ import annotations

import polars as pl

from suite.errors import InputError
from suite.tables.sources import ROW, Table, from_frame
from suite.tracking.curves import live
from suite.tracking.reader import Reader

_RUN_COLUMNS = ("run_id", "name", "status", "kind")
_TAKEN = (*_RUN_COLUMNS, "step", ROW)


def tracked_table(reader: Reader, experiment: str, loss: str) -> Table:
    """One row for each logged point of a metric, with all that its run logged.

    Columns: ``run_id``, ``name``, ``status``, ``kind``; ``step``; every metric that was logged at
    the same steps, under its key; every param under its key, as numbers where all of its values
    are. A metric hides a param of the same name. One that is called as a column of the run is kept
    as ``metric.step``, ``metric.name`` and so on.

    Args:
        reader: the store.
        experiment: name of the experiment.
        loss: key of the metric that is the loss.

    Raises:
        InputError: the experiment has no runs, or none of them logged the metric.
    """
    runs = reader.runs(experiment)
    if runs.is_empty():
        raise InputError(
            f"the store has no experiment {experiment!r} with runs", key="--from-mlflow"
        )
    run_ids = runs["run_id"].to_list()
    curves = live(reader.curves(run_ids)).select("run_id", "key", "step", "value")
    curves = curves.with_columns(key=_renamed(curves["key"]))
    keys = curves["key"].unique().sort().to_list()
    if loss not in keys:
        hint = f" (write {_column(loss)})" if _column(loss) in keys else ""
        raise InputError(
            f"no run of {experiment!r} logged the metric {loss!r}{hint}; they logged "
            f"{', '.join(keys)}",
            key="--loss",
        )
    points = curves.filter(pl.col("key") == loss).select("run_id", "step", value="value")
    others = curves.join(points.select("run_id", "step"), on=["run_id", "step"], how="semi")
    wide = others.pivot("key", index=["run_id", "step"], values="value")
    frame = runs.select(_RUN_COLUMNS).join(wide, on="run_id", how="inner")
    frame = frame.join(_params(reader, run_ids, frame.columns), on="run_id", how="left")
    frame = frame.sort("run_id", "step").select(
        *_RUN_COLUMNS, "step", *sorted(set(frame.columns) - {*_RUN_COLUMNS, "step"})
    )
    names = frame.select("name", "run_id", "step").rows()

    def place(row: int) -> str:
        name, run_id, step = names[row]
        return f"run {name or run_id} at step {step}"

    return from_frame(experiment, frame, place, tracked=True)


def _column(key: str) -> str:
    """Column of a metric: its key, unless a column of the run is called so."""
    return f"metric.{key}" if key in _TAKEN else key


def _renamed(keys: pl.Series) -> pl.Series:
    """Columns of metrics by their keys, no two alike."""
    names = {key: _column(key) for key in keys.unique()}
    for key in set(_TAKEN).intersection(names):
        while names[key] in names:
            names[key] = f"metric.{names[key]}"
    return keys.replace_strict(names, return_dtype=pl.String) if names else keys


def _params(reader: Reader, run_ids: list[str], taken: list[str]) -> pl.DataFrame:
    """Params as columns, one row a run; those that are numbers throughout become numbers."""
    params = reader.params(run_ids).filter(~pl.col("key").is_in([*taken, ROW]))
    if params.is_empty():
        return pl.DataFrame({"run_id": run_ids})
    wide = params.pivot("key", index="run_id", values="value")
    columns = []
    for name in wide.columns:
        column = wide[name]
        number = column.cast(pl.Float64, strict=False)
        numeric = name != "run_id" and number.null_count() == column.null_count()
        columns.append(number if numeric else column)
    return pl.DataFrame(columns)
