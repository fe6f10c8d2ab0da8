"""Closing from several threads, and at the end of the interpreter."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from raftlog.client.threads import Closing, LoopThread
from tests.client.samples import HandClock, python

WAIT_S = 20.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.stop()


def closing_of(thread: LoopThread) -> Closing:
    return Closing(thread, HandClock().monotonic)


class Closer:
    """A thread that closes, and stays at it until ``finish``."""

    def __init__(self, closing: Closing) -> None:
        self._closing = closing
        self._at_it = threading.Event()
        self._may_end = threading.Event()
        self.is_done = False
        self._thread = threading.Thread(target=self._close)
        self._thread.start()
        assert self._at_it.wait(WAIT_S)

    def _close(self) -> None:
        with self._closing.begin(wait_s=WAIT_S, takes_s=WAIT_S) as is_mine:
            assert is_mine
            self._at_it.set()
            assert self._may_end.wait(WAIT_S)
            self.is_done = True

    def finish(self) -> None:
        self._may_end.set()

    def join(self) -> None:
        self._thread.join(WAIT_S)


def test_one_closes_and_the_others_wait_until_that_is_done(thread: LoopThread) -> None:
    closing = closing_of(thread)
    closer = Closer(closing)
    with closing.begin(wait_s=0.0, takes_s=1.0) as is_mine:
        assert not is_mine
        assert not closer.is_done, "it does not wait for longer than it may"
    waiting = threading.Timer(0.01, closer.finish)
    waiting.start()
    with closing.begin(wait_s=WAIT_S, takes_s=1.0) as is_mine:
        assert not is_mine
        assert closer.is_done
    closer.join()
    waiting.join()


def test_whoever_closes_may_close_in_between(thread: LoopThread) -> None:
    closing = closing_of(thread)
    with (
        closing.begin(wait_s=0.0, takes_s=1.0) as outer,
        closing.begin(wait_s=0.0, takes_s=1.0) as inner,
    ):
        assert (outer, inner) == (True, False)


def test_one_that_fails_is_over_all_the_same(thread: LoopThread) -> None:
    closing = closing_of(thread)
    with suppress(ZeroDivisionError), closing.begin(wait_s=0.0, takes_s=1.0):
        raise ZeroDivisionError
    with closing.begin(wait_s=0.0, takes_s=1.0) as is_mine:
        assert not is_mine


SCRIPT = """
    import asyncio, atexit, os, sys, threading, time
    from raftlog.client.threads import Closing
    from raftlog.client.threads import LoopThread

    thread, ends, begun = LoopThread(), threading.Event(), threading.Event()
    closing = Closing(thread, time.monotonic)

    async def commit():
        for _ in range(100):
            await asyncio.sleep(0.001)
        return "committed"

    def close():
        with closing.begin(wait_s=20, takes_s={takes_s}):
            begun.set()
            ends.wait(20)
            sys.stdout.write(thread.call(commit))
            sys.stdout.flush()

    thread.call(commit)
    threading.Thread(target=close, daemon=True).start()
    begun.wait(20)
    {at_exit}
"""


@pytest.mark.integration
def test_the_end_of_the_program_waits_for_a_daemon_that_closes() -> None:
    done = python(SCRIPT.format(takes_s=20, at_exit="atexit.register(ends.set)"))
    assert (done.returncode, done.stdout) == (0, "committed"), done.stderr


@pytest.mark.integration
def test_it_does_not_wait_for_ever() -> None:
    done = python(SCRIPT.format(takes_s=0.01, at_exit=""))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    at_exit = """
    if os.fork() == 0:
        sys.exit(7)
    sys.stdout.write(str(os.waitstatus_to_exitcode(os.wait()[1])))
    sys.stdout.flush()
    ends.set()
    """
    done = python(SCRIPT.format(takes_s=1_000, at_exit=at_exit.strip()))
    assert (done.returncode, done.stdout) == (0, "7committed"), done.stderr
