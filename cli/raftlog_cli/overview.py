"""Contents of ``raftlog top`` and the console: findings, brokers, topics, groups. Pure.

Rates are differences between two descriptions, divided by the time between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from raftlog.client.administration.describe import topics_in
from raftlog.client.administration.groups import GroupDescription
from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    CopyVerification,
    DiskDescription,
    PartitionOverview,
    ReplicaDescription,
    TopicSummary,
)
from raftlog.types import Offset, is_internal_topic

EXAMPLES_MAX: Final = 3  # partitions that a finding names
SORTS: Final = ("problems", "rate", "lag", "name")


@dataclass(frozen=True, slots=True)
class Finding:
    """One current problem: ``what``, and ``do``, the next step. ``kind`` is that of
    ``health.problems``. ``is_critical``: records cannot be written or read, or are at risk.
    """

    kind: str
    what: str
    do: str
    is_critical: bool


def findings(cluster: ClusterDescription) -> list[Finding]:
    """Return the problems, the worst first. Partitions with the same problem are one finding."""
    found = []
    if cluster.controller is None:
        found.append(
            Finding(
                "no-controller",
                "The cluster has no controller: no majority of its voters is up.",
                "Start brokers until a majority of the voters is up. If they are lost permanently: "
                "raftlog cluster recover.",
                True,
            )
        )
    by_state: dict[str, list[PartitionOverview]] = defaultdict(list)
    damaged = []
    for partition in cluster.partitions:
        by_state[partition_state(partition)].append(partition)
        damaged += [
            f"{_name(partition)} on broker {replica.broker}"
            for replica in partition.replica_states
            if replica.damage
        ]
    numbers = counts(cluster)
    unavailable = numbers["unavailable"]
    found += _of_partitions(by_state["unavailable"], unavailable, UNAVAILABLE)
    if damaged:
        found.append(
            Finding(
                "damage",
                f"{_counted(len(damaged), 'replica is', 'replicas are')} corrupt: "
                f"{_listed(damaged, len(damaged))}.",
                "Brokers replace corrupt replicas by copies of valid ones. Check the disk of the "
                "broker (dmesg, SMART), then run raftlog log verify --cluster.",
                True,
            )
        )
    found += [finding for broker in cluster.brokers for finding in _of_disks(broker)]
    found += [finding for broker in cluster.brokers for finding in _of_broker(broker)]
    listed = by_state["under-replicated"]
    count = len(listed) if cluster.topics is None else numbers["under_replicated"] - unavailable
    found += _of_partitions(listed, count, UNDER_REPLICATED)
    return found


@dataclass(frozen=True, slots=True)
class _Kind:
    kind: str
    one: str
    many: str
    do: str
    is_critical: bool


UNAVAILABLE: Final = _Kind(
    "unavailable",
    "partition has no leader: no reads, no writes",
    "partitions have no leader: no reads, no writes",
    "Start the brokers that have their replicas. raftlog explain partition {first} has the reason.",
    True,
)
UNDER_REPLICATED: Final = _Kind(
    "under-replicated",
    "partition has replicas that are not in sync",
    "partitions have replicas that are not in sync",
    "Replicas catch up automatically when their broker is up. If this one does not, run "
    "raftlog explain partition {first}.",
    False,
)


def _of_partitions(listed: Sequence[PartitionOverview], count: int, kind: _Kind) -> list[Finding]:
    """Return the finding of ``count`` partitions, some of which are ``listed``. Without one that
    is, an election has just ended.
    """
    if not (listed and count):
        return []
    names = [_name(partition) for partition in listed]
    what = f"{_counted(count, kind.one, kind.many)} ({_listed(names, count)})."
    return [Finding(kind.kind, what, kind.do.format(first=names[0]), kind.is_critical)]


def _of_disks(broker: BrokerDescription) -> list[Finding]:
    do = f"raftlog explain disk {broker.id} has what uses the space, and how to free some."
    return [
        Finding("disk", f"Broker {broker.id}: {problem}.", do, True)
        for problem in disk_problems(broker)
        if is_up(broker)
    ]


def _of_broker(broker: BrokerDescription) -> list[Finding]:
    if not broker.live:
        reason = f": {broker.problem}" if broker.problem else ""
        what = f"Broker {broker.id} ({broker.host}:{broker.port}) does not respond{reason}."
        return [Finding("broker", what, "Start it. If it has failed, see its log.", False)]
    if broker.fenced:
        what = f"Broker {broker.id} responds and is fenced: it leads no partition."
        do = "It rejoins when it reaches the controller. See its /readyz, or its log."
        return [Finding("broker", what, do, False)]
    if broker.clock_error_ms:
        what, _, do = clock_problem(broker).partition(". ")
        what = what.replace("broker", "Broker", 1)
        return [Finding("clock", f"{what}.", f"{do}.", False)]
    return []


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _listed(names: Sequence[str], count: int) -> str:
    """Return the first names of ``count``."""
    shown = names[:EXAMPLES_MAX]
    return ", ".join(shown) + (", …" if count > len(shown) else "")


def _name(partition: PartitionOverview) -> str:
    return f"{partition.topic}:{partition.partition}"


# -- rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicRow:
    """``records``: offsets in use. ``rate``: new records per second; None with one description.

    ``state``: the worst state of its partitions.
    """

    name: str
    partitions: int
    records: int
    rate: float | None
    under_replicated: int
    unavailable: int
    state: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """``lag``: in offsets; ``lag_seconds``: age of the oldest unread record, None if unknown."""

    name: str
    state: str
    members: int
    lag: int
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """A description of the cluster, and its time in seconds of a monotonic clock."""

    at_s: float
    cluster: ClusterDescription


@dataclass(frozen=True, slots=True)
class Overview:
    """``rate``: new records per second of all topics; None with one description."""

    summary: Mapping[str, Any]
    findings: Sequence[Finding]
    brokers: Sequence[Mapping[str, Any]]
    topics: Sequence[TopicRow]
    groups: Sequence[GroupRow]
    rate: float | None
    groups_omitted: int = field(default=0)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.summary,
            "findings": [asdict(finding) for finding in self.findings],
            "records_per_second": self.rate,
            "broker_rows": list(self.brokers),
            "topic_rows": [asdict(topic) for topic in self.topics],
            "group_rows": [asdict(group) for group in self.groups],
            "groups_omitted": self.groups_omitted,
        }


def overview(
    now: Sample,
    before: Sample | None,
    groups: Iterable[GroupDescription] = (),
    *,
    sort: str = "problems",
    groups_omitted: int = 0,
) -> Overview:
    """Return the complete overview. ``before``: an earlier sample, for rates.

    ``sort``: one of ``SORTS``. Rows of the same rank are sorted by name.
    """
    rates = rates_of(now, before)
    topics = topic_rows(now.cluster, rates)
    rows = [
        GroupRow(group.group, group.state, len(group.members), group.lag, group.lag_seconds)
        for group in groups
    ]
    return Overview(
        summary=summary(now.cluster),
        findings=findings(now.cluster),
        brokers=broker_rows(now.cluster),
        topics=sorted(topics, key=_rank_of_topics(sort)),
        groups=sorted(rows, key=lambda row: (0 if sort == "name" else -row.lag, row.name)),
        rate=None if rates is None else sum(rates.values()),
        groups_omitted=groups_omitted,
    )


_WORST: Final = ("unavailable", "under-replicated", "at-min-isr", "ok")


def _rank_of_topics(sort: str) -> Callable[[TopicRow], tuple[float, float, bool, str]]:
    def rank(row: TopicRow) -> tuple[float, float, bool, str]:
        trouble = _WORST.index(row.state) if sort == "problems" else 0
        rate = 0.0 if sort in {"name", "lag"} else -(row.rate or 0.0)
        return trouble, rate, is_internal_topic(row.name), row.name

    return rank


def rates_of(now: Sample, before: Sample | None) -> dict[str, float] | None:
    """New records per second of each topic. None if there is no earlier sample.

    0 for a topic that is new, or of whose partitions more or fewer leaders responded before.
    """
    if before is None or now.at_s <= before.at_s:
        return None
    known = {(topic.id, topic.available): topic.end for topic in topics_of(before.cluster)}
    seconds = now.at_s - before.at_s
    return {
        topic.name: max(topic.end - known.get((topic.id, topic.available), topic.end), 0) / seconds
        for topic in topics_of(now.cluster)
    }


def topics_of(cluster: ClusterDescription) -> Sequence[TopicSummary]:
    """Return all topics in numbers."""
    return topics_in(cluster.partitions) if cluster.topics is None else cluster.topics


def topic_rows(
    cluster: ClusterDescription, rates: Mapping[str, float] | None = None
) -> list[TopicRow]:
    """Return one row for each topic, in the order of the description."""
    return [
        TopicRow(
            name=topic.name,
            partitions=topic.partitions,
            records=topic.records,
            rate=None if rates is None else rates.get(topic.name, 0.0),
            under_replicated=topic.under_replicated + topic.unavailable,
            unavailable=topic.unavailable,
            state=_state(topic),
        )
        for topic in topics_of(cluster)
    ]


def _state(topic: TopicSummary) -> str:
    """Return the worst state of its partitions."""
    if topic.unavailable:
        return "unavailable"
    if topic.under_replicated:
        return "under-replicated"
    return "at-min-isr" if topic.at_min_isr else "ok"


# -- health ----------------------------------------------------------------------------------------
#
# Summary of a cluster's description: counts, states, lag, corruption. Pure.


UNKNOWN = "?"
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def summary(cluster: ClusterDescription) -> dict[str, Any]:
    """Return counts of brokers and partitions, problems, corrupt replicas and accepted losses."""
    partitions = cluster.partitions
    found = problems(cluster)
    return {
        "ok": not found,
        "problems": found,
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller,
        "brokers": len(cluster.brokers),
        "brokers_up": sum(map(is_up, cluster.brokers)),
        "brokers_fenced": sum(broker.fenced for broker in cluster.brokers),
        **counts(cluster),
        "damage": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "broker": replica.broker,
                "damage": replica.damage,
            }
            for partition in partitions
            for replica in partition.replica_states
            if replica.damage
        ],
        "losses": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "leader_epoch": partition.unclean_epoch,
                "offset": partition.unclean_offset,
            }
            for partition in partitions
            if partition.unclean_epoch >= 0
        ],
    }


def counts(cluster: ClusterDescription) -> dict[str, int]:
    """Return the numbers of topics and partitions, and of partitions in each state."""
    topics, partitions = cluster.topics, cluster.partitions
    if topics is None:
        return {
            "topics": len({partition.topic for partition in partitions}),
            "partitions": len(partitions),
            "under_replicated": sum(partition.is_under_replicated for partition in partitions),
            "unavailable": sum(not partition.is_available for partition in partitions),
            "at_min_isr": sum(partition.is_at_min_isr for partition in partitions),
        }
    return {
        "topics": len(topics),
        "partitions": sum(topic.partitions for topic in topics),
        # A partition without an available leader lacks a replica.
        "under_replicated": sum(topic.under_replicated + topic.unavailable for topic in topics),
        "unavailable": sum(topic.unavailable for topic in topics),
        "at_min_isr": sum(topic.at_min_isr for topic in topics),
    }


def problems(cluster: ClusterDescription) -> list[dict[str, Any]]:
    """Return the current problems, the worst first: each with its ``kind`` and a ``message``."""
    found: list[dict[str, Any]] = []
    if cluster.controller is None:
        message = "the cluster has no controller: no majority of its voters is up"
        found.append({"kind": "no-controller", "message": message})
    for broker in cluster.brokers:
        if not is_up(broker):
            state = ": ".join(filter(None, (broker_state(broker), broker.problem)))
            message = f"broker {broker.id} is {state}"
            found.append({"kind": "broker", "broker": broker.id, "message": message})
            continue
        if broker.clock_error_ms:
            found.append({"kind": "clock", "broker": broker.id, "message": clock_problem(broker)})
        for problem in disk_problems(broker):
            message = f"broker {broker.id}: {problem}"
            found.append({"kind": "disk", "broker": broker.id, "message": message})
    for partition in cluster.partitions:
        name = f"{partition.topic}:{partition.partition}"
        place: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
        state = partition_state(partition)
        if state in {"unavailable", "under-replicated"}:
            found.append({"kind": state, **place, "message": f"{name} is {state}"})
        for replica in partition.replica_states:
            if replica.damage:
                message = f"{name} on broker {replica.broker} is corrupt: {replica.damage}"
                found.append(
                    {"kind": "damage", **place, "broker": replica.broker, "message": message}
                )
    return found


def disk_problems(broker: BrokerDescription) -> list[str]:
    """Return why disks of a broker reject writes, do not respond or have failed."""
    if broker.disk is None:
        return []
    log_dirs = [log_dir.problem for log_dir in broker.disk.log_dirs]
    return [problem for problem in (broker.disk.reason, *log_dirs) if problem]


def is_up(broker: BrokerDescription) -> bool:
    """Return whether the broker responds and is not fenced."""
    return broker.live and not broker.fenced


def clock_problem(broker: BrokerDescription) -> str:
    """Return the problem of a broker's wall clock, and the remedy."""
    seconds = abs(broker.clock_error_ms) // 1_000
    side = "ahead of" if broker.clock_error_ms > 0 else "behind"
    return (
        f"broker {broker.id}: the wall clock is {seconds} s {side} the time by which records "
        "expire. Correct the clock (is NTP running?). If it is correct, correct the clocks of the "
        "other brokers, or restart the broker if there are no others"
    )


