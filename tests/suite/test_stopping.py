from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

import suite.stopping
from suite.stopping import StopFlag, StopRequested, leave_signals_to_parent

REQUESTS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]


@pytest.fixture(autouse=True)
def _usual_signals() -> Iterator[None]:
    """The handlers of a program started from a terminal, however the tests were started."""
    usual = {number: signal.SIG_DFL for number in REQUESTS}
    usual[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", REQUESTS)
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


def test_interrupts_during_the_clean_up_do_nothing_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(suite.stopping.time, "monotonic", lambda: clock[0])
    with StopFlag():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        for _ in range(3):
            clock[0] += 3.0
            signal.raise_signal(signal.SIGINT)
        clock[0] += 1.5  # some library has caught the first
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_at_the_boundary_the_clean_up_has_begun_too() -> None:
    with StopFlag() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(StopRequested):
            stop.check()
        signal.raise_signal(signal.SIGINT)


def test_a_flag_can_be_left_for_a_signal_that_another_process_had() -> None:
    with StopFlag() as stop:
        with pytest.raises(StopRequested):
            stop.leave()
        assert not stop.requested


@pytest.mark.parametrize("number", REQUESTS[1:])
def test_a_second_request_to_end_changes_nothing(number: signal.Signals) -> None:
    with StopFlag() as stop:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.requested


@pytest.mark.parametrize("number", REQUESTS)
def test_a_signal_that_was_ignored_stays_ignored(number: signal.Signals) -> None:
    """As ``nohup`` asks for the closing of the terminal, and a script for interrupts."""
    signal.signal(number, signal.SIG_IGN)
    with StopFlag() as stop:
        stop.install()
        signal.raise_signal(number)
        assert not stop.requested
        others = {each for each in REQUESTS if signal.getsignal(each) == stop._receive}
        assert others == {*REQUESTS} - {number}
    assert signal.getsignal(number) == signal.SIG_IGN


def test_a_flag_that_is_not_entered_takes_no_signals() -> None:
    before = [signal.getsignal(number) for number in REQUESTS]
    StopFlag().install()
    assert [signal.getsignal(number) for number in REQUESTS] == before


def test_a_loader_worker_leaves_all_signals_to_the_process_above() -> None:
    worker = os.fork()
    if not worker:
        with StopFlag():
            leave_signals_to_parent(0)
            for number in REQUESTS:
                signal.raise_signal(number)
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 7


@pytest.mark.parametrize("fails", [False, True])
def test_the_handlers_from_before_come_back(fails: bool) -> None:
    before = {number: signal.getsignal(number) for number in REQUESTS}
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
