"""Leader epoch cache: the epoch that wrote each range of offsets. No I/O: the log persists it.

An entry (epoch, start offset) covers the batches from that offset up to the next entry. They were
written in that epoch. An epoch without batches can have an entry too (KAFKA-15608), so that a
replica knows the newest epoch that it has seen. Sources: KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raftlog.types import LeaderEpoch, Offset


class EpochStart(NamedTuple):
    epoch: LeaderEpoch
    start_offset: Offset


class EpochCache:
    """Leader epoch cache. Invariant: epochs strictly ascend and start offsets never descend."""

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: list[EpochStart] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def latest(self) -> LeaderEpoch:
        """Newest epoch, or -1."""
        return self._entries[-1].epoch if self._entries else -1

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Add the entry (``epoch``, ``start_offset``). Returns False if the epoch is known."""
        if epoch <= self.latest:
            assert epoch == self.latest, "the leader epoch decreased"
            return False
        assert not self._entries or start_offset >= self._entries[-1].start_offset
        self._entries.append(EpochStart(epoch, start_offset))
        return True

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch in which the record at ``offset`` was written; -1 if unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[index - 1].epoch if index else -1

    def end_of(self, epoch: LeaderEpoch, *, log_end_offset: Offset) -> EpochStart:
        """Return the largest known epoch that is at most ``epoch``, and its end offset (KIP-279).

        Returns (-1, -1) if every known epoch is larger.
        """
        entries = self._entries
        if entries and epoch >= entries[-1].epoch:
            return EpochStart(entries[-1].epoch, log_end_offset)
        index = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if index == 0:
            return EpochStart(-1, -1)
        return EpochStart(entries[index - 1].epoch, entries[index].start_offset)

    def cut(self, log_end_offset: Offset) -> bool:
        """Remove epochs that start above the log end. Returns True if any was removed."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset > log_end_offset:
            self._entries.pop()
        return len(self._entries) != before

    def advance_start(self, log_start_offset: Offset) -> bool:
        """Remove epochs that are completely below the log start. Returns True if the cache
        changed."""
        keep = bisect_right(self._entries, log_start_offset, key=lambda entry: entry.start_offset)
        if keep <= 1:
            return False
        del self._entries[: keep - 1]
        return True
