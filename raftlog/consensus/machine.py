"""State machine of a Raft group: three functions of bytes."""

from __future__ import annotations

from typing import Protocol


class StateMachine(Protocol):
    """The replicated state of one group.

    Deterministic: the same commands in the same order produce the same results and state on every
    broker, independent of clocks, random numbers and hash order.
    """

    def apply(self, command: bytes) -> object:
        """Change the state. A rejection is a return value: it must not raise (hazard 16)."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state, for ``restore``."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by that of ``snapshot``. Raises ``ValueError`` if it is invalid."""
        ...
