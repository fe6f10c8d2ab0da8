"""A thread with an event loop, for clients that are called from no loop. The only threads here.

The thread is a daemon, and holds no reference to the client that uses it: an unclosed client can be
collected, and the interpreter can end. What a forked child inherits of it is dead: its calls raise.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from raftlog.client.waiting import IO_THREADS, wait_for
from raftlog.errors import ClosedError

T = TypeVar("T")

_STOP_TIMEOUT_S: Final = 2.0

_running: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()
_inherited: Final[list[object]] = []  # of the parent, kept for ever: its loops share the epoll set


class LoopThread:
    """Started by its first use. ``stop`` ends it; a stopped one stays stopped."""

    def __init__(self, name: str = "raftlog-io") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[_Call[Any]] = set()  # that a thread waits for
        self._stopped = False
        self.at_fork: set[Callable[[], None]] = set()  # called in a forked child
        self._parent = 0  # the process that it was left behind in, after a fork

    @property
    def started(self) -> bool:
        return self._loop is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Its event loop, running."""
        loop = self._loop
        if loop is None or self._stopped or self._parent:
            loop = self._start()
        return loop

    @property
    def is_inherited(self) -> bool:
        """Whether it is a parent process's, of which this one is a fork."""
        return bool(self._parent)

    def check_process(self) -> None:
        """Raise ``ClosedError`` in a forked child, where the thread is not."""
        if self._parent:
            raise ClosedError(
                f"this client was made in process {self._parent}, of which this one is a fork: "
                "make a new one here"
            )

    def _start(self) -> asyncio.AbstractEventLoop:
        self.check_process()
        with self._lock:
            if self._stopped:
                raise ClosedError("the client was closed")
            if self._loop is None:
                loop = _new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(loop, self._calls), name=self._name, daemon=True
                )
                self._thread.start()
                self._loop = loop
                _running.add(self)
            return self._loop

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Run ``work()`` on the loop and wait for it; ``TimeoutError`` when it takes too long.

        When the wait ends early, by Ctrl-C or the timeout, the work is cancelled.
        """
        call = _Call(work)
        self._calls.add(call)
        try:
            self.schedule(call.start)
            if not wait_for(call.pending, timeout_s):
                raise TimeoutError(f"not done within {timeout_s} s")
        except BaseException:
            self.call_soon(call.cancel)
            raise
        finally:
            self._calls.discard(call)
        return call.result()

    def schedule(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called on the loop. Raises ``ClosedError`` once it has stopped."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError as error:
            raise ClosedError("the client was closed") from error

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called on the loop, soon; not at all once it has stopped."""
        if self._loop is None or self._stopped or self._parent:
            return
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            assert self._loop.is_closed(), "the one reason for it to refuse"

    def stop(self) -> None:
        """End the thread. Idempotent, and from any thread, its own included."""
        with self._lock:
            self._stopped = True
            thread, loop = self._thread, self._loop
        if loop is None or thread is None or self._parent or not thread.is_alive():
            return
        try:
            loop.call_soon_threadsafe(loop.stop)
        except RuntimeError:
            assert loop.is_closed(), "the one reason for it to refuse"
        if thread is not threading.current_thread():
            thread.join(_STOP_TIMEOUT_S)

    def abandon(self, close: Callable[[], Coroutine[Any, Any, None]], *, stop: bool) -> None:
        """Close what nobody holds any more, without waiting; then stop, if it was the only user."""

        async def end() -> None:
            await close()
            if stop:
                asyncio.get_running_loop().stop()

        # The call keeps the task alive: the loop itself would not.
        call = _Call(end)
        self._calls.add(call)
        self.call_soon(call.start)

    def leave_behind(self) -> None:
        """This is a forked child now: the thread is not here, and its sockets are the parent's."""
        self._parent = os.getppid()
        self._lock = threading.Lock()  # another thread may have held it when the process was forked
        _inherited.append((self._loop, self._thread))
        for callback in self.at_fork:
            callback()


class _Call(Generic[T]):
    """One coroutine that another thread waits for."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._done = False
        self._callbacks: list[Callable[[], object]] = []

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._finish)

    async def _run(self) -> T:
        """Call ``work`` inside the task: its error, such as a TypeError, is the waiter's."""
        return await self._work()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def pending(self) -> _Call[T] | None:
        return None if self._done else self

    def result(self) -> T:
        if self._task is None or self._task.cancelled():
            raise ClosedError("the client was closed")
        return self._task.result()

    def add_callback(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)
        if self._done:
            self._run_callbacks()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # if nobody waits any more, nobody need know
        self.finish()

    def finish(self) -> None:
        """Nothing more will come: whoever waits may go on."""
        self._done = True
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:  # another thread took the last one
                return
            callback()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _run(loop: asyncio.AbstractEventLoop, calls: set[_Call[Any]]) -> None:
    IO_THREADS.add(threading.get_ident())
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        IO_THREADS.discard(threading.get_ident())
        loop.close()
        for call in list(calls):
            call.finish()


def _stop_all() -> None:
    """At exit: a daemon thread that is in C code when the interpreter goes could take it down."""
    for thread in list(_running):
        thread.stop()


def _after_fork_in_child() -> None:
    IO_THREADS.clear()
    for thread in list(_running):
        thread.leave_behind()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
