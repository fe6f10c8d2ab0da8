"""Checks a run on a compacted topic: records that may be missing, and records that must not. Pure.

A log keeps at least the last record of each key. A missing record is valid if the key has a newer
record, or if the last one was a tombstone whose retention has ended. All other conditions of the
``checker`` apply, too. Each replica compacts independently: differences between replicas are
checked in the same way.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from raftlog.testing.simulator import checker
from raftlog.testing.simulator.checker import Checker, Ending, Partition, Violation
from raftlog.testing.simulator.history import History, Outcome, Seen, Send
from raftlog.types import Offset, TopicPartition

KINDS: Final[Mapping[str, str]] = {
    **checker.KINDS,
    "RESURRECTED": "the last record of a key that was acknowledged is gone, an older one is there",
}


def check_compacted(
    history: History,
    ending: Ending,
    *,
    durable_acks: Collection[int] = (-1,),
    keeps_tombstones: bool,
) -> list[Violation]:
    """Every anomaly that there is; none if the run was right.

    ``durable_acks``: as for ``check``. ``keeps_tombstones``: none can be old enough to go.
    """
    return list(_CompactedChecker(history, ending, durable_acks, keeps_tombstones).run())


def lasting(history: History, records: Sequence[Seen]) -> set[Offset]:
    """Return where the last record of each key is, unless it is a tombstone.

    Every reader receives these: others may be in the log of one replica, and gone from another.
    """
    sends = {send.value: send for send in history.sends}
    known = [(send, seen) for seen in records if (send := sends.get(seen.value)) is not None]
    last = {send.key: (send, seen) for send, seen in known}
    return {seen.offset for send, seen in last.values() if not send.is_tombstone}


@dataclass(slots=True)
class _Key:
    """The sends of one key in one partition, including removed records."""

    acknowledged: list[Offset] = field(default_factory=list)  # ascending
    tombstones: list[Offset] = field(default_factory=list)  # ascending, acknowledged ones
    # Sends with an unknown outcome: all of them, and the tombstones among them.
    has_others: bool = False
    may_be_deleted: bool = False


class _CompactedChecker(Checker):
    def __init__(
        self,
        history: History,
        ending: Ending,
        durable_acks: Collection[int],
        keeps_tombstones: bool,
    ) -> None:
        super().__init__(history, ending, durable_acks)
        self._keeps_tombstones = keeps_tombstones
        self._keys: dict[tuple[TopicPartition, str], _Key] = {}
        self._at: dict[tuple[TopicPartition, Offset], Send] = {}  # durably acknowledged
        for send in self.sends:
            self._take_send(send)

    def _take_send(self, send: Send) -> None:
        if send.outcome is Outcome.FAIL:
            return
        key = self._keys.setdefault((send.partition, send.key), _Key())
        if not send.is_ok or send.offset < 0 or send.acks not in self.durable_acks:
            key.has_others = True
            key.may_be_deleted |= send.is_tombstone
            return
        self._at[send.partition, send.offset] = send
        insort(key.acknowledged, send.offset)
        if send.is_tombstone:
            insort(key.tombstones, send.offset)

    # -- what may be gone

    def _is_rightly_gone(
        self, send: Send, offset: Offset, last: dict[str, Offset], deleted_below: Offset
    ) -> bool:
        """Whether a log whose keys' last records are at ``last`` need not have ``send`` any more,
        which was at ``offset``.
        """
        if offset < deleted_below:
            return True
        newest = last.get(send.key, -1)
        if newest > offset:
            return True
        if self._keeps_tombstones or newest >= deleted_below:
            return False  # nothing of the key is left once its tombstone goes
        key = self._keys[send.partition, send.key]
        return key.may_be_deleted or bool(key.tombstones and key.tombstones[-1] >= offset)

    def well_formed(
        self, who: str, records: Sequence[Seen], _deleted_below: Offset, /
    ) -> Iterator[Violation]:
        """Holes are right, but not the order of what is left."""
        for before, seen in pairwise(records):
            if seen.offset <= before.offset:
                yield Violation("GAP", f"{who} has {seen.offset} after {before.offset}")
            if seen.epoch < before.epoch:
                yield Violation("EPOCH-ORDER", f"{who} has {seen} after {before}")

    def _last(self, records: Sequence[Seen]) -> dict[str, Offset]:
        """Where the last record of each key is."""
        return {
            send.key: seen.offset
            for seen in records
            if (send := self.by_value.get(seen.value)) is not None
        }

    def _complete(
        self, partition: Partition, who: str, records: Sequence[Seen]
    ) -> Iterator[Violation]:
        """Of every key, the last record that was acknowledged is there, or one that is newer."""
        last = self._last(records)
        for (name, key), known in self._keys.items():
            if name != partition.name or not known.acknowledged:
                continue
            newest, found = known.acknowledged[-1], last.get(key, -1)
            send = self._at[name, newest]
            if found >= newest or self._is_rightly_gone(
                send, newest, last, partition.deleted_below
            ):
                continue
            what = f"{who}: {send.value}, the last of key {key}, acknowledged at {newest}"
            if found >= partition.deleted_below:
                yield Violation("RESURRECTED", f"{what}; now that is the one at {found}")
            else:
                yield Violation("LOST", what)

    # -- the questions of the checker

    def acknowledged(self) -> Iterator[Violation]:
        for partition in self.partitions.values():
            records = list(partition.log.values())
            yield from self._complete(partition, f"{partition.name}", records)
            last = self._last(records)
            for (name, offset), send in self._at.items():
                if name != partition.name or offset < partition.deleted_below:
                    continue
                found = partition.log.get(offset)
                what = f"{name}: {send.value}, acknowledged at {offset}"
                if found is not None and found.value != send.value:
                    yield Violation("INCONSISTENT-OFFSET", f"{what}, where {found.value} is")
                elif found is None and send.value in partition.where:
                    yield Violation("MOVED", f"{what}, is at {partition.where[send.value]}")
                elif found is None and not self._is_rightly_gone(
                    send, offset, last, partition.deleted_below
                ):
                    yield Violation("LOST", f"{what}; the log ends at {partition.end}")

    def still_there(self, partition: Partition, seen: Seen) -> Iterator[Violation]:
        if seen.offset in partition.log:
            yield from super().still_there(partition, seen)
            return
        send = self.by_value.get(seen.value)
        if send is None:
            return  # a phantom, which is told elsewhere
        last = self._last(list(partition.log.values()))
        if not self._is_rightly_gone(send, seen.offset, last, partition.deleted_below):
            yield Violation(
                "OBSERVED-THEN-LOST",
                f"{partition.name}: {seen.value} at {seen.offset}; the log ends at {partition.end}",
            )

    def skipped(
        self, name: TopicPartition, expected: Offset, found: Offset, deleted_below: Offset, /
    ) -> bool:
        """Whether a poll has left out what has no newer record of its key, and was not deleted."""
        for offset in range(max(expected, deleted_below), found):
            send = self._at.get((name, offset))
            if send is None:
                continue
            key = self._keys[name, send.key]
            is_superseded = key.acknowledged[-1] > offset or key.has_others
            if not is_superseded and (self._keeps_tombstones or not send.is_tombstone):
                return True
        return False

    def replicas(self) -> Iterator[Violation]:
        for dump in self.ending.dumps:
            partition = self.partitions.get(dump.partition)
            if partition is None:
                continue
            who = f"{dump.partition} on {dump.broker}"
            yield from self.well_formed(who, dump.records, partition.deleted_below)
            for seen in dump.records:
                known = partition.log.get(seen.offset)
                if known is not None and known != seen:
                    yield Violation("REPLICA-DIVERGENCE", f"{who} has {seen}, the log {known}")
                elif seen.offset < partition.end:
                    yield from self.value(dump.partition, seen)
            if dump.is_in_sync:
                yield from self._complete(partition, who, dump.records)
