"""From a table to the points of a fit: chosen, checked, held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws.forms import VARIABLES, Form, flat_term, get_form
from suite.tables.columns import Array, held_out, keep, leaving_out, numbers
from suite.tables.request import OPTIONS, FitRequest
from suite.tables.sources import ROW, Table

_EXTREME = 1e100  # beyond it, or below its inverse, products of a fit leave the floating range
_FAR = 1e5  # a factor from all other values of a column that a measurement hardly lies away
_FEW_SPARE = 2  # points more than parameters, with which almost any law fits
_PERPLEXITY = 15.0  # nats; the loss of a uniform guess over three million tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePoints:
    """Points of a fit, in the order of the table.

    Attributes:
        variables: columns [points] by variable name, those that the law reads.
        loss: losses [points] in nats.
        group: index of each point's group in ``groups`` [points].
        groups: names of the groups; rows that no column groups are one group each.
        grouped: whether a column groups them.
        held_out: whether each point is kept from the fit [points].
        row: number of each point's row in the table [points].
        warnings: what was noticed, in plain sentences.
    """

    variables: Mapping[str, Array]
    loss: Array
    group: NDArray[np.intp]
    groups: tuple[str, ...]
    grouped: bool
    held_out: NDArray[np.bool_]
    row: NDArray[np.int64]
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.loss)

    def fitted(self) -> dict[str, Array]:
        """Columns of the points that are fitted."""
        return {name: values[~self.held_out] for name, values in self.variables.items()}

    def select(self, index: NDArray[np.intp]) -> TablePoints:
        """Some of the points, by position, in that order."""
        return TablePoints(
            variables={name: values[index] for name, values in self.variables.items()},
            loss=self.loss[index],
            group=self.group[index],
            groups=self.groups,
            grouped=self.grouped,
            held_out=self.held_out[index],
            row=self.row[index],
            warnings=self.warnings,
        )


def points_of(table: Table, request: FitRequest, form: Form) -> TablePoints:
    """The points that a request asks for.

    In this order: ``where``, the values, ``final``, ``drop_highest``, the checks.

    Raises:
        InputError: a column is absent; a value is no positive finite number (its row is
            named); a term's variables have one setting, or there are fewer points than
            parameters, of the points left to fit.
    """
    table = keep(table, request.where)
    frame = table.frame
    if request.group is None:
        group, groups = np.arange(len(frame)), tuple(map(str, range(len(frame))))
    else:
        table.check_column(request.group, "--group")
        names = frame[request.group].cast(pl.String).fill_null("(empty)")
        groups = tuple(names.unique(maintain_order=True))
        position = {name: index for index, name in enumerate(groups)}
        group = np.array([position[name] for name in names], dtype=np.intp)
    variables = {}
    for name in form.variables:
        variables[name] = numbers(table, request.column(name), OPTIONS[name])
        _check_positive(table, variables[name], request.column(name), OPTIONS[name])
    loss = numbers(table, request.loss, "--loss")
    _check_positive(table, loss, request.loss, "--loss")
    points = TablePoints(
        variables=variables,
        loss=loss,
        group=group,
        groups=groups,
        grouped=request.group is not None,
        held_out=held_out(table, request.hold_out),
        row=frame[ROW].to_numpy(),
        warnings=(*_unfinished(table), *_noticed(request, form, loss)),
    )
    if request.final:
        points = _final(points, request.final)
    if request.drop_highest:
        points = _without_highest(points, request.drop_highest)
    _check_left(points, request, form)
    said = [*_outliers(table, points, request), *_hardly_more_than(points, request, form)]
    return replace(points, warnings=(*points.warnings, *said))


def _outliers(table: Table, points: TablePoints, request: FitRequest) -> list[str]:
    """Fitted values that lie far from all others of their column, with their rows."""
    kept = ~points.held_out
    columns = {request.column(name): values[kept] for name, values in points.variables.items()}
    columns[request.loss] = points.loss[kept]
    sentences = []
    for column, values in columns.items():
        order = np.argsort(values, kind="stable")
        far = np.concatenate([[True], np.diff(np.log(values[order])) >= np.log(_FAR), [True]])
        alone = order[far[:-1] & far[1:]]
        if len(values) > 1 and len(alone):
            first = int(alone.min())
            more = f", and {len(alone) - 1} more so" if len(alone) > 1 else ""
            sentences.append(
                f"{column} is {values[first]:g} in {table.place(points.row[kept][first])}, "
                f"{_FAR:,.0f} times or more away from all others{more}: correct it or leave it "
                "out with --where if it is no such measurement"
            )
    return sentences


def _hardly_more_than(points: TablePoints, request: FitRequest, form: Form) -> list[str]:
    """Say where a fit would be as good whatever the points."""
    left, free = int((~points.held_out).sum()), len(form.symbols) - len(request.fixed)
    if left > free + _FEW_SPARE:
        return []
    exact = "exact" if left == free else "nearly exact"
    return [
        f"{left} points are fitted with {free} parameters: the fit is {exact} whatever the law, "
        "and says nothing of its errors"
    ]


def _check_positive(table: Table, values: Array, column: str, option: str) -> None:
    bad = ~((values >= 1 / _EXTREME) & (values <= _EXTREME))
    if not bad.any():
        return
    first = int(np.argmax(bad))
    condition = f"{column} > 0"
    if values[first] > 0:
        condition = f"{column} < 1e100" if values[first] > 1 else f"{column} > 1e-100"
    cure = leaving_out(table, column, condition)
    raise InputError(
        f"{column} is {values[first]:g} in {table.place(table.frame[ROW][first])} "
        f"({int(bad.sum())} such row{'s' if bad.sum() > 1 else ''} of {len(values)}); a law needs "
        f"positive finite values, from 1e-100 to 1e100: {cure}",
        key=option,
    )


def _unfinished(table: Table) -> list[str]:
    """Runs among those tracked that have not finished, by their status."""
    if not table.tracked:
        return []
    runs = table.frame.select("run_id", "status").unique()
    others = runs.filter(pl.col("status") != "FINISHED").group_by("status").len().sort("status")
    if others.is_empty():
        return []
    listed = ", ".join(f"{count} {status}" for status, count in others.iter_rows())
    return [
        f"of {len(runs)} runs some have not finished ({listed}): leave them out with "
        "--where \"status == 'FINISHED'\" unless they are meant"
    ]


def _noticed(request: FitRequest, form: Form, loss: Array) -> list[str]:
    sentences = []
    read = {*form.variables, *(name for law in request.compare for name in get_form(law).variables)}
    unread = [OPTIONS[name] for name in request.columns if name not in read]
    if unread:
        verb = "are" if len(unread) > 1 else "is"
        sentences.append(f"{' and '.join(unread)} {verb} not read by the law {form.name}")
    if np.median(loss) > _PERPLEXITY:
        sentences.append(
            f"half of the losses are above {np.median(loss):.3g} nats: a perplexity is no loss, "
            "its logarithm is"
        )
    return sentences


def _final(points: TablePoints, count: int) -> TablePoints:
    """The last point of each group by tokens, with the mean of its last ``count`` losses.

    Of these, a fitted point counts those that are fitted and a held-out point those held out.
    """
    last, loss = [], points.loss.copy()
    for index in range(len(points.groups)):
        rows = np.flatnonzero(points.group == index)
        rows = rows[np.argsort(points.variables["tokens"][rows], kind="stable")]
        last.append(rows[-1])
        averaged = rows[-count:]
        averaged = averaged[points.held_out[averaged] == points.held_out[rows[-1]]]
        loss[rows[-1]] = points.loss[averaged].mean()
    kept = points.select(np.array(last))
    return TablePoints(**{**vars(kept), "loss": loss[np.array(last)]})


def _without_highest(points: TablePoints, count: int) -> TablePoints:
    """All points but the fitted ones of the highest losses; those held out judge the fit."""
    fitted = np.flatnonzero(~points.held_out)
    if count >= len(fitted):
        kept = "the points that are fitted" if points.held_out.any() else "points"
        raise InputError(
            f"got {count} of {len(fitted)} {kept}; some must stay", key="--drop-highest"
        )
    order = np.argsort(points.loss[fitted], kind="stable")
    dropped = fitted[order[len(fitted) - count :]]
    return points.select(np.setdiff1d(np.arange(len(points)), dropped))


def _check_left(points: TablePoints, request: FitRequest, form: Form) -> None:
    """Refuse points that cannot determine the law."""
    fitted = points.fitted()
    left = int((~points.held_out).sum())
    filters = [
        option
        for option, used in (
            ("--where", request.where),
            ("--final", request.final),
            ("--drop-highest", request.drop_highest),
            ("--hold-out", request.hold_out),
        )
        if used
    ]
    after = f" after {', '.join(filters)}" if filters else ""
    needed = len(form.symbols) - len(request.fixed)
    if left < needed:
        raise InputError(
            f"{left} points are left to fit{after}, and the law {form.name!r} has {needed} "
            f"parameters; at least {needed} points are needed"
        )
    flat = None if request.fixed else flat_term(form, fitted)
    if flat is not None:
        seen = [
            f"{request.column(name)} ({name}) is {fitted[name][0]:g}" for name in flat.variables
        ]
        letters = ", ".join(VARIABLES[name].letter for name in flat.variables)
        raise InputError(
            f"{' and '.join(seen)} in all {left} points that are left to fit{after}; the law "
            f"{form.name!r} needs at least two {'levels' if len(seen) == 1 else 'settings'} of "
            f"{letters}",
            key=OPTIONS[flat.variables[0]],
        )
