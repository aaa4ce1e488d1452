"""What every family of problems is made of: seeded draws, number wording, one worked problem."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


class Draw:
    """Seeded choices that are the same on every Python.

    Only ``random.Random.random`` promises to repeat its sequence for a seed across versions,
    so every choice is made from it.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items, each as likely as the others."""
        return items[self.integer(0, len(items) - 1)]

    def pick_two(self, items: Sequence[Item]) -> tuple[Item, Item]:
        """Two items at different places of the sequence."""
        first = self.integer(0, len(items) - 1)
        second = self.integer(0, len(items) - 2)
        return items[first], items[second + (second >= first)]


@dataclass(frozen=True, kw_only=True)
class Worked:
    """A problem with its solution, every step of which is exact.

    Equations between numbers are written with spaces around ``+ - * / mod``, none after a
    unary minus, and ``^`` for powers, so that a reader (or a test) can check each of them.

    Attributes:
        family: name of the family of problems.
        question: the problem; it holds every number that the solution starts from.
        working: the steps, one line each.
        conclusion: the last sentence; it holds ``answer``.
        answer: the result, such as ``19/12`` or ``x = 3, y = -2``.
    """

    family: str
    question: str
    working: tuple[str, ...]
    conclusion: str
    answer: str

    @property
    def text(self) -> str:
        """The document: question, working and conclusion."""
        return "\n\n".join((self.question, "\n".join(self.working), self.conclusion)) + "\n"


def bracketed(number: int) -> str:
    """The number, in brackets if it is negative, as it stands after an operator."""
    return f"({number})" if number < 0 else str(number)


def term(coefficient: int, variable: str) -> str:
    """A first term such as ``3x``, ``-x`` or ``x``."""
    if abs(coefficient) == 1:
        return variable if coefficient > 0 else f"-{variable}"
    return f"{coefficient}{variable}"


def added(number: int, variable: str = "") -> str:
    """A later term with its sign, such as `` + 3x`` or `` - 5``; nothing for zero."""
    if number == 0:
        return ""
    size = term(abs(number), variable) if variable else str(abs(number))
    return f" {'+' if number > 0 else '-'} {size}"


def money(cents: int) -> str:
    """An amount in dollars, with cents only where there are any."""
    dollars, rest = divmod(cents, 100)
    return f"{dollars}.{rest:02d}" if rest else str(dollars)
