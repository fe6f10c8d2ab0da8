"""The plan of a run, as data: drawn from one seed and independent of the machine. Pure.

The same seed and options give the same plan. The events of a run also depend on the machine; the
history records them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

ClientName: TypeAlias = Literal["raftlog", "kafka"]
CLIENTS: Final[tuple[ClientName, ...]] = ("raftlog", "kafka")
GroupProtocol: TypeAlias = Literal["classic", "consumer"]
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

    ``coordinators``: number of partitions of the internal topic whose leaders coordinate consumer
    groups; 0 without groups.
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
        """Number of voters that can be down while the other voters are a majority."""
        return (self.brokers - 1) // 2

    @property
    def losses(self) -> int:
        """Number of disks that can be lost at once if every ISR is complete: the lowest replication
        factor minus 1."""
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
