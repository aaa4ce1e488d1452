from __future__ import annotations

import math

import matplotlib as mpl
import pytest

from suite.reports import style


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (53_228_545, "53M"),
        (134_125_057, "134M"),
        (373_917_697, "374M"),
        (777_931_777, "778M"),
        (1_364_398_081, "1.36B"),
        (2_667_974_657, "2.67B"),
        (999_600_000, "1.00B"),
        (999_400_000, "999M"),
        (999_700, "1M"),
        (172_673, "173K"),
        (59_713, "60K"),
        (512, "512"),
    ],
)
def test_parameters_are_titled_as_in_the_published_figure(count: int, text: str) -> None:
    assert style.parameter_count(count) == text


@pytest.mark.parametrize(
    ("largest", "divisor", "label"),
    [
        (20_000_000_000, 1e9, "Tokens(B)"),
        (1_000_000_000, 1e9, "Tokens(B)"),
        (999_999_999, 1e6, "Tokens(M)"),
        (400_000, 1e3, "Tokens(K)"),
        (999, 1.0, "Tokens"),
    ],
)
def test_token_axis_has_a_fitting_unit(largest: int, divisor: float, label: str) -> None:
    unit = style.token_unit(largest)
    assert (unit.divisor, unit.label) == (divisor, label)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (800, "800"), (131_072, "131K"), (1_050_000, "1.05M"), (20_000_000_000, "20B")],
)
def test_token_counts_keep_three_digits(count: int, text: str) -> None:
    assert style.token_count(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (math.nan, "NaN"), (-math.inf, "-inf"), (12345.6, "1.235e+04")],
)
def test_numbers_keep_four_digits(value: float, text: str) -> None:
    assert style.significant(value) == text


def test_plain_text_has_no_control_or_direction_characters() -> None:
    assert style.plain("a\nb\x00c\u202ed") == "a\ufffdb\ufffdc\ufffdd"


def test_plain_text_is_cut_visibly() -> None:
    assert style.plain("x" * 100, 10) == "x" * 9 + "…"


def test_drawing_ignores_and_restores_the_users_settings() -> None:
    with mpl.rc_context({"lines.linewidth": 9.0, "axes.facecolor": "black"}):
        with style.drawing():
            assert mpl.rcParams["axes.facecolor"] == "white"
            assert mpl.rcParams["lines.linewidth"] == 1.4
        assert mpl.rcParams["lines.linewidth"] == 9.0


def test_figures_grow_with_the_grid_but_not_past_the_pixel_limit(tmp_path) -> None:
    small = style.new_figure(2, 2, panel=(3.0, 2.0)).get_size_inches()
    large = style.new_figure(3, 5, panel=(3.0, 2.0)).get_size_inches()
    assert (*small, *large) == (6.0, 4.0, 15.0, 6.0)
    huge = style.new_figure(1, 200, panel=(3.0, 0.5))
    style.save(huge, tmp_path / "huge.png", tmp_path / "huge.svg")
    header = (tmp_path / "huge.png").read_bytes()[16:24]
    assert int.from_bytes(header[:4], "big") == 16_000


def test_long_titles_take_two_lines_and_no_more() -> None:
    assert style.wrapped("(a) a model (Key)", 40) == "(a) a model (Key)"
    lines = style.wrapped("word " * 50, 20).split("\n")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 20
    assert lines[1].endswith("…")


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0125, "+1.25 %"), (-0.004, "\u22120.40 %"), (0.0, "+0.00 %"), (float("nan"), "NaN")],
)
def test_deviations_have_a_sign(ratio: float, text: str) -> None:
    assert style.percent(ratio) == text
