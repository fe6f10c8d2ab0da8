"""Makes histories of a cluster that keeps its promises, for tests of the checker, of any length.

No cluster runs: a log is a list, and every operation takes effect at one moment between its
invocation and its completion. What makes judging hard is all there: appends of which nobody knows
whether they landed, duplicates of producers that are not idempotent, consumers that come and go,
deleted records, a topic that is deleted and created again, faults, a replica that was left behind;
and consumer groups and a compacted topic, each in a topic of its own (``synthetic_groups``,
``synthetic_compaction``). The same seed and size give the same history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Final, Literal

from raftlog.testing.history import (
    Admin,
    AnyEntry,
    Append,
    Delete,
    Dump,
    Ends,
    Fault,
    Note,
    Phase,
    Poll,
    Read,
    Seen,
    Start,
    Where,
)
from tests.testing.checker.synthetic_compaction import KEYS, Compacted
from tests.testing.checker.synthetic_compaction import PARTITION as KEYED
from tests.testing.checker.synthetic_groups import PARTITIONS as GROUPED
from tests.testing.checker.synthetic_groups import TICKS, Groups

MS: Final = 1_000_000
SECOND: Final = 1_000 * MS
BROKERS: Final = (1, 2, 3)
SIDE: Final = "side:0"  # is deleted and created again
SHORT: Final = "short:0"  # keeps records for a while only
RUNS_MAX: Final = 1_000  # of one entry
RUNS_OF_A_POLL: Final = 20

Outcome = Literal["ok", "fail", "landed", "vanished", "half", "silent"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "fail", "landed", "vanished", "half", "silent")
WEIGHTS: Final = (88, 3, 3, 3, 1, 2)
SURE: Final[dict[int, Outcome]] = {7: "fail", 13: "vanished"}  # of each 25 appends


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """``operations``: appends and polls, about half of each. ``time_s``: of the load."""

    operations: int = 600
    partitions: int = 2
    producers: int = 6
    consumers: int = 3
    group_max: int = 6
    time_s: float = 70.0


@dataclass(slots=True)
class _Log:
    """One life of a partition: runs by column."""

    offsets: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def add(self, value: int, count: int, epoch: int) -> int:
        offset = self.end
        self.offsets.append(offset)
        self.counts.append(count)
        self.values.append(value)
        self.epochs.append(epoch)
        self.end += count
        return offset

    def read(self, position: int, runs_max: int) -> list[Seen]:
        """From ``position`` on; runs that follow each other in all things are one."""
        found: list[Seen] = []
        row = max(0, bisect_right(self.offsets, position) - 1)
        while row < len(self.offsets) and len(found) < runs_max:
            skip = max(0, position - self.offsets[row])
            offset, count = self.offsets[row] + skip, self.counts[row] - skip
            value, epoch = self.values[row] + skip, self.epochs[row]
            row += 1
            if count <= 0:
                continue
            if found:
                before = found[-1]
                if before[2] + before[1] == value and before[3] == epoch:
                    found[-1] = (before[0], before[1] + count, before[2], epoch)
                    continue
            found.append((offset, count, value, epoch))
        return found


@dataclass(slots=True)
class _Producer:
    name: str
    idempotent: bool
    acks: int
    names: int = 0
    landed: int = 0  # when what was sent last lands

    @property
    def process(self) -> str:
        return f"{self.name}.{self.names}"


@dataclass(slots=True)
class _Consumer:
    name: str
    partitions: list[str]
    names: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    is_over: bool = True  # the session: a new one begins

    @property
    def process(self) -> str:
        return f"{self.name}/{self.names}"


def history(seed: int, size: Size | None = None) -> Iterator[AnyEntry]:
    """The entries of one run, in order; valid in the judge's eyes."""
    return _Synthesis(Random(seed), size or Size()).entries()


