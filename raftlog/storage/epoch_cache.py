"""Which leader epoch wrote which offsets. Pure: the log persists it.

An entry (epoch, start offset) says that batches from that offset on, up to the next entry's, were
written in that epoch. An epoch in which nothing was written may have an entry too (KAFKA-15608): it
is how a replica knows the newest epoch it has seen. Source: KIP-101, KIP-279.
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
    """Invariant: epochs strictly ascend and start offsets never descend."""

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
        """The newest epoch, or -1."""
        return self._entries[-1].epoch if self._entries else -1

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Note that ``epoch`` starts at ``start_offset``; False when it is known already."""
        if epoch <= self.latest:
            assert epoch == self.latest, "a leader epoch went back"
            return False
        assert not self._entries or start_offset >= self._entries[-1].start_offset
        self._entries.append(EpochStart(epoch, start_offset))
        return True

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which the record at ``offset`` was written, or -1 when that is not known."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[index - 1].epoch if index else -1

    def end_of(self, epoch: LeaderEpoch, *, log_end_offset: Offset) -> EpochStart:
        """The largest epoch known that is ≤ ``epoch``, and the offset at which it ends (KIP-279).

        (-1, -1) when every known epoch is larger.
        """
        index = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if index == 0:
            return EpochStart(-1, -1)
        end = log_end_offset
        if index < len(self._entries):
            end = self._entries[index].start_offset
        return EpochStart(self._entries[index - 1].epoch, end)

    def cut(self, log_end_offset: Offset) -> bool:
        """Forget epochs that start beyond the log's end; True when any was."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset > log_end_offset:
            self._entries.pop()
        return len(self._entries) != before

    def advance_start(self, log_start_offset: Offset) -> bool:
        """Forget epochs that lie wholly below the log's start; True when anything changed."""
        keep = bisect_right(self._entries, log_start_offset, key=lambda entry: entry.start_offset)
        if keep <= 1:
            return False
        del self._entries[: keep - 1]
        return True
