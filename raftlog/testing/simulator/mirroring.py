"""Mirrors and backups between simulated clusters, while the source compacts and deletes records.

The mirror and the backup are the real ones, with their blocking clients: a wait of theirs runs the
events of the world (``waiting.block``). They are ended at random points, and run again. Brokers of
both clusters are killed. In the end the copies must have what the source has: of a compacted topic
the same value of each key, and no key that was deleted; of a plain topic the same records at the
same offsets. A group's offset in the target never goes back.
"""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, TypeAlias

from raftlog.backup.writer import BackupSource, StillHeld, write_backup
from raftlog.client import threads
from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.client.base import ClientEnvironment, LoopBound
from raftlog.client.threads import LoopThread, ThreadedClient
from raftlog.config import Voter
from raftlog.errors import RaftlogError
from raftlog.mirror.mirror import ClusterSource, MirrorSettings, Policy, Progress, Session, Source
from raftlog.testing.simulator.faults import FaultPlan, striking
from raftlog.testing.simulator.loop import SimulationError
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.world import (
    CLUSTER_SECRET,
    BrokerMachine,
    ClientMachine,
    Enduring,
    Result,
    RunningBroker,
    Tale,
    World,
    broker_config,
    start_broker,
)
from raftlog.types import NewTopic, Offset, TopicPartition

KEYS: Final = (2, 5, 20)
STEPS: Final = (6, 10, 15)
SOURCE_BROKERS: Final = (1, 1, 3)
PARTITIONS: Final = (1, 2)
TOMBSTONES_MS: Final = ("0", "300", "1000", "86400000")  # ``delete.retention.ms``
PAUSE_S: Final = 0.05  # between two records of the writer, on average
IDLE_S_MAX: Final = 10.0
RUN_S_MAX: Final = 8.0  # after which a copy is ended, in some runs
KILLED_SHARE: Final = 0.4
STEP_S: Final = 0.5
LIMIT_S: Final = 120.0
ATTEMPTS_MAX: Final = 20
COMPACTED, PLAIN, GROUP = "compacted", "plain", "group"

Records: TypeAlias = dict[object, bytes]  # values by key, or by partition and offset
Content: TypeAlias = dict[str, Records]  # by topic


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPlan:
    """``steps``: number of events. ``keys``: of the compacted topic. ``disks``: faults of power and
    disks at the same time; None: none.
    """

    seed: int
    source_brokers: int
    partitions: int
    keys: int
    steps: int
    tombstones_ms: str
    disks: FaultPlan | None = None

    @classmethod
    def draw(cls, seed: int) -> MirrorPlan:
        random = Random(f"{seed}/mirror")
        return cls(
            seed=seed,
            source_brokers=random.choice(SOURCE_BROKERS),
            partitions=random.choice(PARTITIONS),
            keys=random.choice(KEYS),
            steps=random.choice(STEPS),
            tombstones_ms=random.choice(TOMBSTONES_MS),
            disks=FaultPlan.of_disks(Random(f"{seed}/disks")),
        )


class _KilledError(BaseException):
    """The process of the mirror or the backup has ended."""


class _Thread(LoopThread):
    """The I/O thread of blocking clients: the event loop of a simulated process."""

    def __init__(self, machine: ClientMachine) -> None:
        super().__init__(machine.name)
        self._loop = machine.loop

    def stop(self) -> None:
        pass


