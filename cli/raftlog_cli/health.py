"""Summary of a cluster's description: counts, states, lag, corruption. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    CopyVerification,
    DiskDescription,
    PartitionOverview,
    ReplicaDescription,
)
from raftlog.types import Offset

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
