"""Blocking waits: they end when they should, and Ctrl-C ends them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from raftlog.client import threads
from raftlog.client.threads import IO_THREADS, refuse_io_thread, wait_for, wait_once
from raftlog.errors import InvalidRequestError


@dataclass
class Step:
    """Something to wait for."""

    done: bool = False
    callbacks: list[Callable[[], object]] = field(default_factory=list)

    def add_callback(self, callback: Callable[[], object]) -> None:
        self.callbacks.append(callback)

    def finish(self) -> None:
        self.done = True
        for callback in self.callbacks:
            callback()


def first_open(steps: list[Step]) -> Callable[[], Step | None]:
    return lambda: next((step for step in steps if not step.done), None)


def test_nothing_to_wait_for_is_no_wait() -> None:
    assert wait_for(lambda: None, None)
    assert wait_for(lambda: None, 0.0)


def test_a_wait_for_many_ends_with_the_last() -> None:
    steps = [Step() for _ in range(3)]
    thread = threading.Thread(target=lambda: [step.finish() for step in reversed(steps)])

    def add_callback(callback: Callable[[], object]) -> None:
        steps[0].callbacks.append(callback)
        thread.start()

    steps[0].add_callback = add_callback  # type: ignore[method-assign]
    assert wait_for(first_open(steps), 20.0)
    thread.join()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.001])
def test_a_wait_gives_up_in_time(timeout_s: float) -> None:
    assert not wait_for(first_open([Step()]), timeout_s)


def test_a_late_call_after_a_wait_that_gave_up_does_no_harm() -> None:
    step = Step()
    assert not wait_once(step.add_callback, 0.0)
    step.finish()


def test_a_timeout_of_ages_is_taken_as_one() -> None:
    step = Step()
    assert wait_once(lambda callback: (step.add_callback(callback), step.finish()), 1e12)


@pytest.mark.parametrize("timeout_s", [None, 20.0])
def test_a_signal_that_came_just_before_the_wait_is_noticed_soon(
    timeout_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a signal ends no system call: only an end of the call lets Python look."""
    waits: list[float] = []

    class Lock:
        def acquire(self, _blocking: bool = True, timeout_s: float = 0.0) -> bool:
            waits.append(timeout_s)
            return len(waits) > 3

        def release(self) -> None: ...

    monkeypatch.setattr(threads, "allocate_lock", Lock)
    assert wait_once(lambda _callback: None, timeout_s)
    assert waits == [0.0] + [threads.WAIT_S_MAX] * 3


@pytest.mark.parametrize("timeout_s", [None, 20.0])
def test_ctrl_c_ends_a_wait(timeout_s: float | None) -> None:
    def interrupt(_callback: Callable[[], object]) -> None:
        threading.Thread(
            target=lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ).start()

    with pytest.raises(KeyboardInterrupt):
        wait_once(interrupt, timeout_s)


def test_a_wait_in_an_io_thread_is_refused() -> None:
    IO_THREADS.add(threading.get_ident())
    try:
        with pytest.raises(InvalidRequestError, match="done callback"):
            refuse_io_thread()
        with pytest.raises(InvalidRequestError, match=r"raftlog\.aio"):
            wait_for(first_open([Step()]), None)
    finally:
        IO_THREADS.discard(threading.get_ident())
    refuse_io_thread()