class _Synthesis:
    def __init__(self, random: Random, size: Size) -> None:
        self.random, self.size = random, size
        self.now = SECOND
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.scheduled = 0
        self.out: list[AnyEntry] = []
        names = [f"load:{number}" for number in range(size.partitions)]
        self.logs = {name: _Log() for name in (*names, SIDE, SHORT)}
        self.loaded = [*names, SHORT]
        self.groups = Groups(random, self._ticks(TICKS))
        self.compacted = Compacted(random, self.now, self._ticks(1)[-1])
        self.epoch = 1
        self.next_value = 1
        self.sent = 0
        self.vanished: dict[str, tuple[int, int]] = {}  # by partition: first value, count
        self.is_side_there = True
        self.is_out = False
        self.load_end = self.now + int(size.time_s * SECOND)
        self.producers = [
            _Producer(f"producer-{n}", n % 3 != 2, (-1, -1, -1, 1, -1, 0)[n % 6])
            for n in range(size.producers)
        ]
        self.consumers = [
            _Consumer(f"consumer-{n}", [*self.loaded, SIDE] if n == 0 else list(self.loaded))
            for n in range(size.consumers)
        ]

    def entries(self) -> Iterator[AnyEntry]:
        self._begin()
        for entry in (*self.groups.entries(), *self.compacted.entries()):
            self._at(entry.time, partial(self.out.append, entry))
        while self.heap:
            at, _, act = heappop(self.heap)
            self.now = max(self.now, at)
            act()
            yield from self._flush()
        self.now = max(self.now, self.load_end) + SECOND
        self._keep()
        yield from self._ending()

    def _ticks(self, count: int) -> list[int]:
        """Times that divide the load."""
        length = int(self.size.time_s * SECOND)
        return [self.now + length * number // (count + 1) for number in range(1, count + 1)]

    def _keep(self) -> None:
        """What is in the logs of the groups' topic and of the compacted one."""
        for name in GROUPED:
            log = self.logs[name] = _Log()
            for _, count, value, epoch in self.groups.log(name):
                log.add(value, count, epoch)
        log = self.logs[KEYED] = _Log()
        for offset, count, value, epoch in self.compacted.log():
            log.end = offset
            log.add(value, count, epoch)
        log.end = self.compacted.log_end

    def _flush(self) -> Iterator[AnyEntry]:
        yield from self.out
        self.out.clear()

    def _later(self, delay_ns: float, act: Callable[[], None]) -> int:
        return self._at(self.now + int(delay_ns), act)

    def _at(self, time: int, act: Callable[[], None]) -> int:
        self.scheduled += 1
        heappush(self.heap, (time, self.scheduled, act))
        return time

    def _next(self, delay_ns: float, act: Callable[[], None]) -> None:
        """The next operation of a client, unless the load is over by then."""
        if self.now + delay_ns < self.load_end:
            self._later(delay_ns, act)

    def _pause(self, operations: float) -> float:
        """How long one of this many clients waits, so that all of them together have the rate."""
        each = self.size.time_s * SECOND * operations / max(1, self.size.operations / 2)
        return self.random.expovariate(1 / each)

    # -- the course of things

    def _begin(self) -> None:
        config = [("retention.ms", "1000")]
        topics = [{"name": "load"}, {"name": "side"}, {"name": "short", "config": config}]
        config = [("cleanup.policy", "compact")]
        topics += [{"name": "grouped"}, {"name": "keyed", "config": config, "keys": KEYS}]
        plan = {"seed": 0, "shape": {"topics": topics}, "nemeses": ["kill", "partition"]}
        self.out.append(Start(time=self.now, process="runner", type="info", plan=plan))
        for name in ("setup", "load"):
            self.out.append(Phase(time=self.now, process="runner", type="info", name=name))
        for producer in self.producers:
            self._next(self._pause(len(self.producers)), partial(self._send, producer))
        for consumer in self.consumers:
            self._next(self._pause(len(self.consumers)), partial(self._poll, consumer))
        self._later(SECOND, self._ask)
        self._fault(1, "kill", 0.10, 0.15)
        self._fault(2, "kill", 0.16, 0.17, injected=False)
        self._fault(3, "partition", 0.20, 0.26, is_outage=True)
        self._when(0.60, self._delete_records)
        self._when(0.12, self._delete_side)
        self._when(0.50, self._retain)

    def _when(self, share: float, act: Callable[[], None]) -> None:
        self._later(share * self.size.time_s * SECOND, act)

    def _fault(
        self, number: int, kind: str, begin: float, end: float, *, injected: bool = True,
        is_outage: bool = False,
    ) -> None:  # fmt: skip
        def entry(phase: Literal["begin", "end"], *, invoke: bool) -> None:
            effect = {} if invoke else {"seen": "dead"} if injected else {"why": "no root"}
            self.out.append(
                Fault(
                    time=self.now, process="nemesis", type="invoke" if invoke else "info",
                    id=number, kind=kind, phase=phase, targets=[1], effect=effect,
                    injected=invoke or injected, expects="outage" if is_outage else "available",
                )
            )  # fmt: skip

        def begun() -> None:
            entry("begin", invoke=False)
            self.is_out = self.is_out or is_outage

        def ended() -> None:
            entry("end", invoke=False)
            self.is_out = self.is_out and not is_outage
            self.epoch += 1

        step = 0.002
        self._when(begin, lambda: entry("begin", invoke=True))
        self._when(begin + step, begun)
        if injected:
            self._when(end, lambda: entry("end", invoke=True))
            self._when(end + step, ended)

    # -- appends

    def _send(self, producer: _Producer) -> None:
        names = [*self.loaded, SIDE] if producer is self.producers[0] else self.loaded
        partition = self.random.choice(names)
        count = self.random.randint(1, self.size.group_max)
        first, self.next_value = self.next_value, self.next_value + count
        self.out.append(
            Append(
                time=self.now, process=producer.process, type="invoke", partition=partition,
                first=first, count=count, acks=producer.acks, idempotent=producer.idempotent,
            )
        )  # fmt: skip
        self.sent += 1
        drawn: Outcome = self.random.choices(OUTCOMES, WEIGHTS)[0]
        outcome = SURE.get(self.sent % 25, drawn)
        if self.is_out:
            outcome = "vanished"
        lands = self.now + int(self.random.uniform(0.2, 30) * MS)
        if producer.idempotent:
            lands = producer.landed = max(lands, producer.landed)
        process = producer.process
        self._at(lands, lambda: self._land(producer, process, partition, first, count, outcome))
        self._next(self._pause(len(self.producers)), partial(self._send, producer))

    def _land(
        self, producer: _Producer, process: str, partition: str, first: int, count: int,
        outcome: Outcome,
    ) -> None:  # fmt: skip
        if partition == SIDE and not self.is_side_there:
            outcome = "vanished"
        kept = {"fail": 0, "vanished": 0, "half": (count + 1) // 2}.get(outcome, count)
        offsets: list[Where] = []
        if kept:
            offset = self.logs[partition].add(first, kept, self.epoch)
            if not producer.idempotent and self.random.random() < 0.05:
                offset = self.logs[partition].add(first, kept, self.epoch)
            offsets = [(first, kept, offset)]
        if outcome == "vanished":
            self.vanished[partition] = first, count
        if outcome == "silent":
            return
        is_told = outcome in {"ok", "half"} and producer.acks != 0
        ended: Literal["ok", "fail", "info"] = "info"
        if outcome in {"ok", "fail"}:
            ended = outcome

        def complete() -> None:
            self.out.append(
                Append(
                    time=self.now, process=process, type=ended, partition=partition, first=first,
                    count=count, acks=producer.acks, idempotent=producer.idempotent,
                    offsets=offsets if is_told else [], error="" if ended == "ok" else "Error",
                )
            )  # fmt: skip
            if ended == "info" and producer.process == process:
                producer.names += 1

        self._later(self.random.uniform(0.2, 3) * MS, complete)

    # -- polls

    def _poll(self, consumer: _Consumer) -> None:
        if consumer.is_over:
            consumer.names += 1
            consumer.is_over = False
            begin = self.random.choice(("earliest", "latest", "middle"))
            consumer.positions = {
                name: self._begin_at(self.logs[name], begin) for name in consumer.partitions
            }
        self.out.append(
            Poll(
                time=self.now, process=consumer.process, type="invoke",
                positions=dict(consumer.positions),
            )
        )  # fmt: skip
        self._later(self.random.uniform(0.2, 2) * MS, lambda: self._serve(consumer))

    def _begin_at(self, log: _Log, begin: str) -> int:
        middle = (log.start + log.end) // 2
        return {"earliest": log.start, "latest": log.end, "middle": middle}[begin]

    def _serve(self, consumer: _Consumer) -> None:
        kind = self.random.choices(("ok", "fail", "info"), (96, 2, 2))[0]
        records: dict[str, list[Seen]] = {}
        for name in consumer.partitions if kind == "ok" else ():
            log = self.logs[name]
            position = max(consumer.positions[name], log.start)
            found = log.read(position, self.random.randint(1, RUNS_OF_A_POLL))
            if found:
                records[name] = found
                consumer.positions[name] = found[-1][0] + found[-1][1]
        process = consumer.process

        def complete() -> None:
            done = Poll(time=self.now, process=process, type="ok", records=records)
            if kind != "ok":
                done = Poll(time=self.now, process=process, type="fail", error="Error")
                done.type = "fail" if kind == "fail" else "info"
            self.out.append(done)
            is_last = kind == "info" or self.random.random() < 0.02
            consumer.is_over = consumer.is_over or is_last
            self._next(self._pause(len(self.consumers)), partial(self._poll, consumer))

        self._later(self.random.uniform(0.2, 2) * MS + (0 if records else 100 * MS), complete)

    def _ask(self) -> None:
        self.out.append(Ends(time=self.now, process="asker", type="invoke"))

        def answer() -> None:
            ends = {name: self.logs[name].end for name in self.loaded}
            self._later(MS, lambda: noted(ends))

        def noted(ends: dict[str, int]) -> None:
            self.out.append(Ends(time=self.now, process="asker", type="ok", ends=ends))
            self._next(SECOND, self._ask)

        self._later(MS, answer)

    # -- changes

    def _delete_records(self) -> None:
        log = self.logs["load:1"]
        before = log.end * 2 // 3
        for ended in ("ok", "info"):
            delete = Delete(
                time=self.now, process=f"operator-{ended}", type="invoke", partition="load:1",
                before=before,
            )  # fmt: skip
            self.out.append(delete)
            done = Delete(
                time=self.now, process=f"operator-{ended}", type="ok", partition="load:1",
                before=before,
            )  # fmt: skip
            done.type = "ok" if ended == "ok" else "info"
            self.out.append(done)
            log.start = before

    def _retain(self) -> None:
        log = self.logs[SHORT]
        log.start = log.end // 2

    def _delete_side(self) -> None:
        def change(what: str, *, invoke: bool) -> None:
            self.out.append(
                Admin(
                    time=self.now, process="operator", type="invoke" if invoke else "ok",
                    what=what, topic="side",
                )
            )  # fmt: skip

        def gone() -> None:
            self.logs[SIDE] = _Log()
            self.is_side_there = False
            self.consumers[0].is_over = True
            self._later(MS, lambda: change("delete", invoke=False))
            self._later(20 * MS, lambda: change("create", invoke=True))
            self._later(30 * MS, there)

        def there() -> None:
            self.is_side_there = True
            self.consumers[0].is_over = True
            self._later(MS, lambda: change("create", invoke=False))

        change("delete", invoke=True)
        self._later(5 * MS, gone)

    # -- the end

    def _ending(self) -> Iterator[AnyEntry]:
        for name in ("heal", "quiesce", "drain"):
            yield self._phase(name)
        for entry in self.groups.ending(self.now):
            self.now = entry.time
            yield entry
        yield self._phase("read")
        for reader in ("reader-1", "reader-2"):
            for partition, log in self.logs.items():
                for part in _parts(log):
                    self.now += 1
                    yield Read(
                        time=self.now, process=reader, type="ok", partition=partition,
                        start=log.start, end=log.end, records=part,
                    )  # fmt: skip
        yield Note(time=self.now, process="runner", type="info", text="nothing is wrong")
        yield self._phase("dump")
        for broker in BROKERS:
            for partition, log in self.logs.items():
                yield from self._dump(broker, partition, log)
        yield self._phase("end")

    def _phase(self, name: str) -> Phase:
        self.now += SECOND
        return Phase(time=self.now, process="runner", type="info", name=name)

    def _dump(self, broker: int, partition: str, log: _Log) -> Iterator[Dump]:
        self.now += 1
        left = self.vanished.get(partition)
        is_whole = not (broker == 3 and partition == "load:0" and left and log.epochs)
        parts, end = list(_parts(log)), log.end
        if not is_whole and left is not None:
            # A leader of old, which could not give this to anybody.
            cut = log.offsets[log.epochs.index(log.epochs[-1])]
            tail: Seen = (cut, left[1], left[0], log.epochs[-1] - 1)
            parts = [[run for part in parts for run in part if run[0] < cut] + [tail]]
            end = cut + left[1]
        for records in parts:
            yield Dump(
                time=self.now, process="runner", type="info", broker=broker, partition=partition,
                start=log.start, end=end, chain=f"{end:08x}" if is_whole else "0bad0bad",
                should_be_whole=is_whole, records=records,
            )  # fmt: skip


def _parts(log: _Log) -> Iterator[list[Seen]]:
    """All of a log from its start on, for as many entries as it takes."""
    runs = log.read(log.start, len(log.offsets) + 1)
    for begin in range(0, max(len(runs), 1), RUNS_MAX):
        yield runs[begin : begin + RUNS_MAX]
