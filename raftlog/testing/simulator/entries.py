"""Conversion of a simulated run to the format of ``raftlog.testing.history``, and its check.

Each value gets a number. In a compacted topic, the number determines the key and whether the record
is a tombstone, so each send gets a number that matches its key and kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from raftlog.testing.checker.gather import FORMER, NEVER
from raftlog.testing.checker.judge import Limits, judge
from raftlog.testing.checker.run_validity import NO_APPENDS
from raftlog.testing.history import entries as format1
from raftlog.testing.history.entries import STRANGE, AnyEntry
from raftlog.testing.history.keys import are_tombstones, keys_of
from raftlog.testing.simulator import history as simulated
from raftlog.testing.simulator.history import (
    NEVER_NS,
    AnyOperation,
    History,
    Outcome,
    Seen,
    Send,
    Violation,
)
from raftlog.testing.simulator.members import GROUP, PREFIX
from raftlog.types import Offset, TopicPartition

VALUES_PER_CHUNK: Final = 1 << 16
Timed: TypeAlias = tuple[int, AnyEntry]  # ns
Row: TypeAlias = tuple[int, int, int, AnyEntry]  # ns, index of operation and entry


class Copy(NamedTuple):
    """Records of a partition at the end of the run, from log start to log end: as received by a new
    consumer, or as stored in the files of a replica."""

    who: str
    partition: TopicPartition
    records: Sequence[Seen]
    start: Offset
    end: Offset
    is_in_sync: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Final state of a run, and facts that clients cannot observe.

    ``retained_from``: retention may delete the records below these offsets. ``keys``: number of
    keys per partition of a compacted topic; else 0. ``keeps_tombstones``: the run is too short for
    the removal of tombstones. ``topic_id``: ID of the topic at the end. For a deleted topic of the
    same name: ``former_led_ns``, the last time at which a broker led a partition of it, and
    ``former_known_ns``, the last time at which a group coordinator had it in its metadata.
    ``drift_ns``: see ``Limits``.
    """

    readers: Sequence[Copy]
    replicas: Sequence[Copy] = ()
    retained_from: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    keys: int = 0
    keeps_tombstones: bool = False
    topic_id: str = ""
    former_led_ns: int = -1
    former_known_ns: int = -1
    drift_ns: int = 0


def check(
    history: History, ending: Ending, *, durable_acks: Collection[int] = (-1,)
) -> list[Violation]:
    """Check a run. Returns all anomalies; empty if the run is valid.

    ``durable_acks``: values of ``acks`` whose acknowledgement guarantees that no record is lost.
    """
    limits = Limits(
        outage_max_ns=NEVER,  # ``scenario`` requires progress
        lag_ns=0,
        durable_acks=tuple(durable_acks),
        drift_ns=ending.drift_ns,
    )
    verdict = judge(entries(history, ending), limits)
    found = [Violation(anomaly.kind, anomaly.message) for anomaly in verdict.anomalies]
    troubles = [text for text in verdict.troubles if text != NO_APPENDS]
    return found + [Violation("HISTORY", text) for text in troubles]


def entries(history: History, ending: Ending) -> list[AnyEntry]:
    """Return the entries of a run in time order."""
    return list(_Conversion(history, ending).run())


