"""Closing from several threads, and at the end of the interpreter."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client import threads
from raftlog.client.base import ClientEnvironment
from raftlog.client.producer import Producer
from raftlog.client.retry import (
    Attempt,
    Backoff,
    NoAnswerError,
    first_answer,
    is_behind,
    is_old_news,
    may_pass,
    may_retry,
)
from raftlog.client.threads import (
    IO_THREADS,
    Closing,
    LoopThread,
    PlainClient,
    ThreadedClient,
    refuse_io_thread,
    wait_for,
    wait_once,
)
from raftlog.errors import (
    ERRORS_BY_CODE,
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    CommitUnknownError,
    ConnectionLostError,
    FencedLeaderEpochError,
    InvalidRequestError,
    KeyRequiredError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    RaftlogError,
    RecordTooLargeError,
    RetriableError,
    ThrottledError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from tests.client.samples import HandClock, python
from tests.client.world import FakeCluster, run
from tests.running import runs

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


# -- retry -----------------------------------------------------------------------------------------
#
# What may be tried again, and the bounds of the back-off.


def test_the_class_of_an_error_decides() -> None:
    for error in ERRORS_BY_CODE.values():
        nothing_was_done = issubclass(error, RetriableError)
        unknown = issubclass(error, OutcomeUnknownError)
        assert may_retry(error("x"), repeatable=False) is nothing_was_done
        assert may_retry(error("x"), repeatable=True) is (nothing_was_done or unknown)


def test_other_exceptions_are_never_retried() -> None:
    assert not may_retry(ValueError("x"), repeatable=True)
    assert not may_retry(UnknownTopicError("x"), repeatable=True)
    assert may_retry(ThrottledError("x"), repeatable=False)


@given(
    first_ms=st.integers(1, 1_000),
    longest_ms=st.integers(1_000, 60_000),
    attempt=st.integers(0, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_back_off_is_bounded_and_never_nothing(
    first_ms: int, longest_ms: int, attempt: int, chance: float
) -> None:
    backoff = Backoff(first_ms=first_ms, longest_ms=longest_ms)
    seconds = backoff.seconds(attempt, lambda: chance)
    assert 0 < seconds <= longest_ms / 1_000


def test_a_back_off_doubles() -> None:
    backoff = Backoff(first_ms=100, longest_ms=1_000)
    assert [backoff.seconds(attempt, lambda: 1.0) for attempt in range(6)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    )


@pytest.mark.parametrize(
    ("error", "old_news", "behind", "passes"),
    [
        (NotLeaderError("x"), True, False, True),
        (FencedLeaderEpochError("x"), True, False, True),
        (UnknownLeaderEpochError("x"), True, True, True),
        (LeaderNotAvailableError("x"), True, True, True),
        (NotEnoughReplicasError("x"), True, True, True),
        (UnknownTopicError("x"), True, True, True),
        (UnknownPartitionError("x"), True, True, True),
        (CommitUnknownError("x"), True, False, False),
        (KeyRequiredError("x"), True, False, False),
        (RecordTooLargeError("x"), True, False, False),
        (ClusterNotReadyError("x"), False, False, True),
        (ConnectionLostError("x"), False, False, False),
        (InvalidRequestError("x"), False, False, False),
    ],
)
def test_whose_news_are_old(
    error: RaftlogError, old_news: bool, behind: bool, passes: bool
) -> None:
    assert is_old_news(error) == old_news
    assert is_behind(error) == behind
    assert may_pass(error, repeatable=False) == passes
    assert may_pass(error, repeatable=True) == (passes or isinstance(error, OutcomeUnknownError))
    assert may_retry(error, repeatable=False) == isinstance(error, RetriableError)


# -- hedged request --------------------------------------------------------------------------------
#
# Several attempts at one answer: begun one after the other, the first to succeed counts.


class Tries:
    """Attempts that take a while, and what became of them."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        self.events.append((round(now() - 1_000, 3), what))

    def attempt(
        self, name: str, takes_s: float, error: Exception | None = None, *, patience_s: float = 1.0
    ) -> Attempt[str, str]:
        async def work() -> str:
            self.note(f"{name} begins")
            try:
                await asyncio.sleep(takes_s)
            except asyncio.CancelledError:
                self.note(f"{name} is cancelled")
                raise
            if error is not None:
                raise error
            return name

        return Attempt(name, patience_s, work)


def now() -> float:
    return asyncio.get_running_loop().time()


def played(scene: Callable[[Tries], Coroutine[Any, Any, None]]) -> list[tuple[float, str]]:
    tries = Tries()

    async def test(_fake: FakeCluster) -> None:
        await scene(tries)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)
    return tries.events


def test_a_quick_one_is_the_only_one() -> None:
    async def scene(tries: Tries) -> None:
        assert await first_answer([tries.attempt("a", 0.5), tries.attempt("b", 0.1)]) == "a"

    assert played(scene) == [(0, "a begins")]


