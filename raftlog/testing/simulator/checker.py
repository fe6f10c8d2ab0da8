"""Checks a run: the operations and observations of clients, and the final logs. Pure.

Each anomaly has a name and an exact condition (``KINDS``); most are those of Jepsen's Kafka
workload. Every check is one pass over the history or over a log, with hash maps, and without a
search.

A send that ended ``fail`` must not be visible, one that ended ``info`` may be, and one that ended
``ok`` has to be at its acknowledged offset, if its kind of acknowledgement guarantees that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from raftlog.testing.simulator.history import (
    Deletion,
    EndOffsets,
    History,
    Outcome,
    Poll,
    Seen,
    Send,
)
from raftlog.types import Offset, TopicPartition

KINDS: Final[Mapping[str, str]] = {
    "LOST": "an acknowledged value is not in the final log",
    "MOVED": "an acknowledged value is in the final log, at another offset than acknowledged",
    "DUPLICATE": "a value of an idempotent producer is at two offsets",
    "G1A": "a reader received a value whose send certainly failed",
    "PHANTOM": "a reader received a value that no client sent to that partition",
    "OBSERVED-THEN-LOST": "a value that a consumer received is not in the final log",
    "INCONSISTENT-OFFSET": "two values were seen at one offset",
    "INT-NONMONOTONIC-POLL": "within one poll, offsets of a partition do not increase",
    "NONMONOTONIC-POLL": "a poll gives an offset not above that of the poll before it",
    "INT-POLL-SKIP": "within one poll, a record is missing",
    "POLL-SKIP": "a record is missing between two polls of one consumer",
    "NONMONOTONIC-SEND": "an idempotent producer's acknowledged values are not in its order",
    "REALTIME-ORDER": "a value was acknowledged before another was sent, which is before it",
    "GAP": "offsets are missing in a log above its start",
    "HW-REGRESSION": "an end offset is lower than one that was seen, or acknowledged, before it",
    "EPOCH-ORDER": "leader epochs decrease with increasing offsets, or differ for one record",
    "REPLICA-DIVERGENCE": "a replica's log differs from the final log below its end",
    "REPLICA-BEHIND": "a replica that should have everything committed has not",
}


class Violation(NamedTuple):
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Dump:
    """What one replica's files hold of a partition, from its log start on."""

    broker: str
    partition: TopicPartition
    records: Sequence[Seen]
    is_in_sync: bool = True  # it should hold everything that is committed


@dataclass(frozen=True, slots=True)
class Ending:
    """What is there at the end.

    ``reads``: what fresh consumers read of each partition, from its start to its end: one sequence
    for each of them. ``dumps``: what the replicas' files hold. ``retained_from``: below these
    offsets records may be gone by the topic's retention.
    """

    reads: Mapping[TopicPartition, Sequence[Sequence[Seen]]]
    dumps: Sequence[Dump] = ()
    retained_from: Mapping[TopicPartition, Offset] = field(default_factory=dict)

    def everything(self) -> Iterator[tuple[TopicPartition, Sequence[Seen]]]:
        """Yield all records that any reader or replica has, by partition."""
        for name, reads in self.reads.items():
            for records in reads:
                yield name, records
        for dump in self.dumps:
            yield dump.partition, dump.records


def check(
    history: History, ending: Ending, *, durable_acks: Collection[int] = (-1,)
) -> list[Violation]:
    """Return all anomalies; empty if the run is valid.

    ``durable_acks``: the values of ``acks`` whose acknowledgement guarantees that nothing is lost.
    """
    return list(Checker(history, ending, durable_acks).run())


@dataclass(slots=True)
class Partition:
    """What the final log of a partition is taken to be."""

    name: TopicPartition
    log: dict[Offset, Seen] = field(default_factory=dict)
    where: dict[str, Offset] = field(default_factory=dict)  # the last offset of each value
    end: Offset = 0
    deleted_below: Offset = 0  # records below may be gone


