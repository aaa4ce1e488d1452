from __future__ import annotations

import io
import os
import pty
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.terminal import LastingStream, say, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text, größe 移動 😀", "plain text, größe 移動 😀"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("over\rwritten", "over\\rwritten"),
        ("\x9b2J", "\\x9b2J"),
        ("nul\0", "nul\\x00"),
        ("txt.\u202egpj", "txt.\\u202egpj"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("half \ud800", "half \\ud800"),
        ("\U000e0041", "\\U000e0041"),  # an invisible letter
        ("می\u200cروم", "می\u200cروم"),  # a joiner that the spelling needs
        ("no\u00a0break", "no\u00a0break"),
        (r"a\x1b typed", r"a\x1b typed"),
    ],
)
def test_what_a_terminal_obeys_is_written_out(text: str, expected: str) -> None:
    assert shown(text) == expected


@given(st.text(st.characters(codec=None, categories=None)))
def test_nothing_that_commands_is_left_and_the_rest_stays(text: str) -> None:
    result = shown(text)
    kept = "\n\t\u200c\u200d"
    assert not [
        character
        for character in result
        if character not in kept
        and unicodedata.category(character)[0] == "C"
        and unicodedata.category(character) not in ("Cn", "Co")
    ]
    result.encode()
    assert shown(result) == result
    if text.isprintable():
        assert result == text


@pytest.fixture
def closed_terminal() -> Iterator[TextIO]:
    """A stream on a terminal that has hung up."""
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8", buffering=1) as stream:
        os.close(ours)
        yield stream


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """A stream on a pipe that nobody reads."""
    ours, theirs = os.pipe()
    with open(theirs, "w", encoding="utf-8", buffering=1) as stream:
        os.close(ours)
        yield stream


def target(stream: TextIO) -> str:
    return os.readlink(f"/proc/self/fd/{stream.fileno()}")


def test_a_line_is_written_as_it_is_shown() -> None:
    stream = io.StringIO()
    say("one\x1b[2J", stream)
    say("two", stream)
    assert stream.getvalue() == "one\\x1b[2J\ntwo\n"


def test_a_terminal_without_the_letters_gets_their_numbers() -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    say("größe", stream)
    assert content.getvalue() == b"gr\\xf6\\xdfe\n"


def test_a_line_to_a_closed_terminal_is_lost_and_so_is_what_follows(
    closed_terminal: TextIO,
) -> None:
    say("one", closed_terminal)
    assert target(closed_terminal) == os.devnull
    closed_terminal.write("what the interpreter flushes at the end\n")
    closed_terminal.flush()


def test_a_line_to_a_closed_pipe_is_an_error_for_it_was_asked_for(closed_pipe: TextIO) -> None:
    with pytest.raises(BrokenPipeError):
        say("one", closed_pipe)
    os.dup2(os.open(os.devnull, os.O_WRONLY), closed_pipe.fileno())  # for the end of the fixture


@pytest.mark.parametrize("which", ["closed_terminal", "closed_pipe"])
def test_progress_is_lost_with_what_it_is_shown_on(
    request: pytest.FixtureRequest, which: str
) -> None:
    stream = request.getfixturevalue(which)
    lasting = LastingStream(stream)
    assert lasting.write("one\n") == 4
    lasting.flush()
    assert target(stream) == os.devnull
    assert lasting.write("two\n") == 4
    assert not lasting.isatty()


def test_progress_comes_back_when_a_full_disk_has_room_again() -> None:
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as stream:
        lasting = LastingStream(stream)
        lasting.write("one\n")
        lasting.flush()
        assert target(stream) == "/dev/full"
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_lasting_stream_is_the_stream_while_that_lasts(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        lasting = LastingStream(stream)
        assert (lasting.encoding, lasting.fileno()) == ("utf-8", stream.fileno())
        lasting.write("one")
        lasting.flush()
        assert (tmp_path / "log").read_text() == "one"
