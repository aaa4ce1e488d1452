"""What a law run tracks, by the names of its metrics: parameters, scores, held-out tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from suite.reports.points import Curve

SCORES: Mapping[str, str] = {
    "law/r2/all": "R², all points",
    "law/r2/held_out": "R², held-out cells only",
    "law/mean_relative_error/fitted": "mean relative error, fitted cells",
    "law/mean_relative_error/held_out": "mean relative error, held-out cells",
    "law/objective": "objective (sum of Huber losses on log loss)",
    "law/agreeing_share": "share of starts that agree",
    "law/condition_number": "condition number",
    "law/resamples": "resamples of the runs",
    "law/converged_share": "share of resamples that converged",
}
"""Every metric ``law/<name>`` that is no parameter, and the scores under longer names."""

KINDS = ("size", "recurrence", "first", "cell")
"""What held-out tests hold out: each size, each T_m, later tokens, each cell."""

_TERMS = {"parameters": "N", "tokens": "token", "recurrence": "Tm", "step": "loop-step"}
_HELD_OUT = "law/held_out/"
_POOLED = "pooled_error"


@dataclass(frozen=True, kw_only=True)
class Split:
    """What one held-out test held out.

    Attributes:
        kind: one of ``KINDS``.
        name: which size, T_m, share of the tokens, or cell.
    """

    kind: str
    name: str

    @property
    def metric(self) -> str:
        """How the metrics of the full law in the split begin."""
        return f"{_HELD_OUT}{self.kind}:{self.name}/full"


def symbols_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Symbols of a law's parameters among the names of metrics, sorted."""
    return tuple(
        sorted(
            key.removeprefix("law/")
            for key in keys
            if key.startswith("law/") and key.count("/") == 1 and key not in SCORES
        )
    )


def parameters_of(curves: Mapping[tuple[str, str], Curve], run_id: str) -> dict[str, float]:
    """The parameters that a run has tracked, by symbol."""
    keys = [key for owner, key in curves if owner == run_id]
    return {
        symbol: value
        for symbol in symbols_of(keys)
        if (value := curves[run_id, f"law/{symbol}"].last_value) is not None
    }


def splits_of(keys: Iterable[str]) -> tuple[Split, ...]:
    """Splits whose tests the names of metrics tell, by kind and then as they sort."""
    found = {
        (kind, name)
        for place, _, _ in _tests(keys)
        for kind, colon, name in [place.partition(":")]
        if colon and kind in KINDS
    }
    return tuple(
        Split(kind=kind, name=name)
        for kind, name in sorted(found, key=lambda s: (KINDS.index(s[0]), _in_order(s[1])))
    )


def laws_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Laws whose pooled errors the names of metrics tell: the full one first."""
    found = {law for place, law, number in _tests(keys) if place in KINDS and number == _POOLED}
    order = ["full", *(f"without_{variable}" for variable in _TERMS)]
    return tuple(sorted(found, key=lambda law: (order.index(law) if law in order else 99, law)))


def words_of_law(law: str) -> str:
    """How tables call a law that was tested."""
    variable = law.removeprefix("without_")
    if variable == law:
        return f"{law} law"
    if variable == "constant":
        return "without the constant"
    return f"without the {_TERMS.get(variable, variable)} term"


def pooled(kind: str, law: str) -> str:
    """The metric of a law's error over the held-out points of every split of a kind."""
    return f"{_HELD_OUT}{kind}/{law}/{_POOLED}"


def _tests(keys: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Split or kind, law and number of each metric of a held-out test."""
    for key in keys:
        match key.removeprefix(_HELD_OUT).split("/"):
            case [place, law, number] if key.startswith(_HELD_OUT):
                yield place, law, number


def _in_order(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return 0.0, name
