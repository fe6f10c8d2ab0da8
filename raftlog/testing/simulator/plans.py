"""Plans of the simulated clients, drawn from a seed. Values only.

Records, pauses and guarantees vary widely: a uniform workload would hide anomalies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

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
