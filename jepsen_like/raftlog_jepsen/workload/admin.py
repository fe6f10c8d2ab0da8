"""The admin workload: an operator changes topics and leaders while clients are active.

All topics are written and read as in the append workload. Its operations and anomalies apply here,
too. Stable topics are never deleted. The operator adds partitions to them, which clients use
immediately, moves their leaders, and sometimes deletes the records at their start. Side topics are
created and deleted, several times with the same name, while clients use them. One operator makes
one change at a time.

Operations, in addition to those of the append workload:

    create          a side topic, with some partitions and replicas
    delete          a side topic with all its records
    add-partitions  to a stable topic or a side topic
    transfer        the leadership of a partition moves to another in-sync replica
    alter           a topic's segment size; of a side topic also its retention
    delete records  the records of a partition below an offset, which is at or below its end
    append          to a side topic, also by the operator, which waits for the outcome before the
                    next change, so that it is known which topic of that name has the values

A change that ends with an error may have been made, or may be made later. Its outcome is ``info``,
and the operator continues under another process name.

Additional anomalies:

    RESURRECTED     a value that was acknowledged before its topic was deleted is in the next topic
                    of that name
    LOST            an acknowledged value is missing although its topic was not deleted, and neither
                    a deletion of records nor an altered retention removed it
    GAP, POLL-SKIP  records are missing that no deletion of records covers
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

from raftlog.aio import AsyncAdmin, AsyncProducer
from raftlog.errors import RaftlogError
from raftlog.testing.history import Delete
from raftlog.types import TopicPartition
from raftlog_jepsen.client import Process, describe
from raftlog_jepsen.plan import TopicShape, WorkloadName
from raftlog_jepsen.workload import append
from raftlog_jepsen.workload.base import (
    CLOSE_TIMEOUT_S,
    PATIENCE_S,
    REQUEST_TIMEOUT_MS,
    LoadOnly,
    WorkloadContext,
    administrate,
    create_topic,
    create_topics,
    existing_partitions,
    run_all,
)

SIDE_TOPICS: Final = ("side-1", "side-2", "side-3")
SIDE_PARTITIONS_MAX: Final = 4
PARTITIONS_MAX: Final = 24  # of all stable topics
METADATA_TIMEOUT_S: Final = 5.0
DELIVERY_MS: Final = 5_000
GROUPS: Final = (1, 5)  # groups of one write to a side topic
GROUP_MAX: Final = 20
SEGMENT_BYTES: Final = ("16384", "65536", "1048576")
RETENTION_BYTES: Final = ("-1", "65536", "1048576")
DELETED_PART: Final = 0.5  # maximum share of the records of a partition


class AdminWorkload(LoadOnly):
    """The clients of the append workload, and an operator."""

    name: WorkloadName = "admin"

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        clients = append.clients(context)
        if context.plan.workload.admin_rate > 0:
            clients["operator"] = partial(operate, context, "operator")
        await run_all(context, clients)


@dataclass
class Operator:
    """Makes the changes. ``sides``: number of partitions of the existing side topics, as of the
    last refresh."""

    context: WorkloadContext
    admin: AsyncAdmin
    random: Random
    process: Process
    sides: dict[str, int] = field(default_factory=dict)

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic that clients use."""
        return sum(partition.topic == topic for partition in self.context.targets)

    @property
    def stable_names(self) -> list[str]:
        return [topic.name for topic in self.context.plan.shape.topics]

    @property
    def stable(self) -> TopicShape:
        """A randomly selected stable topic."""
        return self.random.choice(self.context.plan.shape.topics)

    async def change(
        self, what: str, topic: str, args: dict[str, Any], act: Callable[[], Awaitable[object]]
    ) -> bool:
        """Make a change and record it. Returns whether it was certainly made."""
        process = self.process.name
        problem = await administrate(self.context, process, what, topic, args, act)
        if problem:
            self.process.retire(process)
            await self.context.sleep(PATIENCE_S)
        return not problem

    async def refresh(self) -> None:
        """Fetch the current partitions and let clients use them.

        Changes nothing without a response. Never removes partitions of stable topics.
        """
        try:
            found = await existing_partitions(self.context, timeout_s=METADATA_TIMEOUT_S)
        except TimeoutError:
            return
        stable = set(self.stable_names)
        self.context.targets[:] = dict.fromkeys(
            [partition for partition in self.context.targets if partition.topic in stable]
            + [partition for partition in found if partition.topic in {*stable, *SIDE_TOPICS}]
        )
        sides = [partition.topic for partition in found if partition.topic in SIDE_TOPICS]
        self.sides = {name: sides.count(name) for name in dict.fromkeys(sides)}


Act: TypeAlias = Callable[[Operator], Awaitable[None]]


