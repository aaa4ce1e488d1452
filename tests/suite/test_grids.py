from __future__ import annotations

import io

import pytest
from rich.console import Console

from suite.grids import print_grid

NAMES = ("T_m", "N", "its interval", "D", "its interval", "loss", "unit")
FULL = ["*4", "26.1B", "25.3B to 27B", "1.23T", "1.1T to 1.3T", "2.1234", "nats parameters^alpha"]
BARE = ["8", "26.2B", "-", "1.23T", "-", "2.1235", "nats parameters^alpha"]


def printed(rows: list[list[str]], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_grid(console, NAMES, rows, left=("unit",), wrapped="unit")
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 160])
def test_numbers_are_whole_at_every_width(width: int) -> None:
    text = printed([FULL, BARE], width)
    for cell in [*FULL[:-1], *BARE[:-1]]:
        assert cell in text
    assert "…" not in text


def test_words_are_wrapped_before_a_table_is_given_up() -> None:
    lines = printed([FULL], 78).splitlines()
    assert max(map(len, lines)) <= 78
    assert lines[0].startswith("┏")


def test_a_table_too_wide_is_a_line_for_each_cell() -> None:
    assert printed([FULL], 40).splitlines()[:3] == [
        "T_m *4",
        "  N 26.1B",
        "  its interval 25.3B to 27B",
    ]


def test_columns_that_nothing_stands_in_are_left_out() -> None:
    assert "interval" not in printed([BARE], 160)
    assert "interval" in printed([FULL, BARE], 160)
