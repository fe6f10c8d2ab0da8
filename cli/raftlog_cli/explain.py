"""``raftlog explain``: reasons for lag, rebalances, partitions without a leader, failed brokers
and full disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

import click

from raftlog import Admin, TopicPartition
from raftlog.client.administration.groups import GroupDescription, PartitionLag
from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    DiskUseDescription,
    EventDescription,
    LogDirDescription,
    PartitionDescription,
    PartitionOverview,
    TopicDiskUse,
)
from raftlog.errors import InvalidRequestError, UnknownPartitionError, counted
from raftlog.types import check_group_id
from raftlog_cli import completing, options, output
from raftlog_cli.cluster import utc_time
from raftlog_cli.main import Commands
from raftlog_cli.overview import (
    broker_rows,
    broker_state,
    clock_problem,
    counts,
    disk_problems,
    is_up,
    shown_bytes,
)


@click.group(
    cls=Commands, short_help="Explain a lag, a partition, a broker, a rebalance or a disk."
)
def explain() -> None:
    """Explain why a group lags, a partition or broker does not work, or a disk is full.

    \b
    Example:
      raftlog explain partition clicks:0
    """


@explain.command()
@click.argument("group", shell_complete=completing.groups)
@options.as_json
@options.bootstrap
def lag(group: str, as_json: bool, bootstrap: str) -> None:
    """Explain the lag of a consumer group.

    \b
    Example:
      raftlog explain lag billing
    """
    _print(explain_lag(_group(group, bootstrap)), as_json=as_json)


@explain.command()
@click.argument("group", shell_complete=completing.groups)
@options.as_json
@options.bootstrap
def rebalance(group: str, as_json: bool, bootstrap: str) -> None:
    """Explain what the rebalance of a consumer group waits for.

    \b
    Example:
      raftlog explain rebalance billing
    """
    _print(explain_rebalance(_group(group, bootstrap)), as_json=as_json)


@explain.command(short_help="Explain why a partition has no leader or few in-sync replicas.")
@click.argument(
    "partition",
    metavar="TOPIC:P",
    shell_complete=completing.partitions,
    callback=lambda _context, _parameter, text: options.topic_partition(text),
)
@options.as_json
@options.bootstrap
def partition(partition: TopicPartition, as_json: bool, bootstrap: str) -> None:
    """Explain the state of a partition: why it has no leader, or too few in-sync replicas.

    \b
    Example:
      raftlog explain partition clicks:0
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_cluster([partition.topic])
        events = admin.describe_events()
        (topic,) = admin.describe_topics([partition.topic])
    found = [part for part in described.partitions if part.partition == partition.partition]
    if not found:
        raise UnknownPartitionError(f"{partition} does not exist")
    held = [part for part in topic.partitions if part.partition == partition.partition]
    sentences = explain_partition(described, found[0], events, held[0] if held else None)
    _print(sentences, as_json=as_json)


@explain.command()
@click.argument(
    "broker_id", metavar="ID", type=click.IntRange(min=0), shell_complete=completing.brokers
)
@options.as_json
@options.bootstrap
def broker(broker_id: int, as_json: bool, bootstrap: str) -> None:
    """Explain the state of a broker, and of its replicas.

    \b
    Example:
      raftlog explain broker 2
    """
    with Admin(bootstrap) as admin:
        described = admin.summarize_cluster()
        events = admin.describe_events()
    found = [each for each in described.brokers if each.id == broker_id]
    if not found:
        known = ", ".join(str(each.id) for each in described.brokers)
        raise InvalidRequestError(f"the cluster has no broker {broker_id}; it has {known}")
    _print(explain_broker(described, found[0], events), as_json=as_json)