class _Conversion:
    def __init__(self, history: History, ending: Ending) -> None:
        self._history = history
        self._ending = ending
        self._numbers = _numbers(history.sends, ending.keys)
        self._partitions = sorted({copy.partition for copy in ending.readers})
        self._rows: list[Row] = []
        self._members: set[str] = set()
        self._commits = 0
        self._how: dict[type[AnyOperation], Callable[[Any], list[Timed]]] = {
            Send: self._append,
            simulated.Poll: self._poll,
            simulated.EndOffsets: self._ends,
            simulated.Deletion: self._deletion,
            simulated.Commit: self._commit,
            simulated.Committed: self._committed,
            simulated.Owning: self._owning,
            simulated.Recreation: self._recreation,
        }
        recreated = [e for e in history if isinstance(e, simulated.Recreation)]
        self._deleted_ns = recreated[0].invoked_ns if recreated else NEVER_NS
        owned = [e.topic_id for e in history if isinstance(e, simulated.Owning)]
        former = next((topic_id for topic_id in owned if topic_id != ending.topic_id), "")
        self._former_ids = dict.fromkeys(self._partitions, former)

    def run(self) -> Iterator[AnyEntry]:
        yield self._start()
        for partition, before in self._ending.retained_from.items():
            add = partial(format1.Delete, time=0, process="retention", partition=str(partition))
            yield from (add(type="invoke", before=before), add(type="ok", before=before))
        for number, operation in enumerate(self._history):
            self._convert(number, operation)
        rows = sorted(self._rows, key=lambda row: row[:3])
        yield from (entry for *_, entry in rows)
        last = rows[-1][0] if rows else 0
        for copy in self._ending.readers:
            yield format1.Read(
                time=last,
                process=copy.who,
                type="ok",
                partition=str(copy.partition),
                start=copy.start,
                end=copy.end,
                records=self._seen(copy.records),
            )
        for copy in self._ending.replicas:
            yield format1.Dump(
                time=last,
                process="runner",
                type="info",
                broker=int(copy.who.rpartition("-")[2]),
                partition=str(copy.partition),
                start=copy.start,
                end=copy.end,
                should_be_whole=copy.is_in_sync,
                records=self._seen(copy.records),
            )
        yield format1.Phase(time=last, process="runner", type="info", name="end")

    def _start(self) -> format1.Start:
        ending = self._ending
        config = {"cleanup.policy": "compact" if ending.keys else "delete"}
        if ending.keeps_tombstones:
            config["delete.retention.ms"] = str(7 * 86_400_000)
        topics = [
            {"name": name, "keys": ending.keys, "config": config}
            for name in sorted({partition.topic for partition in self._partitions})
        ]
        plan = {"shape": {"topics": topics}}
        return format1.Start(time=0, process="runner", type="info", plan=plan)

    def _seen(self, records: Sequence[Seen]) -> list[format1.Seen]:
        number = self._numbers.get
        return [(seen.offset, 1, number(seen.value, STRANGE), seen.epoch) for seen in records]

    def _name(self, partition: TopicPartition, topic_ids: Mapping[TopicPartition, str]) -> str:
        topic_id = topic_ids.get(partition, "")
        if topic_id in ("", self._ending.topic_id):
            return str(partition)
        return f"{partition.topic}{FORMER}{topic_id}:{partition.partition}"

    # -- operations

    def _convert(self, number: int, operation: AnyOperation) -> None:
        how = self._how.get(type(operation))
        for place, (ns, entry) in enumerate(how(operation) if how is not None else ()):
            if ns < NEVER_NS:
                entry.time = max(ns, operation.invoked_ns)
                self._rows.append((entry.time, number, place, entry))

    def _append(self, send: Send) -> list[Timed]:
        value = self._numbers[send.value]
        make = partial(
            format1.Append,
            partition=str(send.partition),
            first=value,
            acks=send.acks,
            idempotent=send.idempotent,
        )
        is_known = send.is_ok and send.offset >= 0
        return _both(send, make, offsets=[(value, 1, send.offset)] if is_known else [])

    def _poll(self, poll: simulated.Poll) -> list[Timed]:
        is_member = poll.process.startswith(PREFIX)
        return _both(
            poll,
            partial(format1.Poll, group=GROUP if is_member else ""),
            poll.process.replace("@", "#"),
            resets_to_latest=poll.resets_to_latest,
            records={
                self._name(tp, poll.topic_ids): self._seen(records)
                for tp, records in poll.records.items()
            },
        )

    def _ends(self, asked: simulated.EndOffsets) -> list[Timed]:
        return _both(asked, format1.Ends, ends={str(tp): end for tp, end in asked.ends.items()})

    def _deletion(self, deletion: simulated.Deletion) -> list[Timed]:
        partition = str(deletion.partition)
        make = partial(format1.Delete, partition=partition, before=deletion.before)
        return _both(deletion, make)

    def _commit(self, commit: simulated.Commit) -> list[Timed]:
        self._commits += 1
        offsets = {self._name(tp, commit.topic_ids): at for tp, at in commit.offsets.items()}
        make = partial(format1.Commit, group=GROUP, offsets=offsets)
        return _both(commit, make, f"{commit.process}#{self._commits}")  # several are in flight

    def _committed(self, asked: simulated.Committed) -> list[Timed]:
        """Omit responses that may refer to the deleted or to the new topic."""
        is_former = asked.completed_ns < self._deleted_ns < NEVER_NS
        if not is_former and asked.invoked_ns <= self._ending.former_known_ns:
            return []
        topic_ids = self._former_ids if is_former else {}
        offsets = {
            self._name(tp, topic_ids): asked.offsets.get(tp, -1)
            for tp in self._partitions
            if asked.is_ok
        }
        return _both(asked, partial(format1.Committed, group=GROUP), offsets=offsets)

    def _owning(self, owning: simulated.Owning) -> list[Timed]:
        name = self._name(owning.partition, {owning.partition: owning.topic_id})
        make = partial(format1.Member, time=0, process=owning.process, type="info", group=GROUP)
        found: list[Timed] = []
        if owning.process not in self._members:
            self._members.add(owning.process)
            topics = [owning.partition.topic]
            found.append((owning.invoked_ns, make(what="start", args={"topics": topics})))
        found.append((owning.invoked_ns, make(what="assigned", partitions=[name])))
        how = "revoked" if owning.outcome is Outcome.OK else "lost"
        found.append((owning.completed_ns, make(what=how, partitions=[name])))
        return found

    def _recreation(self, recreation: simulated.Recreation) -> list[Timed]:
        """Return the deletion. It ends when no broker leads a partition of the former topic."""
        make = partial(format1.Admin, time=0, process=recreation.process, what="delete")
        topic = self._partitions[0].topic
        return [
            (recreation.invoked_ns, make(type="invoke", topic=topic)),
            (self._ending.former_led_ns, make(type="ok", topic=topic)),
        ]


