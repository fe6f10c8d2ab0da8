"""The part of a synthetic history that has a compacted topic: keys, tombstones, and a log of which
only what is last of each key is left, in front of a tail that was not looked at yet.

Appends of which nobody knows whether they are there, among them tombstones, which take what they
deleted along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from raftlog.testing import history as keys
from raftlog.testing.history import AnyEntry, Append, Poll, Seen, Type

PARTITION: Final = "keyed:0"
KEYS: Final = 24
FIRST_VALUE: Final = 1 << 42  # others do not get so far
APPENDS: Final = 40
APPENDED: Final = 4  # records at a time
CLEAN: Final = 0.7  # of the log
TOMBSTONES_KEPT: Final = 0.4  # of the log: below, they are gone


@dataclass
class Compacted:
    """``begin`` and ``end``: of the load, in ns."""

    random: Random
    begin: int
    end: int
    values: list[int] = field(default_factory=list)  # by offset, of all that was ever there

    def entries(self) -> list[AnyEntry]:
        """Appends, and polls of somebody who reads all the time, before anything is compacted."""
        out: list[AnyEntry] = []
        step = (self.end - self.begin) // (APPENDS + 1)
        value = FIRST_VALUE
        for number in range(APPENDS):
            at = self.begin + step * (number + 1)
            # Now and then nobody knows; half of that is there.
            outcome: Type = "info" if number % 7 == 3 else "ok"
            lands = outcome == "ok" or self.random.random() < 0.5
            offset = len(self.values)
            offsets = [(value, APPENDED, offset)] if outcome == "ok" else []
            for later, type_ in enumerate(("invoke", outcome)):
                out.append(
                    Append(
                        time=at + later, process=f"keyed-{number}", type=type_,
                        partition=PARTITION, first=value, count=APPENDED,
                        offsets=offsets if later else [],
                    )
                )  # fmt: skip
            if lands:
                self.values += range(value, value + APPENDED)
                out += self._poll(at + 2, offset, value)
            value += APPENDED
        return out

    def _poll(self, at: int, offset: int, value: int) -> list[AnyEntry]:
        positions = {PARTITION: offset}
        found = {PARTITION: [(offset, APPENDED, value, 1)]}
        process = "keyed-reader"
        return [
            Poll(time=at, process=process, type="invoke", positions=positions),
            Poll(time=at + 1, process=process, type="ok", records=found),
        ]

    @property
    def log_end(self) -> int:
        return len(self.values)

    def log(self) -> list[Seen]:
        """What is left of it, record by record."""
        clean, forgotten = (int(part * self.log_end) for part in (CLEAN, TOMBSTONES_KEPT))
        last = {keys.key_of(v, KEYS): at for at, v in enumerate(self.values) if at < clean}
        found = []
        for at, value in enumerate(self.values):
            is_left = at >= clean or last[keys.key_of(value, KEYS)] == at
            if is_left and not (at < forgotten and keys.is_tombstone(value)):
                found.append((at, 1, value, 1))
        return found
