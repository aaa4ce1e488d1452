"""``suite predict`` from its options to its exit code."""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console

from suite.answers.grid import read_grid
from suite.answers.law_run import read_law_run
from suite.answers.printing import (
    print_allocation,
    print_law,
    print_losses,
    print_ranking,
    print_warnings,
)
from suite.answers.question import Asked, Place, candidates, read_question, variables_at
from suite.laws.allocation import allocate
from suite.laws.caveats import caveats
from suite.laws.kept import KeptLaw
from suite.laws.next_cell import rank_candidates
from suite.study import Study
from suite.tracking.home import Home
from suite.tracking.reader import open_reader


def run_predict(options: argparse.Namespace, home: Home, name: str, study: Study | None) -> int:
    """Read the study's law, and print the answers.

    Args:
        options: what was asked.
        home: where the law is.
        name: of the study.
        study: its file, where that is at hand.

    Raises:
        InputError: there is no law, or an option makes no sense.
        SuiteError: what the store keeps cannot be read.
    """
    reader = open_reader(home)
    run = read_law_run(reader, home, name)
    grid = read_grid(reader, run, study.pretraining if study else None)
    law = run.law
    asked = read_question(options, law, grid)
    console = Console(highlight=False)
    print_law(console, name, run.run_id, law)
    warnings = [] if law.has_intervals else [_WITHOUT]
    if asked.places:
        warnings += _losses(console, law, asked)
    if asked.flops is not None:
        found = allocate(law, asked.costs, asked.flops)
        print_allocation(console, found)
        best = found.best
        warnings += found.warnings
        warnings += caveats(
            law,
            parameters=best.parameters.estimate,
            tokens=best.tokens.estimate,
            recurrence=best.recurrence,
        )
        if "recurrence" not in law.law.variables and len(found.choices) > 1:
            warnings.append(f"the law {law.form} does not read T_m: fewer loops always win")
    if asked.target is not None:
        ranked = rank_candidates(
            law, variables_at(asked.costs, asked.target), candidates(law, grid)
        )
        print_ranking(console, asked.target, asked.why, ranked)
        warnings += _caveats(law, asked.target)
    print_warnings(console, warnings)
    return 0


_WITHOUT = (
    "the law was fitted without resamples, so there are no intervals; set law.resamples to 500, "
    "have at least 5 fitted cells, and run the study again"
)


def _losses(console: Console, law: KeptLaw, asked: Asked) -> list[str]:
    rows = [variables_at(asked.costs, place) for place in asked.places]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    flops = [
        asked.costs.at(place.parameters, place.recurrence) * place.tokens for place in asked.places
    ]
    print_losses(console, asked.places, law.predict(columns), flops)
    return [sentence for place in asked.places for sentence in _caveats(law, place)]


def _caveats(law: KeptLaw, place: Place) -> tuple[str, ...]:
    return caveats(
        law, parameters=place.parameters, tokens=place.tokens, recurrence=place.recurrence
    )