@explain.command(short_help="Explain what uses the disks of brokers, and how to free space.")
@click.argument(
    "broker_id",
    metavar="[BROKER]",
    type=click.IntRange(min=0),
    required=False,
    shell_complete=completing.brokers,
)
@options.as_json
@options.bootstrap
def disk(broker_id: int | None, as_json: bool, bootstrap: str) -> None:
    """Explain what uses the disk of a broker, or of all brokers, and how to free space.

    \b
    Example:
      raftlog explain disk 2
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_disks()
    found = [each for each in described if broker_id in (None, each.broker)]
    if not found:
        known = ", ".join(str(each.broker) for each in described)
        raise InvalidRequestError(f"the cluster has no broker {broker_id}; it has {known}")
    sentences = [sentence for each in found for sentence in explain_disk(each)]
    if as_json:
        output.print_json({"sentences": sentences, "disks": [asdict(each) for each in found]})
    else:
        _print(sentences, as_json=False)


def _group(name: str, bootstrap: str) -> GroupDescription:
    check_group_id(name)
    with Admin(bootstrap) as admin:
        return admin.describe_groups([name])[0]


def _print(sentences: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        output.print_json({"sentences": list(sentences)})
        return
    for sentence in sentences:
        click.echo(sentence)


# -- explaining ------------------------------------------------------------------------------------
#
# Explanations from a description of the cluster and its events, as sentences. Pure.
#
# Each function returns the state first, then the reasons, then what to do.


EVENTS_SHOWN_MAX: Final = 5
PARTITIONS_SHOWN_MAX: Final = 5
TOPICS_SHOWN_MAX: Final = 5
# What a rebalance of a classic group waits for, by its state.
CLASSIC_REBALANCES: Final = {
    "preparing_rebalance": (
        "The coordinator waits until all members have joined again, which each does at its next "
        "poll. It removes those that have not after their max.poll.interval.ms."
    ),
    "completing_rebalance": (
        "All members have joined. The coordinator waits for the assignment, which one of them "
        "makes."
    ),
}


def explain_partition(
    cluster: ClusterDescription,
    partition: PartitionOverview,
    events: Sequence[EventDescription],
    offsets: PartitionDescription | None = None,
) -> list[str]:
    """Explain why a partition has no leader, rejects writes, lacks an in-sync replica, or holds
    back records of an open transaction.
    """
    found = _leader(cluster, partition)
    if offsets is not None and 0 <= offsets.stable_offset < offsets.high_watermark:
        held_back = offsets.high_watermark - offsets.stable_offset
        found.append(
            f"Readers of committed records stop at offset {offsets.stable_offset}, "
            f"{counted(held_back, 'offset')} before the end: a transaction that began there is "
            "open. `raftlog txn list` shows whose it is, `raftlog txn abort ID` ends it."
        )
    in_sync = [broker for broker in partition.isr if broker not in partition.down]
    if partition.is_available and len(in_sync) < partition.min_isr:
        found.append(
            f"Writes with acks=all are rejected: "
            f"replicas that are in sync and respond: {len(in_sync)}, "
            f"and min.insync.replicas is {partition.min_isr}."
        )
    found += _replicas(cluster, partition)
    if partition.unclean_epoch >= 0:
        where = "unknown" if partition.unclean_offset < 0 else str(partition.unclean_offset)
        found.append(
            f"An operator accepted the loss of records: epoch {partition.unclean_epoch} started "
            f"without all of them, at offset {where}."
        )
    if partition.problem:
        found.append(f"A broker reports: {partition.problem}.")
    if len(found) == 1 and partition.is_available:
        found.append("All replicas are in sync. Nothing is wrong.")
    mine = (partition.topic, partition.partition)
    return found + _history(event for event in events if (event.topic, event.partition) == mine)


def _leader(cluster: ClusterDescription, partition: PartitionOverview) -> list[str]:
    name = f"{partition.topic}:{partition.partition}"
    if partition.is_available:
        epoch = partition.leader_epoch
        return [f"{name} is led by broker {partition.leader}, in epoch {epoch}."]
    if partition.leader is not None:
        found = [
            f"{name} is not available: its leader, broker {partition.leader}, does not respond. "
            + _why_down(cluster, partition.leader)
        ]
    else:
        found = [f"{name} has no leader: it can be neither read nor written."]
    eligible = sorted({*partition.isr, *partition.elr})
    live = [broker for broker in eligible if _is_up(cluster, broker)]
    if cluster.controller is None:
        found.append(
            "No leader can be elected: no controller was found, so a majority of the cluster's "
            "voters may be missing. Start the missing brokers, or see `raftlog cluster recover`."
        )
    elif not live:
        found.append(
            f"Only brokers {_ids(eligible)} have all acknowledged records, and none of them is up. "
            "Start one of them. If all are lost permanently, `raftlog cluster recover --dry-run` "
            "reports what would be lost."
        )
    else:
        found.append(
            f"Broker {live[0]} can be elected; this takes a moment after a failure. If it lasts, "
            f"too few of the voters {_ids([*partition.replicas, *partition.witnesses])} are up."
        )
    return found


def _replicas(cluster: ClusterDescription, partition: PartitionOverview) -> list[str]:
    """Return one sentence for each replica that is down, not in sync, or corrupt."""
    found = []
    for replica in partition.replica_states:
        subject = f"The replica on broker {replica.broker}"
        if replica.damage:
            found.append(f"{subject} is corrupt: {replica.damage}.")
        elif not _is_up(cluster, replica.broker):
            if replica.broker != partition.leader or partition.is_available:
                found.append(f"{subject} is missing. {_why_down(cluster, replica.broker)}")
        elif replica.broker not in partition.isr:
            lacks = "an unknown number of records"
            if replica.lag_records >= 0:
                lacks = counted(replica.lag_records, "record")
            copies = "and copies them" if partition.is_available else "and waits for a leader"
            found.append(f"{subject} is up and not in sync: it lacks {lacks}, {copies}.")
    return found


def explain_broker(
    cluster: ClusterDescription, broker: BrokerDescription, events: Sequence[EventDescription]
) -> list[str]:
    """Explain the state of a broker and of its leaderships and replicas.

    In a summary that does not name all partitions with a problem, their numbers are lower bounds.
    """
    (row,) = (row for row in broker_rows(cluster) if row["id"] == broker.id)
    stored = [part for part in cluster.partitions if broker.id in part.replicas]
    out = [part for part in stored if broker.id not in part.isr]
    found = [
        (
            f"Broker {broker.id} at {broker.host}:{broker.port} is {broker_state(broker)}. "
            f"It leads {counted(row['leads'], 'partition')} and has "
            f"{counted(row['replicas'], 'replica')}."
        )
    ]
    named = sum(part.is_under_replicated or not part.is_available for part in cluster.partitions)
    least = "At least " if named < counts(cluster)["under_replicated"] else ""
    if not is_up(broker):
        found.append(_why_down(cluster, broker.id))
    if broker.clock_error_ms:
        found.append(clock_problem(broker)[0].upper() + clock_problem(broker)[1:] + ".")
    found += [f"{problem[0].upper()}{problem[1:]}." for problem in disk_problems(broker)]
    if out:
        found.append(f"{least}{len(out)} of its replicas are not in sync: {_named(out)}.")
    waiting = [part for part in stored if not part.is_available]
    if waiting:
        found.append(f"{least}{len(waiting)} of its partitions have no leader: {_named(waiting)}.")
    damaged = [
        part
        for part in stored
        if any(r.damage and r.broker == broker.id for r in part.replica_states)
    ]
    if damaged:
        found.append(f"{least}{len(damaged)} of its replicas are corrupt: {_named(damaged)}.")
    if len(found) == 1:
        found.append("All its replicas are in sync. Nothing is wrong.")
    return found + _history(event for event in events if event.broker == broker.id)


def explain_disk(use: DiskUseDescription) -> list[str]:
    """Explain the free space of a broker's disk, its use, what retention deletes, and remedies."""
    disk, subject = use.disk, f"Broker {use.broker}"
    if use.problem:
        return [f"{subject} does not report its disk: {use.problem}."]
    logs = sum(topic.size_bytes for topic in use.topics)
    mine = logs + use.journal_bytes + use.quarantine_bytes
    found = [f"{subject}: the size of its disk is unknown."]
    if disk is not None:
        free = f"{shown_bytes(disk.free_bytes)} of {shown_bytes(disk.size_bytes)}"
        share = disk.free_bytes / max(disk.size_bytes, 1)
        found = [f"{subject}: {free} of its disk are free ({share:.0%})."]
        if disk.reason:
            found.append(f"{subject}: {disk.reason}.")
        found += [_log_dir(subject, each) for each in disk.log_dirs]
    parts = [
        f"records of {len(use.topics)} topics {shown_bytes(logs)}",
        f"the consensus journal {shown_bytes(use.journal_bytes)}",
        f"corrupt copies in quarantine {shown_bytes(use.quarantine_bytes)}",
    ]
    sentence = f"raftlog uses {shown_bytes(mine)}: {', '.join(parts)}."
    others = 0 if disk is None else max(0, disk.size_bytes - disk.free_bytes - mine)
    if others:
        sentence += f" Other files and the file system use {shown_bytes(others)}."
    found.append(sentence)
    found += _largest(use, logs)
    expired = sum(topic.expired_bytes for topic in use.topics)
    expiring = sum(topic.expiring_bytes for topic in use.topics)
    found.append(
        f"Retention deletes {shown_bytes(expired)} at its next check, and "
        f"{shown_bytes(expiring)} within 24 hours."
    )
    return found + _more_space(use, mine=mine, others=others)


