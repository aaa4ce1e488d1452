"""Row filters such as ``language_score >= 0.95``, parsed without evaluating anything."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.errors import InputError

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_FILTER = re.compile(
    r"""\s* (?P<column> [^\s<>=!'"]+ ) \s*
        (?P<comparison> >= | <= | == | != | > | < ) \s*
        (?: (?P<number> [+-]? (?: \d+ \.? \d* | \.\d+ ) (?: [eE] [+-]? \d+ )? )
          | '(?P<single> [^']* )'
          | "(?P<double> [^"]* )" ) \s*""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """One comparison of a column with a literal.

    Attributes:
        column: name of the column.
        comparison: one of ``>= <= == != > <``.
        literal: a number, or a string.
        key: key path of the filter in the study file.
    """

    column: str
    comparison: str
    literal: int | float | str
    key: str

    def accepts(self, row: Mapping[str, object], *, place: str) -> bool:
        """Whether the row passes; a null never does, as in SQL.

        Args:
            row: values by column; must have the column of this filter.
            place: where the row stands, for messages.

        Raises:
            InputError: if the column holds neither null nor a value of the literal's kind.
        """
        value = row[self.column]
        if value is None:
            return False
        kinds = (str,) if isinstance(self.literal, str) else (int, float)
        if not isinstance(value, kinds):
            raise InputError(
                f"column {self.column!r} holds {value!r} at {place}, which cannot be compared "
                f"with {self.literal!r}; compare text with a quoted string and numbers with a "
                "number",
                key=self.key,
            )
        return _COMPARISONS[self.comparison](value, self.literal)


def parse_filters(where: Sequence[str], *, key: str) -> tuple[RowFilter, ...]:
    """Parses the filters of a corpus.

    Args:
        where: filters of the form ``column comparison literal``.
        key: key path of the corpus in the study file.

    Raises:
        InputError: naming the first filter that has another form.
    """
    return tuple(parse_filter(text, key=f"{key}.where[{i}]") for i, text in enumerate(where))


def parse_filter(text: str, *, key: str) -> RowFilter:
    """Parses one filter; ``3`` stays an integer, so that large integers compare exactly.

    Raises:
        InputError: if the text has another form than ``column comparison literal``.
    """
    match = _FILTER.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text!r} is not a filter; write a column, one of {' '.join(_COMPARISONS)} and a "
            "number or a quoted string, such as language_score >= 0.95 or language == 'en'",
            key=key,
        )
    literal: int | float | str
    if (number := match["number"]) is not None:
        literal = int(number) if number.lstrip("+-").isdecimal() else float(number)
    else:
        literal = match["double"] if match["single"] is None else match["single"]
    return RowFilter(
        column=match["column"], comparison=match["comparison"], literal=literal, key=key
    )
