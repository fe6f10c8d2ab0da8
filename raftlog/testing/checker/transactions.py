"""Check of transactions, from outside: what clients did, what readers got, and the final log.

Anomalies that are looked for (``KINDS``) are those of Jepsen's Kafka workload. Write cycles between
interleaved transactions are not: Kafka permits them (Jepsen: Redpanda 21.10.1). Offsets may have
gaps, because markers take offsets.

Pure: all times are arguments, in seconds of one clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal, NamedTuple, TypeAlias

from raftlog.types import Offset, TopicPartition

KINDS: Final[Mapping[str, str]] = {
    "ABORTED-READ": "a value of an aborted transaction is in a committed read or the final log",
    "LOST-WRITE": "a value of an acknowledged commit, or that was read, is not in the final log",
    "TORN": "some values of a transaction are in the final log, and others are not",
    "PRECOMMITTED-READ": "a value was read before the commit of its transaction was requested",
    "DUPLICATE": "a value is at two offsets",
    "PHANTOM": "a value that no transaction sent to the partition",
    "INCONSISTENT-OFFSET": "two values were read at one offset",
    "WRITE-ORDER": "values of one transaction are not in the order in which it sent them",
    "NONMONOTONIC-POLL": "a reader got a lower offset than before",
    "POLL-SKIP": "a reader did not get a value between two others that it got",
    "G1C": "transactions have read from each other in a circle",
    "OFFSETS-SPLIT": "an input was committed without its output, or has an output without a commit",
    "ZOMBIE": "a transaction that began after its process was fenced took effect",
}
Outcome: TypeAlias = Literal["committed", "aborted", "unknown"]


class Place(NamedTuple):
    partition: TopicPartition
    value: bytes


@dataclass(slots=True)
class Transaction:
    """``outcome``: as its process knows it. ``ending_s``: time of the request to commit; None: it
    was never requested. ``after_fence``: its process had been told before that a newer instance
    has its id. ``read``: values that it consumed, whose offsets it commits.
    """

    name: str
    sent: list[Place] = field(default_factory=list)
    read: list[Place] = field(default_factory=list)
    outcome: Outcome = "unknown"
    ending_s: float | None = None
    after_fence: bool = False


class Read(NamedTuple):
    """A value that a reader of committed records got, at a time."""

    reader: str
    at_s: float
    partition: TopicPartition
    offset: Offset
    value: bytes


class Finding(NamedTuple):
    kind: str
    text: str


Log: TypeAlias = Mapping[TopicPartition, Sequence[tuple[Offset, bytes]]]


def check(
    transactions: Sequence[Transaction],
    reads: Sequence[Read],
    final: Log,
    committed: Mapping[TopicPartition, Offset] | None = None,
) -> list[Finding]:
    """Return what is wrong. ``final``: all committed records, by partition. ``committed``: offsets
    of the group at the end, whose commits were parts of transactions; None without a group.
    """
    found: list[Finding] = []
    for findings in (
        _effects(transactions, final),
        _final_log(transactions, final),
        _reads(transactions, reads, final),
        _cycles(transactions),
        _splits(transactions, final, committed),
    ):
        found += findings
    return found


def _values(final: Log) -> set[Place]:
    return {Place(where, value) for where, records in final.items() for _, value in records}


def _effects(transactions: Iterable[Transaction], final: Log) -> Iterator[Finding]:
    there = _values(final)
    for each in transactions:
        present = [place for place in each.sent if place in there]
        missing = [place for place in each.sent if place not in there]
        if each.outcome == "aborted" and present:
            yield Finding("ABORTED-READ", f"{each.name}: {present[0]} is in the final log")
        elif each.outcome == "committed" and missing:
            yield Finding("LOST-WRITE", f"{each.name}: {missing[0]} of {len(each.sent)}")
        elif present and missing:
            yield Finding("TORN", f"{each.name}: has {present}, lacks {missing}")
        if each.ending_s is None and present:
            yield Finding("ABORTED-READ", f"{each.name} never asked to commit {present[0]}")
        if each.after_fence and present:
            yield Finding("ZOMBIE", f"{each.name}: {present[0]}")


def _final_log(transactions: Iterable[Transaction], final: Log) -> Iterator[Finding]:
    known = {place for each in transactions for place in each.sent}
    offsets: dict[Place, Offset] = {}
    for where, records in final.items():
        for offset, value in records:
            place = Place(where, value)
            if place not in known:
                yield Finding("PHANTOM", f"{place} at offset {offset}")
            if place in offsets:
                yield Finding("DUPLICATE", f"{place} at offsets {offsets[place]} and {offset}")
            offsets[place] = offset
    for each in transactions:
        newest: dict[TopicPartition, Offset] = {}
        for place in each.sent:
            if place not in offsets:
                continue
            if offsets[place] < newest.get(place.partition, -1):
                yield Finding("WRITE-ORDER", f"{each.name}: {place} at {offsets[place]}")
            newest[place.partition] = offsets[place]


def _reads(
    transactions: Iterable[Transaction], reads: Iterable[Read], final: Log
) -> Iterator[Finding]:
    sender = {place: each for each in transactions for place in each.sent}
    at: dict[tuple[TopicPartition, Offset], bytes] = {
        (where, offset): value for where, records in final.items() for offset, value in records
    }
    position: dict[tuple[str, TopicPartition], Offset] = {}
    there = _values(final)
    kept = {where: sorted(offset for offset, _ in records) for where, records in final.items()}
    for read in reads:
        place = Place(read.partition, read.value)
        source = sender.get(place)
        if source is None:
            yield Finding("PHANTOM", f"{read}")
        elif source.outcome == "aborted":
            yield Finding("ABORTED-READ", f"{source.name}: {read}")
        elif source.ending_s is None or read.at_s < source.ending_s:
            yield Finding("PRECOMMITTED-READ", f"{source.name} at {source.ending_s}: {read}")
        elif source.outcome == "unknown" and place not in there:
            yield Finding("LOST-WRITE", f"{source.name}: {read}")
        if at.setdefault((read.partition, read.offset), read.value) != read.value:
            yield Finding("INCONSISTENT-OFFSET", f"{read}: another value is there")
        last = position.get((read.reader, read.partition), read.offset - 1)
        if read.offset <= last:
            yield Finding("NONMONOTONIC-POLL", f"{read} after offset {last}")
        offsets = kept.get(read.partition, [])
        # Below a committed record that was read, the end of each transaction was known.
        if bisect_right(offsets, last) < bisect_left(offsets, read.offset):
            yield Finding("POLL-SKIP", f"{read} after offset {last}")
        position[read.reader, read.partition] = read.offset


def _cycles(transactions: Iterable[Transaction]) -> Iterator[Finding]:
    writer = {place: each.name for each in transactions for place in each.sent}
    sources = {
        each.name: {writer[place] for place in each.read if place in writer}
        for each in transactions
        if each.read
    }
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        yield Finding("G1C", f"{error.args[1]}")


def _splits(
    transactions: Iterable[Transaction],
    final: Log,
    committed: Mapping[TopicPartition, Offset] | None,
) -> Iterator[Finding]:
    """Each input below the group's offset has its output once, and no other has one."""
    if committed is None:
        return
    there = _values(final)
    outputs: dict[Place, list[Place]] = {}
    for each in transactions:
        for place, output in zip(each.read, each.sent, strict=False):
            if output in there:
                outputs.setdefault(place, []).append(output)
    for where in {*committed, *(place.partition for place in outputs)}:
        end = committed.get(where, 0)
        for offset, value in final.get(where, ()):
            count = len(outputs.get(Place(where, value), ()))
            if count != (offset < end):
                text = f"{where} at {offset} has {count} outputs; the group is at {end}"
                yield Finding("OFFSETS-SPLIT", text)
