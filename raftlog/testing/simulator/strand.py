"""A blocking call that can be suspended while virtual time passes.

The call has a thread, but never runs at the same time as the loop: each waits while the other runs.
Its actions and their times therefore depend on the loop's decisions alone. One round trip costs
about 50 µs of real time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

from raftlog.testing.disk import Stopped


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
