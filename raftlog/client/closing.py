"""Close of a client that several threads may close: one closes it, the others wait.

The interpreter also waits at exit. Otherwise it would stop the I/O thread of a daemon thread that
closes a client, and the last commit would be lost.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final

from raftlog.client.loop_thread import LoopThread

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
