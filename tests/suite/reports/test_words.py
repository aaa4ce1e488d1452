from __future__ import annotations

from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.reports.words import changed_words, words_of

PAGE = """<html><head><title>t</title><style>p { color: red }</style></head>
<body><h1>Study &lt;b&gt;</h1><p class="a">Runs  started
2026</p><img alt="x" src="data:,"><td>1.5</td><td>2.5</td></body></html>"""


def lines(old: str, new: str) -> list[str]:
    return [str(change) for change in changed_words("index.html", old, new)]


def test_the_words_are_the_texts_without_markup_and_style() -> None:
    assert list(words_of(PAGE)) == ["Study <b>", "Runs started 2026", "1.5", "2.5"]


def test_markup_pictures_and_style_are_no_words() -> None:
    other = PAGE.replace("red", "blue").replace('class="a"', "").replace("data:,", "data:,x")
    assert other != PAGE
    assert lines(PAGE, other) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1.5", "1.6", ["index.html: the page says '1.5', the store gives '1.6'"]),
        (
            "<td>2.5</td>",
            "",
            ["index.html: the page says '2.5', the store gives no such words"],
        ),
        (
            "<td>2.5</td>",
            "<td>2.5</td><td>new</td>",
            ["index.html: the store gives 'new', the page does not say it"],
        ),
        (
            "<td>1.5</td><td>2.5</td>",
            "<td>3</td><td>4</td>",
            [
                "index.html: the page says '1.5', the store gives '3'",
                "index.html: the page says '2.5', the store gives '4'",
            ],
        ),
        (
            "<td>1.5</td><td>2.5</td>",
            "<td>3</td>",
            ["index.html: the page says '1.5 | 2.5', the store gives '3'"],
        ),
    ],
)
def test_each_difference_is_one_line(old: str, new: str, said: list[str]) -> None:
    assert lines(PAGE, PAGE.replace(old, new)) == said


def test_long_texts_are_shortened() -> None:
    (line,) = lines(PAGE, PAGE.replace("1.5", "y" * 5_000))
    assert len(line) < 400


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), max_size=8)


@given(old=TEXTS, new=TEXTS)
def test_pages_with_equal_words_and_only_they_do_not_differ(old: list[str], new: list[str]) -> None:
    one, other = ("".join(f"<td>{escape(text)}</td>" for text in texts) for texts in (old, new))
    assert (lines(one, other) == []) == (list(words_of(one)) == list(words_of(other)))
    seen = [" ".join(text.split()) for text in old]
    assert list(words_of(one)) == [text for text in seen if text]
