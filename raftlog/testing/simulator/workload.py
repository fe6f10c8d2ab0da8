"""Operations of simulated clients: produce, consume, request offsets, and administrate topics.

The clients are the real asyncio clients, each on a separate machine. A ``History`` records their
operations, which are drawn from the simulation's seed (``plans``). Errors of raftlog are expected;
any other exception ends the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.client.aio.consumer import AsyncConsumer
from raftlog.client.aio.producer import AsyncProducer
from raftlog.client.delivery import DeliveryFuture, RangesFuture
from raftlog.client.partition_requests import At
from raftlog.client.settings import SecurityArguments
from raftlog.config import Address
from raftlog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    RaftlogError,
    RecordTooLargeError,
    RetriableError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.testing.simulator.history import EndOffsets, History, Outcome, Seen, Send
from raftlog.testing.simulator.kafka import (
    KafkaAsker,
    KafkaClient,
    KafkaConsumer,
    KafkaProducer,
)
from raftlog.testing.simulator.kafka_member import KafkaMember
from raftlog.testing.simulator.plans import ConsumerPlan, ProducerPlan, WorkloadPlan
from raftlog.testing.simulator.process import BrokerMachine, ClientMachine, Program
from raftlog.testing.simulator.world import CLUSTER_SECRET, World
from raftlog.types import (
    NO_TIMESTAMP,
    ConsumerRecord,
    Headers,
    NewTopic,
    Offset,
    RecordMetadata,
    TopicPartition,
)

TOPIC: Final = "events"
ADMINISTRATOR: Final = "admin"  # user of admin clients, if clients authenticate: a super user
USER: Final = "client"  # user of all other clients
PASSWORD: Final = "the same for all"  # noqa: S105 - of simulated users
PATIENCE_S: Final = 0.2  # seconds from an error to the next attempt
OUTSTANDING_MAX: Final = 40
DELETIONS_PER_S: Final = 2.0  # if there are no other operations of the admin client
QUESTIONS_MAX: Final = 20  # requests to one broker, by a client that reaches no other
SENDS_ASKED_FOR_MAX: Final = 100  # newest sends; a time lookup selects one of them
NAME_HEADER: Final = "name"  # header with the name of a tombstone

# A send that fails with one of these had no effect. With any other error its outcome is unknown.
WITHOUT_EFFECT: Final = (
    RetriableError,
    CorruptBatchError,
    InvalidRequestError,
    RecordTooLargeError,
    UnknownPartitionError,
    UnknownTopicError,
)

Asker = TypeVar("Asker", bound=AsyncAdmin | KafkaAsker)
AnyConsumer: TypeAlias = AsyncConsumer | KafkaConsumer
Sent: TypeAlias = DeliveryFuture | asyncio.Future[RecordMetadata]


@dataclass(slots=True)
class Workload:
    """The clients of one simulation, and their history. ``start`` starts them."""

    world: World
    plan: WorkloadPlan
    history: History = field(init=False)
    is_over: bool = False  # clients must end
    core: Collection[int] | None = None  # IDs of the brokers that must work from now on
    _machines: list[ClientMachine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = History(lambda: self.world.time.now_ns)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(self.plan.partitions)]

    @property
    def is_done(self) -> bool:
        """Whether every client has ended."""
        return all(machine.is_done for machine in self._machines)

    @property
    def machines(self) -> list[ClientMachine]:
        """The clients' machines, for faults."""
        return list(self._machines)

    def start(self) -> None:
        """Start all clients."""
        for number, producer in enumerate(self.plan.producers, start=1):
            self.add(f"producer-{number}", partial(produce, self, producer))
        for number, consumer in enumerate(self.plan.consumers, start=1):
            self.add(f"consumer-{number}", partial(_consume, self, consumer))
        if self.plan.administrates or self.plan.deletes:
            self.add("admin-1", partial(_administrate, self))
        for number in range(1, self.plan.askers + 1):
            asker = partial(
                ask_each_broker,
                self,
                connect=self.asker,
                ask=_ask,
                questions_max=QUESTIONS_MAX,
                pause_s=(0.05, 0.4),
            )
            self.add(f"asker-{number}", asker)

    def add(self, name: str, main: Program) -> ClientMachine:
        """Start a client. Its program must end once ``is_over`` is set."""
        machine = self.world.add_client(name, main)
        self._machines.append(machine)
        machine.start()
        return machine

    def reach_only(self, machine: ClientMachine) -> BrokerMachine:
        """Isolate a client from all brokers except a random one. Returns that broker."""
        network = self.world.network
        chosen = machine.random.choice(self.world.brokers)
        for broker in self.world.brokers:
            network.mend(machine.name, broker.name)
            if broker is not chosen:
                network.cut(machine.name, broker.name)
        return chosen

    # -- creation of clients

    def security(self, user: str) -> SecurityArguments:
        """Return the security arguments of a client; none if clients do not authenticate."""
        if not self.plan.is_secured:
            return {}
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": user,
            "sasl_password": PASSWORD,
        }

    def admin(self, machine: ClientMachine, bootstrap: str | None = None) -> AsyncAdmin:
        """Create an admin client. ``bootstrap``: default: the addresses of all brokers."""
        admin = AsyncAdmin(
            self.world.bootstrap if bootstrap is None else bootstrap,
            request_timeout_ms=2_000,
            client_id=machine.name,
            cluster_secret=CLUSTER_SECRET if len(self.world.brokers) > 1 else None,
            host=machine.host(),
            **self.security(ADMINISTRATOR),
        )
        machine.own(admin)
        return admin

    def producer(
        self, machine: ClientMachine, plan: ProducerPlan, user: str = USER
    ) -> AsyncProducer | KafkaProducer:
        if plan.is_kafka:
            return KafkaProducer(
                self._kafka_client(machine),
                acks=plan.acks,
                idempotent=plan.idempotent,
                compression=plan.compression,
                linger_ms=plan.linger_ms,
                delivery_timeout_ms=plan.delivery_timeout_ms,
            )
        producer = AsyncProducer(
            self.world.bootstrap,
            acks=plan.acks,
            idempotent=plan.idempotent,
            compression=plan.compression,
            linger_ms=plan.linger_ms,
            max_block_ms=2_000,
            request_timeout_ms=1_500,
            delivery_timeout_ms=plan.delivery_timeout_ms,
            metadata_max_age_ms=3_000,
            client_id=machine.name,
            host=machine.host(),
            **self.security(user),
        )
        machine.own(producer)
        return producer

    def consumer(self, machine: ClientMachine, **settings: Any) -> AsyncConsumer:
        consumer = AsyncConsumer(
            self.world.bootstrap,
            request_timeout_ms=2_000,
            metadata_max_age_ms=3_000,
            client_id=machine.name,
            host=machine.host(),
            **self.security(USER),
            **settings,
        )
        machine.own(consumer)
        return consumer

    def kafka_consumer(self, machine: ClientMachine, **settings: Any) -> KafkaConsumer:
        is_recreated = self.plan.recreates_after_s > 0
        return KafkaConsumer(self._kafka_client(machine), may_be_recreated=is_recreated, **settings)

    def asker(self, machine: ClientMachine, broker: Address) -> AsyncAdmin | KafkaAsker:
        """Create a client that requests offsets from one broker."""
        if self.plan.has_kafka_askers:
            return KafkaAsker(self._kafka_client(machine), broker)
        return self.admin(machine, str(broker))

    def kafka_member(self, machine: ClientMachine, **settings: Any) -> KafkaMember:
        return KafkaMember(
            self._kafka_client(machine),
            self._kafka_client(machine),
            may_be_recreated=self.plan.recreates_after_s > 0,
            **settings,
        )

    def _kafka_client(self, machine: ClientMachine) -> KafkaClient:
        brokers = [broker.address for broker in self.world.brokers]
        return KafkaClient(machine, brokers, TOPIC)


