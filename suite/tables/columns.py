"""Numbers of a column, or of a product such as ``billions*1e9``, and rows that are chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from suite.corpora.filters import RowFilter, parse_filter
from suite.errors import InputError
from suite.tables.sources import ROW, Table

Array = NDArray[np.float64]

_EQUALS = re.compile(r"(?P<column>[^=<>!]+?)\s*=\s*(?P<value>[^=].*|)")
_COMPARE: dict[str, Callable[[pl.Expr, Any], pl.Expr]] = {
    ">=": pl.Expr.ge,
    "<=": pl.Expr.le,
    "==": pl.Expr.eq,
    "!=": pl.Expr.ne,
    ">": pl.Expr.gt,
    "<": pl.Expr.lt,
}
_MOST_VALUES = 8  # of a column that a message lists


def numbers(table: Table, text: str, option: str) -> Array:
    """Values of a column, or of a product of columns and numbers, [rows].

    ``text`` is a column's name, or factors with ``*`` between them: ``params_m*1e6`` brings
    millions to parameters, ``step*batch_tokens`` steps to tokens.

    Raises:
        InputError: a column is absent, or a value is no number (the row is named).
    """
    factors = [text] if text in table.columns or "*" not in text else text.split("*")
    product = np.ones(len(table.frame))
    for factor in (factor.strip() for factor in factors):
        constant = None if factor in table.columns else _number(factor)
        product = product * (_values(table, factor, option) if constant is None else constant)
    return product


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _values(table: Table, name: str, option: str) -> Array:
    table.check_column(name, option)
    column = table.frame[name]
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Null)):
        raise InputError(f"the column {name!r} holds {column.dtype} and no numbers", key=option)
    cast = column.cast(pl.Float64, strict=False)
    lost = cast.is_null()
    if lost.any():
        first = int(lost.arg_true()[0])
        seen = column[first]
        raise InputError(
            f"{name} is {'empty' if seen is None else repr(seen)} in "
            f"{table.place(table.frame[ROW][first])} ({_such_rows(int(lost.sum()), len(column))}); "
            f"a number is needed: {leaving_out(table, name, f'{name} > 0')}",
            key=option,
        )
    return cast.to_numpy().astype(np.float64)


def leaving_out(table: Table, name: str, condition: str) -> str:
    """What to do about rows whose value in a column, or a product, will not do.

    Args:
        table: the table.
        name: the column, or a product of columns.
        condition: a filter that such rows do not pass.
    """
    if name not in table.columns:
        return "correct them or leave them out with --where"
    try:
        parse_filter(condition, key="--where")
    except InputError:
        return "correct them, or rename the column to one word and leave them out with --where"
    return f'correct them or leave them out with --where "{condition}"'


def _such_rows(count: int, total: int) -> str:
    return f"{count} such row{'s' if count > 1 else ''} of {total}"


def keep(table: Table, where: Sequence[str]) -> Table:
    """The rows that pass all filters such as ``loss > 0``; an empty or NaN value passes none.

    Nor does text pass a comparison with a number, in a column where some cells are numbers.

    Raises:
        InputError: a filter has another form or names an absent column, or no row passes.
    """
    frame = table.frame
    for text in where:
        frame = frame.filter(passes(table, text, "--where"))
    if frame.is_empty():
        raise InputError(
            f"none of the {len(table.frame)} rows of {table.name} passes {' and '.join(where)}",
            key="--where",
        )
    return replace(table, frame=frame)


def passes(table: Table, text: str, option: str) -> pl.Expr:
    """The rows that meet one filter, as an expression that is never null."""
    found = parse_filter(text, key=option)
    table.check_column(found.column, option)
    return _expression(table, found, option)


def _expression(table: Table, found: RowFilter, option: str) -> pl.Expr:
    dtype = table.frame.schema[found.column]
    is_text = isinstance(found.literal, str)
    column = pl.col(found.column)
    if dtype == pl.String and not is_text:
        numeric = table.frame[found.column].cast(pl.Float64, strict=False)
        if numeric.is_not_null().any():
            column, dtype = column.cast(pl.Float64, strict=False), pl.Float64()
    if not (dtype == pl.String if is_text else dtype.is_numeric()):
        raise InputError(
            f"the column {found.column!r} holds {'no text' if is_text else 'no numbers'}, which "
            f"cannot be compared with {found.literal!r}; compare text with a quoted string and "
            "numbers with a number",
            key=option,
        )
    expression = _COMPARE[found.comparison](column, found.literal)
    if dtype.is_float():
        expression = expression & column.is_not_nan()
    return expression.fill_null(False)


def held_out(table: Table, conditions: Sequence[str]) -> NDArray[np.bool_]:
    """Rows [rows] that meet any condition: ``COLUMN=VALUE``, or a filter such as ``n >= 1e9``.

    Raises:
        InputError: a condition has another form, or no row meets it.
    """
    chosen = np.zeros(len(table.frame), dtype=bool)
    for text in conditions:
        equal = _EQUALS.fullmatch(text.strip())
        if equal is None:
            meets = table.frame.select(passes(table, text, "--hold-out")).to_series()
        else:
            meets = _equal(table, equal["column"].strip(), equal["value"].strip())
        if not meets.any():
            column = equal["column"].strip() if equal else parse_filter(text, key="").column
            values = table.frame[column].unique().sort().to_list()
            more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
            listed = ", ".join(map(str, values[:_MOST_VALUES]))
            raise InputError(f"no row has {text}; {column} is {listed}{more}", key="--hold-out")
        chosen |= meets.to_numpy()
    return chosen


def _equal(table: Table, name: str, value: str) -> pl.Series:
    table.check_column(name, "--hold-out")
    column = table.frame[name]
    if column.dtype.is_numeric():
        number = _number(value)
        if number is None:
            raise InputError(
                f"the column {name!r} holds numbers, and {value!r} is none", key="--hold-out"
            )
        return (column == number).fill_null(False)
    return (column.cast(pl.String) == value.strip("'\"")).fill_null(False)
