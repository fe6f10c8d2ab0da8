"""What a run will do, as data: all of it drawn from one seed, nothing of it from the machine. Pure.

The same seed and options give the same plan. What then happens is up to the machine; the history
says what did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

WorkloadName: TypeAlias = Literal["append", "replay", "admin", "offsets", "groups", "compact"]
WORKLOADS: Final[tuple[WorkloadName, ...]] = (
    "append",
    "replay",
    "admin",
    "offsets",
    "groups",
    "compact",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """One topic of the workload. ``keys``: how many keys each of its partitions has, if it is
    compacted; 0 for records without keys."""

    name: str
    partitions: int
    replication_factor: int
    min_isr: int
    config: tuple[tuple[str, str], ...] = ()
    keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The cluster under test: brokers have the ids 1 to ``brokers``.

    ``coordinators``: how many partitions the internal topic has whose leaders coordinate consumer
    groups; 0 where there are no groups.
    """

    brokers: int
    topics: tuple[TopicShape, ...]
    flush_policy: str = "durable"
    coordinators: int = 0

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
class MemberShape:
    """One member of a consumer group, a process. Times in seconds.

    ``style``: how it is given records: "poll" and "iterate" with ``Consumer``, "aio" with
    ``AsyncConsumer``. ``commits``: "manual" after every ``commit_every`` polls and when something
    is revoked, "auto" every ``auto_commit_s``. ``handling_s``: how long it deals with what a poll
    gave, at most. ``instance``: its ``group.instance.id``; empty for a dynamic member.
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
    """One consumer group. ``topics``: by name; ``by_pattern``: it subscribes to a pattern that fits
    them. ``assignor``: empty for the broker's default. ``members``: none where those who commit
    assign partitions to themselves."""

    name: str
    topics: tuple[str, ...]
    members: tuple[MemberShape, ...] = ()
    by_pattern: bool = False
    assignor: str = ""
    session_timeout_s: float = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadShape:
    """The clients. ``admin_rate``: changes per second of an operator, 0 for none."""

    name: WorkloadName
    producers: tuple[ProducerShape, ...]
    consumers: tuple[ConsumerShape, ...]
    admin_rate: float = 0.0
    groups: tuple[GroupShape, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A whole run. ``time_s``: how long the load lasts; healing and reading come on top."""

    seed: int
    shape: Shape
    workload: WorkloadShape
    nemeses: tuple[str, ...]  # kinds of fault, by name
    requested: tuple[tuple[str, ...], ...] = ()  # each name that was asked for: its kinds
    time_s: float
    rate: float | None = None  # records per second that were asked for; None: drawn
    pairs: bool = False  # two kinds at a time
    settings: tuple[tuple[str, str], ...] = field(default=())  # of every broker
