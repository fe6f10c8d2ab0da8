"""The final state: read by new consumers, and read offline from every replica's files.

The checker compares the history with both, so neither depends on earlier observations. Readers are
new consumers that read each log from its start to its end. A dump reads the files of a broker that
is down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Final

from raftlog.aio import AsyncConsumer
from raftlog.disk import Disk, OsDisk
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    RaftlogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.record import decode_lists
from raftlog.storage import inspect
from raftlog.storage.catalog import Catalog
from raftlog.storage.opening import live_bases
from raftlog.storage.segment import LOG_SUFFIX, base_offsets, file_name
from raftlog.testing import history
from raftlog.testing.history import Dump, Note, Read, Recorder, Seen
from raftlog.types import Offset, TopicPartition
from raftlog_jepsen.client import Source, by_partition, describe
from raftlog_jepsen.workload.base import (
    PATIENCE_S,
    WorkloadContext,
    consumer_of,
    existing_partitions,
    is_internal,
)

CAUGHT_UP_TIMEOUT_S: Final = 300.0
# Maximum extra time of one reader compared with the fastest, after convergence.
SLOW_S: Final = 60.0
SLOWER: Final = 10
RUNS_MAX: Final = 5_000  # in one entry
POLL_RECORDS: Final = 5_000
POLL_WAIT_MS: Final = 1_000
METADATA_TIMEOUT_S: Final = 5.0
ERRORS_MAX: Final = 20  # of one consumer, before it is replaced
# From leaders, the second in small slices; then one from any replica.
FETCH_BYTES: Final = (1 << 20, 20_000, 100_000)


@dataclass(slots=True)
class _Reader:
    """One new reader. ``found`` and ``ends``: of the current attempt, by partition.

    ``farthest``: highest end that any of the readers has observed. It can grow: a producer that was
    closed during a network partition can have left a request in a connection. The request can
    arrive several seconds after the partition has healed, between the requests of two readers.
    """

    context: WorkloadContext
    name: str
    source: Source
    fetch_bytes_max: int
    left: set[TopicPartition]  # not yet read to an acceptable end
    farthest: dict[TopicPartition, Offset]
    ends: dict[TopicPartition, Offset] = field(default_factory=dict)
    starts: dict[TopicPartition, Offset] = field(default_factory=dict)
    positions: dict[TopicPartition, Offset] = field(default_factory=dict)
    found: dict[TopicPartition, list[Seen]] = field(default_factory=dict)
    problem: str = ""
    took_s: float = 0.0
    _attempt: int = 0

    async def run(self) -> None:
        """Read until all partitions are read. The caller sets the time limit."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._read_all()
        self.took_s = loop.time() - began

    async def _read_all(self) -> None:
        while self.left:
            self._attempt += 1
            try:
                await self._read()
            except (UnknownTopicError, UnknownPartitionError) as error:
                self.problem = describe(error)
                await self._forget_gone()
            except RaftlogError as error:
                self.problem = describe(error)
            if self.left:
                await asyncio.sleep(PATIENCE_S)

    async def _forget_gone(self) -> None:
        """Remove partitions of deleted side topics from those that are left to read."""
        with suppress(TimeoutError):  # the next attempt checks again
            there = await existing_partitions(self.context, timeout_s=METADATA_TIMEOUT_S)
            self.left -= {tp for tp in self.left if tp not in there and not self._is_stable(tp)}

    def _is_stable(self, partition: TopicPartition) -> bool:
        """Return whether its topic is never deleted."""
        return partition.topic in {topic.name for topic in self.context.plan.shape.topics}

    async def _read(self) -> None:
        """Make one attempt to read all remaining partitions."""
        partitions = sorted(self.left)
        process = f"{self.name}/{self._attempt}"
        async with consumer_of(self.context.bootstrap) as asking:
            self.ends = await self.context.clients.ends(asking, process, partitions)
        for partition, end in self.ends.items():
            self.farthest[partition] = max(end, self.farthest.get(partition, 0))
        async with consumer_of(
            self.context.bootstrap, source=self.source, fetch_bytes_max=self.fetch_bytes_max
        ) as consumer:
            await consumer.assign(partitions)
            self.starts = await consumer.beginning_offsets(partitions)
            self.positions = dict(self.starts)
            self.found = {partition: [] for partition in partitions}
            for partition, start in self.starts.items():
                await consumer.seek(partition, start)
            errors = 0
            while self._take_whole() and errors < ERRORS_MAX:
                errors += not await self._poll(consumer)

    async def _poll(self, consumer: AsyncConsumer) -> bool:
        """Poll once. Returns whether the poll succeeded. Raises no error of raftlog: an error of
        one partition must not stop the others."""
        try:
            records = await consumer.poll(POLL_WAIT_MS, POLL_RECORDS)
            if not records:  # compaction may have removed the last records before an end
                for partition in self.left:
                    at = await consumer.position(partition)
                    self.positions[partition] = max(at, self.positions[partition])
        except RaftlogError as error:
            self.problem = describe(error)
            await asyncio.sleep(PATIENCE_S)
            return False
        for partition, rows in by_partition(records).items():
            found = self.found[partition]
            found[-1:] = history.joined(chain(found[-1:], history.runs(rows)))
            self.positions[partition] = rows[-1][0] + 1
        return True

    def _take_whole(self) -> bool:
        """Record the partitions that are read to an acceptable end. Returns whether a partition is
        not read to its end."""
        for partition in sorted(self.left):
            is_whole = self.positions[partition] >= self.ends[partition]
            if is_whole and self.ends[partition] >= self._least(partition):
                self.record(partition)
        return any(self.positions[partition] < self.ends[partition] for partition in self.left)

    def _acked(self, partition: TopicPartition) -> Offset:
        if not self._is_stable(partition):  # its topic may have been recreated
            return 0
        return self.context.clients.acked.get(str(partition), 0)

    def _least(self, partition: TopicPartition) -> Offset:
        """Return the lowest acceptable end."""
        if not self._is_stable(partition):
            return 0
        return max(self._acked(partition), self.farthest.get(partition, 0))

    def record(self, partition: TopicPartition) -> None:
        self.left.discard(partition)
        for part in _parts(self.found[partition]):
            self.context.recorder.record(
                Read(
                    time=0,
                    process=self.name,
                    type="ok",
                    partition=str(partition),
                    start=self.starts[partition],
                    end=self.ends[partition],
                    records=part,
                )
            )

    def give_up(self) -> None:
        """Report the partitions that could not be read. Record a log that was read to its end
        although that end is too low: the missing records are lost."""
        stuck = []
        for partition in sorted(self.left):
            position, end = self.positions.get(partition), self.ends.get(partition)
            stuck.append(
                f"{partition} (read to {position}, ends at {end}, acknowledged to "
                f"{self._acked(partition)})"
            )
            if position is not None and end is not None and position >= end:
                self.record(partition)
        because = f"; the last error: {self.problem}" if self.problem else ""
        text = f"STUCK: {self.name} did not catch up with {', '.join(stuck)}{because}"
        self.context.note(text, is_trouble=True)