async def operate(context: WorkloadContext, name: str) -> None:
    """Make changes at the average rate of the plan, until the load ends."""
    random = context.fork(name)
    async with AsyncAdmin(context.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        operator = Operator(context, admin, random, Process(name))
        while not context.stopping.is_set():
            await context.sleep(random.expovariate(context.plan.workload.admin_rate))
            if not context.stopping.is_set():
                await random.choices(ACTS, WEIGHTS)[0](operator)


async def renew_side(operator: Operator) -> None:
    """Create a side topic and write to it. Deletes an existing topic of that name first, so that
    the name is reused immediately."""
    name = operator.random.choice(SIDE_TOPICS)
    await operator.refresh()
    if name in operator.sides and not await _delete(operator, name):
        return
    await _create(operator, name)
    await operator.refresh()
    if name in operator.sides:
        await write_to(operator, name)


async def delete_side(operator: Operator) -> None:
    await operator.refresh()
    if operator.sides:
        await _delete(operator, operator.random.choice(sorted(operator.sides)))


async def write_side(operator: Operator) -> None:
    await operator.refresh()
    if operator.sides:
        await write_to(operator, operator.random.choice(sorted(operator.sides)))


async def _delete(operator: Operator, name: str) -> bool:
    operator.sides.pop(name, None)
    return await operator.change("delete", name, {}, lambda: operator.admin.delete_topics([name]))


async def _create(operator: Operator, name: str) -> None:
    random = operator.random
    stable = operator.stable  # its number of replicas is valid for the faults of the run
    topic = TopicShape(
        name=name,
        partitions=random.randint(1, SIDE_PARTITIONS_MAX),
        replication_factor=stable.replication_factor,
        min_isr=stable.min_isr,
        config=(("retention.ms", "-1"), ("segment.bytes", random.choice(SEGMENT_BYTES))),
    )
    process = operator.process.name
    problem = await create_topic(operator.context, operator.admin, process, topic)
    if problem:
        operator.process.retire(process)


async def write_to(operator: Operator, name: str) -> None:
    """Append a few groups to a side topic, and wait for their outcomes."""
    context, random = operator.context, operator.random
    producer = AsyncProducer(
        context.bootstrap,
        linger_ms=0,
        max_block_ms=DELIVERY_MS // 2,
        request_timeout_ms=DELIVERY_MS // 2,
        delivery_timeout_ms=DELIVERY_MS,
    )
    groups = []
    process = operator.process.name
    for _ in range(random.randint(*GROUPS)):
        partition = TopicPartition(name, random.randrange(operator.sides[name]))
        count = random.randint(1, GROUP_MAX)
        groups.append(
            await context.clients.begin(
                producer, process, partition, count=count, padding=random.choice((0, 100, 5_000))
            )
        )
    await producer.close(timeout=CLOSE_TIMEOUT_S)
    for group in groups:
        if await context.clients.finish(group) == "info":
            operator.process.retire(process)


async def add_partitions(operator: Operator) -> None:
    """Add one or two partitions to a stable topic or a side topic."""
    random = operator.random
    await operator.refresh()
    name = random.choice([operator.stable.name, *sorted(operator.sides)])
    if name in operator.sides:
        count, most = operator.sides[name], SIDE_PARTITIONS_MAX * 2
    else:
        count = operator.count(name)
        most = count + PARTITIONS_MAX - sum(map(operator.count, operator.stable_names))
    total = count + random.randint(1, 2)
    if total > most:
        return
    await operator.change(
        "add-partitions",
        name,
        {"partitions": total},
        lambda: operator.admin.add_partitions(name, total),
    )
    await operator.refresh()


async def transfer(operator: Operator) -> None:
    """Transfer the leadership of a partition in use to a specific broker, or to any."""
    random = operator.random
    topic, number = random.choice(operator.context.targets)
    to = random.choice((None, *sorted(operator.context.brokers)))
    await operator.change(
        "transfer",
        topic,
        {"partition": number, "to": to},
        lambda: operator.admin.transfer_leader(topic, number, to),
    )


async def alter(operator: Operator) -> None:
    """Change a setting. Stable topics keep all records, so that losses are detected."""
    random = operator.random
    await operator.refresh()
    name = random.choice([operator.stable.name, *sorted(operator.sides)])
    config = {"segment.bytes": random.choice(SEGMENT_BYTES)}
    if name in operator.sides and random.random() < 0.5:
        config = {"retention.bytes": random.choice(RETENTION_BYTES)}
    await operator.change(
        "alter", name, {"config": config}, lambda: operator.admin.alter_topic(name, config)
    )


async def delete_records(operator: Operator) -> None:
    """Delete up to half of the records of a partition in use, from its start on."""
    context, random, process = operator.context, operator.random, operator.process.name
    partition = random.choice(context.targets)
    try:
        found = await operator.admin.list_offsets({partition: "latest"})
        starts = await operator.admin.list_offsets({partition: "earliest"})
    except RaftlogError:
        await context.sleep(PATIENCE_S)
        return
    end, start = found[partition], starts[partition]
    if end is None or start is None or end.offset <= start.offset:
        return
    before = start.offset + int((end.offset - start.offset) * DELETED_PART * random.random())
    record = context.recorder.record
    name = str(partition)
    record(Delete(time=0, process=process, type="invoke", partition=name, before=before))
    done = Delete(time=0, process=process, type="ok", partition=name, before=before)
    try:
        await operator.admin.delete_records({partition: before})
    except RaftlogError as error:
        done.type, done.error = "info", describe(error)
        operator.process.retire(process)
    record(done)


ACTS: Final[tuple[Act, ...]] = (
    renew_side,
    delete_side,
    write_side,
    add_partitions,
    transfer,
    alter,
    delete_records,
)
WEIGHTS: Final = (4, 1, 3, 2, 3, 2, 1)
