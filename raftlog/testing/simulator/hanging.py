"""Disks that hang: operations that do not return, for minutes or permanently.

A blocked thread waits for the end of the hang, or of the process. If the event loop of a process
uses such a disk directly, it blocks, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

SYNCS: Final = frozenset(("sync", "sync_dir"))  # wait for the device; others are cached


@dataclass(slots=True)
class Hang:
    """A hang of ``operations`` on ``path``, except on ``spares`` (shell patterns)."""

    path: str = "*"
    spares: str = ""
    operations: Collection[str] = SYNCS
    is_over: bool = False
    _held: list[Callable[[], object]] = field(default_factory=list)

    def holds(self, operation: str, path: str) -> bool:
        return (
            not self.is_over
            and operation in self.operations
            and fnmatchcase(path, self.path)
            and not fnmatchcase(path, self.spares)
        )

    def when_over(self, go_on: Callable[[], object]) -> None:
        self._held.append(go_on)

    def end(self) -> None:
        """End the hang: continue the blocked operations, in their order."""
        self.is_over = True
        held, self._held = self._held, []
        for go_on in held:
            go_on()