async def final_reads(
    context: WorkloadContext,
    partitions: Collection[TopicPartition],
    readers: int = 2,
    *,
    timeout_s: float = CAUGHT_UP_TIMEOUT_S,
) -> bool:
    """Read each partition from its start to its end: ``readers`` times from its leader, and once
    from any replica. All readers run in parallel, each with a separate consumer.

    Reads a partition again while its end is below the acknowledged offset or below the end that
    another reader has observed. Returns whether all was read before ``timeout_s``; notes the
    partitions that were not as trouble.
    """
    sources: list[Source] = ["leader"] * readers
    farthest: dict[TopicPartition, Offset] = {}
    reading = [
        _Reader(
            context,
            f"reader-{number}",
            source,
            FETCH_BYTES[min(number, 3) - 1],
            set(partitions),
            farthest,
        )
        for number, source in enumerate([*sources, "replica"], start=1)
    ]
    tasks = [asyncio.create_task(reader.run()) for reader in reading]
    try:
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    for reader in reading:
        if reader.left:
            reader.give_up()
        elif reader.took_s > SLOW_S + SLOWER * min(other.took_s for other in reading):
            text = f"{reader.name} took {reader.took_s:.0f} s, from {reader.source}s, to catch up"
            context.note(f"{text} with an idle log", is_trouble=True)
    return not late


