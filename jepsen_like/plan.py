"""What a run will do, as data: all of it drawn from one seed, nothing of it from the machine. Pure.

The same seed and options give the same plan. What then happens is up to the machine; the history
says what did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

WorkloadName: TypeAlias = Literal["append", "replay", "admin"]
WORKLOADS: Final[tuple[WorkloadName, ...]] = ("append", "replay", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """One topic of the workload."""

    name: str
    partitions: int
    replication_factor: int
    min_isr: int
    config: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The cluster under test: brokers have the ids 1 to ``brokers``."""

    brokers: int
    topics: tuple[TopicShape, ...]
    flush_policy: str = "durable"

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.brokers + 1))

    @property
    def minority(self) -> int:
        """How many voters may be away while the rest still is a majority."""
        return (self.brokers - 1) // 2

    @property
    def losses(self) -> int:
        """How many disks may be lost at once while every ISR is full: n-1 of the smallest n."""
        return min(topic.replication_factor for topic in self.topics) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerShape:
    """One producer. Sizes in bytes, times in seconds."""

    idempotent: bool = True
    acks: int = -1
    compression: str = "none"
    linger_ms: int = 0
    in_flight_max: int = 5  # groups of records that it waits for at the same time
    group_max: int = 100  # records of one append operation
    padding_max: int = 100  # bytes beside the value itself
    rate: float = 1_000.0  # records per second, at most
    bursts: bool = False  # a second of twice the rate, a second of nothing
    session_s: float = 30.0  # then it is closed, or abandoned, and another takes its place
    delivery_timeout_s: float = 30.0
    pinned: bool = False  # knows one broker only, at first


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
class WorkloadShape:
    """The clients. ``admin_rate``: changes per second of the admin workload, 0 for none."""

    name: WorkloadName
    producers: tuple[ProducerShape, ...]
    consumers: tuple[ConsumerShape, ...]
    admin_rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A whole run. ``time_s``: how long the load lasts; healing and reading come on top."""

    seed: int
    shape: Shape
    workload: WorkloadShape
    nemeses: tuple[str, ...]  # kinds of fault, by name
    time_s: float
    rate: float | None = None  # records per second that were asked for; None: drawn
    pairs: bool = False  # two kinds at a time
    settings: tuple[tuple[str, str], ...] = field(default=())  # of every broker
