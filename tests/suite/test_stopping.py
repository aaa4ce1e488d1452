from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import pytest

from suite.stopping import StopFlag, StopRequested


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_the_next_check_and_not_before(number: signal.Signals) -> None:
    with StopFlag() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(StopRequested):
            stop.check()
        with pytest.raises(StopRequested):
            stop.check()


def test_a_second_interrupt_does_not_wait() -> None:
    with StopFlag() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.requested


def test_a_second_request_to_terminate_changes_nothing() -> None:
    with StopFlag() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested


@pytest.mark.parametrize("fails", [False, True])
def test_the_handlers_from_before_come_back(fails: bool) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with StopFlag():
            assert all(signal.getsignal(number) is not before[number] for number in before)
            if fails:
                raise StopRequested
    except StopRequested:
        assert fails
    assert {number: signal.getsignal(number) for number in before} == before


def test_installing_again_takes_the_signals_back_from_a_library() -> None:
    taken: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        taken.append(number)

    with StopFlag() as stop:
        signal.signal(signal.SIGTERM, take)
        signal.raise_signal(signal.SIGTERM)
        assert (taken, stop.requested) == ([signal.SIGTERM], False)
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert (taken, stop.requested) == ([signal.SIGTERM], True)


def test_another_thread_may_hold_the_flag_but_takes_no_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with StopFlag() as stop:
            stop.install()
            seen.append(signal.getsignal(signal.SIGTERM))
            stop.requested = True
            try:
                stop.check()
            except StopRequested:
                seen.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, "stopped"]
