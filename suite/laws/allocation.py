"""How to spend a FLOP budget: the size, the tokens and the recurrence of the lowest loss.

At each recurrence the budget leaves one choice, N, since D = C / FLOPs per token. Where costs
are a power of N, so on each stretch between two declared sizes, the loss along that choice is
smooth; the zero of its slope is found there, and the lowest of the stretches is the optimum.
Beyond the declared sizes it is looked for only where the loss still falls at the outermost one:
a law with shifts can promise anything of models far below those it was fitted to. A sum of power
laws in N and in D has its optimum somewhere, however far; a law of which one has vanished, or a
shift has flattened, may have none.
Approach 3 of Hoffmann et al. (arXiv 2203.15556) does so in closed form for C = 6 N D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._terms import Array
from suite.laws.costs import BEYOND, Costs
from suite.laws.forms import Form
from suite.laws.intervals import Interval, percentile_band
from suite.laws.kept import KeptLaw

# Central differences of fourth order, first and second, in log N: with this step the error of
# the first and that of rounding stay below 1e-12 of the loss.
_STEP = 1e-2
_OFFSETS = _STEP * np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_SLOPE = np.array([1.0, -8.0, 0.0, 8.0, -1.0]) / (12.0 * _STEP)
_BEND = np.array([-1.0, 16.0, -30.0, 16.0, -1.0]) / (12.0 * _STEP**2)
_MOST_STEPS = 60
_STILL = 1e-10  # a step of Newton's method after which what is left is far less than this
_AT_END = 1e-9
_ROUNDING = 1e-11  # a relative slope, or difference, of losses that rounding may have made
_VANISHED = 1e-8  # of the loss at every fitted point; such a term says nothing of far models
_FEW_ENDLESS = 0.02  # fewer hardly move an end of a 95 % interval

Places = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, eq=False)
class Optimum:
    """The best use of a budget under one set of parameters, at each recurrence.

    Attributes:
        parameters: N [recurrences].
        tokens: D [recurrences].
        loss: in nats [recurrences].
        at_end: where the loss falls beyond the declared sizes without end: N is then the
            outermost of these [recurrences].
    """

    parameters: Array
    tokens: Array
    loss: Array
    at_end: NDArray[np.bool_]

    @property
    def best(self) -> int:
        """Position of the recurrence with the lowest loss."""
        return int(np.argmin(self.loss))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best size and tokens at one recurrence.

    Attributes:
        recurrence: T_m.
        parameters: N, and where the optima of the resamples lie.
        tokens: D, likewise.
        loss: in nats at this N and D; its interval is that of the law there.
        best_share: share of the resamples in which this recurrence is the best; NaN without.
        at_end: the loss falls beyond the declared sizes without end, as far as there is one
            parameter and one token: N is the outermost of these sizes, and no optimum.
        endless_share: share of the resamples of which the same is true; NaN without resamples.
    """

    recurrence: float
    parameters: Interval
    tokens: Interval
    loss: Interval
    best_share: float
    at_end: bool
    endless_share: float


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Compute-optimal choices for one budget.

    Attributes:
        flops: the budget.
        choices: one for each recurrence, in the order of the costs.
        best: the choice with the lowest loss.
    """

    flops: float
    choices: tuple[Choice, ...]
    best: Choice

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of the best choice, in plain sentences."""
        if self.best.at_end:
            return (
                "the loss falls beyond the known sizes without end: N is the outermost of them, "
                "and no optimum",
            )
        if self.best.endless_share > _FEW_ENDLESS:
            return (
                f"in {self.best.endless_share:.0%} of the resamples the loss falls beyond the "
                "known sizes without end: the intervals of N and D are too narrow",
            )
        return ()


