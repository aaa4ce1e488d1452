"""``suite fit`` from its options to its exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.errors import InputError
from suite.laws.forms import get_form
from suite.tables.request import OPTIONS, FitRequest
from suite.tables.sources import Table, read_table
from suite.terminal import say


def run_fit(options: argparse.Namespace) -> int:
    """Read the table, fit, print and, with ``--out``, write.

    Raises:
        InputError: an option, a column or a value is wrong.
        SuiteError: the folder cannot be written.
    """
    from suite.progress import Display
    from suite.tables.figures import draw
    from suite.tables.folder import check_folder, write_folder
    from suite.tables.outcome import fit_table
    from suite.tables.printing import print_outcome

    if (options.table is None) == (options.from_mlflow is None):
        raise InputError("give either TABLE, a file, or --from-mlflow EXPERIMENT")
    request = request_of(options)
    form = request.law()
    if options.out is not None:
        check_folder(Path(options.out))
    table = _table(options, request)
    total, unit = (
        (request.bootstrap, "resamples") if request.bootstrap else (request.starts, "starts")
    )
    with Display() as display, display.task(f"fit     {form.name}", total) as advance:
        outcome = fit_table(table, request, lambda done: advance(done, unit))
    print_outcome(outcome)
    if options.out is not None:
        write_folder(outcome, draw(outcome), Path(options.out))
        say(f"result: {Path(options.out) / 'fit.json'}", sys.stdout)
    return 0


def request_of(options: argparse.Namespace) -> FitRequest:
    """The settings that the options spell."""
    columns = {name: getattr(options, name) for name in OPTIONS}
    columns = {name: column for name, column in columns.items() if column is not None}
    group = options.group
    if options.from_mlflow is not None:
        group = group or "run_id"
        forms = [get_form(name) for name in (options.form, *options.compare)]
        if any("tokens" in form.variables for form in forms):
            columns.setdefault("tokens", "step")
    return FitRequest(
        form=options.form,
        columns=columns,
        loss=options.loss,
        group=group,
        where=tuple(options.where),
        hold_out=tuple(options.hold_out),
        drop_highest=options.drop_highest,
        final=options.final,
        fixed=_fixed(options.fix),
        huber_delta=options.delta,
        starts=options.starts,
        seed=options.seed,
        bootstrap=options.bootstrap,
        predict=tuple(options.predict),
        flops=options.flops,
        profile=tuple(dict.fromkeys(options.profile)),
        compare=tuple(options.compare),
    )


def _fixed(given: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Values by symbol; the last of two would be taken silently."""
    for position, (name, _) in enumerate(given):
        if name in dict(given[:position]):
            raise InputError(f"{name} is given twice; give each once", key="--fix")
    return dict(given)


def _table(options: argparse.Namespace, request: FitRequest) -> Table:
    if options.table is not None:
        return read_table(Path(options.table))
    from suite.tables.tracked import tracked_table
    from suite.tracking.home import Home
    from suite.tracking.reader import open_reader

    reader = open_reader(Home.at(options.home))
    return tracked_table(reader, options.from_mlflow, request.loss)
