"""Operations of simulated clients: produce, consume, request offsets, and administrate topics.

The clients are the real asyncio clients, each on a separate machine. A ``History`` records their
operations, which are drawn from the simulation's seed (``plans``). Errors of raftlog are expected;
any other exception ends the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.client.delivery import DeliveryFuture, RangesFuture
from raftlog.client.requests import At
from raftlog.client.settings import SecurityArguments
from raftlog.config import Address
from raftlog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    RaftlogError,
    RecordTooLargeError,
    RetriableError,
    TopicExistsError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.testing.simulator.history import (
    Commit,
    EndOffsets,
    History,
    Outcome,
    Owning,
    Seen,
    Send,
)
from raftlog.testing.simulator.kafka import TIMEOUT_MS as KAFKA_TIMEOUT_MS
from raftlog.testing.simulator.kafka import (
    KafkaAsker,
    KafkaClient,
    KafkaConsumer,
    KafkaMember,
    KafkaProducer,
)
from raftlog.testing.simulator.loop import NodeLoop
from raftlog.testing.simulator.world import (
    CLUSTER_SECRET,
    BrokerMachine,
    ClientMachine,
    Program,
    World,
)
from raftlog.types import (
    NO_TIMESTAMP,
    ConsumerRecord,
    Headers,
    NewTopic,
    Offset,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)

# -- plans -----------------------------------------------------------------------------------------
#
# Plans of the simulated clients, drawn from a seed. Values only.
#
# Records, pauses and guarantees vary widely: a uniform workload would hide anomalies.


# Light workload: maximum number of producers; minimum seconds between bursts and between polls.
LIGHT_PRODUCERS_MAX: Final = 3
LIGHT_PAUSE_S: Final = 0.15
LIGHT_POLL_PAUSE_S: Final = 0.3
LIGHT_ADMINISTRATES: Final = 0.5  # operations per second

RACKS: Final = ("north", "south")
COMPRESSIONS: Final = ("none", "gzip", "lz4", "zstd")
DAY_MS: Final = 86_400_000
# Longer than any run: no records may expire. Clock jumps are smaller and larger (``faults``).
RETENTIONS_MS: Final = (-1, 60 * 60_000, DAY_MS, 7 * DAY_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    """Behavior of one producer. Times are in seconds, sizes in bytes."""

    acks: int
    idempotent: bool
    compression: str
    linger_ms: int
    burst_max: int  # records sent without a pause
    pause_s: float  # between bursts, on average
    padding_max: int
    many: float  # share of bursts that are sent by ``send_many``
    waits: float  # share of bursts whose outcome the client awaits
    session_s: float  # lifetime of a producer; then another one is created
    close_s: float  # timeout of close; records without acknowledgement then fail
    delivery_timeout_ms: int
    is_kafka: bool = False  # speaks Kafka's protocol

    @property
    def patience_s(self) -> float:
        """How long a send waits for replicas that are slow and in sync: of Kafka's protocol, the
        timeout of one request, since the record may be stored twice if it is sent again.
        """
        return (KAFKA_TIMEOUT_MS if self.is_kafka else self.delivery_timeout_ms) / 1_000

    @classmethod
    def draw(cls, random: Random) -> ProducerPlan:
        acks = random.choices((-1, 1, 0), (8, 2, 1))[0]
        return cls(
            acks=acks,
            idempotent=acks == -1 and random.random() < 0.75,
            compression=random.choice(COMPRESSIONS),
            linger_ms=random.choice((0, 0, 5, 50)),
            burst_max=random.choice((1, 3, 10)),
            pause_s=random.choice((0.01, 0.05, 0.2)),
            padding_max=random.choice((0, 100, 2_000)),
            many=random.choice((0.0, 0.3)),
            waits=random.choice((0.0, 0.5, 1.0)),
            session_s=random.choice((2.0, 5.0, 1e6)),
            close_s=random.choice((0.0, 1.0, 30.0)),
            delivery_timeout_ms=random.choice((2_000, 6_000, 30_000)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """Behavior of one consumer. ``begin``: start position of each of its sessions."""

    begin: str
    records_max: int
    wait_ms: int
    fetch_bytes_max: int
    polls_max: int  # polls per session
    pause_s: float
    asks_ends: float  # share of polls that a request for end offsets follows
    read_from: str = "leader"
    rack: str | None = None  # with "replica": prefers replicas of this rack
    is_kafka: bool = False  # speaks Kafka's protocol

    @classmethod
    def draw(cls, random: Random) -> ConsumerPlan:
        return cls(
            begin=random.choice(("earliest", "earliest", "latest", "middle")),
            records_max=random.choice((1, 7, 500)),
            wait_ms=random.choice((100, 500)),
            fetch_bytes_max=random.choice((200, 4_000, 1 << 20)),
            polls_max=random.choice((3, 20, 100)),
            pause_s=random.choice((0.05, 0.2, 0.6)),
            asks_ends=random.choice((0.0, 0.2, 0.5)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """Behavior of the members of the consumer group. Times are in seconds, unless named ``_ms``."""

    members: int
    session_timeout_ms: int
    assignor: str | None
    is_static: bool  # static membership
    read_from: str
    records_max: int
    wait_ms: int
    polls_max: int  # after these, a member leaves and rejoins
    pause_s: float
    commits: float  # share of polls that a commit follows
    waits: float  # share of commits whose result the member awaits
    away_s: float  # maximum time between two memberships
    disturbs_s: float  # average time between two faults of members
    is_kafka: bool = False  # the members speak Kafka's protocol: a classic group

    @classmethod
    def draw(cls, random: Random) -> GroupPlan:
        return cls(
            members=random.randint(2, 4),
            session_timeout_ms=random.choice((700, 1_500, 3_000)),
            assignor=random.choice((None, None, "range")),
            is_static=random.random() < 0.25,
            read_from=random.choice(("leader", "leader", "replica")),
            records_max=random.choice((3, 20, 500)),
            wait_ms=random.choice((100, 300)),
            polls_max=random.choice((20, 60, 200)),
            pause_s=random.choice((0.05, 0.2)),
            commits=random.choice((0.3, 1.0)),
            waits=random.choice((0.0, 0.5, 1.0)),
            away_s=random.choice((0.2, 2.0)),
            disturbs_s=random.choice((0.5, 1.0, 2.0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """Settings of a compacted topic. ``tombstones``: share of records without a value."""

    keys: int
    tombstones: float
    topic_config: dict[str, str]
    interval_ms: int  # check interval of a broker's cleaner

    @property
    def keeps_tombstones(self) -> bool:
        """Whether a run is too short for a tombstone to be removed."""
        return int(self.topic_config["delete.retention.ms"]) >= DAY_MS

    @classmethod
    def draw(cls, random: Random) -> CompactionPlan:
        return cls(
            keys=random.choice((1, 5, 50)),
            tombstones=random.choice((0.0, 0.1, 0.5)),
            topic_config={
                "cleanup.policy": random.choice(("compact", "compact", "compact,delete")),
                "segment.bytes": "16384",
                "segment.ms": random.choice(("100", "400", "604800000")),
                "min.cleanable.dirty.ratio": random.choice(("0", "0.1", "0.5")),
                "delete.retention.ms": random.choice(("0", "1000", str(DAY_MS))),
                "min.compaction.lag.ms": random.choice(("0", "0", "500")),
            },
            interval_ms=random.choice((100, 300, 1_000)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """Plan of all clients. ``replication_factor``, ``partitions``: of the checked topic."""

    partitions: int
    replication_factor: int
    topic_config: dict[str, str]
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    administrates: float  # operations on other topics, per second
    deletes: bool  # whether records of the topic are deleted
    alters_min_isr: bool = False  # of the topic, from 1 to its number of replicas
    askers: int = 0  # clients with one reachable broker, which request log starts and ends
    compaction: CompactionPlan | None = None
    group: GroupPlan | None = None
    recreates_after_s: float = 0.0  # time until the topic is recreated; 0: never
    moves_every_s: float = 0.0  # average time between two requests to move replicas; 0: none
    changes_factor: bool = False  # some moves change the number of replicas
    is_secured: bool = False  # clients authenticate, and a user is created and deleted repeatedly
    has_kafka_reader: bool = False  # one of the final readers speaks Kafka's protocol
    has_kafka_askers: bool = False  # so do all ``askers``

    @classmethod
    def draw(cls, random: Random, *, replication_factor: int, min_isr: int = 0) -> WorkloadPlan:
        """Draw a plan. ``min_isr``: the topic's ``min.insync.replicas``; 0: the default."""
        config = {"segment.bytes": random.choice(("16384", "16384", "1073741824"))}
        config["retention.ms"] = "-1"
        if random.random() < 0.3:
            config["message.timestamp.type"] = "LogAppendTime"
        if random.random() < 0.5:
            config["index.interval.bytes"] = random.choice(("0", "500"))
        if min_isr:
            config["min.insync.replicas"] = str(min_isr)
        return cls(
            partitions=random.choice((1, 1, 2, 3)),
            replication_factor=replication_factor,
            topic_config=config,
            producers=tuple(ProducerPlan.draw(random) for _ in range(random.randint(2, 4))),
            consumers=tuple(ConsumerPlan.draw(random) for _ in range(random.randint(1, 2))),
            administrates=random.choice((0.0, 0.5, 2.0)),
            deletes=random.random() < 0.2,
        )

    def with_compaction(self, plan: CompactionPlan) -> WorkloadPlan:
        """Return the same clients with a compacted topic, which has many small segments."""
        return replace(
            self, compaction=plan, topic_config={**self.topic_config, **plan.topic_config}
        )

    def with_replica_reads(self, random: Random) -> WorkloadPlan:
        """Return the same clients, but most consumers read from replicas: of their rack, or any.

        They do not request end offsets: without a leader they can receive an older end.
        """
        racks = (None, *RACKS)
        consumers = tuple(
            replace(consumer, read_from="replica", rack=random.choice(racks), asks_ends=0.0)
            if random.random() < 0.7
            else consumer
            for consumer in self.consumers
        )
        return replace(self, consumers=consumers)

    def with_kafka(self, random: Random) -> WorkloadPlan:
        """Return the same clients, but some speak Kafka's protocol: not those that authenticate, or
        that read from replicas.
        """
        if self.is_secured:
            return self
        is_classic = random.random() < 0.5
        has_kafka_askers = random.random() < 0.5
        consumers = tuple(
            replace(each, is_kafka=random.random() < 0.5 and each.read_from == "leader")
            for each in self.consumers
        )
        # The last ones: a light workload has fewer.
        producers = tuple(
            replace(each, is_kafka=True, many=0.0) if random.random() < 0.5 else each
            for each in self.producers
        )
        return replace(
            self,
            producers=producers,
            consumers=consumers,
            has_kafka_reader=True,
            has_kafka_askers=has_kafka_askers,
            group=None if self.group is None else replace(self.group, is_kafka=is_classic),
        )

    def with_retained_bytes(self, random: Random) -> WorkloadPlan:
        """Return the same clients with a topic that retains only its newest bytes."""
        kept = {"segment.bytes": "16384", "retention.bytes": random.choice(("0", "0", "16384"))}
        return replace(self, topic_config={**self.topic_config, **kept})

    def with_retention(self, retention_ms: int) -> WorkloadPlan:
        """Return the same clients with a topic with this ``retention.ms``."""
        return replace(self, topic_config={**self.topic_config, "retention.ms": str(retention_ms)})

    def lightened(self) -> WorkloadPlan:
        """Return fewer and slower clients: without work that is expensive and rarely finds bugs."""
        return replace(
            self,
            producers=tuple(
                replace(producer, pause_s=max(producer.pause_s, LIGHT_PAUSE_S))
                for producer in self.producers[:LIGHT_PRODUCERS_MAX]
            ),
            consumers=tuple(
                replace(consumer, pause_s=max(consumer.pause_s, LIGHT_POLL_PAUSE_S))
                for consumer in self.consumers
            ),
            administrates=min(self.administrates, LIGHT_ADMINISTRATES),
        )


