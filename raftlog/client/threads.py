"""I/O thread with an event loop, for synchronous clients. The only threads of this library.

The thread is a daemon, and holds no reference to its client: an unclosed client can be
garbage-collected, and the interpreter can exit. In a forked child, the inherited object has no
thread, and its calls raise ``ClosedError``.

asyncio is imported where the first thread starts: it would take half of the time of ``from raftlog
import Producer``.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - uvloop needs it, also after the main thread has ended
import math
import os
import sys
import threading
import time
import warnings
import weakref
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from raftlog.errors import ClosedError, InvalidRequestError, UnsupportedFeatureError

if TYPE_CHECKING:
    import asyncio

    from raftlog.client.base import ClientEnvironment
    from raftlog.client.delivery import Delivery

T = TypeVar("T")

_STOP_TIMEOUT_S: Final = 2.0

_running: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()
_inherited: Final[list[object]] = []  # of the parent; never freed: its loops share the epoll set


class LoopThread:
    """I/O thread that starts at its first use. ``stop`` ends it permanently."""

    def __init__(self, name: str = "raftlog-io") -> None:
        """Raises ``UnsupportedFeatureError`` if threads are replaced by green threads."""
        _refuse_green_threads()
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[_Call[Any]] = set()  # calls that a thread waits for
        self._stopped = False
        self.at_fork: set[Callable[[], None]] = set()  # called in a forked child
        self._parent = 0  # id of the parent process, in a forked child

    @property
    def started(self) -> bool:
        return self._loop is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running event loop."""
        loop = self._loop
        if loop is None or self._stopped or self._parent:
            loop = self._start()
        return loop

    @property
    def is_inherited(self) -> bool:
        """True in a forked child: the thread runs in the parent process."""
        return bool(self._parent)

    def check_process(self) -> None:
        """Raise ``ClosedError`` in a forked child, which has no I/O thread."""
        if self._parent:
            raise ClosedError(
                f"this client was created in process {self._parent}, before a fork. Create a new "
                "client in each process"
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
        """Run ``work()`` on the loop and wait for it. Raises ``TimeoutError`` after ``timeout_s``.

        If the wait ends early (timeout, Ctrl-C), the work is cancelled.
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
        """Call ``callback`` on the loop. Raises ``ClosedError`` if the thread has stopped."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError as error:
            raise ClosedError("the client was closed") from error

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` on the loop. Does nothing if the thread has stopped."""
        if self._loop is None or self._stopped or self._parent:
            return
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            assert self._loop.is_closed(), "call_soon_threadsafe only fails on a closed loop"

    def stop(self) -> None:
        """End the thread. Idempotent. Any thread can call it, including this one."""
        with self._lock:
            self._stopped = True
            thread, loop = self._thread, self._loop
        if loop is None or thread is None or self._parent or not thread.is_alive():
            return
        try:
            loop.call_soon_threadsafe(loop.stop)
        except RuntimeError:
            assert loop.is_closed(), "call_soon_threadsafe only fails on a closed loop"
        if thread is not threading.current_thread():
            thread.join(_STOP_TIMEOUT_S)

    def abandon(self, close: Callable[[], Coroutine[Any, Any, None]], *, stop: bool) -> None:
        """Close a garbage-collected client without waiting; then stop if it was the only user."""

        import asyncio

        async def end() -> None:
            await close()
            if stop:
                asyncio.get_running_loop().stop()

        # The call keeps a reference to the task, because the loop does not.
        call = _Call(end)
        self._calls.add(call)
        self.call_soon(call.start)

    def leave_behind(self) -> None:
        """Mark this object as inherited, in a forked child. The sockets belong to the parent."""
        self._parent = os.getppid()
        self._lock = threading.Lock()  # another thread may have held it when the process was forked
        _inherited.append((self._loop, self._thread))
        for callback in self.at_fork:
            callback()


class _Call(Generic[T]):
    """Coroutine that another thread waits for."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._done = False
        self._callbacks: list[Callable[[], object]] = []

    def start(self) -> None:
        import asyncio

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
            task.exception()  # retrieved here in case no caller waits for it
        self.finish()

    def finish(self) -> None:
        """Mark the call as done, and wake the waiting threads."""
        self._done = True
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:  # another thread took the last one
                return
            callback()


def _refuse_green_threads() -> None:
    """Raise if gevent or eventlet has replaced threads: the I/O thread would block all others.

    Does not import them: a process that was patched has imported them.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and any(map(gevent.is_module_patched, ("threading", "_thread"))):
        how = "call gevent.monkey.patch_all(thread=False)"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        how = "call eventlet.monkey_patch(thread=False)"
    else:
        return
    raise UnsupportedFeatureError(
        "threads of this process are green threads (monkey patching): a client of raftlog needs a "
        f"real thread, and would block all of them. Either {how}, or use the client in another "
        "process"
    )


def _new_event_loop() -> asyncio.AbstractEventLoop:
    from raftlog.standard_streams import occupy  # not for `from raftlog import Producer`

    occupy()
    try:
        import uvloop
    except ImportError:
        import asyncio

        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _run(loop: asyncio.AbstractEventLoop, calls: set[_Call[Any]]) -> None:
    import asyncio

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
    """Stop all threads at exit: a daemon thread in C code could crash the ending interpreter."""
    for thread in list(_running):
        thread.stop()


def _after_fork_in_child() -> None:
    IO_THREADS.clear()
    for thread in list(_running):
        thread.leave_behind()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# -- waiting ---------------------------------------------------------------------------------------
#
# Blocking waits of application threads. Ctrl-C ends every wait here.
#
# All waits use plain locks: Python lets a signal handler interrupt them, with or without a timeout,
# and they cost a fraction of a ``threading.Event``. A wait in an I/O thread of this library could
# never end, so it is refused.


IO_THREADS: Final[set[int]] = set()  # idents of the running I/O threads, kept by ``loop_thread``

# A signal between Python's last signal check and the waiting system call does not end that call:
# Ctrl-C would take effect only after the wait. So no single wait is longer than this.
WAIT_S_MAX: Final = 0.5


class Pending(Protocol):
    """Object that calls a callback once, now or later, from any thread."""

    def add_callback(self, callback: Callable[[], object], /) -> None: ...


Subscribe: TypeAlias = Callable[[Callable[[], object]], object]  # as Pending.add_callback


def wait_for(pending: Callable[[], Pending | None], timeout_s: float | None) -> bool:
    """Block until ``pending()`` is None, or for ``timeout_s`` seconds. Returns True if it is None.

    ``pending`` returns the next object to wait for each time, so that a wait for many objects is a
    wait for each.
    """
    awaited = pending()
    if awaited is None:
        return True
    refuse_io_thread()
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while awaited is not None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if not wait_once(awaited.add_callback, remaining):
            return False
        awaited = pending()
    return True


def pending_of(deliveries: list[Delivery]) -> Callable[[], Delivery | None]:
    """Return a function that returns an unfinished delivery, or None if all are done."""

    def pending() -> Delivery | None:
        while deliveries and deliveries[-1].done:
            deliveries.pop()
        return deliveries[-1] if deliveries else None

    return pending


def on_lock(subscribe: Subscribe, timeout_s: float | None) -> bool:
    """Block the thread. See ``wait_once``."""
    lock = allocate_lock()
    lock.acquire()
    subscribe(lock.release)
    left = math.inf if timeout_s is None else timeout_s
    while left > WAIT_S_MAX:
        if lock.acquire(True, WAIT_S_MAX):
            return True
        left -= WAIT_S_MAX
    return lock.acquire(True, max(left, 0.0))


# How a wait blocks. The simulator has one thread, and runs the events of its world instead.
block: Callable[[Subscribe, float | None], bool] = on_lock


def wait_once(subscribe: Subscribe, timeout_s: float | None) -> bool:
    """Block until the subscribed callback runs. Returns False after ``timeout_s`` seconds."""
    return block(subscribe, timeout_s)


def refuse_io_thread() -> None:
    """Raise ``InvalidRequestError`` in an I/O thread: a wait for I/O would never end there."""
    if get_ident() in IO_THREADS:
        raise InvalidRequestError(
            "a blocking call was made in a raftlog I/O thread, for example in a done callback. "
            "It would never return. Use another thread, or raftlog.aio"
        )


# -- closing ---------------------------------------------------------------------------------------
#
# Close of a client that several threads may close: one closes it, the others wait.
#
# The interpreter also waits at exit. Otherwise it would stop the I/O thread of a daemon thread that
# closes a client, and the last commit would be lost.


_under_way: Final[dict[Closing, float]] = {}  # -> end of the wait at exit, monotonic seconds


class Closing:
    """Close state of one client, whose I/O thread is ``thread``."""

    def __init__(self, thread: LoopThread, monotonic: Callable[[], float]) -> None:
        self._thread = thread
        self._monotonic = monotonic
        self._lock = RLock()  # a callback of the closing thread may close again
        self._is_begun = False

    @contextmanager
    def begin(self, *, wait_s: float, takes_s: float) -> Iterator[bool]:
        """Yield True if the caller must close the client, and False if another thread does or did.

        ``wait_s``: seconds to wait for another thread that closes. ``takes_s``: seconds that the
        interpreter waits at exit for this close.
        """
        if not self._lock.acquire(timeout=wait_s):
            yield False
            return
        is_first, self._is_begun = not self._is_begun, True
        if is_first:
            _under_way[self] = self._monotonic() + takes_s
        try:
            yield is_first
        finally:
            if is_first:
                del _under_way[self]
            self._lock.release()

    def wait(self, until: float) -> None:
        """Wait until the close ends, or until ``until``. Does not wait in a forked child."""
        left_s = max(until - self._monotonic(), 0.0)
        if not self._thread.is_inherited and self._lock.acquire(timeout=left_s):
            self._lock.release()


def _wait_for_all() -> None:
    """Wait at exit for closes in progress.

    atexit calls it before ``loop_thread`` stops its threads, because it is registered later.
    """
    for closing, until in list(_under_way.items()):
        closing.wait(until)


atexit.register(_wait_for_all)


# -- synchronous clients ---------------------------------------------------------------------------
#
# Each client implements its own calls, and the rest of its close; some have a ``close`` with
# arguments.


class ThreadedClient:
    """Synchronous client with an I/O thread: a shared one, or one that ends with the client.

    ``_used``: the client was called, so it must be closed. A used client that is garbage-collected
    unclosed emits a ``ResourceWarning``, and is closed in the background.
    """

    _closed = True  # until the client is set up
    _used = False

    def _take_thread(self, host: ClientEnvironment, name: str) -> None:
        """Use the shared thread of ``host``, or create one with this ``name``."""
        self._owns_thread = host.loop_thread is None
        self._thread = host.loop_thread or LoopThread(name)

    def _stop_thread(self) -> None:
        if self._owns_thread:
            self._thread.stop()

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a function that closes a garbage-collected client. It holds no reference to it."""
        raise NotImplementedError

    def __del__(self) -> None:
        if not self._closed and self._used:
            warnings.warn(
                f"unclosed {self!r}. Call close(), or use `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            if not sys.is_finalizing():  # nothing can be closed then
                self._thread.abandon(self._end_of_forgotten(), stop=self._owns_thread)


class Closeable:
    """Context manager that calls ``close()``."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PlainClient(ThreadedClient, Closeable):
    """Client with a plain ``close()``."""

    def _end(self) -> None:
        """Close what the client opened. Called once, and only if the client was used."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections. Idempotent. Calls in progress raise ``ClosedError``."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._used:
                self._thread.check_process()  # its locks may be held by threads of the parent
                self._end()
        finally:
            self._stop_thread()
