"""Threads of a broker, as events in virtual time.

A piece of work starts anywhere between the start and the end of its delay. A crash may therefore
find the disk unchanged, or changed without a report; and a sync may, or may not, cover bytes that
are appended while it is in progress. Some randomly selected pieces of work let time pass between
their disk operations: any event may occur in between, on the loop and in other threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from raftlog.server.workers import Done, Unfinished, Workers
from raftlog.testing.disk import SimDisk, Stopped
from raftlog.testing.simulator.hanging import Hang
from raftlog.testing.simulator.loop import NodeLoop
from raftlog.testing.simulator.strand import Strand

WAKE_S: Final = 50e-6  # from the queue to a thread
PAUSES: Final = 0.5  # share of operations of interleaved work before which time passes


@dataclass(slots=True, kw_only=True)
class Interleaving:
    """Random selection of the pieces of work during which time passes. ``share``: of all work."""

    random: Random
    share: float

    def is_drawn(self) -> bool:
        return self.share > 0 and self.random.random() < self.share

    def pauses(self) -> bool:
        return self.random.random() < PAUSES


class _Job:
    """One piece of work that may be suspended."""

    def __init__(self, strand: Strand, then: Callable[[], None]) -> None:
        self.strand = strand
        self.then = then
        self.has_begun = False  # its first disk operation
        self.is_rushed = False  # the loop waits for it: no time passes
        self.stops = 0

    def hold_up(self, let_go: Callable[[Callable[[], None]], object]) -> None:
        """Suspend the job until the function passed to ``let_go`` is called, or it is rushed."""
        self.stops += 1
        stop = self.stops
        let_go(lambda: self.go_on() if self.stops == stop and not self.strand.is_done else None)
        self.strand.hold_up()
        self.stops += 1  # the job continues, for any reason: other wake-ups are ignored

    def go_on(self) -> None:
        self.strand.resume()
        if self.strand.is_done:
            self.then()


class DiskTurns:
    """Scheduling of disk operations of one process: ``before`` and the mutexes of its disk.

    ``hangs``: all active ones; it may contain some that have ended.
    """

    def __init__(
        self,
        loop: NodeLoop,
        disk: SimDisk,
        *,
        hangs: list[Hang],
        interleaving: Interleaving,
        pause_s: Callable[[str], float],
    ) -> None:
        """``pause_s``: returns the seconds of the next pause, before the given operation."""
        self.loop = loop
        self._hangs = hangs
        self._interleaving = interleaving
        self._pause_s = pause_s
        self._jobs: dict[Strand, _Job] = {}
        disk.before = self.before
        disk.make_mutex = lambda: SimMutex(self)

    def must_divide(self) -> bool:
        """Return whether the next piece of work may be suspended."""
        self._hangs[:] = [hang for hang in self._hangs if not hang.is_over]
        return self._interleaving.is_drawn() or bool(self._hangs)

    def run(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run ``work``, which may be suspended. ``done`` is called with its result or error."""
        result: list[Any] = []
        strand = Strand(lambda: result.append(work()))

        def then() -> None:
            if self._jobs.pop(strand, None) is not None:
                done(result[0] if result else None, strand.error)

        self._jobs[strand] = job = _Job(strand, then)
        job.go_on()

    def before(self, operation: str, path: str) -> None:
        """Suspend or pause the caller before an operation, if there is a reason."""
        job = self.current()
        if job is not None and not job.is_rushed:
            if job.has_begun and self._interleaving.pauses():
                job.hold_up(lambda go_on: self.loop.call_later(self._pause_s(operation), go_on))
            job.has_begun = True  # the start of work is already random
        while (hang := self._holding(operation, path)) is not None:
            if job is None or job.is_rushed:
                self._pause_loop(hang)
                return
            job.hold_up(partial(self._wait_for, hang))

    def current(self) -> _Job | None:
        """Return the running job; None: the loop runs."""
        if Strand.current is None:
            return None
        job = self._jobs.get(Strand.current)
        if job is None:
            raise Stopped  # a thread of a process that has ended
        return job

    def _holding(self, operation: str, path: str) -> Hang | None:
        return next((hang for hang in self._hangs if hang.holds(operation, path)), None)

    def _wait_for(self, hang: Hang, go_on: Callable[[], None]) -> None:
        hang.when_over(lambda: self.loop.call_soon(go_on))

    def _pause_loop(self, hang: Hang) -> None:
        """Pause the loop for a hanging disk. The operation itself takes effect before the pause."""
        if self.loop.is_alive and not self.loop.is_paused:
            self.loop.pause()
            hang.when_over(self.loop.resume)

    def rush(self, job: _Job, until: Callable[[], bool]) -> None:
        """Run ``job`` for the waiting loop, without the passage of time, until ``until`` holds."""
        job.is_rushed = True
        while not until():
            job.go_on()
        job.is_rushed = False

    def abandon(self) -> None:
        """End all threads of a process that has ended."""
        jobs, self._jobs = self._jobs, {}
        for strand in jobs:
            strand.abandon()