def allocate(law: KeptLaw, costs: Costs, flops: float, level: float = 0.95) -> Allocation:
    """The compute-optimal N and D at each recurrence, and the best of these.

    The optimum is found anew in every resample; the interval of N is that of these optima.
    Without resamples intervals are NaN.

    Args:
        law: the law.
        costs: FLOPs of a token.
        flops: the budget.
        level: nominal coverage of the intervals.

    Raises:
        InputError: the budget is not positive and finite, or the law reads a variable that
            follows from neither size, tokens nor recurrence.
    """
    if not (np.isfinite(flops) and flops > 0):
        raise InputError(f"a budget of {flops:g} FLOPs; it must be positive and finite")
    form = law.law
    found = optimum(form, _without_vanished(law, law.parameters), costs, flops)
    columns = np.arange(len(costs.recurrences))
    log_n = np.log(found.parameters)
    at = costs.variables(log_n, columns, costs.segment_of(log_n), found.tokens)
    loss = law.predict(at, level)
    rows = [dict(zip(law.symbols, row, strict=True)) for row in law.resamples.tolist()]
    others = [optimum(form, _without_vanished(law, row), costs, flops) for row in rows]
    bests = np.array([other.best for other in others])

    def interval(name: str, column: int) -> Interval:
        estimate = float(getattr(found, name)[column])
        values = np.array([[getattr(other, name)[column]] for other in others])
        return _interval(estimate, values, law.num_runs, level)

    choices = tuple(
        Choice(
            recurrence=float(costs.recurrences[column]),
            parameters=interval("parameters", column),
            tokens=interval("tokens", column),
            loss=Interval(
                estimate=float(loss.estimate[column]),
                lower=float(loss.lower[column]),
                upper=float(loss.upper[column]),
                level=level,
            ),
            best_share=float((bests == column).mean()) if others else float("nan"),
            at_end=bool(found.at_end[column]),
            endless_share=(
                float(np.mean([other.at_end[column] for other in others]))
                if others
                else float("nan")
            ),
        )
        for column in map(int, columns)
    )
    return Allocation(flops=flops, choices=choices, best=choices[found.best])


def optimum(form: Form, parameters: Mapping[str, float], costs: Costs, flops: float) -> Optimum:
    """The optimum at each recurrence for natural parameters by symbol; see ``allocate``."""
    edges = costs.edges
    shape = (len(costs.recurrences), len(edges) - 1)
    # Beside a constant, what is left of the terms far away would be lost to rounding.
    constant = form.constant.name if form.constant else None
    reducible = {name: 0.0 if name == constant else value for name, value in parameters.items()}

    def loss(log_n: Array, column: Places, segment: Places) -> Array:
        tokens = flops / np.exp(costs.log_flops(log_n, column, segment))
        variables = costs.variables(log_n, column, segment, tokens)
        return form.predict(reducible, variables).reshape(log_n.shape)

    def around(log_n: Array, column: Places, segment: Places) -> Array:
        return loss(log_n[:, None] + _OFFSETS, column[:, None], segment[:, None])

    column, segment = (part.ravel() for part in np.indices(shape))
    left, right = edges[segment], edges[segment + 1]
    # Most stretches fall or rise throughout, and have their lowest point at an end.
    at_left, at_right = around(left, column, segment), around(right, column, segment)
    rise = at_right[:, 2] - at_left[:, 2]
    noise = _ROUNDING * at_left[:, 2]
    outwards = segment >= len(edges) - 1 - BEYOND  # which way a flat stretch is walked
    log_n = np.where(np.where(np.abs(rise) > noise, rise < 0, outwards), right, left)
    bowl = (at_left @ _SLOPE < -noise) & (at_right @ _SLOPE > noise)
    log_n[bowl] = _lowest(
        lambda middle: around(middle, column[bowl], segment[bowl]), left[bowl], right[bowl]
    )
    reached = loss(log_n, column, segment).reshape(shape)
    log_n = log_n.reshape(shape)
    found = [_walk(edges, *each) for each in zip(log_n, reached, strict=True)]
    best, at_end = (np.array(part) for part in zip(*found, strict=True))
    lane = np.arange(shape[0])
    chosen = costs.segment_of(best)
    log_d = np.log(flops) - costs.log_flops(best, lane, chosen)
    # Less than one parameter or one token is no model: what lies beyond is no optimum either.
    absurd = ~at_end & ((best < 0) | (log_d < 0))
    best = np.where(absurd, np.clip(best, edges[BEYOND], edges[-1 - BEYOND]), best)
    chosen = costs.segment_of(best)
    tokens = flops / np.exp(costs.log_flops(best, lane, chosen))
    return Optimum(
        parameters=np.exp(best),
        tokens=tokens,
        loss=form.predict(parameters, costs.variables(best, lane, chosen, tokens)),
        at_end=at_end | absurd,
    )


