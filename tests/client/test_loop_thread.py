"""The I/O thread: calls into it, ways out of them, and its end."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from raftlog.client.producer import Producer
from raftlog.client.threads import IO_THREADS, LoopThread
from raftlog.errors import ClosedError, InvalidRequestError, UnsupportedFeatureError
from tests.client.samples import python


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
