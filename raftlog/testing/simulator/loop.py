"""Virtual time: one heap of events for all processes, and an asyncio event loop for each of them.

``SimLoop`` belongs to the simulation: it has the heap and the time, and runs events one by one, in
the order of (time, sequence). ``NodeLoop`` belongs to one process: an asyncio event loop whose
clock may be wrong and may drift. It can be paused (SIGSTOP) and killed (SIGKILL: no further handle
and no ``finally`` runs). There are no threads, no sockets and no real time.

A turn of the loop takes ``step_ns`` of virtual time. Busy loops therefore let time pass, and
simultaneous actions of processes do not run in lock-step.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
import traceback
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from hashlib import blake2b
from typing import Any, ClassVar, Final, Protocol, TypeVar, TypeVarTuple

from raftlog.testing.disk import Stopped

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NS: Final = 1_000_000_000  # in a second
STEP_NS_DEFAULT: Final = 1_000
EVENTS_MAX_DEFAULT: Final = 20_000_000
_FAR_NS: Final = 1 << 62
_CLOSES_MAX: Final = 100  # of one coroutine that still awaits while it is closed
_TASKS_UNSWEPT: Final = 64
_FRAMES: Final = 4  # stack frames that a failure message contains


class SimulationError(Exception):
    """The simulated program failed: an exception that was not handled, or an endless loop."""


class Sockets(Protocol):
    """Provider of a process's connections: a ``network.SimNetwork``."""

    async def connect(
        self, loop: NodeLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def listen(
        self, loop: NodeLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.AbstractServer: ...


class SimLoop:
    """Simulated time and event order. ``digest`` differs if two runs differ in one event."""

    def __init__(self, *, events_max: int = EVENTS_MAX_DEFAULT) -> None:
        """``events_max``: a run with more events is considered endless."""
        self.now_ns = 0
        self.events = 0
        self.failures: list[str] = []
        self._events_max = events_max
        self._heap: list[tuple[int, int, NodeLoop, asyncio.Handle]] = []
        self._sequence = 0
        self._hash = blake2b(digest_size=8)
        self.on_event: Callable[[NodeLoop], None] | None = None  # called after every event

    @property
    def now(self) -> float:
        """Seconds since the start of the simulation."""
        return self.now_ns / NS

    def digest(self) -> str:
        """Digest of all events so far, in 16 hexadecimal digits."""
        return self._hash.hexdigest()

    def note(self, what: str) -> None:
        """Make ``what`` part of the digest."""
        self._hash.update(f"{self.now_ns} {what}\n".encode())

    def push(self, at_ns: int, node: NodeLoop, handle: asyncio.Handle) -> None:
        """Run ``handle`` on ``node`` at ``at_ns``, after the handles already due then."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(at_ns, self.now_ns), self._sequence, node, handle))

    def run_until(self, goal: float | asyncio.Future[Any], *, limit_s: float = math.inf) -> None:
        """Run events up to a time (seconds), or until a future is done.

        ``limit_s``: the virtual time at which waiting for a future ends. Raises ``SimulationError``
        when it is reached, when an event raised, and when there are too many events.
        """
        outer = events._get_running_loop()
        try:
            if isinstance(goal, asyncio.Future):
                self._run(goal, round(limit_s * NS) if limit_s != math.inf else _FAR_NS)
                if not goal.done():
                    raise SimulationError(f"not done after {self.now:g} s")
            else:
                self._run(None, round(goal * NS))
                self.now_ns = max(self.now_ns, round(goal * NS))
        finally:
            events._set_running_loop(outer)

    def _run(self, goal: asyncio.Future[Any] | None, end_ns: int) -> None:
        heap, update = self._heap, self._hash.update
        running: NodeLoop | None = None
        while heap and heap[0][0] <= end_ns and not (goal is not None and goal.done()):
            at_ns, _, node, handle = heapq.heappop(heap)
            if handle.cancelled() or not node.is_alive:
                continue
            if node.is_paused:
                node.park(handle)
                continue
            self.now_ns = at_ns
            self.events += 1
            update(b"%d %s\n" % (at_ns, node.label))
            if node is not running:  # a system call
                events._set_running_loop(node)
                running = node
            handle._run()
            if self.on_event is not None:
                self.on_event(node)
            if self.failures:
                break
            if self.events > self._events_max:
                raise SimulationError(f"{self.events} events in {self.now:g} s: an endless loop?")
        if self.failures:
            raise SimulationError("; ".join(self.failures))


class NodeLoop(asyncio.BaseEventLoop):
    """The event loop of one process, from its start to its end.

    ``time`` is its monotonic clock: ``offset_s`` at the start of the simulation, then with
    ``drift`` (0.01: one per cent fast).
    """

    def __init__(
        self,
        world: SimLoop,
        name: str,
        *,
        offset_s: float = 0.0,
        drift: float = 0.0,
        step_ns: int = STEP_NS_DEFAULT,
        sockets: Sockets | None = None,
    ) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.label = name.encode()
        self.is_alive = True
        self.is_paused = False
        self.on_stopped: Callable[[], None] = self.kill  # the process ended within an operation
        self._offset_s = offset_s
        self._rate = (1.0 + drift) / NS
        self._step_ns = step_ns
        self._sockets = sockets
        self._parked: list[asyncio.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_swept_at = _TASKS_UNSWEPT

    def __repr__(self) -> str:
        return f"<NodeLoop {self.name} at {self.world.now:.6f}>"

    # -- actions of a process ----------------------------------------------------------------------

    def time(self) -> float:
        return self._offset_s + self.world.now_ns * self._rate

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.is_alive:
            self.world.push(self.world.now_ns + self._step_ns, self, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self.is_alive:
            self.world.push(max(self._ns(when), self.world.now_ns + self._step_ns), self, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _ns(self, when: float) -> int:
        """Return the first virtual time at which ``time()`` is ``when`` or later."""
        exact = (when - self._offset_s) / self._rate
        at_ns = math.ceil(exact) if exact < _FAR_NS else _FAR_NS
        while self._offset_s + at_ns * self._rate < when and at_ns < _FAR_NS:
            at_ns += 1
        return at_ns

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **_options: Any,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(
            coro,
            loop=self,
            name=None if name is None else str(name),
            context=context,
        )
        if len(self._tasks) >= self._tasks_swept_at:
            self.check_tasks()
            self._tasks_swept_at = 2 * len(self._tasks) + _TASKS_UNSWEPT
        self._tasks.append(task)
        return task

    def check_tasks(self) -> None:
        """Remove completed tasks: an exception that was not retrieved is reported now."""
        self._tasks = [task for task in self._tasks if not task.done()]

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **_options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect on the simulated network."""
        assert self._sockets is not None, "a process without a network"
        return await self._sockets.connect(self, protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str = "",
        port: int = 0,
        *,
        sock: Any = None,
        **_options: Any,
    ) -> asyncio.AbstractServer:
        """Listen on the simulated network. ``sock``: a ``network.SimSocket``."""
        assert self._sockets is not None, "a process without a network"
        if sock is not None:
            host, port = sock.getsockname()
        return self._sockets.listen(self, protocol_factory, host, port)

    def run_in_executor(  # type: ignore[override]  # the stubs have type variables
        self, _executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function immediately: hashes of a client take no virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run on an unhandled exception, unless it is the end of the process."""
        error = context.get("exception")
        if not self.is_alive:
            return
        if isinstance(error, Stopped):
            self.on_stopped()
            return
        self.world.failures.append(
            f"{self.world.now:.6f} {self.name}: {context.get('message')}: {error!r}{_where(error)}"
        )

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled handle is skipped when it is due."""

    # -- faults of the process ---------------------------------------------------------------------

    def park(self, handle: asyncio.Handle) -> None:
        """Store a handle that is due while the process is paused."""
        self._parked.append(handle)

    def pause(self) -> None:
        """Pause the process (SIGSTOP): handles that are due wait."""
        self.is_paused = True

    def resume(self) -> None:
        """Resume the process (SIGCONT): waiting handles run immediately, in order."""
        self.is_paused = False
        parked, self._parked = self._parked, []
        for handle in parked:
            self.world.push(self.world.now_ns, self, handle)

    def kill(self) -> None:
        """Kill the process (SIGKILL). Its coroutines stay suspended until ``bury``. Idempotent."""
        if self.is_alive:
            self.check_tasks()
        self.is_alive = False
        self.is_paused = False
        self._parked.clear()

    def bury(self) -> None:
        """Release the coroutines of a killed process, once nothing can observe them.

        Python runs the ``finally`` blocks of a released coroutine; they can no longer have an
        effect.
        """
        assert not self.is_alive, "kill() first"
        while self._tasks:
            task = self._tasks.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                _close(task.get_coro())
        self.close()

    def close(self) -> None:
        self._closed = True

    def __del__(self) -> None:
        """Do nothing: the loop has no resources of the system."""


def _where(error: BaseException | None) -> str:
    """Return the innermost frames of a failure."""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    return "".join(f" < {frame.filename}:{frame.lineno}" for frame in frames[: -_FRAMES - 1 : -1])


def _close(coroutine: Any) -> None:
    for _ in range(_CLOSES_MAX):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001, S112 - its cleanup awaits or fails: close it again
            continue
        return


# -- strand ----------------------------------------------------------------------------------------
#
# A blocking call that can be suspended while virtual time passes.
#
# The call has a thread, but never runs at the same time as the loop: each waits while the other
# runs. Its actions and their times therefore depend on the loop's decisions alone. One round trip
# costs about 50 µs of real time.


class Strand:
    """``resume`` runs the call until it ends or calls ``hold_up``. A strand can be abandoned."""

    current: ClassVar[Strand | None] = None  # the running strand; None: the loop runs
    _idle: ClassVar[list[_Thread]] = []

    def __init__(self, work: Callable[[], object]) -> None:
        self.is_done = False
        self.error: BaseException | None = None  # raised by ``work``
        self._work = work
        self._thread: _Thread | None = None
        self._is_abandoned = False

    def resume(self) -> None:
        """Continue the call, from outside of it. Returns when it is suspended or done."""
        caller = Strand.current  # the loop, or another call that waits for this one
        assert caller is not self
        if self._thread is None:
            self._thread = Strand._idle.pop() if Strand._idle else _Thread()
            self._thread.strand = self
        thread, Strand.current = self._thread, self
        thread.go_on.release()
        thread.has_paused.acquire()
        Strand.current = caller
        if self.is_done:
            self._thread = None
            Strand._idle.append(thread)

    def hold_up(self) -> None:
        """Suspend the call, from within it, until ``resume``. Raises ``Stopped`` if abandoned."""
        assert Strand.current is self and self._thread is not None
        self._thread.has_paused.release()
        self._thread.go_on.acquire()
        if self._is_abandoned:
            raise Stopped

    def abandon(self) -> None:
        """End the call without another operation, because its process has ended."""
        self._is_abandoned = True
        if self._thread is None:
            self.is_done = True
        if not self.is_done:
            self.resume()
            assert self.is_done, "an abandoned call is not suspended again"

    def run(self) -> None:
        """Run the call, on the strand's thread."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the loop handles it
            self.error = error
        self.is_done = True


class _Thread:
    """One thread, which runs strands one after the other."""

    def __init__(self) -> None:
        self.strand: Strand | None = None
        self.go_on, self.has_paused = threading.Lock(), threading.Lock()
        self.go_on.acquire()
        self.has_paused.acquire()
        threading.Thread(target=self._live, name="raftlog-strand", daemon=True).start()

    def _live(self) -> None:
        while True:
            self.go_on.acquire()
            assert self.strand is not None
            self.strand.run()
            self.strand = None
            self.has_paused.release()