def test_a_slow_one_is_joined_by_the_next_and_may_still_win() -> None:
    async def scene(tries: Tries) -> None:
        attempts = [tries.attempt("a", 1.5), tries.attempt("b", 3), tries.attempt("c", 3)]
        assert await first_answer(attempts) == "a"

    assert played(scene) == [(0, "a begins"), (1, "b begins"), (1.5, "b is cancelled")]


def test_a_failure_brings_the_next_at_once() -> None:
    async def scene(tries: Tries) -> None:
        attempts = [tries.attempt("a", 0.2, BrokerUnavailableError("no")), tries.attempt("b", 9)]
        assert await first_answer(attempts) == "b"

    assert played(scene) == [(0, "a begins"), (0.2, "b begins")]


@runs(played)
async def test_when_all_fail_each_reason_is_told(tries: Tries) -> None:
    attempts = [
        tries.attempt("slow", 5, BrokerUnavailableError("late")),
        tries.attempt("quick", 0, BrokerUnavailableError("early")),
    ]
    with pytest.raises(NoAnswerError) as caught:
        await first_answer(attempts)
    assert {key: str(error) for key, error in caught.value.reasons.items()} == {
        "quick": "early",
        "slow": "late",
    }
    with pytest.raises(NoAnswerError):
        await first_answer([])


def test_a_closed_client_ends_it() -> None:
    async def scene(tries: Tries) -> None:
        attempts = [tries.attempt("a", 9), tries.attempt("b", 0, ClosedError("closed"))]
        with pytest.raises(ClosedError):
            await first_answer(attempts)

    assert played(scene)[-1] == (1, "a is cancelled")


def test_cancelling_it_cancels_what_runs() -> None:
    async def scene(tries: Tries) -> None:
        task = asyncio.ensure_future(first_answer([tries.attempt("a", 9), tries.attempt("b", 9)]))
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert [what for _, what in played(scene)][2:] == ["a is cancelled", "b is cancelled"]


# -- threaded --------------------------------------------------------------------------------------
#
# What every synchronous client has: whose thread it uses, and what becomes of it in the end.


NAME = "raftlog-test-of-threads"
PATIENCE_S = 10.0


class Work:
    """What a client would have to close."""

    def __init__(self) -> None:
        self.ends = 0
        self.ended = threading.Event()

    async def answer(self) -> int:
        return 42

    async def end(self) -> None:
        self.ends += 1
        self.ended.set()


class Client(PlainClient):
    def __init__(self, work: Work, host: ClientEnvironment | None = None) -> None:
        self._work = work
        self._take_thread(host or ClientEnvironment(), NAME)
        self._closed = False

    def ask(self) -> int:
        self._used = True
        return self._thread.call(self._work.answer)

    def _end(self) -> None:
        self._thread.call(self._work.end)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._work.end


def threaded_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_a_thread_of_its_own_ends_with_the_client() -> None:
    work = Work()
    with Client(work) as client:
        assert threaded_threads() == [], "not before it is needed"
        assert client.ask() == 42
        assert len(threaded_threads()) == 1
    assert threaded_threads() == []
    assert work.ends == 1
    client.close()
    assert work.ends == 1, "closed once"


def test_a_client_that_was_never_used_has_nothing_to_close() -> None:
    work = Work()
    Client(work).close()
    assert work.ends == 0
    assert threaded_threads() == []


def test_the_thread_of_a_host_is_left_running() -> None:
    lent = LoopThread("raftlog-test-lent")
    try:
        work = Work()
        with Client(work, ClientEnvironment(loop_thread=lent)) as client:
            assert client.ask() == 42
            assert threaded_threads() == []
        assert work.ends == 1
        assert lent.call(work.answer) == 42
    finally:
        lent.stop()


def test_the_thread_ends_even_if_the_end_fails() -> None:
    class Failing(Client):
        def _end(self) -> None:
            raise OSError("the network is gone")

    client = Failing(Work())
    client.ask()
    with pytest.raises(OSError, match="the network is gone"):
        client.close()
    assert threaded_threads() == []


def test_one_that_is_forgotten_warns_and_is_closed() -> None:
    work = Work()
    client = Client(work)
    client.ask()
    (thread,) = threaded_threads()
    last_hold = [client]
    del client
    with pytest.warns(ResourceWarning, match="unclosed"):
        last_hold.clear()
    assert work.ended.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_one_that_is_forgotten_unused_or_half_made_says_nothing(
    recwarn: pytest.WarningsRecorder,
) -> None:
    client = Client(Work())
    del client
    half_made = Client.__new__(Client)
    del half_made
    gc.collect()
    assert [w for w in recwarn if w.category is ResourceWarning] == []


def test_what_a_client_must_say_for_itself() -> None:
    with pytest.raises(NotImplementedError):
        ThreadedClient()._end_of_forgotten()
    with pytest.raises(NotImplementedError):
        PlainClient()._end()