def _log_dir(subject: str, log_dir: LogDirDescription) -> str:
    if log_dir.problem:
        return f"{subject}: {log_dir.problem}."
    if log_dir.size_bytes < 0:
        return f"{subject}: the size of the disk of {log_dir.path} is unknown."
    free = f"{shown_bytes(log_dir.free_bytes)} of {shown_bytes(log_dir.size_bytes)}"
    return f"{subject}: {free} of the disk of {log_dir.path} are free."


def _largest(use: DiskUseDescription, logs: int) -> list[str]:
    """Return the largest topics, with their retention limits."""
    largest = [topic for topic in use.topics if topic.size_bytes][:TOPICS_SHOWN_MAX]
    if not largest:
        return []
    shown = [
        f"{topic.topic} {shown_bytes(topic.size_bytes)} ({topic.size_bytes / max(logs, 1):.0%}, "
        f"{_retention(topic)})"
        for topic in largest
    ]
    return [f"The largest topics: {'; '.join(shown)}."]


def _retention(topic: TopicDiskUse) -> str:
    limits = []
    if topic.retention_ms >= 0:
        limits.append(f"retention.ms={topic.retention_ms}")
    if topic.retention_bytes >= 0:
        limits.append(f"retention.bytes={topic.retention_bytes}")
    return ", ".join(limits) or "no retention limit"


