"""Closing from several threads, and at the end of the interpreter."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from raftlog.client import threads
from raftlog.client.producer import Producer
from raftlog.client.threads import (
    IO_THREADS,
    Closing,
    LoopThread,
    refuse_io_thread,
    wait_for,
    wait_once,
)
from raftlog.errors import ClosedError, InvalidRequestError, UnsupportedFeatureError
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


# -- loop thread -----------------------------------------------------------------------------------
#
# The I/O thread: calls into it, ways out of them, and its end.


async def answer() -> int:
    return 42


def test_a_call_runs_on_the_loop_and_gives_its_value() -> None:
    thread = LoopThread()
    assert not thread.started
    ident = thread.call(lambda: asyncio.to_thread(threading.get_ident))
    assert ident != threading.get_ident()
    assert thread.call(answer) == 42
    assert thread.started
    thread.stop()
    thread.stop()


def test_a_call_raises_what_it_raises() -> None:
    async def fail() -> None:
        raise KeyError("inside")

    thread = LoopThread()
    with pytest.raises(KeyError, match="inside"):
        thread.call(fail)
    thread.stop()


@pytest.mark.parametrize("how", ["timeout", "ctrl-c"])
def test_a_wait_that_ends_early_cancels_the_work(how: str) -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            if how == "ctrl-c":
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    thread = LoopThread()
    with pytest.raises(TimeoutError if how == "timeout" else KeyboardInterrupt):
        thread.call(work, 0.01 if how == "timeout" else None)
    assert cancelled.wait(20)
    thread.stop()


def test_a_stopped_one_says_so() -> None:
    thread = LoopThread()
    thread.call(answer)
    thread.stop()
    for use in (lambda: thread.call(answer), lambda: thread.schedule(print), lambda: thread.loop):
        with pytest.raises(ClosedError, match="closed"):
            use()
    thread.call_soon(print)  # tells nobody: there is nothing to do any more
    unused = LoopThread()
    unused.stop()
    with pytest.raises(ClosedError):
        unused.call(answer)


def test_stopping_ends_the_calls_of_other_threads() -> None:
    thread = LoopThread()
    waits = threading.Event()
    errors: list[BaseException] = []

    async def work() -> None:
        waits.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            thread.call(work)
        except ClosedError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert waits.wait(20)
    thread.stop()
    caller.join(20)
    assert len(errors) == 1


def test_a_call_from_the_thread_itself_is_refused() -> None:
    thread = LoopThread()

    async def nested() -> None:
        thread.call(answer)

    with pytest.raises(InvalidRequestError, match="done callback"):
        thread.call(nested)
    assert len(IO_THREADS) >= 1
    thread.stop()


def test_stopping_from_the_thread_itself() -> None:
    thread = LoopThread()
    stopped = threading.Event()

    def stop() -> None:
        thread.stop()
        stopped.set()

    thread.schedule(stop)
    assert stopped.wait(20)


def test_what_is_abandoned_is_closed_and_ends_the_thread() -> None:
    thread = LoopThread()
    thread.call(answer)
    closed = threading.Event()

    async def close() -> None:
        await asyncio.sleep(0)
        closed.set()

    io_thread = thread._thread
    assert io_thread is not None
    thread.abandon(close, stop=True)
    assert closed.wait(20)
    io_thread.join(20)
    assert not io_thread.is_alive()


@pytest.mark.integration
def test_the_interpreter_ends_with_a_thread_still_running() -> None:
    done = python(
        """
        import asyncio
        from raftlog.client.threads import LoopThread
        thread = LoopThread()
        async def work():
            asyncio.ensure_future(asyncio.Event().wait())
        thread.call(work)
        print("done")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="needs fork")
def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    done = python(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from raftlog.client.threads import LoopThread
        from raftlog.errors import ClosedError
        thread = LoopThread()
        told = []
        thread.at_fork.add(lambda: told.append(True))
        async def answer():
            return 42
        assert thread.call(answer) == 42
        child = os.fork()
        if not child:
            try:
                thread.call(answer)
            except ClosedError as error:
                print(f"process {os.getppid()}" in str(error), told, flush=True)
            thread.stop()
            own = LoopThread()
            print(own.call(answer), flush=True)
            own.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(thread.call(answer), told)
        thread.stop()
        """
    )
    assert done.stdout == "True [True]\n42\n42 []\n", done.stderr
    assert done.returncode == 0


def test_without_uvloop_there_is_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    thread = LoopThread()
    assert thread.call(answer) == 42
    assert "asyncio" in type(thread.loop).__module__
    thread.stop()


@pytest.mark.parametrize(
    ("module", "patched", "advice"),
    [
        ("gevent.monkey", "is_module_patched", r"gevent\.monkey\.patch_all\(thread=False\)"),
        ("eventlet.patcher", "is_monkey_patched", r"eventlet\.monkey_patch\(thread=False\)"),
    ],
)
def test_green_threads_are_refused_before_a_call_hangs(
    module: str, patched: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"thread", "threading"}
    fake = SimpleNamespace(**{patched: lambda name: name in names})
    monkeypatch.setitem(sys.modules, module, fake)
    with pytest.raises(UnsupportedFeatureError, match=advice):
        Producer("127.0.0.1:1")
    names.clear()
    LoopThread().stop()


# -- waiting ---------------------------------------------------------------------------------------
#
# Blocking waits: they end when they should, and Ctrl-C ends them.


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
