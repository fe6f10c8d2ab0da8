"""The txn workload: producers write transactions over several partitions, and fence each other.

Each transaction sends new values to some partitions. It is committed, or aborted by the
application, or it lasts longer than its time limit. Two writers share a transactional id, and every
writer replaces its producer from time to time: the newer instance fences the older one, which then
tries once more. Readers get committed records at the same time.

Operations:

    transact   One transaction: what it sends, by partition and in order. ``ok``: committed;
               ``fail``: aborted; ``info``: unknown. ``ending``: time of the request to commit.
    txn-read   Values that a reader of committed records got.

The etl workload adds workers: members of one group that poll the first topic, write each record to
another topic, and commit their offsets with the transaction. After a rebalance or an abort they
rewind to the committed offsets. ``read`` are the records that a transaction was made from.

After all faults are healed, the workers process the rest, and no transaction may stay open. Then a
new reader reads all partitions.

The anomalies are those of ``raftlog.testing.checker.transactions``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from raftlog.aio import AsyncAdmin, AsyncConsumer, AsyncProducer
from raftlog.client.transactions import AsyncTransaction
from raftlog.errors import (
    OutcomeUnknownError,
    ProducerFencedError,
    RaftlogError,
    TransactionAbortedError,
    UnknownGroupError,
)
from raftlog.testing.history import (
    Placed,
    Transact,
    TxnRead,
    Type,
    decode_value,
    encode_value,
)
from raftlog.types import ConsumerRecord, Offset, TopicPartition
from raftlog_jepsen.client import describe
from raftlog_jepsen.plan import WorkloadName
from raftlog_jepsen.workload.base import (
    METADATA_MAX_AGE_MS,
    PATIENCE_S,
    REQUEST_TIMEOUT_MS,
    Client,
    WorkloadContext,
    create_topics,
    run_all,
)

TIME_LIMIT_MS: Final = 8_000  # of a transaction
DELIVERY_TIMEOUT_MS: Final = 10_000
ABORTS: Final = 0.2  # share of the transactions that the application aborts
STALLS: Final = 0.01  # share that outlasts its time limit
PARTITIONS_MAX: Final = 4  # of one transaction
RECORDS_MAX: Final = 8  # of one transaction
PAUSE_S: Final = (0.0, 0.2)  # between two transactions
SESSION_S: Final = (3.0, 30.0)  # of a producer, a reader or a worker
WORKERS: Final = 3
WORKER_RECORDS_MAX: Final = 50  # of one poll
GROUP: Final = "etl"
SESSION_TIMEOUT_MS: Final = 6_000  # of the group
RECOVERIES_MAX: Final = 40
DRAIN_S: Final = 150.0
LEADING_READS: Final = 0.2  # share of the readers' sessions that begin at the first record


class _AbortingError(Exception):
    """The application aborts its transaction."""


@dataclass
class TransactionsWorkload:
    """Writers and readers. ``has_workers``: also workers, which copy the first topic to others."""

    name: WorkloadName = "txn"
    drains: bool = True
    has_workers: bool = False

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        stop = context.stopping.is_set
        clients: dict[str, Client] = {}
        written = self._inputs(context) if self.has_workers else context.targets
        count = len(context.plan.workload.producers)
        for number in range(count):
            name = f"writer-{number}"
            shared = max(number, 1)  # the first two have one transactional id
            clients[name] = partial(keep_writing, context, name, f"id-{shared}", written)
        for number in range(len(context.plan.workload.consumers)):
            name = f"reader-{number}"
            clients[name] = partial(keep_reading, context, name)
        if self.has_workers:
            clients |= self._workers(context, stop)
        await run_all(context, clients)

    def _inputs(self, context: WorkloadContext) -> list[TopicPartition]:
        first = context.plan.shape.topics[0].name
        return [partition for partition in context.targets if partition.topic == first]

    def _workers(
        self, context: WorkloadContext, stop: Callable[[], bool], suffix: str = ""
    ) -> dict[str, Client]:
        inputs = self._inputs(context)
        outputs = [partition for partition in context.targets if partition not in inputs]
        return {
            f"worker-{number}{suffix}": partial(
                keep_copying, context, f"worker-{number}{suffix}", f"etl-{number}", inputs[0].topic,
                outputs, stop,
            )
            for number in range(WORKERS)
        }  # fmt: skip

    async def drain(self, context: WorkloadContext) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_S
        problems = ["not checked"]

        async def settle() -> None:
            nonlocal problems
            while problems and loop.time() < deadline:
                try:
                    problems = await self._unsettled(context)
                except RaftlogError as error:
                    problems = [f"not known: {describe(error)}"]
                if problems:
                    await asyncio.sleep(PATIENCE_S)

        settling = asyncio.create_task(settle())
        clients: dict[str, Client] = {}
        if self.has_workers:
            clients = self._workers(context, settling.done, "-drain")
        await run_all(context, clients)
        await settling
        return await _read_all(context, problems, self.has_workers)

    async def _unsettled(self, context: WorkloadContext) -> list[str]:
        """Return which partitions have an open transaction, or records that no worker copied."""
        async with _consumer(context) as stable, _consumer(context, "uncommitted") as any_:
            ends = await stable.end_offsets(context.targets)
            found = [
                f"{tp} is stable up to {ends[tp]} of {end}"
                for tp, end in (await any_.end_offsets(context.targets)).items()
                if ends[tp] < end
            ]
        if self.has_workers:
            offsets = await _committed(context)
            async with _consumer(context) as consumer:
                found += [
                    f"{GROUP} is at {offsets.get(tp, 0)} of {tp}: {ends[tp]}"
                    for tp in self._inputs(context)
                    if await _has_records(consumer, tp, offsets.get(tp, 0), ends[tp])
                ]
        return found


def etl() -> TransactionsWorkload:
    """Return the etl workload."""
    return TransactionsWorkload(name="etl", has_workers=True)


# -- writers ---------------------------------------------------------------------------------------


def _producer(context: WorkloadContext, random: Random, name: str) -> AsyncProducer:
    return AsyncProducer(
        context.entrance(random, pinned=random.random() < 0.5),
        transactional_id=name,
        transaction_timeout_ms=TIME_LIMIT_MS,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )


async def keep_writing(
    context: WorkloadContext, name: str, transactional_id: str, partitions: list[TopicPartition]
) -> None:
    """Write transactions with one producer at a time, until the load ends."""
    random, loop, number = context.fork(name), asyncio.get_running_loop(), 0
    while not context.stopping.is_set():
        ends_at = loop.time() + random.uniform(*SESSION_S)
        after_fence = False
        async with _producer(context, random, transactional_id) as producer:
            while loop.time() < ends_at and not context.stopping.is_set():
                number += 1
                made = _drawn(context, random, f"{name}/{number}", partitions)
                made.after_fence = after_fence
                block = partial(_write, context, random, producer, made)
                _, is_fenced = await _outcome(context, producer, made, block)
                if after_fence:
                    break
                after_fence = is_fenced
                await context.sleep(random.uniform(*PAUSE_S))


def _drawn(
    context: WorkloadContext, random: Random, name: str, partitions: list[TopicPartition]
) -> Transact:
    count = random.randint(1, RECORDS_MAX)
    chosen = random.sample(partitions, min(len(partitions), random.randint(1, PARTITIONS_MAX)))
    first = context.clients.new_values(count)
    sent = [(str(random.choice(chosen)), value) for value in range(first, first + count)]
    return Transact(time=0, process=name.partition("/")[0], type="invoke", name=name, sent=sent)


async def _write(
    context: WorkloadContext, random: Random, producer: AsyncProducer, made: Transact
) -> None:
    async with producer.transaction() as txn:
        for placed in made.sent:
            await _send(txn, placed)
            if random.random() < 0.05:
                await asyncio.sleep(random.uniform(0.0, 0.3))
        if random.random() < STALLS:
            await asyncio.sleep(1.5 * TIME_LIMIT_MS / 1_000)
        if random.random() < ABORTS:
            raise _AbortingError
        made.ending = context.recorder.now_ns()


async def _send(txn: AsyncTransaction, placed: Placed) -> None:
    topic, _, number = placed[0].rpartition(":")
    await txn.send(topic, encode_value(placed[1], 0), partition=int(number))


async def _outcome(
    context: WorkloadContext,
    producer: AsyncProducer,
    made: Transact,
    block: Callable[[], Any],
) -> tuple[Type, bool]:
    """Run a block, and record its transaction. Returns its outcome, and whether the producer is
    fenced.
    """
    record = context.recorder.record
    record(made)
    done = Transact(
        time=0, process=made.process, type="info", name=made.name, sent=made.sent, read=made.read,
        after_fence=made.after_fence,
    )  # fmt: skip
    is_fenced = False
    try:
        await block()
        done.type = "ok"
    except (_AbortingError, TransactionAbortedError) as error:
        done.type, done.error = "fail", str(error)[:200]
    except ProducerFencedError as error:
        is_fenced, done.error = True, describe(error)
    except OutcomeUnknownError as error:
        done.error = describe(error)
        if made.ending:
            done.type = await _recovered(context, producer)
    except RaftlogError as error:
        done.error = describe(error)
        if not made.ending:
            done.type = "fail"
    finally:
        done.ending = made.ending
        record(done)
    return done.type, is_fenced


async def _recovered(context: WorkloadContext, producer: AsyncProducer) -> Type:
    for _ in range(RECOVERIES_MAX):
        try:
            return "ok" if await producer.recover() else "fail"
        except OutcomeUnknownError:
            if context.stopping.is_set():
                break
            await asyncio.sleep(PATIENCE_S)
        except RaftlogError:
            break
    return "info"


# -- workers ---------------------------------------------------------------------------------------


async def keep_copying(
    context: WorkloadContext,
    name: str,
    transactional_id: str,
    topic: str,
    outputs: list[TopicPartition],
    stop: Callable[[], bool],
) -> None:
    """Copy records with one producer and one consumer at a time, until ``stop()``."""
    random, loop, number = context.fork(name), asyncio.get_running_loop(), 0
    while not stop():
        ends_at = loop.time() + random.uniform(*SESSION_S)
        with suppress(RaftlogError):
            async with (
                _producer(context, random, transactional_id) as producer,
                _consumer(context, group=GROUP) as consumer,
            ):
                await consumer.subscribe([topic])
                while loop.time() < ends_at and not stop():
                    records = await consumer.poll(300, WORKER_RECORDS_MAX)
                    if not records:
                        continue
                    number += 1
                    made = _copy_of(context, random, f"{name}/{number}", records, outputs)
                    block = partial(_copy, context, random, producer, consumer, made)
                    ended, _ = await _outcome(context, producer, made, block)
                    if ended == "fail":
                        await _rewind(consumer)
                    elif ended != "ok":
                        break  # a new consumer waits for the end of the transaction
        await asyncio.sleep(PATIENCE_S)


def _copy_of(
    context: WorkloadContext,
    random: Random,
    name: str,
    records: Sequence[ConsumerRecord[Any, Any]],
    outputs: list[TopicPartition],
) -> Transact:
    first = context.clients.new_values(len(records))
    read = [(f"{each.topic}:{each.partition}", decode_value(each.value)) for each in records]
    sent = [(str(random.choice(outputs)), first + index) for index in range(len(records))]
    process = name.partition("/")[0]
    return Transact(time=0, process=process, type="invoke", name=name, sent=sent, read=read)


async def _copy(
    context: WorkloadContext,
    random: Random,
    producer: AsyncProducer,
    consumer: AsyncConsumer,
    made: Transact,
) -> None:
    async with producer.transaction() as txn:
        for placed in made.sent:
            await _send(txn, placed)
        await txn.commit_offsets(consumer)
        if random.random() < ABORTS / 2:
            raise _AbortingError
        made.ending = context.recorder.now_ns()


async def _rewind(consumer: AsyncConsumer) -> None:
    """Go back to the committed offsets, as docs/how-to/transactions.md does."""
    for tp, found in (await consumer.committed(await consumer.assignment())).items():
        if found is None:
            await consumer.seek_to_beginning([tp])
        else:
            await consumer.seek(tp, found)


# -- readers ---------------------------------------------------------------------------------------


def _consumer(
    context: WorkloadContext, isolation: str = "committed", *, group: str | None = None
) -> AsyncConsumer:
    grouped: dict[str, Any] = {}
    if group:
        grouped = {"session_timeout_ms": SESSION_TIMEOUT_MS, "auto_commit": False}
    return AsyncConsumer(
        context.bootstrap,
        group=group,
        auto_offset_reset="earliest" if group else "error",
        isolation=isolation,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
        **grouped,
    )


async def keep_reading(context: WorkloadContext, name: str) -> None:
    """Read committed records with one consumer at a time, until the load ends."""
    random, loop, number = context.fork(name), asyncio.get_running_loop(), 0
    while not context.stopping.is_set():
        number += 1
        ends_at = loop.time() + random.uniform(*SESSION_S)
        with suppress(RaftlogError):
            async with _consumer(context) as consumer:
                await consumer.assign(context.targets)
                if random.random() < LEADING_READS:
                    await consumer.seek_to_beginning()
                else:
                    await consumer.seek_to_end()
                while loop.time() < ends_at and not context.stopping.is_set():
                    records = await consumer.poll(300)
                    if records:
                        _record(context, f"{name}/{number}", records)
        await context.sleep(PATIENCE_S)


def _record(
    context: WorkloadContext,
    reader: str,
    records: Sequence[ConsumerRecord[Any, Any]],
    *,
    is_final: bool = False,
) -> None:
    found: dict[str, list[tuple[int, int]]] = {}
    for each in records:
        name = f"{each.topic}:{each.partition}"
        found.setdefault(name, []).append((each.offset, decode_value(each.value)))
    context.recorder.record(
        TxnRead(time=0, process=reader, type="ok", records=found, is_final=is_final)
    )


async def _committed(context: WorkloadContext) -> dict[TopicPartition, Offset]:
    async with AsyncAdmin(context.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        with suppress(UnknownGroupError):  # no worker has joined
            found = await admin.group_offsets(GROUP)
            return {tp: each.offset for tp, each in found.items()}
    return {}


async def _has_records(
    consumer: AsyncConsumer, partition: TopicPartition, offset: Offset, end: Offset
) -> bool:
    """Return whether committed records are there, and not only the ends of transactions."""
    if offset >= end:
        return False
    await consumer.assign([partition])
    await consumer.seek(partition, offset)
    while await consumer.position(partition) < end:
        if await consumer.poll(500, 1):
            return True
    return False


async def _read_all(context: WorkloadContext, problems: list[str], has_group: bool) -> bool:
    """Read and record all committed records. Returns whether all were read."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    attempt, problem = 0, ""
    while loop.time() < deadline:
        attempt += 1
        reader = f"final/{attempt}"
        try:
            async with _consumer(context) as consumer:
                left = dict(await consumer.end_offsets(context.targets))
                await consumer.assign(context.targets)
                await consumer.seek_to_beginning()
                while left and loop.time() < deadline:
                    records = await consumer.poll(500)
                    if records:
                        _record(context, reader, records, is_final=True)
                    for tp, end in list(left.items()):
                        if await consumer.position(tp) >= end:
                            del left[tp]
            offsets = await _committed(context) if has_group else {}
            if not left:
                context.recorder.record(
                    TxnRead(
                        time=0,
                        process=reader,
                        type="ok",
                        is_final=True,
                        is_complete=True,
                        has_group=has_group,
                        committed={str(tp): offset for tp, offset in offsets.items()},
                        unsettled=problems,
                    )
                )
                return True
        except RaftlogError as error:
            problem = describe(error)
            await asyncio.sleep(PATIENCE_S)
    context.note(f"the committed records could not be read: {problem}")
    return False
