"""How simulated clients behave, drawn from a seed. Values only.

Small and large, quick and slow, careful and careless: a tame workload is a blind checker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

# Of a light workload: producers, and seconds between two bursts of one, and two polls.
LIGHT_PRODUCERS_MAX: Final = 3
LIGHT_PAUSE_S: Final = 0.15
LIGHT_POLL_PAUSE_S: Final = 0.3
LIGHT_ADMINISTRATES: Final = 0.5  # operations per second

RACKS: Final = ("north", "south")
COMPRESSIONS: Final = ("none", "gzip", "lz4", "zstd")
DAY_MS: Final = 86_400_000
# Longer than any run, so that nothing may be deleted; clocks jump by less and by more (``faults``).
RETENTIONS_MS: Final = (-1, 60 * 60_000, DAY_MS, 7 * DAY_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    """How one producer behaves. Times in seconds; sizes in bytes."""

    acks: int
    idempotent: bool
    compression: str
    linger_ms: int
    burst_max: int  # records sent without a pause
    pause_s: float  # between bursts, on average
    padding_max: int
    many: float  # the share of bursts that go out by ``send_many``
    waits: float  # the share of bursts whose outcome is waited for
    session_s: float  # then it is closed, and another one made
    close_s: float  # how long closing may take: what is not acknowledged by then is given up
    delivery_timeout_ms: int

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
    """How one consumer behaves. ``begin``: where each of its sessions starts to read."""

    begin: str
    records_max: int
    wait_ms: int
    fetch_bytes_max: int
    polls_max: int  # then another session begins
    pause_s: float
    asks_ends: float  # the share of polls after which it asks for the ends
    read_from: str = "leader"
    rack: str | None = None  # with "replica": prefers replicas of this rack

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
    """What the members of the consumer group are like. Times in seconds, where not named."""

    members: int
    session_timeout_ms: int
    assignor: str | None
    is_static: bool  # each has a name that outlives it
    read_from: str
    records_max: int
    wait_ms: int
    polls_max: int  # then it leaves, and joins again
    pause_s: float
    commits: float  # the share of polls after which it commits
    waits: float  # the share of commits that are waited for
    away_s: float  # the longest between two memberships
    disturbs_s: float  # between two times that something happens to one of them, on average

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
    """What a compacted topic is like. ``tombstones``: the share of records that have no value."""

    keys: int
    tombstones: float
    topic_config: dict[str, str]
    interval_ms: int  # of a broker's looks at what is to be compacted

    @property
    def keeps_tombstones(self) -> bool:
        """Whether a run is too short for a tombstone to go."""
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
    """``replication_factor`` and ``partitions`` of the one topic that is checked."""

    partitions: int
    replication_factor: int
    topic_config: dict[str, str]
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    administrates: float  # operations on other topics, per second
    deletes: bool  # records of the topic
    alters_min_isr: bool = False  # of the topic, from 1 to its number of replicas
    askers: int = 0  # clients that reach one broker only, and ask it where logs start and end
    compaction: CompactionPlan | None = None
    group: GroupPlan | None = None
    recreates_after_s: float = 0.0  # deleted then, and made again; 0: never
    moves_every_s: float = 0.0  # between two requests to move replicas, on average; 0: none
    changes_factor: bool = False  # some of those change the number of replicas
    is_secured: bool = False  # clients authenticate, and a user is created and deleted repeatedly

    @classmethod
    def draw(cls, random: Random, *, replication_factor: int, min_isr: int = 0) -> WorkloadPlan:
        """``min_isr``: the topic's ``min.insync.replicas``; 0: the default."""
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
        """The same clients, and a topic that is compacted, in many small segments."""
        return replace(
            self, compaction=plan, topic_config={**self.topic_config, **plan.topic_config}
        )

    def with_replica_reads(self, random: Random) -> WorkloadPlan:
        """The same clients, but that most consumers read from replicas, near ones or any.

        Those do not query ends: without a leader they can receive an older end.
        """
        racks = (None, *RACKS)
        consumers = tuple(
            replace(consumer, read_from="replica", rack=random.choice(racks), asks_ends=0.0)
            if random.random() < 0.7
            else consumer
            for consumer in self.consumers
        )
        return replace(self, consumers=consumers)

    def with_retained_bytes(self, random: Random) -> WorkloadPlan:
        """The same clients, and a topic of which only the newest records are kept, by size."""
        kept = {"segment.bytes": "16384", "retention.bytes": random.choice(("0", "0", "16384"))}
        return replace(self, topic_config={**self.topic_config, **kept})

    def with_retention(self, retention_ms: int) -> WorkloadPlan:
        """The same clients, and a topic with this ``retention.ms``."""
        return replace(self, topic_config={**self.topic_config, "retention.ms": str(retention_ms)})

    def lightened(self) -> WorkloadPlan:
        """The same clients, but fewer and slower: what costs time and finds little is left out."""
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