# -- workload --------------------------------------------------------------------------------------


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


# -- members ---------------------------------------------------------------------------------------
#
# The members of a simulated consumer group: they join, read, commit, leave and crash.
#
# Each is the real asynchronous consumer on a separate machine. A separate random stream selects
# kills and pauses. Deliveries, ownership and commits are recorded.


GROUP: Final = "readers"
JOINING_S_MAX: Final = 10.0
PREFIX: Final = "member-"  # of names of machines and processes
CLOSE_TIMEOUT_MS: Final = 2_000
MEMBER_QUESTIONS_MAX: Final = 8  # requests about the group, to one broker
CATCHING_UP_RECORDS: Final = 500  # maximum of a poll after permanent healing
LEFT_PAUSED_SHARE: Final = 0.3


class Members:
    """All members of one simulation; none if its plan has no group."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._random = workload.world.random("members")
        self._loop = NodeLoop(workload.world.time, "members")
        self._owned: dict[str, dict[TopicPartition, Owning]] = {}  # by machine
        self._machines: list[ClientMachine] = []
        self._left_paused: NodeLoop | None = None
        self._is_disturbed = True

    def start(self) -> None:
        """Start all members, and wait until all partitions can have an owner."""
        plan = self._workload.plan.group
        if plan is None:
            return
        for number in range(1, plan.members + 1):
            be_member = partial(self._be_member, plan)
            self._machines.append(self._workload.add(f"{PREFIX}{number}", be_member))
        self._workload.world.run_until(self._own_all, limit_s=JOINING_S_MAX)
        asker = partial(
            ask_each_broker,
            self._workload,
            connect=lambda machine, broker: self._workload.admin(machine, str(broker)),
            ask=ask_committed,
            questions_max=MEMBER_QUESTIONS_MAX,
            pause_s=(0.1, 0.6),
        )
        self._workload.add("group-asker", asker)
        self._disturb_later(plan)

    def _own_all(self) -> bool:
        owned = set(chain.from_iterable(self._owned.values()))
        return len(owned) == self._workload.plan.partitions

    @property
    def names(self) -> list[str]:
        """Names of their machines."""
        return [machine.name for machine in self._machines]

    def leave_one_paused(self) -> None:
        """End the faults of members. One may be paused until ``resume``: then others receive its
        partitions.
        """
        self._is_disturbed = False
        random = self._workload.world.random("core/members")
        running = [machine for machine in self._machines if machine.is_running]
        if len(running) > 1 and random.random() < LEFT_PAUSED_SHARE:
            self._left_paused = random.choice(running).loop
            self._left_paused.pause()

    def resume(self) -> None:
        if self._left_paused is not None:
            self._left_paused.resume()
            self._left_paused = None

    # -- faults

    def _disturb_later(self, plan: GroupPlan) -> None:
        seconds = self._random.expovariate(1 / plan.disturbs_s)
        self._loop.call_later(seconds, self._disturb, plan)

    def _disturb(self, plan: GroupPlan) -> None:
        """Kill, pause or isolate a member for some time."""
        if self._workload.is_over or not self._is_disturbed:
            return
        machine = self._random.choice(self._machines)
        how = self._random.choice((self._kill, self._pause, self._cut_off))
        seconds = 2 * plan.session_timeout_ms / 1_000 * self._random.random()
        if machine.is_running and not machine.loop.is_paused:
            self._workload.world.trace(f"{machine.name}: {how.__name__} for {seconds:.3f} s")
            self._loop.call_later(seconds, how(machine))
        self._disturb_later(plan)

    def _kill(self, machine: ClientMachine) -> Callable[[], None]:
        """Kill the machine. Returns a function that starts it again."""
        machine.kill()
        return partial(self._start_again, machine)

    def _pause(self, machine: ClientMachine) -> Callable[[], None]:
        machine.loop.pause()
        return machine.loop.resume

    def _cut_off(self, machine: ClientMachine) -> Callable[[], None]:
        """Isolate the machine from all brokers, or from one. Returns a function that ends this."""
        network, brokers = self._workload.world.network, self._workload.world.brokers
        names = [broker.name for broker in brokers]
        if self._random.random() < 0.5:
            names = [self._random.choice(names)]
        for name in names:
            network.cut(machine.name, name)

        def mend() -> None:
            for name in names:
                network.mend(machine.name, name)

        return mend

    def _start_again(self, machine: ClientMachine) -> None:
        if not machine.is_running:
            machine.start()

    # -- operations

    async def _be_member(self, plan: GroupPlan, machine: ClientMachine) -> None:
        workload = self._workload
        owned = self._owned.setdefault(machine.name, {})
        forget(workload, owned)  # of the previous process, which was killed
        session = 0
        while not workload.is_over:
            session += 1
            consumer = _consumer(workload, plan, machine)
            process = f"{machine.name}/{machine.boots}.{session}"
            member = _Member(workload, plan, machine, consumer, process, owned)
            try:
                await member.run()
            except RaftlogError as error:
                workload.world.trace(f"{process}: {error}")
                await asyncio.sleep(PATIENCE_S)
            await consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)
            forget(workload, owned)
            await asyncio.sleep(plan.away_s * machine.random.random())


def _consumer(
    workload: Workload, plan: GroupPlan, machine: ClientMachine
) -> AsyncConsumer | KafkaMember:
    instance_id = machine.name if plan.is_static else None
    if plan.is_kafka:
        return workload.kafka_member(
            machine,
            group=GROUP,
            instance_id=instance_id,
            session_timeout_ms=plan.session_timeout_ms,
            fetch_max_wait_ms=plan.wait_ms,
        )
    return workload.consumer(
        machine,
        group=GROUP,
        group_instance_id=instance_id,
        auto_commit=False,
        session_timeout_ms=plan.session_timeout_ms,
        heartbeat_interval_ms=plan.session_timeout_ms // 4,
        assignor=plan.assignor,
        auto_offset_reset="earliest",
        read_from=plan.read_from,
        fetch_max_wait_ms=plan.wait_ms,
    )


def forget(workload: Workload, owned: dict[TopicPartition, Owning]) -> None:
    """End the ownership of these partitions with an unknown outcome."""
    for owning in owned.values():
        workload.history.end(owning, Outcome.INFO)
    owned.clear()


class _Member:
    """One consumer, from its creation to its end."""

    def __init__(
        self,
        workload: Workload,
        plan: GroupPlan,
        machine: ClientMachine,
        consumer: AsyncConsumer | KafkaMember,
        process: str,
        owned: dict[TopicPartition, Owning],
    ) -> None:
        self._workload = workload
        self._history = workload.history
        self._plan = plan
        self._random = machine.random
        self._consumer = consumer
        self._process = process
        self._owned = owned
        self._assignments = 0
        self._done: dict[TopicPartition, Offset] = {}  # next offset of each partition

    async def run(self) -> None:
        await self._consumer.subscribe(
            [TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        plan, random = self._plan, self._random
        for _ in range(random.randint(1, plan.polls_max)):
            if self._workload.is_over:
                return
            await self._poll()
            await asyncio.sleep(plan.pause_s * random.random())
            if self._done and random.random() < plan.commits:
                await self._commit(self._done)

    async def _poll(self) -> None:
        # A member that reads less than is produced would leave a partition behind the backlog of
        # another for longer than a healed cluster has to make progress.
        is_healed = self._workload.core is not None
        records_max = CATCHING_UP_RECORDS if is_healed else self._plan.records_max
        poll = self._history.poll(self._process)
        try:
            records = await self._consumer.poll(self._plan.wait_ms, records_max)
        except RaftlogError as error:
            self._history.end(poll, Outcome.FAIL, repr(error))
            raise
        # A partition that is assigned again is read from the committed offset of the group.
        poll.process = f"{self._process}@{self._assignments}"
        poll.records = by_partition(records)
        poll.topic_ids = self._topic_ids(poll.records)
        self._history.end(poll, Outcome.OK)
        self._done |= {tp: seen[-1].offset + 1 for tp, seen in poll.records.items()}

    async def _commit(self, offsets: dict[TopicPartition, Offset]) -> None:
        commit = self._history.commit(self._process, offsets, self._topic_ids(offsets))
        named = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        if self._random.random() >= self._plan.waits:
            future = self._consumer.commit_async(named)
            future.add_done_callback(lambda done: self._committed(commit, done.exception()))
            return
        try:
            await self._consumer.commit(named, timeout_ms=self._plan.session_timeout_ms)
        except RaftlogError as error:
            self._committed(commit, error)
        else:
            self._committed(commit, None)

    def _committed(self, commit: Commit, error: BaseException | None) -> None:
        outcome = Outcome.OK if error is None else Outcome.INFO
        self._history.end(commit, outcome, "" if error is None else repr(error))

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        return {tp: self._owned[tp].topic_id for tp in partitions}

    # -- callbacks of the consumer

    def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._assignments += 1
        if isinstance(self._consumer, KafkaMember):
            held = dict.fromkeys(partitions, self._consumer.topic_id)
        else:
            assert self._consumer._member is not None
            held = self._consumer._member.membership.holdings()[0]
        for tp in partitions:
            self._owned[tp] = self._history.owning(self._process, tp, held[tp])
            self._done.pop(tp, None)

    async def _revoked(self, partitions: Collection[TopicPartition]) -> None:
        read = {tp: self._done[tp] for tp in partitions if tp in self._done}
        if read:
            await self._commit(read)
        self._given_up(partitions, Outcome.OK)

    def _lost(self, partitions: Collection[TopicPartition]) -> None:
        self._given_up(partitions, Outcome.INFO)

    def _given_up(self, partitions: Collection[TopicPartition], outcome: Outcome) -> None:
        for tp in partitions:
            self._done.pop(tp, None)
            self._history.end(self._owned.pop(tp), outcome)


async def ask_once(workload: Workload, machine: ClientMachine) -> None:
    """Request the committed offsets of the group until this succeeds."""
    while True:
        admin = workload.admin(machine)
        try:
            await ask_committed(workload, machine, admin)
        except RaftlogError as error:
            workload.world.trace(f"{machine.name}: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            return
        finally:
            await admin.close()


async def ask_committed(workload: Workload, machine: ClientMachine, admin: AsyncAdmin) -> None:
    """Record the committed offsets of the group. Raises the errors of the client."""
    asking = workload.history.committed(machine.name)
    try:
        found = await admin.group_offsets(GROUP)
    except UnknownGroupError:
        found = {}
    except RaftlogError as error:
        workload.history.end(asking, Outcome.FAIL, repr(error))
        raise
    asking.offsets = {tp: given.offset for tp, given in found.items()}
    workload.history.end(asking, Outcome.OK)
