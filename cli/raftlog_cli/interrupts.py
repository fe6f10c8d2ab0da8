"""Signals that stop a command: Ctrl-C, and those of service managers and terminals.

Each signal raises ``KeyboardInterrupt`` in the command, which then commits its offsets and stops
the processes that it started. ``broker`` and ``up`` have other handlers.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

# Under nohup, SIGHUP remains ignored.
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """Interrupt by a signal other than SIGINT."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def status_of(error: KeyboardInterrupt) -> int:
    """Return the exit status as shells do: 128 + the number of the signal."""
    return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)


def raise_on_signals() -> None:
    """Raise ``Terminated`` in the main thread on each of ``STOP_SIGNALS`` from now on."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


class HeldInterrupt:
    """Defers the first interrupt to the end of a block that must complete. ``has_come``: the
    deferred exception."""

    has_come: KeyboardInterrupt | None = None

    def __enter__(self) -> HeldInterrupt:
        held = [n for n in (signal.SIGINT, *STOP_SIGNALS) if callable(signal.getsignal(n))]
        self._before = {number: signal.signal(number, self._note) for number in held}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        if self.has_come is not None:  # the second interrupt is not deferred
            raise interrupt
        self.has_come = interrupt
