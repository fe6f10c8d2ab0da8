"""Blocking waits of application threads. Ctrl-C ends every wait here.

All waits use plain locks: Python lets a signal handler interrupt them, with or without a timeout,
and they cost a fraction of a ``threading.Event``. A wait in an I/O thread of this library could
never end, so it is refused.
"""

from __future__ import annotations

import math
import time
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from raftlog.errors import InvalidRequestError

if TYPE_CHECKING:
    from raftlog.client.delivery import Delivery

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
