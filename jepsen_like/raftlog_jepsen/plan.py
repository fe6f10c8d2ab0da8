"""The plan of a run, as data: drawn from one seed and independent of the machine. Pure.

The same seed and options give the same plan. The events of a run also depend on the machine; the
history records them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Literal, TypeAlias

ClientName: TypeAlias = Literal["raftlog", "kafka"]
CLIENTS: Final[tuple[ClientName, ...]] = ("raftlog", "kafka")
GroupProtocol: TypeAlias = Literal["classic", "consumer"]
WorkloadName: TypeAlias = Literal[
    "append", "replay", "admin", "offsets", "groups", "compact", "txn", "etl"
]
WORKLOADS: Final[tuple[WorkloadName, ...]] = (
    "append",
    "replay",
    "admin",
    "offsets",
    "groups",
    "compact",
    "txn",
    "etl",
)
# Their records are in transactions: the workload reads them at the end.
TRANSACTIONAL: Final[frozenset[WorkloadName]] = frozenset(("txn", "etl"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """One topic of the workload. ``keys``: number of keys of each of its partitions, if it is
    compacted; 0 for records without keys."""

    name: str
    partitions: int
    replication_factor: int
    min_isr: int
    config: tuple[tuple[str, str], ...] = ()
    keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The cluster under test. Brokers have the ids 1 to ``brokers``.

    ``workers``: brokers of each machine, whose name is their rack. ``coordinators``: number of
    partitions of the internal topic whose leaders coordinate consumer groups; 0 without groups.
    """

    brokers: int
    topics: tuple[TopicShape, ...]
    flush_policy: str = "durable"
    coordinators: int = 0
    workers: int = 1

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.brokers + 1))

    @property
    def machines(self) -> tuple[tuple[int, ...], ...]:
        """The broker ids of each machine."""
        ids = self.broker_ids
        return tuple(ids[at : at + self.workers] for at in range(0, self.brokers, self.workers))

    def machines_of(self, brokers: Iterable[int]) -> set[int]:
        """Return the numbers of the machines of these brokers, from 0."""
        return {(broker - 1) // self.workers for broker in brokers}

    @property
    def minority(self) -> int:
        """Number of machines that can be down while the voters of the others are a majority."""
        return (len(self.machines) - 1) // 2

    @property
    def losses(self) -> int:
        """Number of machines whose disks can be lost at once if every ISR is complete: the lowest
        replication factor minus 1."""
        return min(topic.replication_factor for topic in self.topics) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerShape:
    """One producer. Sizes in bytes, times in seconds."""

    idempotent: bool = True
    acks: int = -1
    compression: str = "none"
    linger_ms: int = 0
    in_flight_max: int = 5  # groups of records in flight
    group_max: int = 100  # records of one append operation
    padding_max: int = 100  # bytes in addition to the value
    rate: float = 1_000.0  # records per second, at most
    bursts: bool = False  # a second of twice the rate, then a second without records
    session_s: float = 30.0  # seconds until a new producer replaces it
    delivery_timeout_s: float = 30.0
    pinned: bool = False  # bootstraps from one broker only


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerShape:
    """One consumer."""

    source: Literal["leader", "replica"] = "leader"
    begin: Literal["earliest", "latest", "middle"] = "earliest"
    wait_ms: int = 500
    records_max: int = 500
    fetch_bytes_max: int = 1 << 20
    session_s: float = 15.0
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberShape:
    """One member of a consumer group, a process. Times in seconds.

    ``style``: API for records: "poll" and "iterate" with ``Consumer``, "aio" with
    ``AsyncConsumer``. ``commits``: "manual" after every ``commit_every`` polls and when a partition
    is revoked, "auto" every ``auto_commit_s``. ``handling_s``: maximum processing time of the
    records of a poll. ``instance``: its ``group.instance.id``; empty for a dynamic member.
    """

    style: Literal["poll", "iterate", "aio"] = "poll"
    commits: Literal["manual", "auto"] = "manual"
    commit_every: int = 1
    auto_commit_s: float = 1.0
    records_max: int = 500
    handling_s: float = 0.0
    instance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """One consumer group. ``topics``: names of its topics. ``members``: empty if the clients that
    commit assign partitions to themselves. ``by_pattern``: members subscribe to a pattern that
    matches the topics. ``assignor``: empty for the broker's default. ``protocol``: of members that
    are Kafka clients."""

    name: str
    topics: tuple[str, ...]
    members: tuple[MemberShape, ...] = ()
    by_pattern: bool = False
    assignor: str = ""
    session_timeout_s: float = 6.0
    protocol: GroupProtocol = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadShape:
    """The clients. ``admin_rate``: administrative changes per second; 0 for none."""

    name: WorkloadName
    producers: tuple[ProducerShape, ...]
    consumers: tuple[ConsumerShape, ...]
    admin_rate: float = 0.0
    groups: tuple[GroupShape, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A complete run. ``time_s``: duration of the load, without healing and final reads.

    ``client``: implementation of the clients under load. Topics are always created, and final reads
    made, with raftlog's clients.
    """

    seed: int
    shape: Shape
    workload: WorkloadShape
    nemeses: tuple[str, ...]  # names of the kinds of fault
    requested: tuple[tuple[str, ...], ...] = ()  # the kinds of each requested name
    time_s: float
    rate: float | None = None  # requested records per second; None: drawn
    pairs: bool = False  # two kinds of fault overlap
    settings: tuple[tuple[str, str], ...] = field(default=())  # of every broker
    client: ClientName = "raftlog"


# -- generator -------------------------------------------------------------------------------------
#
# Clients and topics of a run, drawn from its seed. Pure.
#
# Shapes vary in size, rate and strictness of settings, because a uniform workload hides bugs. The
# same state of the random generator and the same arguments give the same shapes.


RateMode: TypeAlias = Literal["slow", "pressure", "bursts"]
RATE_MODES: Final[tuple[RateMode, ...]] = ("slow", "pressure", "bursts")
# Records per second of all producers. ``slow`` gives long histories with few records; ``bursts``
# leaves leader epochs without records.
RATES: Final[dict[RateMode, float]] = {"slow": 100.0, "pressure": 10_000.0, "bursts": 2_000.0}
PRODUCERS: Final = (8, 32)
CONSUMERS: Final = (4, 16)
PARTITIONS_MAX: Final = 16  # of all topics together
TOPICS_MAX: Final = 3
FACTORS: Final = (1, 3, 5)

GROUP_MAX: Final = 100  # records
# Maximum number of groups per second of a producer: each is an operation in the history.
GROUPS_PER_S: Final = 25.0
# Maximum bytes per second of all producers, with large records.
BYTES_PER_S: Final = 4_000_000.0
# Maximum bytes of padding, and relative frequency. The default limit of a batch is 1 MiB: the
# largest records are just below it.
PADDINGS: Final = ((0, 1), (10, 3), (100, 6), (1_000, 2), (20_000, 1), (1_000_000, 1))
LARGE_BYTES: Final = 20_000
LARGE_RATE: Final = 1.0  # records per second of a producer of large records

SEGMENT_BYTES: Final = ("16384", "65536", "65536", "65536", "1048576")
# With ``pressure``, smaller segments would be too many files for the file system.
PRESSURE_SEGMENT_BYTES: Final = ("65536", "262144", "1048576")
ADMIN_RATES: Final = (0.2, 0.5, 1.0)

# -- consumer groups
WITH_GROUPS: Final = frozenset(("offsets", "groups"))  # in the plan
COORDINATED: Final = WITH_GROUPS | TRANSACTIONAL
COORDINATORS: Final = (1, 4)  # partitions of the internal topic
GROUPS: Final = (2, 4)
MEMBERS: Final = (3, 6)
MEMBERS_ALL_MAX: Final = 14  # each is a process that shares the machine's CPUs with the brokers
SESSION_TIMEOUTS_S: Final = (2.0, 4.0, 6.0)
GROUP_PROTOCOLS: Final[tuple[GroupProtocol, ...]] = ("classic", "consumer")
KAFKA_SESSION_MS: Final = 6_000
KAFKA_SETTINGS: Final = (
    ("group.consumer.session.timeout.ms", str(KAFKA_SESSION_MS)),
    ("group.consumer.heartbeat.interval.ms", "1000"),
)
GROUP_PARTITIONS: Final = (4, 8, 12)  # of all topics of the group workload together
# records per second; members log the records that they receive
GROUP_RATES: Final = (100.0, 300.0, 600.0)
OFFSETS_RATES: Final = (50.0, 200.0)
ADD_PARTITIONS_RATES: Final = (0.0, 0.05, 0.1)  # per second

# -- workloads with few clients, which focus on operations other than appends
FEW_CLIENTS: Final = frozenset(("offsets", "groups", "compact", "txn", "etl"))
FEW_PRODUCERS: Final = (3, 6)
FEW_CONSUMERS: Final = (2, 4)
FEW_PADDING_MAX: Final = 1_000

# -- compaction
COMPACT_RATES: Final = (200.0, 1_000.0, 3_000.0)
# -1: indefinitely. Clocks that jump by ten days (``nemesis.clocks``) must not delete records.
RETENTIONS_MS: Final = ("-1", "86400000", "604800000")
KEYS: Final = (20, 200, 2_000)
CLEANER: Final[Mapping[str, str]] = {"log.cleaner.interval.ms": "300"}
COMPACT_SEGMENT_BYTES: Final = ("16384", "16384", "65536")


def draw_rate_mode(random: Random) -> RateMode:
    return random.choice(RATE_MODES)


def draw_shape(
    random: Random,
    *,
    brokers: int,
    workload: WorkloadName,
    mode: RateMode = "slow",
    lossy: bool = False,
    available: bool = False,
    workers: int = 1,
) -> Shape:
    """Draw the cluster, with 1 to 15 ``brokers``, and the topics of the workload.

    ``lossy``: the faults lose disks: each topic has at least three replicas, and a min ISR of at
    least 2. ``available``: writes must continue while a replica is down: each topic has at least
    three replicas, and a min ISR below their number. ``workers``: brokers of each machine; each
    replica of a partition is on another one. Raises ``ValueError`` if there are too few brokers.
    """
    factors = [factor for factor in FACTORS if factor <= brokers // workers]
    if lossy or available:
        factors = [factor for factor in factors if factor >= FACTORS[1]]
    if not factors:
        raise ValueError(
            f"too few brokers for three replicas: {brokers // workers}. Use at least 3"
        )
    count = random.randint(2 if workload == "etl" else 1, TOPICS_MAX)
    sizes = GROUP_PARTITIONS if workload == "groups" else (1, 2, 4, 8, PARTITIONS_MAX)
    left = max(count, random.choice(sizes))
    topics: list[TopicShape] = []
    for number in range(1, count + 1):
        topics_after = count - number
        partitions = left if not topics_after else random.randint(1, left - topics_after)
        left -= partitions
        factor = random.choices(factors, [1 if factor == 1 else 4 for factor in factors])[0]
        least = 2 if lossy else 1
        most = factor - 1 if available else factor
        topics.append(
            TopicShape(
                name=f"{workload}-{number}",
                partitions=partitions,
                replication_factor=factor,
                min_isr=random.randint(min(least, most), most),
                config=_topic_config(random, mode),
            )
        )
    if workload == "compact":
        topics = [_compacted(random, topic) for topic in topics]
    coordinators = random.choice(COORDINATORS) if workload in COORDINATED else 0
    return Shape(brokers=brokers, topics=tuple(topics), coordinators=coordinators, workers=workers)


def _compacted(random: Random, topic: TopicShape) -> TopicShape:
    """Return the topic with keys, and with settings that compact it early and often."""
    config = {
        **dict(topic.config),
        "cleanup.policy": random.choice(("compact", "compact", "compact,delete")),
        "segment.bytes": random.choice(COMPACT_SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": random.choice(("0.0", "0.0", "0.3")),
        "delete.retention.ms": random.choice(("1000", "1000", "3000", "10000")),
        "min.compaction.lag.ms": random.choice(("0", "0", "500")),
    }
    if random.random() < 0.5:
        config["segment.ms"] = "3000"
    return replace(topic, config=tuple(sorted(config.items())), keys=random.choice(KEYS))


def _topic_config(random: Random, mode: RateMode) -> tuple[tuple[str, str], ...]:
    """Draw the settings except min.insync.replicas, which is part of the shape. No record must
    expire by age: every run is shorter than the shortest retention."""
    sizes = PRESSURE_SEGMENT_BYTES if mode == "pressure" else SEGMENT_BYTES
    config = {
        "retention.ms": random.choice(RETENTIONS_MS),
        "segment.bytes": random.choice(sizes),
    }
    if random.random() < 0.3:
        config["message.timestamp.type"] = "LogAppendTime"
    if random.random() < 0.5:
        config["index.interval.bytes"] = random.choice(("0", "500", "65536"))
    return tuple(sorted(config.items()))


def draw_workload(
    random: Random,
    *,
    name: WorkloadName,
    mode: RateMode = "slow",
    rate: float | None = None,
    producers: int | None = None,
    consumers: int | None = None,
) -> WorkloadShape:
    """Draw the clients. ``rate``: records per second of all producers; default: that of ``mode``.

    ``producers``, ``consumers``: their number; default: 8 to 32 producers, more for higher rates,
    and 4 to 16 consumers; 3 to 6 and 2 to 4 for workloads with few clients.
    """
    total = RATES[mode] if rate is None else rate
    if name in FEW_CLIENTS:
        producers = producers or random.randint(*FEW_PRODUCERS)
        consumers = consumers or random.randint(*FEW_CONSUMERS)
    if producers is None:
        least = PRODUCERS[0] * (2 if total >= RATES["pressure"] else 1)
        producers = random.randint(least, PRODUCERS[1] if total > RATES["slow"] else 2 * least)
    if consumers is None:
        consumers = random.randint(*CONSUMERS)
    paddings = _draw_paddings(random, producers)
    if name in FEW_CLIENTS:
        paddings = [min(padding, FEW_PADDING_MAX) for padding in paddings]
    small = max(sum(padding < LARGE_BYTES for padding in paddings), 1)
    return WorkloadShape(
        name=name,
        producers=tuple(
            _draw_producer(random, padding, total / small, producers, bursts=mode == "bursts")
            for padding in paddings
        ),
        consumers=tuple(_draw_consumer(random) for _ in range(consumers)),
        admin_rate=_draw_admin_rate(random, name),
    )


def _draw_admin_rate(random: Random, name: WorkloadName) -> float:
    rates = {"admin": ADMIN_RATES, "groups": ADD_PARTITIONS_RATES}
    return random.choice(rates[name]) if name in rates else 0.0


def draw_settings(random: Random, *, workload: WorkloadName) -> tuple[tuple[str, str], ...]:
    """Draw settings of every broker that make the relevant events frequent in a short run."""
    if workload in WITH_GROUPS:
        size = random.choice(("16384", "65536", "1048576"))
        settings = {"offsets.topic.segment.bytes": size, **CLEANER}
    elif workload == "compact":
        settings = dict(CLEANER)
    else:
        settings = {}
    return tuple(sorted(settings.items()))


def draw_rate(random: Random, *, workload: WorkloadName) -> float | None:
    """Draw the records per second; None if the workload does not override the rate mode."""
    rates = {"groups": GROUP_RATES, "offsets": OFFSETS_RATES, "compact": COMPACT_RATES}
    return random.choice(rates[workload]) if workload in rates else None


def draw_groups(
    random: Random, *, workload: WorkloadName, topics: Sequence[TopicShape]
) -> tuple[GroupShape, ...]:
    """Draw the consumer groups: with members for the groups workload, without members for the
    offsets workload; no groups for other workloads."""
    if workload not in WITH_GROUPS:
        return ()
    count = random.randint(*GROUPS)
    names = [topic.name for topic in topics]
    if workload == "offsets":
        return tuple(GroupShape(name=f"g{n}", topics=tuple(names)) for n in range(1, count + 1))
    most = MEMBERS_ALL_MAX // count
    return tuple(_draw_group(random, f"g{n}", names, most) for n in range(1, count + 1))


def with_protocols(groups: Sequence[GroupShape], random: Random) -> tuple[GroupShape, ...]:
    """Return the groups with a protocol for Kafka clients: classic, or that of KIP-848. The brokers
    set the session timeout of the latter."""
    drawn: list[GroupShape] = []
    for group in groups:
        protocol = random.choice(GROUP_PROTOCOLS)
        is_classic = protocol == "classic"
        seconds = group.session_timeout_s if is_classic else KAFKA_SESSION_MS / 1_000
        drawn.append(replace(group, protocol=protocol, session_timeout_s=seconds))
    return tuple(drawn)


def _draw_group(random: Random, name: str, topics: list[str], members_max: int) -> GroupShape:
    by_pattern = random.random() < 0.3
    read = topics if by_pattern else random.sample(topics, random.randint(1, len(topics)))
    is_static = random.random() < 0.25
    commits = random.choice(("manual", "manual", "auto"))
    count = random.randint(MEMBERS[0], max(MEMBERS[0], min(MEMBERS[1], members_max)))
    return GroupShape(
        name=name,
        topics=tuple(sorted(read)),
        members=tuple(
            MemberShape(
                style=random.choice(("poll", "poll", "aio", "iterate")),
                commits="auto" if commits == "auto" else "manual",
                commit_every=random.choice((1, 1, 3)),
                auto_commit_s=random.choice((0.1, 1.0)),
                records_max=random.choice((50, 200, 500)),
                handling_s=random.choice((0.0, 0.0, 0.05, 0.5)),
                instance=f"{name}-i{number}" if is_static else "",
            )
            for number in range(1, count + 1)
        ),
        by_pattern=by_pattern,
        assignor=random.choice(("", "", "range", "uniform")),
        session_timeout_s=random.choice(SESSION_TIMEOUTS_S),
    )


def _draw_paddings(random: Random, producers: int) -> list[int]:
    """Draw the record sizes of each producer. The first has small records, to reach the rate."""
    sizes, weights = zip(*PADDINGS, strict=True)
    return [100, *random.choices(sizes, weights, k=producers - 1)]


def _draw_producer(
    random: Random, padding: int, share: float, producers: int, *, bursts: bool
) -> ProducerShape:
    """Draw a producer. ``share``: records per second of one producer with small records."""
    if padding >= LARGE_BYTES:
        rate = LARGE_RATE
    else:
        # The average of the drawn paddings is less than a quarter of the largest.
        rate = min(share, BYTES_PER_S / producers / (padding / 4 + 20))
    # acks=1 appends records that a new leader may truncate.
    acks = random.choices((-1, 1), (12, 1))[0]
    idempotent = acks == -1 and random.random() < 0.7
    delivery_timeout_s = random.choice((5.0, 10.0, 30.0, 30.0))
    least = round(rate / GROUPS_PER_S * 2)  # the average group has half the maximum of records
    return ProducerShape(
        idempotent=idempotent,
        acks=acks,
        compression=random.choice(("none", "none", "lz4", "zstd")),
        linger_ms=random.choice((0, 0, 5, 50)),
        in_flight_max=random.randint(1, 5),
        group_max=min(max(least, random.choice((1, 5, 20, GROUP_MAX))), GROUP_MAX),
        padding_max=padding,
        rate=rate,
        bursts=bursts,
        session_s=random.choice((10.0, 30.0, 30.0, 60.0)),
        delivery_timeout_s=delivery_timeout_s,
        pinned=random.random() < 0.5,
    )


def _draw_consumer(random: Random) -> ConsumerShape:
    return ConsumerShape(
        source=random.choice(("leader", "replica")),
        begin=random.choice(("earliest", "latest", "latest", "middle")),
        wait_ms=random.choice((100, 500, 1_000)),
        records_max=random.choice((7, 500, 500, 2_000)),
        fetch_bytes_max=random.choice((200, 4_000, 65_536, 262_144)),
        session_s=random.choice((5.0, 15.0, 30.0)),
        pinned=random.random() < 0.5,
    )
