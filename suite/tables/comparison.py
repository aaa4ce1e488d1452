"""Held-out errors of several laws on the points of one table."""

from __future__ import annotations

from collections.abc import Sequence

from suite.errors import InputError
from suite.laws.forms import Form, get_form
from suite.laws.held_out import Comparison, FitSettings, compare
from suite.laws.splits import Split, by_level
from suite.tables.points import TablePoints, points_of
from suite.tables.request import FitRequest
from suite.tables.sources import Table


def compare_forms(table: Table, points: TablePoints, request: FitRequest) -> Comparison | None:
    """Fit the law of a request, and those of ``compare``, without some points.

    What is held out is what the request holds out, or each level of N in turn. All rows of the
    request count, and each law reads its own columns of them.

    Args:
        table: the numbers.
        points: the points of the request's own law.
        request: with ``compare``.

    Returns:
        The errors, the request's own law first; none if no other is named.

    Raises:
        InputError: a law lacks a column, or what is left cannot determine it.
    """
    if not request.compare:
        return None
    forms = [get_form(name) for name in (request.form, *request.compare)]
    variables = dict(points.variables)
    for form in forms[1:]:
        variables |= points_of(table, request, form).variables
    settings = FitSettings(
        huber_delta=request.huber_delta, starts=request.starts, seed=request.seed
    )
    try:
        splits = _splits(points, forms)
        return compare(forms, variables, points.loss, splits, settings)
    except InputError as error:
        raise InputError(str(error), key="--compare") from None


def _splits(points: TablePoints, forms: Sequence[Form]) -> tuple[Split, ...]:
    if points.held_out.any():
        return (Split("the rows of --hold-out", points.held_out),)
    if "parameters" not in points.variables:
        raise InputError(
            f"{forms[0].name!r} reads no N whose levels could be held out; name --hold-out"
        )
    return by_level("parameters", points.variables["parameters"])
