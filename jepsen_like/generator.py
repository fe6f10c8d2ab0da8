"""What clients a run has and what topics they use, drawn from its seed. Pure.

Small and large, quick and slow, careful and careless: a tame workload is a blind checker. The same
state of the random generator and the same arguments give the same shapes.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal, TypeAlias

from jepsen_like.plan import (
    ConsumerShape,
    ProducerShape,
    Shape,
    TopicShape,
    WorkloadName,
    WorkloadShape,
)

RateMode: TypeAlias = Literal["slow", "pressure", "bursts"]
RATE_MODES: Final[tuple[RateMode, ...]] = ("slow", "pressure", "bursts")
# Records per second of all producers together. ``slow`` makes long histories with few records;
# ``bursts`` leaves leader epochs without any.
RATES: Final[dict[RateMode, float]] = {"slow": 100.0, "pressure": 10_000.0, "bursts": 2_000.0}
PRODUCERS: Final = (8, 32)
CONSUMERS: Final = (4, 16)
PARTITIONS_MAX: Final = 16  # of all topics together
TOPICS_MAX: Final = 3
FACTORS: Final = (1, 3, 5)

GROUP_MAX: Final = 100  # records
# A producer makes no more groups than this in a second: each is an operation in the history.
GROUPS_PER_S: Final = 25.0
# All producers together write no more than this, large records included.
BYTES_PER_S: Final = 4_000_000.0
# Bytes of padding at most, how often, and whether such a producer is a rare one. The limit of a
# batch is 1 MiB by default: the largest records are just below it.
PADDINGS: Final = ((0, 1), (10, 3), (100, 6), (1_000, 2), (20_000, 1), (1_000_000, 1))
LARGE_BYTES: Final = 20_000
LARGE_RATE: Final = 1.0  # records per second of a producer of large ones

SEGMENT_BYTES: Final = ("16384", "65536", "65536", "65536", "1048576")
# With as much written, tiny segments are more files than the file system likes.
PRESSURE_SEGMENT_BYTES: Final = ("65536", "262144", "1048576")
ADMIN_RATES: Final = (0.2, 0.5, 1.0)


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
) -> Shape:
    """The cluster, 1 to 15 ``brokers``, and the topics of the workload.

    ``lossy``: disks will be lost: every topic has three copies at least, and acknowledges nothing
    that is on one alone. ``available``: writes have to go on while a replica is away: so do the
    copies, with a min ISR below their number. Raises ``ValueError`` if there are too few brokers.
    """
    factors = [factor for factor in FACTORS if factor <= brokers]
    if lossy or available:
        factors = [factor for factor in factors if factor >= FACTORS[1]]
    if not factors:
        raise ValueError(f"{brokers} brokers: three copies of a partition need three of them")
    count = random.randint(1, TOPICS_MAX)
    left = max(count, random.choice((1, 2, 4, 8, PARTITIONS_MAX)))
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
    return Shape(brokers=brokers, topics=tuple(topics))


def _topic_config(random: Random, mode: RateMode) -> tuple[tuple[str, str], ...]:
    """Without min.insync.replicas, which the shape has. Nothing goes by age: it would be missed."""
    sizes = PRESSURE_SEGMENT_BYTES if mode == "pressure" else SEGMENT_BYTES
    config = {"retention.ms": "-1", "segment.bytes": random.choice(sizes)}
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
    """The clients. ``rate``: records per second of all producers, default: the mode's.

    ``producers``, ``consumers``: how many; default: 8 to 32 and 4 to 16, more for higher rates.
    """
    total = RATES[mode] if rate is None else rate
    if producers is None:
        least = PRODUCERS[0] * (2 if total >= RATES["pressure"] else 1)
        producers = random.randint(least, PRODUCERS[1] if total > RATES["slow"] else 2 * least)
    if consumers is None:
        consumers = random.randint(*CONSUMERS)
    paddings = _draw_paddings(random, producers)
    small = max(sum(padding < LARGE_BYTES for padding in paddings), 1)
    return WorkloadShape(
        name=name,
        producers=tuple(
            _draw_producer(random, padding, total / small, producers, bursts=mode == "bursts")
            for padding in paddings
        ),
        consumers=tuple(_draw_consumer(random) for _ in range(consumers)),
        admin_rate=random.choice(ADMIN_RATES) if name == "admin" else 0.0,
    )


def _draw_paddings(random: Random, producers: int) -> list[int]:
    """Of each producer. The first has small records, so that there is one that makes the rate."""
    sizes, weights = zip(*PADDINGS, strict=True)
    return [100, *random.choices(sizes, weights, k=producers - 1)]


def _draw_producer(
    random: Random, padding: int, share: float, producers: int, *, bursts: bool
) -> ProducerShape:
    """``share``: of the rate, for one of those that have small records."""
    if padding >= LARGE_BYTES:
        rate = LARGE_RATE
    else:
        # As paddings are drawn, their average is less than a quarter of the largest.
        rate = min(share, BYTES_PER_S / producers / (padding / 4 + 20))
    # One that only its leader acknowledges fills logs with what may be cut off again.
    acks = random.choices((-1, 1), (12, 1))[0]
    idempotent = acks == -1 and random.random() < 0.7
    delivery_timeout_s = random.choice((5.0, 10.0, 30.0, 30.0))
    least = round(rate / GROUPS_PER_S * 2)  # groups are of half the largest, on average
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
