"""The end of a client that several threads may close at once: one does it, the others wait.

So does the end of the interpreter, which would otherwise stop the I/O threads under a daemon thread
that closes something, and lose what it was about to commit.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final

from raftlog.client.loop_thread import LoopThread

_under_way: Final[dict[Closing, float]] = {}  # and until when, in its clock's seconds


class Closing:
    """Of one client, whose I/O thread is ``thread``."""

    def __init__(self, thread: LoopThread, monotonic: Callable[[], float]) -> None:
        self._thread = thread
        self._monotonic = monotonic
        self._lock = RLock()  # a callback of the closing thread may close again
        self._is_begun = False

    @contextmanager
    def begin(self, *, wait_s: float, takes_s: float) -> Iterator[bool]:
        """Whether the caller is the one that has to close; if not, it is done, or somebody is still
        at it after ``wait_s`` seconds. ``takes_s``: for how long the interpreter waits for it.
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
        """Until it is done, or its clock says ``until``. Not at all in a forked child."""
        left_s = max(until - self._monotonic(), 0.0)
        if not self._thread.is_inherited and self._lock.acquire(timeout=left_s):
            self._lock.release()


def _wait_for_all() -> None:
    """At exit: before ``loop_thread`` stops its threads, as this is registered later."""
    for closing, until in list(_under_way.items()):
        closing.wait(until)


atexit.register(_wait_for_all)