def _without_vanished(law: KeptLaw, parameters: Mapping[str, float]) -> dict[str, float]:
    """Parameters with the coefficients of terms at 0 that no fitted point feels."""
    kept = dict(parameters)
    if not law.points:
        return kept
    names = {"parameters": "parameters", "tokens": "tokens", "recurrence": "recurrence"}
    names["step"] = "recurrence"
    columns = {
        name: np.array([float(point[key]) for point in law.points])  # type: ignore[literal-required]
        for name, key in names.items()
    }
    if all("looped" in point for point in law.points):
        columns["parameters_recurrent"] = np.array([point["looped"] for point in law.points])
        columns["parameters_once"] = columns["parameters"] - columns["parameters_recurrent"]
    if not set(law.law.variables) <= columns.keys():
        return kept
    total = law.law.log_prediction(parameters, columns)
    for term in law.law.terms:
        value = term.log_value(parameters, np.stack([columns[name] for name in term.variables]))
        if (value - total).max() < np.log(_VANISHED):
            kept[term.symbols[0].name] = 0.0
    return kept


def _lowest(around: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Where smooth losses that fall at ``low`` and rise at ``high`` are lowest [stretches].

    Newton's method on the slope, within a bracket that is halved where it would leave it.

    Args:
        around: losses [stretches, offsets] around points [stretches].
        low: left ends [stretches].
        high: right ends [stretches].
    """
    middle = 0.5 * (low + high)
    for _ in range(_MOST_STEPS):
        losses = around(middle)
        slope, bend = losses @ _SLOPE, losses @ _BEND
        low, high = np.where(slope > 0, low, middle), np.where(slope > 0, middle, high)
        ahead = middle - slope / np.where(bend > 0, bend, np.inf)
        inside = (bend > 0) & (low <= ahead) & (ahead <= high)
        ahead = np.where(inside, ahead, 0.5 * (low + high))
        moved = np.abs(ahead - middle).max(initial=0.0)
        middle = ahead
        if moved < _STILL:
            break
    return middle


def _walk(edges: Array, log_n: Array, reached: Array) -> tuple[float, bool]:
    """The lowest of the stretches between declared sizes, or what lies beyond where it is not.

    Args:
        edges: ends of the stretches [stretches + 1].
        log_n: lowest point of each stretch [stretches].
        reached: loss there [stretches].

    Returns:
        Log N, and whether the loss fell from there without end.
    """
    first, last = BEYOND, len(log_n) - BEYOND
    inner = edges[first]
    if last > first:
        inner = log_n[first:last][reached[first:last].argmin()]
    ways: list[range] = []
    if inner <= edges[first] + _AT_END:
        ways.append(range(first - 1, -1, -1))
    if inner >= edges[last] - _AT_END:
        ways.append(range(last, len(log_n)))
    fell = False
    for way in ways:
        for stretch in way:
            outer = edges[stretch] if stretch < first else edges[stretch + 1]
            if abs(log_n[stretch] - outer) > _AT_END:
                if abs(log_n[stretch] - inner) > _AT_END:
                    return float(log_n[stretch]), False
                break
        else:
            fell = True
    return float(inner), fell


def _interval(estimate: float, values: Array, num_runs: int, level: float) -> Interval:
    if not len(values):
        return Interval(estimate=estimate, lower=np.nan, upper=np.nan, level=level)
    band = percentile_band(np.array([estimate]), values, num_runs, level)
    return Interval(
        estimate=estimate, lower=float(band.lower[0]), upper=float(band.upper[0]), level=level
    )