async def create_topic(workload: Workload, machine: ClientMachine) -> None:
    """Create the topic. Retries until it exists."""
    plan = workload.plan
    topic = NewTopic(TOPIC, plan.partitions, plan.replication_factor, plan.topic_config)
    admin = workload.admin(machine)
    while True:
        try:
            await admin.create_topics([topic])
        except TopicExistsError:
            break
        except RaftlogError as error:
            workload.world.trace(f"the topic is not there yet: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            break
    await admin.close()


def outcome_of(error: RaftlogError) -> Outcome:
    """Return the outcome of a send that failed with ``error``."""
    return Outcome.FAIL if isinstance(error, WITHOUT_EFFECT) else Outcome.INFO


# -- producers -------------------------------------------------------------------------------------


async def produce(
    workload: Workload, plan: ProducerPlan, machine: ClientMachine, user: str = USER
) -> None:
    """Run producer sessions, one after another, until the workload is over."""
    session = 0
    while not workload.is_over:
        session += 1
        process = f"{machine.name}/{machine.boots}.{session}"
        await _Producing(workload, plan, machine, process, user).run()


class _Record(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: Headers


class _Producing:
    """One producer session, from the creation of the producer to its close."""

    def __init__(
        self,
        workload: Workload,
        plan: ProducerPlan,
        machine: ClientMachine,
        process: str,
        user: str,
    ) -> None:
        self._workload = workload
        self._history = workload.history
        self._plan = plan
        self._random = machine.random
        self._process = process
        self._producer = workload.producer(machine, plan, user)
        self._sent = 0
        self._outstanding = 0

    async def run(self) -> None:
        plan, random = self._plan, self._random
        loop = asyncio.get_running_loop()
        end = loop.time() + plan.session_s
        while not self._workload.is_over and loop.time() < end:
            count = random.randint(1, plan.burst_max)
            partition = random.choice(self._workload.partitions)
            if random.random() < plan.many:
                await self._send_many(partition, count)
            else:
                for _ in range(count):
                    await self._send(partition)
            if random.random() < plan.waits or self._outstanding > OUTSTANDING_MAX:
                await self._producer.flush()
            await asyncio.sleep(random.expovariate(1 / plan.pause_s))
        await self._producer.close(timeout=plan.close_s)

    def _begin(self, partition: TopicPartition) -> tuple[Send, _Record]:
        self._sent += 1
        self._outstanding += 1
        name = f"{self._process}#{self._sent}"
        plan, random, compaction = self._plan, self._random, self._workload.plan.compaction
        key, is_tombstone = "", False
        if compaction is not None:
            key = f"k{random.randrange(compaction.keys)}"
            is_tombstone = random.random() < compaction.tombstones
        send = self._history.send(
            self._process,
            partition,
            name,
            acks=plan.acks,
            idempotent=plan.idempotent,
            key=key,
            is_tombstone=is_tombstone,
        )
        value = name.encode() + b" " * random.randint(1, plan.padding_max + 1)
        if is_tombstone:
            return send, _Record(None, key.encode(), ((NAME_HEADER, value),))
        return send, _Record(value, key.encode() if key else None, ())

    def _end(self, sends: list[Send], error: RaftlogError | None, *, is_whole: bool) -> None:
        """Record the outcome of sends. ``is_whole``: ``error`` applies to every one of them;
        otherwise a failure leaves their outcome unknown.
        """
        self._outstanding -= len(sends)
        outcome = Outcome.OK
        if error is not None:
            outcome = outcome_of(error) if is_whole else Outcome.INFO
        for send in sends:
            self._history.end(send, outcome, "" if error is None else repr(error))

    async def _send(self, partition: TopicPartition) -> None:
        send, record = self._begin(partition)
        try:
            future = await self._producer.send(TOPIC, *record, partition=partition.partition)
        except RaftlogError as error:
            self._end([send], error, is_whole=True)
        else:
            future.add_done_callback(partial(self._delivered, send))

    def _delivered(self, send: Send, future: Sent) -> None:
        error = future.exception()
        assert error is None or isinstance(error, RaftlogError)
        if error is None:
            send.offset = future.result().offset
            send.timestamp_ms = future.result().timestamp_ms
        self._end([send], error, is_whole=True)

    async def _send_many(self, partition: TopicPartition, count: int) -> None:
        begun = [self._begin(partition) for _ in range(count)]
        sends = [send for send, _ in begun]
        assert isinstance(self._producer, AsyncProducer), "a Kafka client sends single records"
        try:
            future = await self._producer.send_many(
                TOPIC,
                [record.value for _, record in begun],
                [record.key for _, record in begun],
                headers=[record.headers for _, record in begun],
                partition=partition.partition,
            )
        except RaftlogError as error:
            self._end(sends, error, is_whole=True)
        else:
            future.add_done_callback(partial(self._all_delivered, sends))

    def _all_delivered(self, sends: list[Send], future: RangesFuture) -> None:
        error = future.exception()
        if error is None:
            offsets = [
                offset
                for part in future.result()
                for offset in range(part.first, part.last + 1)
                if part.first >= 0
            ]
            for send, offset in zip(sends, offsets, strict=False):  # acks=0: no offsets
                send.offset = offset
        self._end(sends, error, is_whole=False)


# -- consumers -------------------------------------------------------------------------------------


async def _consume(workload: Workload, plan: ConsumerPlan, machine: ClientMachine) -> None:
    session = 0
    while not workload.is_over:
        session += 1
        process = f"{machine.name}/{machine.boots}.{session}"
        consume = (
            workload.kafka_consumer
            if plan.is_kafka
            else partial(workload.consumer, read_from=plan.read_from, client_rack=plan.rack)
        )
        consumer = consume(
            machine,
            auto_offset_reset="latest" if plan.begin == "latest" else "earliest",
            fetch_max_wait_ms=plan.wait_ms,
            max_partition_fetch_bytes=plan.fetch_bytes_max,
        )
        try:
            await _consume_session(workload, plan, machine, consumer, process)
        except RaftlogError as error:
            workload.world.trace(f"{process}: {error}")
            await asyncio.sleep(PATIENCE_S)
        await consumer.close()


async def _consume_session(
    workload: Workload,
    plan: ConsumerPlan,
    machine: ClientMachine,
    consumer: AnyConsumer,
    process: str,
) -> None:
    history, random = workload.history, machine.random
    await consumer.assign(workload.partitions)
    if plan.begin == "middle":
        for partition, end in (await consumer.end_offsets(workload.partitions)).items():
            await consumer.seek(partition, random.randint(0, end))
    for _ in range(random.randint(1, plan.polls_max)):
        if workload.is_over:
            return
        poll = history.poll(process, resets_to_latest=plan.begin == "latest")
        try:
            records = await consumer.poll(plan.wait_ms, plan.records_max)
        except RaftlogError as error:
            history.end(poll, Outcome.FAIL, repr(error))
            raise
        poll.records = by_partition(records)
        history.end(poll, Outcome.OK)
        if random.random() < plan.asks_ends:
            await ask_ends(workload, consumer, process)
        await asyncio.sleep(plan.pause_s * random.random())


async def ask_ends(
    workload: Workload, consumer: AnyConsumer, process: str
) -> dict[TopicPartition, Offset]:
    """Request and record the end offset of every partition."""
    asking = workload.history.end_offsets(process)
    try:
        asking.ends = await consumer.end_offsets(workload.partitions)
    except RaftlogError as error:
        workload.history.end(asking, Outcome.FAIL, repr(error))
        raise
    workload.history.end(asking, Outcome.OK)
    return asking.ends


async def ask_starts(
    workload: Workload, consumer: AnyConsumer, process: str
) -> dict[TopicPartition, Offset]:
    """Request and record the log start offset of every partition."""
    asking = workload.history.start_offsets(process)
    try:
        asking.starts = await consumer.beginning_offsets(workload.partitions)
    except RaftlogError as error:
        workload.history.end(asking, Outcome.FAIL, repr(error))
        raise
    workload.history.end(asking, Outcome.OK)
    return asking.starts


def by_partition(records: list[ConsumerRecord]) -> dict[TopicPartition, list[Seen]]:
    found: dict[TopicPartition, list[Seen]] = {}
    for record in records:
        partition = TopicPartition(record.topic, record.partition)
        found.setdefault(partition, []).append(
            Seen(record.offset, record_name(record.value, record.headers), record.leader_epoch)
        )
    return found


def record_name(value: bytes | None, headers: Headers) -> str:
    """Return the name of a record without padding. A tombstone has its name in a header."""
    if value is None:
        value = dict(headers).get(NAME_HEADER)
    return (value or b"").split(b" ", 1)[0].decode(errors="backslashreplace")


# -- clients that reach only one broker ------------------------------------------------------------


async def ask_each_broker(
    workload: Workload,
    machine: ClientMachine,
    *,
    connect: Callable[[ClientMachine, Address], Asker],
    ask: Callable[[Workload, ClientMachine, Asker], Awaitable[None]],
    questions_max: int,
    pause_s: tuple[float, float],
) -> None:
    """Send requests to one broker after another, each time without a connection to the others.

    These requests also reach former leaders that do not know their successor.
    ``connect``: creates a client of one broker. ``ask``: sends one request with it.
    ``questions_max``: requests to one broker. ``pause_s``: minimum and
    maximum seconds between two requests.
    """
    random = machine.random
    while not workload.is_over:
        chosen = workload.reach_only(machine)
        client = connect(machine, chosen.address)
        questions = random.randint(1, questions_max)
        while questions and not workload.is_over:
            questions -= 1
            try:
                await ask(workload, machine, client)
            except RaftlogError as error:
                workload.world.trace(f"{machine.name} of {chosen.name}: {error}")
            await asyncio.sleep(random.uniform(*pause_s))
        await client.close()


async def _ask(workload: Workload, machine: ClientMachine, admin: AsyncAdmin | KafkaAsker) -> None:
    history, partitions = workload.history, workload.partitions
    what = machine.random.choice(("latest", "earliest", "time"))
    if what == "time":
        await _ask_for_time(workload, machine, admin)
        return
    asking = (
        history.end_offsets(machine.name)
        if what == "latest"
        else history.start_offsets(machine.name)
    )
    try:
        found = await admin.list_offsets(dict.fromkeys(partitions, cast(At, what)))
    except RaftlogError as error:
        history.end(asking, Outcome.FAIL, repr(error))
        raise
    offsets = {partition: hit.offset for partition, hit in found.items() if hit is not None}
    if isinstance(asking, EndOffsets):
        asking.ends = offsets
    else:
        asking.starts = offsets
    history.end(asking, Outcome.OK)


async def _ask_for_time(
    workload: Workload, machine: ClientMachine, admin: AsyncAdmin | KafkaAsker
) -> None:
    """Look up the timestamp of an acknowledged record. The lookup must find this record or an
    earlier one.
    """
    history = workload.history
    known = [
        send
        for send in history.sends[-SENDS_ASKED_FOR_MAX:]
        if send.is_ok and send.acks == -1 and send.timestamp_ms != NO_TIMESTAMP
    ]
    if not known or workload.plan.compaction is not None:
        return
    send = machine.random.choice(known)
    asking = history.time_lookup(machine.name, send.partition, send.timestamp_ms, send.offset)
    try:
        found = await admin.list_offsets({send.partition: send.timestamp_ms})
    except RaftlogError as error:
        history.end(asking, Outcome.FAIL, repr(error))
        raise
    hit = found[send.partition]
    asking.found = -1 if hit is None else hit.offset
    history.end(asking, Outcome.OK)


# -- administration --------------------------------------------------------------------------------


Act: TypeAlias = Callable[[Workload, AsyncAdmin, Random], Awaitable[None]]


async def _administrate(workload: Workload, machine: ClientMachine) -> None:
    plan, random, history = workload.plan, machine.random, workload.history
    admin = workload.admin(machine)
    rate = plan.administrates or DELETIONS_PER_S
    acts: tuple[Act, ...] = ACTS_IN_CLUSTERS if len(workload.world.brokers) > 1 else ACTS
    if plan.alters_min_isr:
        acts = (*acts, _alter_min_isr)
    while not workload.is_over:
        await asyncio.sleep(random.expovariate(rate))
        act = random.choice(acts if plan.administrates else acts[:1])
        if act is _delete_records and not plan.deletes:
            continue
        other = history.other(machine.name, act.__name__.strip("_"))
        try:
            await act(workload, admin, random)
        except RaftlogError as error:
            history.end(other, Outcome.INFO, repr(error))
        else:
            history.end(other, Outcome.OK)
    await admin.close()


async def _delete_records(workload: Workload, admin: AsyncAdmin, random: Random) -> None:
    partition = random.choice(workload.partitions)
    found = await admin.list_offsets({partition: "latest"})
    end = found[partition]
    if end is None or not end.offset:
        return
    before = random.randint(0, end.offset)
    deletion = workload.history.deletion("admin", partition, before)
    try:
        deletion.start = (await admin.delete_records({partition: before}))[partition]
    except RaftlogError as error:
        workload.history.end(deletion, Outcome.INFO, repr(error))
    else:
        workload.history.end(deletion, Outcome.OK)


async def _create_other(workload: Workload, admin: AsyncAdmin, random: Random) -> None:
    factor = workload.plan.replication_factor
    await admin.create_topics([NewTopic(_other(random), random.randint(1, 3), factor)])


async def _delete_other(_workload: Workload, admin: AsyncAdmin, random: Random) -> None:
    await admin.delete_topics([_other(random)])


async def _extend_other(_workload: Workload, admin: AsyncAdmin, random: Random) -> None:
    await admin.add_partitions(_other(random), random.randint(2, 5))


async def _alter(workload: Workload, admin: AsyncAdmin, random: Random) -> None:
    name = random.choice((TOPIC, _other(random)))
    size = workload.plan.topic_config["segment.bytes"]
    await admin.alter_topic(name, {"segment.bytes": random.choice(("16384", "65536", size))})


async def _describe(_workload: Workload, admin: AsyncAdmin, _random: Random) -> None:
    await admin.describe_topics()


async def _transfer(workload: Workload, admin: AsyncAdmin, random: Random) -> None:
    """Request a transfer to the preferred leader or to a random broker, even if it cannot lead.

    While a core must work, the target is a broker of the core: any other broker may have a full
    disk and transfer the leadership back each time.
    """
    partition = random.choice(workload.partitions)
    to = random.choice(workload.world.brokers).broker_id
    leader = random.choice((None, to, to))
    if workload.core is None or leader in workload.core:
        await admin.transfer_leader(*partition, leader)


async def _alter_min_isr(workload: Workload, admin: AsyncAdmin, random: Random) -> None:
    min_isr = random.randint(1, workload.plan.replication_factor)
    await admin.alter_topic(TOPIC, {"min.insync.replicas": str(min_isr)})


def _other(random: Random) -> str:
    return f"other-{random.randint(1, 3)}"


ACTS: Final = (
    _delete_records,
    _create_other,
    _delete_other,
    _extend_other,
    _alter,
    _describe,
)
ACTS_IN_CLUSTERS: Final = (*ACTS, _transfer)


# -- final read ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reading:
    """Result of a new consumer that reads all partitions from their start to their end."""

    records: dict[TopicPartition, list[Seen]] = field(default_factory=dict)
    starts: dict[TopicPartition, Offset] = field(default_factory=dict)
    ends: dict[TopicPartition, Offset] = field(default_factory=dict)
    left: dict[TopicPartition, Offset] = field(default_factory=dict)  # ends not reached yet

    def begin(
        self, starts: Mapping[TopicPartition, Offset], ends: Mapping[TopicPartition, Offset]
    ) -> None:
        self.records = {partition: [] for partition in ends}
        self.starts, self.ends = dict(starts), dict(ends)
        self.left = {partition: end for partition, end in ends.items() if starts[partition] < end}

    def take(self, records: list[ConsumerRecord]) -> None:
        for partition, seen in by_partition(records).items():
            self.records[partition] += seen

    def reached(self, partition: TopicPartition, position: Offset) -> None:
        """Note that the consumer has read all records below ``position``.

        Records cannot show this: compaction may have removed the last one.
        """
        if position >= self.left.get(partition, 0):
            self.left.pop(partition, None)


async def read_all(
    workload: Workload, reading: Reading, machine: ClientMachine, *, is_kafka: bool = False
) -> None:
    """Fill ``reading``. Restarts with a new consumer after each error until all is read."""
    partitions = workload.partitions
    while True:
        consume = workload.kafka_consumer if is_kafka else workload.consumer
        consumer = consume(machine, auto_offset_reset="earliest", fetch_max_wait_ms=100)
        try:
            await consumer.assign(partitions)
            starts = await ask_starts(workload, consumer, machine.name)
            reading.begin(starts, await ask_ends(workload, consumer, machine.name))
            while reading.left:
                reading.take(await consumer.poll(500, 1_000))
                for partition in list(reading.left):
                    reading.reached(partition, await consumer.position(partition))
        except RaftlogError as error:
            workload.world.trace(f"{machine.name}: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            return
        finally:
            await consumer.close()