def _both(
    done: AnyOperation, make: Callable[..., AnyEntry], process: str = "", **result: object
) -> list[Timed]:
    """Return the invocation and the completion of an operation. ``result``: of the completion."""
    make = partial(make, time=0, process=process or done.process)
    return [
        (done.invoked_ns, make(type="invoke")),
        (done.completed_ns, make(type=done.outcome.value, **result)),
    ]


# -- values ----------------------------------------------------------------------------------------


def _numbers(sends: Sequence[Send], keys: int) -> dict[str, int]:
    """Return a number for each value."""
    if not keys:
        return {send.value: number for number, send in enumerate(sends, start=1)}
    taken: dict[tuple[int, bool], Iterator[int]] = {}
    found: dict[str, int] = {}
    for send in sends:
        kind = int(send.key.lstrip("k")), send.is_tombstone
        if kind not in taken:
            taken[kind] = _numbers_of(keys, *kind)
        found[send.value] = next(taken[kind])
    return found


def _numbers_of(keys: int, key: int, is_tombstone: bool) -> Iterator[int]:
    for chunk in count():
        yield from _chunk(keys, chunk).get((key, is_tombstone), ())


@lru_cache(maxsize=64)
def _chunk(keys: int, chunk: int) -> dict[tuple[int, bool], list[int]]:
    """Return the numbers of a chunk by key and kind (True: tombstone)."""
    start = 1 + chunk * VALUES_PER_CHUNK
    values = np.arange(start, start + VALUES_PER_CHUNK, dtype=np.int64)
    found: dict[tuple[int, bool], list[int]] = {}
    for value, key, is_tombstone in zip(
        values.tolist(),
        keys_of(values, keys).tolist(),
        are_tombstones(values).tolist(),
        strict=True,
    ):
        found.setdefault((key, is_tombstone), []).append(value)
    return found
