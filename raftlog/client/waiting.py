"""Blocking a thread of the user's, and nothing else. Ctrl-C ends every wait here.

All waits are on plain locks: Python lets a signal handler interrupt those, with or without a
timeout, and they cost a fraction of what ``threading.Event`` does. A wait in one of our own I/O
threads could never end, so it is refused.
"""

from __future__ import annotations

import math
import time
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from raftlog.errors import InvalidRequestError

IO_THREADS: Final[set[int]] = set()  # idents of the running I/O threads, kept by ``loop_thread``

# A signal that comes between Python's last look for one and the system call that waits does not end
# that call: Ctrl-C would be noticed only when the wait is over. So no wait is longer than this.
WAIT_S_MAX: Final = 0.5


class Pending(Protocol):
    """Something that calls back once, now or later, from any thread."""

    def add_callback(self, callback: Callable[[], object], /) -> None: ...


Subscribe: TypeAlias = Callable[[Callable[[], object]], object]  # as Pending.add_callback


def wait_for(pending: Callable[[], Pending | None], timeout_s: float | None) -> bool:
    """Block until ``pending()`` is None, or ``timeout_s`` seconds have passed; True if it is None.

    ``pending`` gives the next thing to wait for each time, so that a wait for many is a wait for
    each.
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


def wait_once(subscribe: Subscribe, timeout_s: float | None) -> bool:
    """Block until what was subscribed is called; False when ``timeout_s`` seconds passed first."""
    lock = allocate_lock()
    lock.acquire()
    subscribe(lock.release)
    left = math.inf if timeout_s is None else timeout_s
    while left > WAIT_S_MAX:
        if lock.acquire(True, WAIT_S_MAX):
            return True
        left -= WAIT_S_MAX
    return lock.acquire(True, max(left, 0.0))


def refuse_io_thread() -> None:
    """Raise if this thread drives I/O: waiting here for I/O would wait for itself."""
    if get_ident() in IO_THREADS:
        raise InvalidRequestError(
            "a blocking call was made in a raftlog I/O thread, for example in a done callback: "
            "it would wait for itself. Use another thread, or raftlog.aio"
        )
