from __future__ import annotations

import io
import os
import pty
import sys
import time

import pytest
from rich.console import Console

from suite.progress import Display


def on_terminal(screen: io.StringIO) -> Console:
    return Console(file=screen, width=150, force_terminal=True, color_system=None)


def test_beside_a_terminal_each_event_is_one_line() -> None:
    screen = io.StringIO()
    with Display(Console(file=screen, width=40)) as display:
        with display.task("pretrain narrow Tm=2 (1 of 4), a name that is long", 100) as advance:
            advance(50, "loss 3.125")
        display.note("done    pretrain narrow Tm=2, which took quite a while to do")
    assert screen.getvalue() == (
        "start   pretrain narrow Tm=2 (1 of 4), a name that is long\n"
        "done    pretrain narrow Tm=2, which took quite a while to do\n"
    )


def test_on_a_terminal_a_bar_tells_how_far_the_work_is() -> None:
    screen = io.StringIO()
    with Display(on_terminal(screen)) as display, display.task("pretrain", 200) as advance:
        advance(50, "loss 3.125")
        display._progress.refresh()
        for part in ("pretrain", "50/200", "loss 3.125"):
            assert part in screen.getvalue()
    assert "start" not in screen.getvalue()


def test_a_bar_goes_with_its_work_also_when_that_fails() -> None:
    with Display(on_terminal(io.StringIO())) as display:
        with pytest.raises(KeyError), display.task("pretrain", 200):
            raise KeyError
        assert display._progress.tasks == []


HOSTILE = "x\x1b]0;owned\x07\x1b[2J\u202ey [/bold] [link=file:///etc/passwd]z"
SHOWN = "x\\x1b]0;owned\\x07\\x1b[2J\\u202ey [/bold] [link=file:///etc/passwd]z"


def test_names_are_text_and_not_commands() -> None:
    screen = io.StringIO()
    with Display(on_terminal(screen)) as display, display.task(HOSTILE, 2) as advance:
        advance(1, HOSTILE)
        display._progress.refresh()
        display.note(HOSTILE)
    written = screen.getvalue()
    assert written.count(SHOWN) >= 3
    assert "\x1b]" not in written
    assert "\x1b[2J" not in written
    assert "\u202e" not in written


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_goes_on_when_the_terminal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with Display() as display, display.task("pretrain", 200) as advance:
            assert display.console.is_terminal
            advance(1, "loss 3.125")
            os.close(ours)
            advance(2, "loss 3.125")
            display.note("a line")
            time.sleep(0.3)  # the bar is drawn ten times a second, by a thread of its own
            advance(3, "loss 3.125")
        assert os.readlink(f"/proc/self/fd/{theirs}") == os.devnull
