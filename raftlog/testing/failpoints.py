"""Control of a broker's failpoint file: set and reset failpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from raftlog.failpoints.points import FILE_MARK, VARIABLE, Hit, hits_path, read_hits


@dataclass(frozen=True, slots=True)
class FailpointSwitch:
    """The failpoints of one broker. It reads a change at its next hit of any failpoint."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with which the broker has to be started."""
        return {VARIABLE: f"{FILE_MARK}{self.path}"}

    def arm(self, rules: Iterable[str]) -> None:
        """Set these rules, and no others. Atomic: a reader sees all or none."""
        draft = self.path.with_name(self.path.name + ".draft")
        draft.write_text("".join(f"{rule}\n" for rule in rules), encoding="utf-8")
        os.replace(draft, self.path)

    def disarm(self) -> None:
        self.arm(())

    @property
    def hits(self) -> list[Hit]:
        """Return the hits so far, in all of the broker's processes."""
        return read_hits(self.path)

    def forget_hits(self) -> None:
        """Clear ``hits``."""
        hits_path(self.path).unlink(missing_ok=True)
