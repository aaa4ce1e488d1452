"""Worked solutions to school mathematics, written by a seeded generator.

In: a seed and a number of documents. Out: distinct documents, each a question, its solution
step by step and the answer; every equation between numbers in them is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from suite.corpora.worked_math._worked import Draw, Worked
from suite.corpora.worked_math.algebra import (
    arithmetic_sequence,
    geometric_sequence,
    linear_equation,
    linear_system,
    quadratic,
)
from suite.corpora.worked_math.arithmetic import addition, division, fraction_sum, multiplication
from suite.corpora.worked_math.number_theory import common_divisor, factorisation, modular_power
from suite.corpora.worked_math.word_problems import percentage, shared_work, shopping, travel

FAMILIES: tuple[Callable[[Draw], Worked], ...] = (
    addition,
    multiplication,
    division,
    fraction_sum,
    linear_equation,
    linear_system,
    quadratic,
    arithmetic_sequence,
    geometric_sequence,
    common_divisor,
    factorisation,
    modular_power,
    percentage,
    shopping,
    travel,
    shared_work,
)


def worked_problems(*, seed: int) -> Iterator[Worked]:
    """An endless stream of problems, families in random order; a seed always gives the same."""
    draw = Draw(seed)
    while True:
        yield draw.pick(FAMILIES)(draw)


def worked_math(*, seed: int, num_documents: int) -> tuple[str, ...]:
    """The first ``num_documents`` distinct documents of a seed."""
    documents: dict[str, None] = {}
    for problem in worked_problems(seed=seed):
        if len(documents) == num_documents:
            break
        documents[problem.text] = None
    return tuple(documents)


__all__ = ["FAMILIES", "Draw", "Worked", "worked_math", "worked_problems"]
