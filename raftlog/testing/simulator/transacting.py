"""Transactions in worlds of three brokers, with faults, checked from outside and from inside.

Processes write transactions over several partitions, commit or abort them, and stall for longer
than their time limit; two of them share a transactional id, so that they fence each other. A worker
reads one topic, writes its records to another and commits its offsets with them. A reader gets
committed records all the time. Brokers are killed, cut off and paused; in most worlds they also
lose power, their disks fail, are full or slow, and bytes of one of them are corrupted.

``transaction_observer`` checks the brokers after each event. At the end all faults are mended.
``checker.transactions`` judges the history. Besides, each partition must have no open transaction
left, and its replicas the same transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.errors import (
    OutcomeUnknownError,
    ProducerFencedError,
    RaftlogError,
    TransactionAbortedError,
    UnknownGroupError,
)
from raftlog.server.partition import Partition
from raftlog.testing.checker.transactions import Log, Place, Read, Transaction, check
from raftlog.testing.simulator.faults import OF_STORED_BYTES, FaultPlan, striking
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.transaction_observer import TransactionObserver
from raftlog.testing.simulator.workload import CompactionPlan
from raftlog.testing.simulator.world import (
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
from raftlog.types import ConsumerRecord, NewTopic, Offset, TopicPartition

BROKERS: Final = 3
WRITERS: Final = 3  # the last two share a transactional id
TOPIC, OUTPUT, GROUP = "t", "out", "workers"
PARTITIONS: Final = [TopicPartition(TOPIC, number) for number in range(3)]
OUTPUTS: Final = [TopicPartition(OUTPUT, number) for number in range(2)]
STEPS: Final = (4, 6, 9)
PAUSES_S: Final = (0.2, 1.0, 3.0, 8.0)
DOWN_S_MAX: Final = 8.0
TIMEOUT_MS: Final = 2_500  # of a transaction
ABORTS: Final = 0.25
STALLS: Final = 0.08  # share of transactions that outlast their time limit
REQUEST_MS: Final = 1_500
PATIENCE_S: Final = 0.4
HARMED_SHARE: Final = 0.5  # of the plans with faults of disks: stored bytes are harmed, too
COMPACTED_SHARE: Final = 0.4  # of the plans: topics are compacted
END_S: Final = 120.0  # for what is left to end, in virtual time


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan:
    """``steps``: number of faults of processes and links. ``disks``: those of power and disks, at
    the same time; None: none. ``compaction``: of the topics. No two records have the same key, so
    it removes aborted records and markers only; None: topics are not compacted."""

    seed: int
    steps: int
    disks: FaultPlan | None = None
    compaction: CompactionPlan | None = None

    @classmethod
    def draw(cls, seed: int) -> TransactionPlan:
        random = Random(f"{seed}/disks")
        disks = FaultPlan.of_disks(random)
        if disks is not None and random.random() < HARMED_SHARE:
            # One broker: two replicas in sync have each record that is acknowledged.
            harmed = tuple(kind for kind in OF_STORED_BYTES if random.random() < 0.6)
            kinds = (*disks.kinds, *harmed)
            disks = replace(disks, kinds=kinds, harmed=(random.randint(1, BROKERS),))
        random = Random(f"{seed}/compaction")
        compacted = random.random() < COMPACTED_SHARE
        return cls(
            seed=seed,
            steps=Random(f"{seed}/transactions").choice(STEPS),
            disks=disks,
            compaction=CompactionPlan.draw(random) if compacted else None,
        )


def run(plan: TransactionPlan, *, on_trace: Callable[[str], None] | None = None) -> Result:
    """Run a plan. An exception of the simulated program is a violation, and not raised."""
    return _Tale(plan).run(plan.seed, brokers=BROKERS, on_trace=on_trace)


class _Tale(Tale):
    def __init__(self, plan: TransactionPlan) -> None:
        super().__init__()
        self._plan = plan
        self._transactions: list[Transaction] = []
        self._reads: list[Read] = []
        self._clients: list[ClientMachine] = []
        self._is_over = False
        self._observer: TransactionObserver

    async def start_broker(self, machine: BrokerMachine) -> RunningBroker:
        config = replace(
            broker_config(machine, offsets_partitions=2),
            transaction_state_log_num_partitions=2,
            transaction_max_timeout_ms=10_000,
        )
        if self._plan.compaction is not None:
            config = replace(config, log_cleaner_interval_ms=self._plan.compaction.interval_ms)
        return await start_broker(machine, config=config)

    # -- the course of events ----------------------------------------------------------------------

    def tell(self, world: World) -> None:
        self._observer = TransactionObserver(world, self._violated, groups=[GROUP])
        world.boot()
        if not self._ask("creator", self._create):
            return
        for number in range(WRITERS):
            self._begin(f"writer-{number}", partial(self._write, f"id-{min(number, 1)}"))
        self._begin("worker", self._work)
        self._begin("reader", self._read)
        with striking(world, self._plan.disks, self._count, may_wipe=lambda _brokers: True):
            for _step in range(self._plan.steps):
                world.run_for(self._random.choice(PAUSES_S) * self._random.random())
                kind = self._random.choice(tuple(_EVENTS))
                _EVENTS[kind](self)
                self._count(kind)
            world.run_for(PAUSES_S[-1])
        world.heal()
        world.run_for(2.0)
        self._is_over = True
        if not world.run_until(lambda: all(c.is_done for c in self._clients), limit_s=END_S):
            stuck = [client.name for client in self._clients if not client.is_done]
            self._violated("STUCK", f"{stuck} do not end")
            return
        if not world.run_until(self._is_quiet, limit_s=END_S, every_s=0.2):
            self._violated("HANGING", f"{self._open_text()}")
            return
        self._judge()

    def _begin(self, name: str, work: Callable[[ClientMachine], Coroutine[Any, Any, None]]) -> None:
        client = self._world.add_client(name, work)
        client.start()
        self._clients.append(client)

    async def _create(self, machine: ClientMachine) -> None:
        config = self._plan.compaction.topic_config if self._plan.compaction else {}
        for name, partitions in ((TOPIC, PARTITIONS), (OUTPUT, OUTPUTS)):
            topic = NewTopic(name, len(partitions), 3, config)
            for _attempt in range(20):
                with Enduring(machine):
                    async with AsyncAdmin(self._world.bootstrap, host=machine.host()) as admin:
                        await admin.create_topics([topic])
                        break
                await asyncio.sleep(1.0)

    # -- clients -----------------------------------------------------------------------------------

    def _producer(self, machine: ClientMachine, name: str) -> AsyncProducer:
        return AsyncProducer(
            self._world.bootstrap,
            transactional_id=name,
            transaction_timeout_ms=TIMEOUT_MS,
            delivery_timeout_ms=2 * REQUEST_MS,
            request_timeout_ms=REQUEST_MS,
            client_id=machine.name,
            host=machine.host(),
        )

    async def _write(self, name: str, machine: ClientMachine) -> None:
        """Write transactions, each of values that no other has."""
        number = 0
        while not self._is_over:
            with Enduring(machine):
                async with self._producer(machine, name) as producer:
                    is_fenced = False
                    while not (is_fenced or self._is_over):
                        made = Transaction(f"{machine.name}/{number}")
                        number += 1
                        self._transactions.append(made)
                        is_fenced = await self._one(machine, producer, made)
                        await asyncio.sleep(PATIENCE_S * machine.random.random())
            await asyncio.sleep(PATIENCE_S)

    async def _one(
        self, machine: ClientMachine, producer: AsyncProducer, made: Transaction
    ) -> bool:
        """Run one transaction. Returns whether the producer is fenced."""
        random = machine.random
        aborts = random.random() < ABORTS

        async def block() -> None:
            async with producer.transaction() as txn:
                for index in range(random.randint(1, 5)):
                    where = random.choice(PARTITIONS)
                    value = f"{made.name}/{index}".encode()
                    made.sent.append(Place(where, value))
                    await txn.send(where.topic, value, key=value, partition=where.partition)
                    if random.random() < 0.3:
                        await asyncio.sleep(0.2 * random.random())
                if random.random() < STALLS:
                    await asyncio.sleep(2 * TIMEOUT_MS / 1_000)
                if aborts:
                    raise _AbortingError
                made.ending_s = self._world.time.now

        return await self._outcome(producer, made, block)

    async def _outcome(
        self,
        producer: AsyncProducer,
        made: Transaction,
        block: Callable[[], object],
    ) -> bool:
        """Run a block, and note how its transaction ended. Returns whether the producer is
        fenced.
        """
        try:
            await block()  # type: ignore[misc] # a coroutine
        except _AbortingError:
            made.outcome = "aborted"
        except TransactionAbortedError:
            made.outcome = "aborted"
        except ProducerFencedError:
            # It may be that of the end of a transaction that was committed before.
            self._count("fenced")
            return True
        except OutcomeUnknownError:
            self._count("unknown")
            if made.ending_s is not None:
                await self._recover(producer, made)
        except RaftlogError as error:
            self._world.trace(f"{made.name}: {error!r}")
            if made.ending_s is None:
                made.outcome = "aborted"
        else:
            made.outcome = "committed"
            self._count("committed")
        if made.outcome == "aborted":
            self._count("aborted")
        return False

    async def _recover(self, producer: AsyncProducer, made: Transaction) -> None:
        for _attempt in range(20):
            try:
                made.outcome = "committed" if await producer.recover() else "aborted"
            except OutcomeUnknownError:
                await asyncio.sleep(PATIENCE_S)
                continue
            except RaftlogError as error:
                self._world.trace(f"{made.name}: not recovered: {error!r}")
            return

    async def _work(self, machine: ClientMachine) -> None:
        """Copy the topic to another, each poll in one transaction with the group's offsets."""
        number = 0
        while not self._is_over:
            with Enduring(machine):
                async with (
                    self._producer(machine, "worker") as producer,
                    AsyncConsumer(
                        self._world.bootstrap,
                        group=GROUP,
                        auto_commit=False,
                        auto_offset_reset="earliest",
                        fetch_max_wait_ms=200,
                        session_timeout_ms=6_000,
                        client_id=machine.name,
                        host=machine.host(),
                    ) as consumer,
                ):
                    await consumer.subscribe([TOPIC])
                    while not self._is_over:
                        records = await consumer.poll(300)
                        if not records:
                            continue
                        made = Transaction(f"{machine.name}/{number}")
                        number += 1
                        self._transactions.append(made)
                        block = partial(self._copy, machine, producer, consumer, records, made)
                        await self._outcome(producer, made, block)
                        if made.outcome != "committed":
                            break  # begin again from the committed offsets
            await asyncio.sleep(PATIENCE_S)

    async def _copy(
        self,
        machine: ClientMachine,
        producer: AsyncProducer,
        consumer: AsyncConsumer[bytes, bytes],
        records: Sequence[ConsumerRecord[bytes, bytes]],
        made: Transaction,
    ) -> None:
        async with producer.transaction() as txn:
            for record in records:
                value = record.value or b""
                source = TopicPartition(record.topic, record.partition)
                where = machine.random.choice(OUTPUTS)
                made.read.append(Place(source, value))
                # An input that is copied again, after an abort, has another output.
                output = b"%s<%s" % (value, made.name.encode())
                made.sent.append(Place(where, output))
                await txn.send(where.topic, output, key=output, partition=where.partition)
            await txn.commit_offsets(consumer)
            if machine.random.random() < ABORTS / 2:
                raise _AbortingError
            made.ending_s = self._world.time.now

    async def _read(self, machine: ClientMachine) -> None:
        """Read committed records, from the beginning again after each failure."""
        attempt = 0
        while not self._is_over:
            attempt += 1
            name = f"reader-{attempt}"
            with Enduring(machine):
                async with self._consumer(machine) as consumer:
                    await consumer.assign([*PARTITIONS, *OUTPUTS])
                    await consumer.seek_to_beginning()
                    while not self._is_over:
                        for record in await consumer.poll(300):
                            where = TopicPartition(record.topic, record.partition)
                            now, value = self._world.time.now, record.value or b""
                            self._reads.append(Read(name, now, where, record.offset, value))
                            self._observer.model.delivered(name, where, record.offset)
            await asyncio.sleep(PATIENCE_S)

    def _consumer(self, machine: ClientMachine) -> AsyncConsumer[bytes, bytes]:
        return AsyncConsumer(
            self._world.bootstrap,
            client_id=machine.name,
            host=machine.host(),
            fetch_max_wait_ms=100,
        )

    # -- events ------------------------------------------------------------------------------------

    def _kill(self) -> None:
        machine = self._random.choice(self._world.brokers)
        if machine.is_running:
            machine.kill()
            machine.start_later(DOWN_S_MAX * self._random.random())

    def _pause(self) -> None:
        machine = self._random.choice(self._world.brokers)
        if machine.is_running:
            machine.pause()
            self._world.control.call_later(DOWN_S_MAX * self._random.random(), machine.resume)

    def _split(self) -> None:
        """Cut one broker off from the others; clients reach all."""
        names = [machine.name for machine in self._world.brokers]
        alone = self._random.choice(names)
        self._world.network.partition([alone], [name for name in names if name != alone])

    def _isolate(self) -> None:
        """Cut one client off from one broker."""
        client, broker = (
            self._random.choice(self._clients),
            self._random.choice(self._world.brokers),
        )
        self._world.network.cut(client.name, broker.name)

    def _mend(self) -> None:
        self._world.network.heal()

    # -- the end -----------------------------------------------------------------------------------

    def _hosts(self) -> list[Partition]:
        return [
            hosted.host
            for machine in self._world.brokers
            if (node := node_of(machine)) is not None
            for hosted in node.partitions.hosted.values()
            if hosted.host is not None and hosted.topic in {TOPIC, OUTPUT}
        ]

    def _is_quiet(self) -> bool:
        """Whether all replicas are there and equal, and no transaction is open."""
        hosts = self._hosts()
        ends: dict[TopicPartition, set[tuple[Offset, ...]]] = {}
        for host in hosts:
            extent = host.log.log_end_offset, host.high_watermark, host.last_stable_offset
            ends.setdefault(host.topic_partition, set()).add(extent)
        return len(hosts) == BROKERS * len([*PARTITIONS, *OUTPUTS]) and all(
            len(found) == 1 and len(set(next(iter(found)))) == 1 for found in ends.values()
        )

    def _open_text(self) -> str:
        return "; ".join(
            f"{host.topic_partition} of {host.log.log_end_offset}: high watermark "
            f"{host.high_watermark}, stable {host.last_stable_offset}, open "
            f"{host.log.producers.transactions.opened()}"
            for host in self._hosts()
        )

    def _judge(self) -> None:
        final: dict[TopicPartition, list[tuple[Offset, bytes]]] = {}
        committed: dict[TopicPartition, Offset] = {}
        if not self._ask("last reader", partial(self._read_all, final, committed)):
            return
        tables: dict[TopicPartition, set[str]] = {}
        for host in self._hosts():
            known = repr(host.log.producers.transactions.aborted(0, host.log.log_end_offset))
            tables.setdefault(host.topic_partition, set()).add(known)
        for where, found in tables.items():
            # Each replica compacts its log by itself.
            if len(found) > 1 and self._plan.compaction is None:
                self._violated("REPLICA-DIVERGENCE", f"{where} has {found}")
        log: Log = final
        for kind, text in check(self._transactions, self._reads, log, committed):
            self._violated(kind, text)
        self._count("records", sum(map(len, final.values())))
        self._count("reads", len(self._reads))

    async def _read_all(
        self,
        final: dict[TopicPartition, list[tuple[Offset, bytes]]],
        committed: dict[TopicPartition, Offset],
        machine: ClientMachine,
    ) -> None:
        names = [*PARTITIONS, *OUTPUTS]
        async with self._consumer(machine) as consumer:
            await consumer.assign(names)
            await consumer.seek_to_beginning()
            left = await consumer.end_offsets(names)
            while left:
                for record in await consumer.poll(500):
                    where = TopicPartition(record.topic, record.partition)
                    final.setdefault(where, []).append((record.offset, record.value or b""))
                for where, end in list(left.items()):
                    if await consumer.position(where) >= end:
                        del left[where]
        async with AsyncAdmin(self._world.bootstrap, host=machine.host()) as admin:
            with suppress(UnknownGroupError):  # no worker has joined
                for where, found in (await admin.group_offsets(GROUP)).items():
                    committed[where] = found.offset


class _AbortingError(Exception):
    """The application aborts its transaction."""


_EVENTS: Final = {
    "kill": _Tale._kill,
    "pause": _Tale._pause,
    "split": _Tale._split,
    "isolate": _Tale._isolate,
    "mend": _Tale._mend,
}