def broker_state(broker: BrokerDescription) -> str:
    if not broker.live:
        return "down"
    if broker.draining:
        return "draining"
    return "fenced" if broker.fenced else "up"


def partition_state(partition: PartitionOverview) -> str:
    """Return the worst state that applies: unavailable, under-replicated, at-min-isr, or ok."""
    if not partition.is_available:
        return "unavailable"
    if partition.is_under_replicated:
        return "under-replicated"
    return "at-min-isr" if partition.is_at_min_isr else "ok"


def lag(replicas: Iterable[ReplicaDescription]) -> str:
    """Return the lag of followers in records, such as ``2:120``; 0 if none lags."""
    behind = [
        f"{replica.broker}:{UNKNOWN if replica.lag_records < 0 else replica.lag_records}"
        for replica in replicas
        if replica.lag_records
    ]
    return ",".join(behind) or "0"


def shown_bytes(value: float) -> str:
    """Return a number of bytes with a unit, such as ``1.5 GiB``."""
    if value < 1024:
        return f"{value:.0f} B"
    units = iter(_UNITS)
    unit, value = next(units), value / 1024
    while value >= 1024 and (larger := next(units, "")):
        unit, value = larger, value / 1024
    return f"{value:.1f} {unit}"


def free_space(disk: DiskDescription | None) -> str:
    """Return the free space of a broker's disk as a table cell, with the level if it is low."""
    if disk is None:
        return UNKNOWN
    low = f", {disk.level}" if disk.reason else ""
    return f"{shown_bytes(disk.free_bytes)} ({disk.free_bytes / max(disk.size_bytes, 1):.0%}{low})"