class Checker:
    """Of one run. What ``compacted_checker`` has its own answers to is public."""

    def __init__(self, history: History, ending: Ending, durable_acks: Collection[int]) -> None:
        self.ending = ending
        self.durable_acks = durable_acks
        self.sends = history.sends
        self.by_value = {send.value: send for send in self.sends}
        self.polls = [entry for entry in history if isinstance(entry, Poll) and entry.is_ok]
        self.ends = [entry for entry in history if isinstance(entry, EndOffsets) and entry.is_ok]
        self.partitions: dict[TopicPartition, Partition] = {}
        for name in ending.reads:
            retained_from = ending.retained_from.get(name, 0)
            self.partitions[name] = Partition(name, deleted_below=retained_from)
        for entry in history:
            if isinstance(entry, Deletion) and entry.partition in self.partitions:
                partition = self.partitions[entry.partition]
                partition.deleted_below = max(partition.deleted_below, entry.before)

    def run(self) -> Iterator[Violation]:
        for partition in self.partitions.values():
            reads = self.ending.reads[partition.name]
            yield from self._take_log(partition, reads[0] if reads else ())
            for other in reads[1:]:
                yield from self._same(partition, other, "another reader")
        yield from self._values()
        yield from self.acknowledged()
        yield from self._polled()
        yield from self._poll_order()
        yield from self._send_order()
        yield from self._real_time()
        yield from self._high_watermarks()
        yield from self.replicas()

    # -- the final log

    def _take_log(self, partition: Partition, records: Sequence[Seen]) -> Iterator[Violation]:
        name = partition.name
        yield from self.well_formed(f"{name}", records, partition.deleted_below)
        for seen in records:
            earlier = partition.where.get(seen.value)
            send = self.by_value.get(seen.value)
            if earlier is not None and send is not None and send.idempotent:
                yield Violation(
                    "DUPLICATE", f"{name} has {seen.value} at {earlier} and at {seen.offset}"
                )
            partition.where[seen.value] = seen.offset
            partition.log[seen.offset] = seen
            partition.end = max(partition.end, seen.offset + 1)

    def well_formed(
        self, who: str, records: Sequence[Seen], deleted_below: Offset, /
    ) -> Iterator[Violation]:
        """Dense offsets, and epochs that do not go down. Below a deletion, a log may start
        anywhere.
        """
        if records and records[0].offset > deleted_below:
            yield Violation("GAP", f"{who} starts at {records[0].offset}, not at {deleted_below}")
        for before, seen in pairwise(records):
            if seen.offset != before.offset + 1:
                yield Violation("GAP", f"{who} has {seen.offset} after {before.offset}")
            if seen.epoch < before.epoch:
                yield Violation("EPOCH-ORDER", f"{who} has {seen} after {before}")

    def _same(self, partition: Partition, records: Sequence[Seen], who: str) -> Iterator[Violation]:
        for seen in records:
            known = partition.log.get(seen.offset)
            if known is not None and known.value != seen.value:
                yield Violation(
                    "INCONSISTENT-OFFSET",
                    f"{partition.name} has {known.value} at {seen.offset}; {who}: {seen.value}",
                )

    def _values(self) -> Iterator[Violation]:
        """Check that no reader received a value that no client sent, or whose send failed."""
        for partition in self.partitions.values():
            for seen in partition.log.values():
                yield from self.value(partition.name, seen)

    def value(self, name: TopicPartition, seen: Seen) -> Iterator[Violation]:
        send = self.by_value.get(seen.value)
        if send is None or send.partition != name:
            yield Violation("PHANTOM", f"{name} has {seen.value} at {seen.offset}")
        elif send.outcome is Outcome.FAIL:
            yield Violation(
                "G1A", f"{name} has {seen.value} at {seen.offset}; it failed: {send.error}"
            )

    # -- what was acknowledged

    def acknowledged(self) -> Iterator[Violation]:
        for send in self.sends:
            partition = self.partitions.get(send.partition)
            if not send.is_ok or send.offset < 0 or partition is None:
                continue
            if send.acks not in self.durable_acks or send.offset < partition.deleted_below:
                continue
            found = partition.log.get(send.offset)
            if found is not None and found.value == send.value:
                continue
            what = f"{partition.name}: {send.value}, acknowledged at {send.offset}"
            if send.value in partition.where:
                yield Violation("MOVED", f"{what}, is at {partition.where[send.value]}")
            else:
                where = "middle" if send.offset < partition.end else "tail"
                yield Violation("LOST", f"{what} ({where}; the log ends at {partition.end})")

    def _send_order(self) -> Iterator[Violation]:
        """Check idempotent producers only: retries of others may be overtaken."""
        last: dict[tuple[str, TopicPartition], Send] = {}
        for send in self.sends:
            if not send.is_ok or send.offset < 0 or not send.idempotent:
                continue
            before = last.get((send.process, send.partition))
            if before is not None and before.offset >= send.offset:
                yield Violation(
                    "NONMONOTONIC-SEND",
                    f"{send.partition}: {before.value} at {before.offset}, then {send.value} at "
                    f"{send.offset}",
                )
            last[send.process, send.partition] = send

    def _real_time(self) -> Iterator[Violation]:
        """An append takes effect between its invocation and its acknowledgement."""
        acknowledged: dict[TopicPartition, list[Send]] = {}
        for send in self.sends:
            if send.is_ok and send.offset >= 0 and send.acks in self.durable_acks:
                acknowledged.setdefault(send.partition, []).append(send)
        for name, sends in acknowledged.items():
            latest: Send | None = None  # by invocation, among those at lower offsets
            for send in sorted(sends, key=lambda send: send.offset):
                if latest is not None and send.completed_ns < latest.invoked_ns:
                    yield Violation(
                        "REALTIME-ORDER",
                        f"{name}: {send.value} at {send.offset} was acknowledged before "
                        f"{latest.value} at {latest.offset} was sent",
                    )
                if latest is None or send.invoked_ns > latest.invoked_ns:
                    latest = send

    # -- what consumers saw

    def _polled(self) -> Iterator[Violation]:
        at: dict[tuple[TopicPartition, Offset], Seen] = {}
        for poll in self.polls:
            for name, records in poll.records.items():
                for seen in records:
                    before = at.setdefault((name, seen.offset), seen)
                    if before is not seen:
                        yield from _same_record(name, before, seen)
        for (name, _), seen in at.items():
            partition = self.partitions.get(name)
            if partition is not None:
                yield from self.value(name, seen)
                yield from self.still_there(partition, seen)

    def still_there(self, partition: Partition, seen: Seen) -> Iterator[Violation]:
        """Check that records delivered to a consumer remain."""
        known = partition.log.get(seen.offset)
        if known is None:
            if seen.offset >= partition.deleted_below:
                yield Violation(
                    "OBSERVED-THEN-LOST",
                    f"{partition.name}: {seen.value} at {seen.offset}; the log ends at "
                    f"{partition.end}",
                )
        elif known.value != seen.value:
            yield Violation(
                "INCONSISTENT-OFFSET",
                f"{partition.name}: {seen.value} was seen at {seen.offset}, now {known.value} is "
                "there",
            )
            if seen.value not in partition.where:
                yield Violation("OBSERVED-THEN-LOST", f"{partition.name}: {seen.value}")
        elif known.epoch != seen.epoch:
            yield Violation("EPOCH-ORDER", f"{partition.name}: {seen}, then {known}")

    def _poll_order(self) -> Iterator[Violation]:
        position: dict[tuple[str, TopicPartition], Offset] = {}
        for poll in self.polls:
            for name, records in poll.records.items():
                key = poll.process, name
                partition = self.partitions.get(name)
                deleted_below = partition.deleted_below if partition is not None else 0
                inside = ""
                for seen in records:
                    expected = position.get(key)
                    where = f"{poll.process}, {name}: {seen.offset} where {expected} comes next"
                    if expected is not None and seen.offset < expected:
                        yield Violation(f"{inside}NONMONOTONIC-POLL", where)
                    elif (
                        expected is not None
                        and not (poll.resets_to_latest and expected < deleted_below)
                        and self.skipped(name, expected, seen.offset, deleted_below)
                    ):
                        yield Violation(f"{inside}POLL-SKIP", where)
                    position[key] = seen.offset + 1
                    inside = "INT-"

    def skipped(
        self, _name: TopicPartition, expected: Offset, found: Offset, deleted_below: Offset, /
    ) -> bool:
        """Whether a consumer that got the record at ``found`` has missed some."""
        return found > max(expected, deleted_below)

    def _high_watermarks(self) -> Iterator[Violation]:
        """Check that offsets known as committed are visible to all later requests."""
        for name in self.partitions:
            known = sorted(self._committed(name))
            next_known, least, source = 0, 0, ""
            asked = [entry for entry in self.ends if name in entry.ends]
            for entry in sorted(asked, key=lambda entry: entry.invoked_ns):
                while next_known < len(known) and known[next_known][0] < entry.invoked_ns:
                    if known[next_known][1] > least:
                        _, least, source = known[next_known]
                    next_known += 1
                if entry.ends[name] < least:
                    yield Violation(
                        "HW-REGRESSION",
                        f"{name} ends at {entry.ends[name]} for {entry.process}, after {source} "
                        f"knew of {least}",
                    )

    def _committed(self, name: TopicPartition) -> Iterator[tuple[int, Offset, str]]:
        """Return (time since when a client knew that the partition ended no lower than this, end,
        client)."""
        for entry in self.ends:
            if name in entry.ends:
                yield entry.completed_ns, entry.ends[name], entry.process
        for poll in self.polls:
            if name in poll.records:
                yield poll.completed_ns, poll.records[name][-1].offset + 1, poll.process
        for send in self.sends:
            if send.is_ok and send.acks == -1 and send.partition == name:
                yield send.completed_ns, send.offset + 1, send.process

    # -- what replicas have

    def replicas(self) -> Iterator[Violation]:
        epochs: dict[tuple[TopicPartition, Offset, str], Seen] = {}
        for dump in self.ending.dumps:
            partition = self.partitions.get(dump.partition)
            if partition is None:
                continue
            who = f"{dump.partition} on {dump.broker}"
            yield from self.well_formed(who, dump.records, partition.deleted_below)
            end = dump.records[-1].offset + 1 if dump.records else 0
            if dump.is_in_sync and end < partition.end and partition.deleted_below < partition.end:
                yield Violation("REPLICA-BEHIND", f"{who} ends at {end} of {partition.end}")
            for seen in dump.records:
                known = partition.log.get(seen.offset)
                if (
                    seen.offset < partition.end
                    and known != seen
                    and (known is not None or seen.offset >= partition.deleted_below)
                ):
                    yield Violation("REPLICA-DIVERGENCE", f"{who} has {seen}, the log {known}")
                first = epochs.setdefault((dump.partition, seen.offset, seen.value), seen)
                if first.epoch != seen.epoch:
                    yield Violation("EPOCH-ORDER", f"{who} has {seen}, another replica {first}")


def _same_record(name: TopicPartition, before: Seen, seen: Seen) -> Iterator[Violation]:
    if before.value != seen.value:
        yield Violation(
            "INCONSISTENT-OFFSET", f"{name}: {before.value} and {seen.value} at {seen.offset}"
        )
    elif before.epoch != seen.epoch:
        yield Violation("EPOCH-ORDER", f"{name}: {before}, then {seen}")