class SimMutex:
    """A lock between the threads of one process, and its event loop."""

    def __init__(self, turns: DiskTurns) -> None:
        self._turns = turns
        self._owner: _Job | None = None
        self._is_taken = False
        self._waiting: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        job = self._turns.current()
        while self._is_taken:
            owner = self._owner
            assert owner is not None and owner is not job, "no other owner can release it"
            if job is None or job.is_rushed:
                self._turns.rush(owner, lambda: not self._is_taken)
            else:
                job.hold_up(self._waiting.append)
        self._owner, self._is_taken = job, True

    def __exit__(self, *_error: object) -> None:
        self._owner, self._is_taken = None, False
        waiting, self._waiting = self._waiting, []  # all: jobs that continued ignore it
        for go_on in waiting:
            self._turns.loop.call_soon(go_on)


class SimWorkers(Workers):
    """The ``Workers`` of a simulated process, which end with it."""

    def __init__(
        self,
        loop: NodeLoop,
        *,
        count: int,
        delay_s: Callable[[], float],
        chance: Callable[[], float],
        turns: DiskTurns | None = None,
    ) -> None:
        """``count``: maximum number of pieces of work in progress. ``delay_s``: returns the seconds
        of the next one. ``chance``: as ``random.random``; selects the start within that time.
        ``turns``: None: work is never suspended.
        """
        self.unfinished = Unfinished()
        self._loop: NodeLoop = loop
        self._free = count
        self._delay_s = delay_s
        self._chance = chance
        self._turns = turns
        self._backlog: deque[tuple[Callable[[], Any], Done]] = deque()

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        self._backlog.append((work, self.unfinished.until(done)))
        self._begin()

    def stop(self) -> None:
        """Run work that has not started now; work in progress completes."""
        while self._backlog:
            self._do(self._backlog.popleft()[0])

    def _begin(self) -> None:
        if self._free and self._backlog:
            self._free -= 1
            work, done = self._backlog.popleft()
            delay_s = WAKE_S + self._delay_s()
            before_s = delay_s * self._chance()
            self._loop.call_later(before_s, self._perform, work, done, delay_s - before_s)

    def _perform(self, work: Callable[[], Any], done: Done, after_s: float) -> None:
        def then(result: Any, error: BaseException | None) -> None:
            if isinstance(error, Stopped):
                self._loop.on_stopped()
            elif error is not None and not isinstance(error, Exception):
                raise error
            elif self._loop.is_alive:  # the work may have ended the process
                self._loop.call_later(after_s, self._finish, done, result, error)

        if self._turns is not None and self._turns.must_divide():
            self._turns.run(work, then)
        else:
            then(*self._do(work))

    def _do(self, work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            return work(), None
        except (Exception, Stopped) as error:  # noqa: BLE001 - the loop handles it
            return None, error

    def _finish(self, done: Done, result: Any, error: Exception | None) -> None:
        self._free += 1
        self._begin()
        done(result, error)