def ids(brokers: Iterable[int]) -> str:
    """Return broker IDs as a table cell."""
    return ",".join(map(str, brokers))


def broker_rows(described: ClusterDescription) -> list[dict[str, Any]]:
    """Return the brokers for JSON, with their numbers of leaderships and replicas."""
    leads = Counter(partition.leader for partition in described.partitions)
    replicas = Counter(
        broker for partition in described.partitions for broker in partition.replicas
    )
    return [
        {
            **asdict(broker),
            "state": broker_state(broker),
            "leads": leads[broker.id] if broker.leads is None else broker.leads,
            "replicas": replicas[broker.id] if broker.replicas is None else broker.replicas,
            "controller": broker.id == described.controller,
        }
        for broker in described.brokers
    ]


def partition_row(partition: PartitionOverview) -> dict[str, Any]:
    """Return a partition for JSON. Hash chains are hexadecimal, as in ``raftlog log dump``."""
    return {
        **asdict(partition),
        "replica_states": replica_rows(partition.replica_states),
        "state": partition_state(partition),
    }


def replica_rows(replicas: Iterable[ReplicaDescription]) -> list[dict[str, Any]]:
    return [
        {
            **asdict(replica),
            "chain": None if replica.chain is None else f"{replica.chain:016x}",
        }
        for replica in replicas
    ]


def copy_state(copy: CopyVerification, high_watermark: Offset) -> tuple[str, str]:
    """Return the state of a verified copy, and a description: "" for an equal copy.

    The states are equal, corrupt, differs, unverified, and partial.
    """
    if copy.damage:
        return "corrupt", f"offset {copy.end_offset}: {copy.damage}"
    if copy.differs_at >= 0:
        return "differs", (
            f"offset {copy.differs_at}: not equal to the batch of the leader's copy. Move the "
            "partition's directory on this broker away: the broker copies the partition again"
        )
    if copy.problem:
        return "unverified", copy.problem
    if copy.is_partial:
        return "partial", ""
    if copy.end_offset < high_watermark:
        return "unverified", f"the copy ends at offset {copy.end_offset}"
    return "equal", ""
