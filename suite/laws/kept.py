"""A fitted law as it is kept: enough to predict, with intervals, long after its fit.

The law stage writes it as the artifact ``law/fit.json`` of its run; reports and ``suite
predict`` read it. Numbers survive the way unchanged: equal laws give equal text, and the text
gives the same law.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._terms import Array
from suite.laws.fit import Fit
from suite.laws.forms import Form, get_form
from suite.laws.intervals import Band, Interval, ResampledFit, percentile_band

ARTIFACT = "law/fit.json"
"""Where a law run keeps it, among its artifacts."""

_FORMAT = 1


class LastPoint(TypedDict):
    """The last fitted point of one cell: where in the grid the law was fitted, and how far.

    Keys: ``cell`` (fingerprint), ``size`` (its name), ``recurrence`` (T_m), ``parameters`` (N as
    the law counts it), ``tokens``; and ``looped``, those of N within the loop, which
    recurrence-equivalence laws read.
    """

    cell: str
    size: str
    recurrence: int
    parameters: float
    tokens: float
    looped: NotRequired[float]


class Noise(TypedDict):
    """What is left of the fitted points, as standard deviations of log loss.

    Keys: ``cell``, over runs, of a run's mean residual; ``point``, of the residuals about the
    mean of their run. Residuals of a fit are a little smaller than the noise itself.
    """

    cell: float
    point: float


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptLaw:
    """A law with its resamples.

    Attributes:
        form: name of the law; see ``get_form``.
        parameters: natural parameters by symbol.
        symbols: names of the parameters, in the order of ``resamples``.
        resamples: parameters of the resamples' fits [resamples, symbols]; none where no
            intervals were made.
        num_runs: runs that were fitted, and resampled.
        unidentified: symbols of which the points determine only combinations.
        objective: of the fit, see ``Fit``.
        noise: see ``Noise``.
        points: the last fitted point of each cell.
    """

    form: str
    parameters: Mapping[str, float]
    symbols: tuple[str, ...]
    resamples: Array
    num_runs: int
    unidentified: tuple[str, ...]
    objective: float
    noise: Noise
    points: tuple[LastPoint, ...]

    @classmethod
    def of(
        cls,
        found: ResampledFit | Fit,
        *,
        run: NDArray[np.generic],
        variables: Mapping[str, Array],
        loss: Array,
        points: Sequence[LastPoint],
        unidentified: Sequence[str] = (),
    ) -> KeptLaw:
        """Keep a fit, with intervals if it is a bootstrap.

        Args:
            found: the fit, or the fit with its resamples.
            run: which run each fitted point belongs to [points].
            variables: columns [points] of the fitted points.
            loss: their losses [points] in nats.
            points: the last fitted point of each cell.
            unidentified: of a fit without resamples; a bootstrap knows its own.
        """
        if isinstance(found, ResampledFit):
            fit, resamples, unidentified = found.fit, found.parameters, found.unidentified
        else:
            fit, resamples = found, np.empty((0, len(found.form.symbols)))
        return cls(
            form=fit.form.name,
            parameters=dict(fit.parameters),
            symbols=tuple(symbol.name for symbol in fit.form.symbols),
            resamples=resamples,
            num_runs=len(np.unique(run)),
            unidentified=tuple(unidentified),
            objective=fit.objective,
            noise=noise_of(run, np.log(loss) - fit.form.log_prediction(fit.parameters, variables)),
            points=tuple(points),
        )

    @cached_property
    def law(self) -> Form:
        """The form itself."""
        return get_form(self.form)

    @property
    def has_intervals(self) -> bool:
        """Whether the law has resamples, without which every interval is NaN."""
        return len(self.resamples) > 0

    def predict(self, variables: Mapping[str, Array], level: float = 0.95) -> Band:
        """Loss in nats at given variables [values], with intervals; see ``ResampledFit.predict``.

        Raises:
            InputError: as ``Form.columns``, or the level is not in (0, 1).
        """
        columns = self.law.columns(variables)
        return self.band_of(lambda parameters: self.law.predict(parameters, columns), level)

    def band_of(
        self, quantity: Callable[[Mapping[str, float]], Array], level: float = 0.95
    ) -> Band:
        """Intervals of anything that follows from the parameters; see ``Bootstrap.band_of``.

        Without resamples the ends are NaN.

        Args:
            quantity: from natural parameters by symbol to numbers [values].
            level: nominal coverage of each interval.

        Raises:
            InputError: the level is not in (0, 1).
        """
        estimate = np.asarray(quantity(self.parameters), dtype=np.float64)
        if not self.has_intervals:
            nothing = np.full_like(estimate, np.nan)
            return Band(estimate=estimate, lower=nothing, upper=nothing, level=level)
        values = self.resampled(quantity)
        return percentile_band(estimate, values, self.num_runs, level)

    def resampled(self, quantity: Callable[[Mapping[str, float]], Array]) -> Array:
        """A quantity in every resample [resamples, values]; the law must have some."""
        rows = [dict(zip(self.symbols, row, strict=True)) for row in self.resamples.tolist()]
        return np.stack([np.asarray(quantity(row), dtype=np.float64) for row in rows])

    def interval(self, symbol: str, level: float = 0.95) -> Interval:
        """Interval of a parameter; NaN where the points do not identify it, or without resamples.

        Raises:
            InputError: the law has no such parameter, or the level is not in (0, 1).
        """
        if symbol not in self.symbols:
            raise InputError(
                f"{symbol!r} is no parameter of {self.form!r}; there are {', '.join(self.symbols)}"
            )
        band = self.band_of(lambda parameters: np.array([parameters[symbol]]), level)
        known = symbol not in self.unidentified
        return Interval(
            estimate=float(band.estimate[0]),
            lower=float(band.lower[0]) if known else math.nan,
            upper=float(band.upper[0]) if known else math.nan,
            level=level,
        )

    def to_json(self) -> str:
        """The law as text; ``from_json`` gives back the same numbers.

        Raises:
            ValueError: a number is not finite.
        """
        kept = {
            "format": _FORMAT,
            "form": self.form,
            "parameters": dict(self.parameters),
            "symbols": list(self.symbols),
            "num_runs": self.num_runs,
            "unidentified": list(self.unidentified),
            "objective": self.objective,
            "noise": self.noise,
            "points": list(self.points),
            "resamples": self.resamples.tolist(),
        }
        return json.dumps(kept, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> KeptLaw:
        """The law that a text keeps.

        Raises:
            InputError: it keeps none, saying what is wrong with it.
        """
        try:
            return _read(json.loads(text))
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"this is no kept law: {reason}") from None


def noise_of(run: NDArray[np.generic], residual: Array) -> Noise:
    """Split the residuals of log loss [points] into those of runs and those within runs.

    With one run there is none over runs, with one point a run none within: such a number is 0.
    """
    number = np.unique(run, return_inverse=True)[1].reshape(-1)
    count = np.bincount(number)
    mean = np.bincount(number, weights=residual) / count
    within = float(((residual - mean[number]) ** 2).sum())
    spare = len(residual) - len(count)
    return Noise(
        cell=float(mean.std(ddof=1)) if len(count) > 1 else 0.0,
        point=math.sqrt(within / spare) if spare else 0.0,
    )


def _read(kept: Any) -> KeptLaw:
    if _of(dict, kept).get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT}")
    form = get_form(_text(kept["form"]))
    symbols = tuple(symbol.name for symbol in form.symbols)
    if kept["symbols"] != list(symbols):
        raise ValueError(f"the law {form.name!r} has the symbols {', '.join(symbols)}")
    if set(_of(dict, kept["parameters"])) != set(symbols):
        raise ValueError(f"it has no value for each of {', '.join(symbols)}")
    rows = [_of(list, row) for row in _of(list, kept["resamples"])]
    if any(len(row) != len(symbols) for row in rows):
        raise ValueError(f"a resample has not {len(symbols)} numbers")
    return KeptLaw(
        form=form.name,
        parameters={name: _number(kept["parameters"][name]) for name in symbols},
        symbols=symbols,
        resamples=np.array([[_number(value) for value in row] for row in rows]).reshape(
            len(rows), len(symbols)
        ),
        num_runs=_count(kept["num_runs"]),
        unidentified=tuple(name for name in symbols if name in _of(list, kept["unidentified"])),
        objective=_number(kept["objective"]),
        noise=Noise(cell=_number(kept["noise"]["cell"]), point=_number(kept["noise"]["point"])),
        points=tuple(_point(point) for point in _of(list, kept["points"])),
    )


def _point(kept: Any) -> LastPoint:
    _of(dict, kept)
    point = LastPoint(
        cell=_text(kept["cell"]),
        size=_text(kept["size"]),
        recurrence=_count(kept["recurrence"]),
        parameters=_number(kept["parameters"]),
        tokens=_number(kept["tokens"]),
    )
    if "looped" in kept:
        point["looped"] = _number(kept["looped"])
    return point


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} stands where a {kind.__name__} should")
    return value


def _text(value: Any) -> str:
    return str(_of(str, value))


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TypeError(f"{value!r} stands where a count should")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{value!r} stands where a finite number should")
    return float(value)
