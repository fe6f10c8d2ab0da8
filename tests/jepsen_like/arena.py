"""Real brokers, a workload at play on them, and what came of it: for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing import history as values
from raftlog.testing.checker.judge import judge
from raftlog.testing.history import (
    Admin,
    AnyEntry,
    Append,
    Delete,
    Dump,
    Ends,
    Note,
    Phase,
    Poll,
    Read,
    Recorder,
    Start,
    read,
)
from raftlog.types import TopicPartition
from raftlog_jepsen.final import dump_replicas, final_reads
from raftlog_jepsen.members import Members
from raftlog_jepsen.plan import (
    ConsumerShape,
    ProducerShape,
    RunPlan,
    Shape,
    TopicShape,
    WorkloadShape,
)
from raftlog_jepsen.workload.base import (
    Workload,
    WorkloadContext,
    existing_partitions,
    is_internal,
)

POLL_S = 0.05
PATIENCE_S = 40.0
T = TypeVar("T", bound=AnyEntry)

TOPICS = (
    TopicShape(name="three", partitions=2, replication_factor=3, min_isr=2,
               config=(("segment.bytes", "65536"),)),
    TopicShape(name="one", partitions=1, replication_factor=1, min_isr=1),
)  # fmt: skip
PRODUCERS = (
    ProducerShape(rate=400, session_s=2.0, delivery_timeout_s=5.0, compression="lz4"),
    ProducerShape(rate=400, idempotent=False, session_s=1.0, delivery_timeout_s=5.0, pinned=True),
    ProducerShape(rate=50, group_max=3, padding_max=200_000, linger_ms=5, delivery_timeout_s=5.0),
)
CONSUMERS = (
    ConsumerShape(wait_ms=100, session_s=1.0, fetch_bytes_max=200),
    ConsumerShape(wait_ms=100, session_s=1.0, source="replica", begin="middle", pinned=True),
    ConsumerShape(wait_ms=100, session_s=1.0, begin="latest", records_max=7),
)


def unrun(runs: Iterable[values.Seen]) -> Iterator[tuple[int, int, int]]:
    """The opposite of ``values.runs``."""
    for offset, count, value, epoch in runs:
        for step in range(count):
            yield offset + step, value + step, epoch


def plan(workload: WorkloadShape, *topics: TopicShape, brokers: int = 3) -> RunPlan:
    return RunPlan(
        seed=1,
        shape=Shape(brokers=brokers, topics=topics),
        workload=workload,
        nemeses=(),
        time_s=2.0,
    )


def context_of(running_plan: RunPlan, recorder: Recorder, running: Cluster) -> WorkloadContext:
    return WorkloadContext(
        plan=running_plan,
        bootstrap=running.bootstrap,
        brokers={broker.id: str(broker.address) for broker in running.brokers},
        recorder=recorder,
        random=Random(1),
        stopping=asyncio.Event(),
    )


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition()`` is true; for a minute at most."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it is about brokers' state, which sets no event
            await asyncio.sleep(POLL_S)


def watch(context: WorkloadContext, see: Callable[[AnyEntry], object]) -> None:
    """Show ``see`` every entry from now on."""
    record = context.recorder.record

    def watching(entry: AnyEntry) -> None:
        record(entry)
        see(entry)

    context.recorder.record = watching  # type: ignore[method-assign]


@dataclass
class Play:
    """One run, and what it left."""

    directory: Path
    workload: Workload
    plan: RunPlan

    def run(self, also: Callable[[WorkloadContext], Awaitable[None]] | None = None) -> History:
        """``also``: what else has to come before the load ends."""
        path = self.directory / "history.jsonl"
        recorder = Recorder(path, time.monotonic_ns)
        with cluster(3, directory=self.directory / "cluster", with_relays=False) as running:
            partitions = asyncio.run(self._load(recorder, running, also))
            isr = {partition: _in_sync(running, partition) for partition in partitions}
            running.stop()
            hosts = {broker.id: broker.data_dir for broker in running.brokers}
            dump_replicas(recorder, hosts, isr)
        recorder.close()
        return History(list(read(path)))

    async def _load(
        self,
        recorder: Recorder,
        running: Cluster,
        also: Callable[[WorkloadContext], Awaitable[None]] | None,
    ) -> list[TopicPartition]:
        context = context_of(self.plan, recorder, running)
        members = Members(
            self.directory / "members", recorder, running.bootstrap, self.plan.workload.groups
        )
        context.members = members
        try:
            return await self._play(context, running, also)
        finally:
            await asyncio.to_thread(members.close)

    async def _play(
        self,
        context: WorkloadContext,
        running: Cluster,
        also: Callable[[WorkloadContext], Awaitable[None]] | None,
    ) -> list[TopicPartition]:
        await self.workload.prepare(context)
        load = asyncio.create_task(self.workload.run(context))
        acked = context.clients.acked
        copied = [tp for tp in context.targets if tp.topic == "three"]
        await until(lambda: all(acked.get(str(tp), 0) > 100 for tp in copied))
        leader = await asyncio.to_thread(running.leader, "three", 0)
        assert leader is not None
        await asyncio.to_thread(running.broker(leader).kill)
        before = dict(acked)
        await until(lambda: all(acked[str(tp)] > before[str(tp)] + 100 for tp in copied))
        await asyncio.to_thread(running.broker(leader).start)
        if also is not None:
            await also(context)
        context.stopping.set()
        await load
        if self.workload.drains:
            context.recorder.record(Phase(time=0, process="test", type="info", name="drain"))
            assert await self.workload.drain(context)
        partitions = await existing_partitions(context)
        assert await final_reads(context, partitions, timeout_s=PATIENCE_S)
        return partitions


def _in_sync(running: Cluster, partition: TopicPartition) -> set[int]:
    """Everybody who has a copy, once all of them are in the ISR."""
    wait_until(lambda: running.is_in_sync(*partition), timeout_s=30, what=f"{partition} in sync")
    leader = running.leader(*partition)
    assert leader is not None
    return set(running.views(*partition)[leader].info.isr)


@dataclass
class History:
    """What was recorded, looked at as a test needs it."""

    entries: list[AnyEntry]

    def of(self, kind: type[T], ended: str = "ok") -> list[T]:
        return [entry for entry in self.entries if isinstance(entry, kind) and entry.type == ended]

    @property
    def troubles(self) -> list[str]:
        return [note.text for note in self.of(Note, "info") if note.is_trouble]

    def found(self, plan: RunPlan) -> dict[str, int]:
        """What the judge finds in it, without zeros."""
        start = Start(time=0, process="test", type="info", plan=asdict(plan))
        return {kind: n for kind, n in judge([start, *self.entries]).counts.items() if n}

    def check(self) -> None:
        """Well formed, and nothing that can be told without a checker is wrong."""
        assert not self.troubles
        self.check_form()
        self.check_final()

    def check_form(self) -> None:
        """Times grow; who completes has invoked; but for appends, one operation at a time."""
        assert [entry.time for entry in self.entries] == sorted(e.time for e in self.entries)
        open_appends: dict[int, Append] = {}
        busy: dict[str, AnyEntry] = {}
        given: set[int] = set()
        for entry in self.entries:
            if isinstance(entry, Append):
                if entry.type == "invoke":
                    numbers = set(range(entry.first, entry.first + entry.count))
                    assert not numbers & given
                    given |= numbers
                    open_appends[entry.first] = entry
                    continue
                invoked = open_appends.pop(entry.first)
                assert (invoked.process, invoked.partition, invoked.count) == (
                    entry.process, entry.partition, entry.count)  # fmt: skip
                acked = [v for first, n, _ in entry.offsets for v in range(first, first + n)]
                assert set(acked) <= set(range(entry.first, entry.first + entry.count))
                assert (len(acked) == entry.count) or entry.type != "ok"
            elif isinstance(entry, Poll | Ends | Admin | Delete):
                if entry.type == "invoke":
                    assert entry.process not in busy
                    busy[entry.process] = entry
                else:
                    assert type(busy.pop(entry.process)) is type(entry)
        assert not open_appends
        retired: set[str] = set()
        for entry in self.entries:
            if isinstance(entry, Append | Admin | Delete):
                assert entry.type != "invoke" or entry.process not in retired
                if entry.type == "info":
                    retired.add(entry.process)

    def reads(self, process: str) -> dict[str, dict[int, tuple[int, int]]]:
        """(value, epoch) by partition and offset."""
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for entry in self.of(Read):
            if entry.process == process:
                rows = found.setdefault(entry.partition, {})
                rows |= {offset: (v, epoch) for offset, v, epoch in unrun(entry.records)}
                assert entry.end >= entry.start
        return found

    def check_final(self) -> None:
        """Readers agree, replicas have what they read, and what was acknowledged is where it was
        said to be, unless its topic was deleted or the records below it were."""
        reader = self.reads("reader-1")
        assert reader == self.reads("reader-2") == self.reads("reader-3")
        starts = {entry.partition: entry.start for entry in self.of(Read)}
        gone = {entry.topic for entry in self.entries if isinstance(entry, Admin)
                and entry.what == "delete"}  # fmt: skip
        for append in (entry for entry in self.entries if isinstance(entry, Append)):
            if append.partition.rpartition(":")[0] in gone:
                continue
            for first, count, offset in append.offsets:
                for step in range(count):
                    if offset + step >= starts[append.partition]:
                        assert reader[append.partition][offset + step][0] == first + step
        dumped: dict[tuple[int, str], dict[int, tuple[int, int]]] = {}
        for dump in self.of(Dump):
            if is_internal(dump.partition):
                assert not dump.problem
                continue
            assert dump.should_be_whole
            assert not dump.problem
            rows = dumped.setdefault((dump.broker, dump.partition), {})
            rows |= {offset: (v, epoch) for offset, v, epoch in unrun(dump.records)}
        assert dumped
        for (_, partition), rows in dumped.items():
            for offset, row in reader[partition].items():
                assert rows[offset] == row