def _more_space(use: DiskUseDescription, *, mine: int, others: int) -> list[str]:
    """Return how to free space, the most effective way first, unless there is enough."""
    disk = use.disk
    if disk is None or (not disk.reason and disk.free_bytes >= disk.size_bytes // 10):
        return ["There is enough space."]
    advice = []
    if others > mine:
        advice.append(f"move or delete other files on the disk: raftlog uses {shown_bytes(mine)}")
    if use.topics and use.topics[0].size_bytes:
        name = use.topics[0].topic
        command = f"raftlog topic alter {name} --config retention.bytes=BYTES"
        advice.append(f"lower the retention: {command} (per partition)")
        advice.append(f"delete old records: raftlog topic delete-records {name} --before P:OFFSET")
    if use.quarantine_bytes:
        advice.append("delete directories *.quarantine-* after their analysis")
    advice.append("move replicas to brokers with more space: raftlog cluster rebalance")
    return [f"To free space: {'; '.join(advice)}."]


def explain_lag(group: GroupDescription) -> list[str]:
    """Explain why a consumer group lags: members, their partitions, and unreadable partitions."""
    name = f"Group {group.group}"
    behind = [part for part in group.partitions if part.lag]
    found = [
        (
            f"{name} lags by {counted(group.lag, 'offset')} in {len(behind)} of "
            f"{counted(len(group.partitions), 'partition')}; it is {group.state} with "
            f"{counted(len(group.members), 'member')}."
        )
    ]
    problems = [part for part in group.partitions if part.problem]
    found += [
        f"{part.topic}:{part.partition}: {part.problem}."
        for part in problems[:PARTITIONS_SHOWN_MAX]
    ]
    unread = [part for part in group.partitions if part.offset is None and not part.problem]
    if unread:
        found.append(f"{_lags_named(unread)}: no offset was ever committed.")
    if not behind:
        return [*found, "Every record with a known end is committed. Nothing lags."]
    if not group.members:
        found.append("No member reads. Start the application, or check why its members left.")
        return found
    if group.state == "reconciling":
        found.append("A rebalance is in progress: members release partitions or wait for them.")
    if group.state in CLASSIC_REBALANCES:
        found.append(f"A rebalance is in progress. {CLASSIC_REBALANCES[group.state]}")
    orphans = [part for part in behind if part.member_id is None]
    if orphans:
        found.append(f"No member reads {_lags_named(orphans)}.")
    found += _spread(group, behind)
    return found


def _spread(group: GroupDescription, behind: Sequence[PartitionLag]) -> list[str]:
    """Explain whether one partition, one member, or all members lag."""
    worst = max(behind, key=lambda part: part.lag or 0)
    share = (worst.lag or 0) / max(group.lag, 1)
    if len(group.partitions) > 1 and share > 0.5:
        place = f"{worst.topic}:{worst.partition}"
        return [
            (
                f"{place} has {share:.0%} of the lag: it gets more records than others (a frequent "
                f"key), or its member {worst.member_id or '(none)'} is slow."
            )
        ]
    readers = {part.member_id for part in behind if part.member_id is not None}
    if len(group.members) > 1 and len(readers) == 1:
        return [f"Only partitions of member {readers.pop()} lag: that member is slow."]
    idle = sum(not member.assigned for member in group.members)
    advice = (
        "All members together are too slow. Add members, up to one per partition, or make the "
        "processing faster."
    )
    if idle:
        advice = (
            f"The members that have partitions are too slow, and "
            f"{counted(idle, 'member has', 'members have')} none, because "
            "there are more members than partitions. Add partitions, or make the processing faster."
        )
    return [advice]


def explain_rebalance(group: GroupDescription) -> list[str]:
    """Explain which members a rebalance waits for, and for which partitions."""
    found = [
        (
            f"Group {group.group} is {group.state}, in epoch {group.group_epoch}, with "
            f"{counted(len(group.members), 'member')} (assignor {group.assignor or 'none'})."
        )
    ]
    if group.state in CLASSIC_REBALANCES:
        found.append(CLASSIC_REBALANCES[group.state])
    for member in group.members:
        subject = f"Member {member.member_id} on {member.host}"
        releases = sorted(set(member.assigned) - set(member.target))
        waits = sorted(set(member.target) - set(member.assigned))
        if member.is_away:
            found.append(
                f"{subject} is temporarily absent. Its partitions stay reserved for up to "
                f"{member.session_timeout_ms} ms."
            )
        elif releases:
            found.append(
                f"{subject} must release {_places(releases)}. It does so at its next poll, or "
                f"loses them after {member.session_timeout_ms} ms without a heartbeat."
            )
        elif waits:
            holders = {
                other.member_id for other in group.members if set(other.assigned) & set(waits)
            }
            reason = f"held by {', '.join(sorted(holders))}" if holders else "being assigned to it"
            found.append(f"{subject} waits for {_places(waits)}: {reason}.")
    if len(found) == 1:
        found.append("Every member has its target assignment. No rebalance is in progress.")
    return found


def _history(events: Iterable[EventDescription]) -> list[str]:
    """Return the last events, oldest first."""
    last = list(events)[-EVENTS_SHOWN_MAX:]
    return [f"{utc_time(event.at_ms)}: {event.text}." for event in last]


def _why_down(cluster: ClusterDescription, broker_id: int) -> str:
    broker = next((each for each in cluster.brokers if each.id == broker_id), None)
    if broker is None:
        return f"Broker {broker_id} is not registered."
    if not broker.live:
        reason = f" ({broker.problem})" if broker.problem else ""
        return f"Broker {broker_id} does not respond{reason}: start it."
    return (
        f"Broker {broker_id} responds and is fenced: it has not rejoined the cluster yet, or it "
        "cannot reach the controller. See its /readyz or its log."
    )


def _is_up(cluster: ClusterDescription, broker_id: int) -> bool:
    return any(broker.id == broker_id and is_up(broker) for broker in cluster.brokers)


def _ids(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "(none)"


def _named(partitions: Sequence[PartitionOverview]) -> str:
    return _listed([f"{part.topic}:{part.partition}" for part in partitions])


def _lags_named(partitions: Sequence[PartitionLag]) -> str:
    return _listed([f"{part.topic}:{part.partition}" for part in partitions])


def _places(partitions: Iterable[object]) -> str:
    return _listed(list(map(str, partitions)))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - PARTITIONS_SHOWN_MAX
    return ", ".join(names[:PARTITIONS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
