"""The result of a fit as JSON, and its points as CSV. Equal fits give equal bytes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import polars as pl

import suite
from suite.laws.allocation import Allocation
from suite.laws.held_out import Comparison
from suite.laws.intervals import Interval
from suite.laws.profile import Profile
from suite.tables.outcome import Outcome, residuals

FORMAT = 1


def document(outcome: Outcome) -> dict[str, Any]:
    """The result as plain data: numbers that are not finite are None, as JSON has none."""
    fit, points = outcome.fit, outcome.points
    intervals = outcome.intervals
    return {
        "format": FORMAT,
        "suite_version": suite.__version__,
        "table": {
            "name": outcome.table.name,
            "sha256": outcome.table.digest or None,
            "rows": len(outcome.table.frame),
        },
        "settings": _plain(asdict(outcome.request)),
        "law": {
            "form": fit.form.name,
            "formula": fit.form.formula,
            "latex": fit.form.latex,
            "source": fit.form.source,
            "variables": {name: outcome.request.column(name) for name in fit.form.variables},
        },
        "parameters": {
            symbol.name: {
                "value": _finite(fit.parameters[symbol.name]),
                "unit": symbol.unit,
                "interval": (
                    [_finite(end) for end in intervals.ends[symbol.name]] if intervals else None
                ),
                "at_bound": symbol.name in fit.at_bounds,
            }
            for symbol in fit.form.symbols
        },
        "interval_level": intervals.level if intervals else None,
        "objective": _finite(fit.objective),
        "points": {
            "fitted": fit.num_points,
            "held_out": int(points.held_out.sum()),
            "groups": len(set(points.group.tolist())) if points.grouped else None,
        },
        "starts": fit.num_starts,
        "starts_in_best_direction": fit.num_tried,
        "agreeing_share": fit.agreeing_share,
        "condition_number": _finite(fit.condition_number),
        "errors": _plain(asdict(outcome.goodness)),
        "predictions": [
            {"variables": dict(place), "loss": _interval(interval)}
            for place, interval in outcome.answers.predictions
        ],
        "allocation": _allocation(outcome.answers.allocation),
        "profiles": {found.symbol: _profile(found) for found in outcome.profiles},
        "comparison": _comparison(outcome.comparison),
        "warnings": list(outcome.warnings),
    }


def to_json(outcome: Outcome) -> str:
    """The document as text."""
    return json.dumps(document(outcome), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def points_table(outcome: Outcome) -> pl.DataFrame:
    """Every point with its prediction.

    Columns: row (of the table, from 1), group, the variables, loss, predicted, its interval
    where there is one, residual (predicted over measured loss, less 1), held_out.
    """
    points, intervals = outcome.points, outcome.intervals
    bands = {"lower": intervals.lower, "upper": intervals.upper} if intervals else {}
    return pl.DataFrame(
        {
            "row": points.row + 1,
            **(
                {"group": [points.groups[index] for index in points.group]}
                if points.grouped
                else {}
            ),
            **points.variables,
            "loss": points.loss,
            "predicted": outcome.predicted,
            **bands,
            "residual": residuals(outcome),
            "held_out": points.held_out,
        }
    )


def _allocation(found: Allocation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    best = found.best
    return {
        "flops": found.flops,
        "costs": "C = 6 N D",
        "parameters": _interval(best.parameters),
        "tokens": _interval(best.tokens),
        "loss": _interval(best.loss),
        "at_end": best.at_end,
    }


def _profile(found: Profile) -> dict[str, Any]:
    return {
        "value": found.estimate,
        "interval": [found.lower, found.upper],
        "open": [found.lower_open, found.upper_open],
        "level": found.level,
    }


def _comparison(found: Comparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "held_out": list(found.splits),
        "mean_relative_error": {
            law: {"pooled": float(pooled), "by_split": errors.tolist()}
            for law, pooled, errors in zip(
                found.laws, found.pooled_error, found.error_held_out, strict=True
            )
        },
    }


def _interval(found: Interval) -> dict[str, Any]:
    ends = [found.lower, found.upper] if found.identified else None
    return {"value": found.estimate, "interval": ends, "level": found.level}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return _finite(value) if isinstance(value, float) else value