class _Files:
    """Store of a backup, in memory. Its files outlive the process that writes them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.read = self.files.get
        self.write = self.files.__setitem__

    @contextmanager
    def hold(self) -> Iterator[StillHeld]:
        yield lambda: None


def run(plan: MirrorPlan, *, on_trace: Callable[[str], None] | None = None) -> Result:
    """Run a plan. An exception of the simulated program is a violation, and not raised."""
    tale, count = _Tale(plan), plan.source_brokers + 2
    return tale.run(plan.seed, brokers=count, on_trace=on_trace, around=_blocking(tale.block))


@contextmanager
def _blocking(block: Callable[[threads.Subscribe, float | None], bool]) -> Iterator[None]:
    before, threads.block = threads.block, block
    try:
        yield
    finally:
        threads.block = before


class _Tale(Tale):
    def __init__(self, plan: MirrorPlan) -> None:
        super().__init__()
        self._plan = plan
        self._is_over = False
        self._is_writing = True
        self._once: list[int] = []  # keys that were set once, and are not deleted yet
        self._killed_at_s = float("inf")  # when the present copy ends
        self._files = _Files()
        self._committed: Offset = 0  # of the group in the target, highest known

    async def start_broker(self, machine: BrokerMachine) -> RunningBroker:
        """Start a broker of one of the three clusters."""
        cluster = next(ids for ids in self._clusters if machine.broker_id in ids)
        config = broker_config(machine, cleaner_interval_ms=300, offsets_partitions=1)
        addresses = self._world.addresses
        voters = tuple(Voter(id_, addresses[id_]) for id_ in cluster)
        return await start_broker(machine, config=replace(config, voters=voters))

    @property
    def _clusters(self) -> tuple[tuple[int, ...], ...]:
        """IDs of the brokers of the source, the target, and the cluster that backups go to."""
        count = self._plan.source_brokers
        return tuple(range(1, count + 1)), (count + 1,), (count + 2,)

    def _bootstrap(self, cluster: int) -> str:
        return ",".join(str(self._world.addresses[id_]) for id_ in self._clusters[cluster])

    # -- blocking clients --------------------------------------------------------------------------

    def block(self, subscribe: threads.Subscribe, timeout_s: float | None) -> bool:
        """Run the world until the callback runs (``waiting.block``), or the process is killed."""
        world = self._world
        if world.time.now >= self._killed_at_s:
            raise _KilledError
        called: list[bool] = []
        subscribe(lambda: called.append(True))
        limit_s = LIMIT_S if timeout_s is None else timeout_s
        left_s = self._killed_at_s - world.time.now
        if world.run_until(lambda: bool(called), limit_s=min(limit_s, left_s), every_s=0.01):
            return True
        if left_s <= limit_s:
            raise _KilledError
        if timeout_s is None:
            raise SimulationError(f"a blocking call did not end within {LIMIT_S} s")
        return False

    def _runs(self, name: str, work: Callable[[ClientEnvironment], None]) -> bool:
        """Run a blocking program in a new process. Returns whether it succeeded."""
        world = self._world
        is_killed = False
        machine = world.add_client(f"{name}-{len(world.clients)}", _idle)
        machine.start()
        host = replace(machine.host(), loop_thread=_Thread(machine))
        if not self._is_over and self._random.random() < KILLED_SHARE:
            self._killed_at_s = world.time.now + RUN_S_MAX * self._random.random() ** 2
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # a killed process closes nothing
                try:
                    work(host)
                except _KilledError:
                    is_killed = True
        except RaftlogError as error:
            world.trace(f"{machine.name} fails: {error}")
            self._count(f"{name} failed")
        else:
            self._count(f"{name} killed" if is_killed else name)
            return not is_killed
        finally:
            self._killed_at_s = float("inf")
            machine.kill()
            if is_killed:
                _bury(machine, host.loop_thread)
        return False

    def _copy(self, source: Source, target: int, policy: Policy, host: ClientEnvironment) -> None:
        """Do what ``Mirror.run(once=True)`` does, without its pauses and repetitions."""
        settings = MirrorSettings(
            source=source,
            target=self._bootstrap(target),
            topics=re.compile(f"{COMPACTED}|{PLAIN}"),
            groups=re.compile(GROUP),
            existing_groups=policy,
            target_host=host,
        )
        progress = Progress()
        for _session in range(ATTEMPTS_MAX):
            with Session(settings, progress) as session:
                if not session.start():
                    continue
                while not session.is_caught_up:
                    if not session.step(STEP_S):
                        break
                else:
                    if session.finish():
                        self._world.trace(f"copied: {progress}")
                        if progress.refused:
                            self._violated("REFUSED", str(progress.refused))
                        return

    def _mirror(self) -> bool:
        copy = partial(self._copy, policy=Policy.ADVANCE)
        return self._runs(
            "mirror", lambda host: copy(ClusterSource(self._bootstrap(0), host), 1, host=host)
        )

    def _backup(self) -> bool:
        def write(host: ClientEnvironment) -> None:
            now_ms = host.clock.wall_ms()
            done = write_backup(self._bootstrap(0), self._files, now_ms=now_ms, host=host)
            self._world.trace(f"backed up: {done}")

        return self._runs("backup", write)

    # -- the course of events ----------------------------------------------------------------------

    def tell(self, world: World) -> None:
        world.boot()
        assert world.run_until(
            lambda: all((n := node_of(m)) and n.membership.is_in for m in world.brokers),
            limit_s=LIMIT_S,
        )
        self._ask("creator", self._create)
        writer = world.add_client("writer", self._write)
        writer.start()
        with striking(world, self._plan.disks, self._count):
            for _step in range(self._plan.steps):
                world.run_for(2 * self._random.random() ** 2)
                kind = self._random.choices(tuple(_EVENTS), (2, 1, 2, 1, 1, 1))[0]
                if _EVENTS[kind](self) and kind not in {"mirror", "backup"}:
                    self._count(kind)
                self._check_group()
        self._end(writer)

    def _admin(self, machine: ClientMachine, cluster: int) -> AsyncAdmin:
        return AsyncAdmin(
            self._bootstrap(cluster),
            client_id=machine.name,
            cluster_secret=CLUSTER_SECRET,
            host=machine.host(),
        )

    async def _create(self, machine: ClientMachine) -> None:
        factor, count = self._plan.source_brokers, self._plan.partitions
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": "16384",
            "segment.ms": "400",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": self._plan.tombstones_ms,
        }
        async with self._admin(machine, 0) as admin:
            await admin.create_topics(
                [NewTopic(COMPACTED, count, factor, config), NewTopic(PLAIN, count, factor)]
            )

    async def _write(self, machine: ClientMachine) -> None:
        """Set and delete keys, append records, and commit offsets of the group."""
        random, number = machine.random, 0
        while not self._is_over:
            with Enduring(machine):
                async with AsyncProducer(
                    self._bootstrap(0),
                    delivery_timeout_ms=5_000,
                    request_timeout_ms=2_000,
                    host=machine.host(),
                ) as producer:
                    while not self._is_over:
                        if not self._is_writing:
                            await asyncio.sleep(PAUSE_S)
                            continue
                        number += 1
                        where, key, value = self._drawn(random, number)
                        await producer.send(COMPACTED, value, key=key, partition=where)
                        plain = b"%d" % number
                        await producer.send(PLAIN, plain, partition=number % self._plan.partitions)
                        if random.random() < 0.2:
                            await producer.flush()
                        await asyncio.sleep(random.expovariate(1 / PAUSE_S))
            await asyncio.sleep(PAUSE_S)

    def _drawn(self, random: Random, number: int) -> tuple[int, bytes, bytes | None]:
        """Return partition, key and value of a record: of a key that is set and deleted often, or
        of one that is set once, and deleted later.
        """
        value, count = b"%d" % number, self._plan.partitions
        drawn = random.random()
        if drawn < 0.1 or (drawn < 0.3 and not self._once):
            self._once.append(number)
            return number % count, b"once-%d" % number, value
        if drawn < 0.3:
            old = self._once.pop(random.randrange(len(self._once)))
            return old % count, b"once-%d" % old, None
        key = random.randrange(self._plan.keys)
        return key % count, b"%d" % key, None if drawn < 0.5 else value

    def _rest(self) -> bool:
        """Let time pass, in which the source removes tombstones."""
        self._is_writing = self._random.random() < 0.5
        self._world.run_for(IDLE_S_MAX * self._random.random())
        self._is_writing = True
        return True

    def _kill(self) -> bool:
        machine = self._random.choice(self._world.brokers)
        if not machine.is_running:
            return False
        machine.kill()
        return True

    def _delete(self) -> bool:
        """Delete the first half of a partition of the plain topic."""

        async def delete(machine: ClientMachine) -> None:
            with Enduring(machine):
                async with self._admin(machine, 0) as admin:
                    ends = await admin.offsets(PLAIN, "latest")
                    await admin.delete_records({TopicPartition(PLAIN, 0): (ends[0] or 0) // 2})

        self._ask("deleter", delete)
        return True

    def _commit(self) -> bool:
        """Commit an offset of the group, in the source, or further on in the target."""
        cluster, name = self._random.randrange(2), TopicPartition(PLAIN, 0)

        async def commit(machine: ClientMachine) -> None:
            with Enduring(machine):
                async with self._admin(machine, cluster) as admin:
                    end = (await admin.offsets(PLAIN, "latest"))[0] or 0
                    offset = machine.random.randint(0, end)
                    if cluster:
                        offset = max(offset, self._committed)
                    await admin.commit_offsets(GROUP, {name: offset})
                    self._committed = max(self._committed, offset) if cluster else self._committed

        self._ask("committer", commit)
        return True

    def _check_group(self) -> None:
        """The offset of the group in the target has not gone back."""

        async def look(machine: ClientMachine) -> None:
            with Enduring(machine):
                async with self._admin(machine, 1) as admin:
                    found = await admin.group_offsets(GROUP)
                    committed = found.get(TopicPartition(PLAIN, 0))
                    offset = 0 if committed is None else committed.offset
                    if offset < self._committed:
                        self._violated("OFFSET-BACK", f"{self._committed}, then {offset}")
                    self._committed = offset

        self._ask("looker", look)

    # -- the end -----------------------------------------------------------------------------------

    def _end(self, writer: ClientMachine) -> None:
        world = self._world
        self._is_over = True
        world.heal()
        if not world.run_until(lambda: writer.is_done, limit_s=LIMIT_S):
            self._violated("STUCK", "the writer does not end")
        world.run_for(3.0)
        restore = partial(self._copy, policy=Policy.KEEP)
        copies: list[Callable[[], bool]] = [
            self._mirror,
            self._backup,
            lambda: self._runs(
                "restore", lambda host: restore(BackupSource(self._files), 2, host=host)
            ),
        ]
        for copy in copies:
            if not any(copy() for _attempt in range(ATTEMPTS_MAX)):
                self._violated("STUCK", "a copy does not succeed without faults")
                return
        found: list[Content] = [{}, {}, {}]
        for cluster in range(3):
            self._ask("reader", partial(self._read, cluster, found[cluster]))
        if not any(found[0].values()):
            self._violated("EMPTY", "the source has no records")
        for name, copied in (("mirror", found[1]), ("restored backup", found[2])):
            for topic, expected in found[0].items():
                if differing := _difference(topic, expected, copied[topic]):
                    self._violated("DIFFERS", f"{name}, {topic}: {differing}")

    async def _read(self, cluster: int, found: Content, machine: ClientMachine) -> None:
        """Read all topics. Of a compacted one, the newest value of each key counts."""
        values: Records = {}
        records: Records = {}
        names = [
            TopicPartition(topic, number)
            for topic in (COMPACTED, PLAIN)
            for number in range(self._plan.partitions)
        ]
        async with AsyncConsumer(
            self._bootstrap(cluster), host=machine.host(), fetch_max_wait_ms=100
        ) as consumer:
            await consumer.assign(names)
            await consumer.seek_to_beginning()
            left = await consumer.end_offsets(names)
            while left:
                for record in await consumer.poll(500):
                    if record.topic == PLAIN:
                        records[record.partition, record.offset] = record.value or b""
                    elif record.value is None:
                        values.pop(record.key or b"", None)
                    else:
                        values[record.key or b""] = record.value
                for name, end in list(left.items()):
                    if await consumer.position(name) >= end:
                        del left[name]
        found[COMPACTED], found[PLAIN] = values, records


def _difference(topic: str, expected: Records, found: Records) -> str:
    """Return how a copy differs from its source; "" if not. It may have records of a plain topic
    that were deleted in the source since they were copied.
    """
    keys = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    if topic == PLAIN:
        keys = [key for key in keys if key in expected]
    shown = {key: (expected.get(key), found.get(key)) for key in keys[:5]}
    return f"{len(keys)} of {len(expected)} differ: {shown}" if keys else ""


def _bury(machine: ClientMachine, thread: LoopThread | None) -> None:
    """Release the clients of a killed process, which has closed none, without their warnings."""
    for each in gc.get_objects():
        if isinstance(each, ThreadedClient) and each._thread is thread:
            each._closed = True
        elif isinstance(each, LoopBound) and each._loop is machine.loop:
            machine.own(each)  # as those of asynchronous programs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def _idle(_machine: ClientMachine) -> None:
    """Do nothing: the process has only the clients of a blocking program."""


_EVENTS: Final = {
    "mirror": _Tale._mirror,
    "backup": _Tale._backup,
    "rest": _Tale._rest,
    "kill": _Tale._kill,
    "delete": _Tale._delete,
    "commit": _Tale._commit,
}