def _parts(found: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Split records into parts of ``RUNS_MAX`` entries. Yields one part if there are no records."""
    for start in range(0, max(len(found), 1), RUNS_MAX):
        yield list(found[start : start + RUNS_MAX])


# -- the files -------------------------------------------------------------------------------------


def dump_replicas(
    recorder: Recorder,
    hosts: Mapping[int, Path],
    isr: Mapping[TopicPartition, Collection[int]],
    *,
    disk: Disk | None = None,
) -> int:
    """Record the content of each broker's files of each partition. Returns the number of records.

    ``hosts``: the data directory of each broker; all brokers must be down. ``isr``: by partition,
    the brokers whose copy must be complete. Reads current topics only: skips remains of deletions
    and quarantined copies.
    """
    disk = disk or OsDisk()
    return sum(
        _Dumping(recorder, disk, broker_id, str(directory), isr).run()
        for broker_id, directory in sorted(hosts.items())
    )


@dataclass(slots=True)
class _Dumping:
    """One broker's data directory."""

    recorder: Recorder
    disk: Disk
    broker_id: int
    directory: str
    isr: Mapping[TopicPartition, Collection[int]]
    _chain: str = ""  # of the last batch of the current partition

    def run(self) -> int:
        try:
            catalog = Catalog(self.disk, f"{self.directory}/catalog")
        except DamagedLogError as error:
            self._note(f"broker {self.broker_id}: {error}", is_trouble=True)
            return 0
        return sum(
            self._partition(
                TopicPartition(topic.name, number),
                f"{self.directory}/topics/{topic.name}/{topic.id}/{number}",
            )
            for topic in catalog.topics.values()
            for number in topic.local
        )

    def _partition(self, partition: TopicPartition, directory: str) -> int:
        is_whole = self.broker_id in self.isr.get(partition, ())
        self._chain = ""
        try:
            report = next(inspect.verify(self.disk, directory))
        except DataDirectoryError:  # the copy was never written, or all its data is lost
            self._record(partition, 0, 0, is_whole, "", [])
            return 0
        damage = [p.message for p in report.problems if p.kind == inspect.DAMAGE]
        for problem in report.problems:
            if problem.kind != inspect.DAMAGE:  # the next start repairs it
                self._note(f"broker {self.broker_id}, {problem.path}: {problem.message}")
        records = self._records(directory, report.log_start_offset)
        # an internal topic has no records of clients: only its hash chain is checked
        if is_internal(partition.topic):
            deque(records, 0)
            records = iter(())
        found = list(history.runs(records))
        for part in _parts(found):
            self._record(
                partition,
                report.log_start_offset,
                report.log_end_offset,
                is_whole,
                "; ".join(damage),
                part,
            )
        return sum(run[1] for run in found)

    def _records(self, directory: str, log_start_offset: Offset) -> Iterator[tuple[int, int, int]]:
        """Yield the records of every valid batch, from the log start on. Stores the hash-chain
        value of the last batch."""
        names = self.disk.list_dir(directory)
        for base in live_bases(base_offsets(names, LOG_SUFFIX), log_start_offset):
            for row in inspect.scan(self.disk, f"{directory}/{file_name(base, LOG_SUFFIX)}"):
                if row.header is None or row.error:
                    break  # the report contains the error
                self._chain = f"{row.header.chain:016x}"
                if row.header.is_control:
                    continue
                lists = decode_lists(row.data, check_crc=False)
                rows = zip(
                    lists.offsets,
                    map(history.decode, lists.keys, lists.values, lists.headers),
                    repeat(row.header.leader_epoch),
                    strict=False,
                )
                if row.header.base_offset < log_start_offset:
                    yield from (found for found in rows if found[0] >= log_start_offset)
                else:
                    yield from rows

    def _record(
        self,
        partition: TopicPartition,
        start: Offset,
        end: Offset,
        should_be_whole: bool,
        problem: str,
        records: list[Seen],
    ) -> None:
        self.recorder.record(
            Dump(
                time=0,
                process=f"dump-{self.broker_id}",
                type="ok",
                broker=self.broker_id,
                partition=str(partition),
                start=start,
                end=end,
                chain=self._chain,
                should_be_whole=should_be_whole,
                problem=problem,
                records=records,
            )
        )

    def _note(self, text: str, *, is_trouble: bool = False) -> None:
        self.recorder.record(
            Note(time=0, process="dump", type="info", text=text, is_trouble=is_trouble)
        )
