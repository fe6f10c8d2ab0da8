"""Signals that end a command: Ctrl-C, a service manager, a terminal that is closed.

All of them become a ``KeyboardInterrupt`` where the command is, so that it ends as it would by
Ctrl-C: places are committed, processes that it started are ended. ``broker`` and ``up`` have
their own handlers.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

# SIGHUP is ignored under nohup, and then stays so.
TOLD_BY: Final = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """By another signal than Ctrl-C's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def status_of(error: KeyboardInterrupt) -> int:
    """The exit status: 128 and the signal's number, as shells have it."""
    return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)


def raise_when_told() -> None:
    """From now on, ``Terminated`` is raised in the main thread when one of these signals comes."""
    for number in TOLD_BY:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


class HeldInterrupt:
    """Holds an interrupt back while something is done that it would leave half done; only the
    first. ``has_come``: what would have been raised.
    """

    has_come: KeyboardInterrupt | None = None

    def __enter__(self) -> HeldInterrupt:
        held = [n for n in (signal.SIGINT, *TOLD_BY) if callable(signal.getsignal(n))]
        self._before = {number: signal.signal(number, self._note) for number in held}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        if self.has_come is not None:  # it takes too long
            raise interrupt
        self.has_come = interrupt
