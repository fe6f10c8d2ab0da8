"""Reads the state of a running broker: a survey of its partitions, and the values of all metrics.

The event loop serves other requests between the steps. So the values are of slightly different
times, and each is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Final

from raftlog import limits
from raftlog.consumer_groups import GroupShard
from raftlog.errors import RaftlogError
from raftlog.replication.events import KINDS
from raftlog.replication.partition_state import PartitionState
from raftlog.server import log_lines
from raftlog.server.broker import Broker
from raftlog.server.http.lag_times import LagTimes
from raftlog.server.http.series import Values
from raftlog.server.http.survey import Readiness, Standing, Survey, readiness
from raftlog.server.metrics import Durations
from raftlog.server.partition import Partition
from raftlog.types import TopicPartition

# Visited before the event loop serves other work.
PARTITIONS_PER_STEP: Final = 50
GROUPS_PER_STEP: Final = 50


async def survey_of(broker: Broker) -> Survey:
    """Visit all partitions that the broker knows, a few in each turn of the event loop."""
    context = broker.context
    survey = Survey(context.broker_id)
    cluster = context.cluster
    async for where, state, host in _partitions(broker):
        leader = None if state is None else state.leader
        is_live = leader is not None and (cluster is None or cluster.liveness.is_live(leader))
        survey.add(where, state, host, is_leader_live=is_live, now=context.loop.time())
    return survey


async def _partitions(
    broker: Broker,
) -> AsyncIterator[tuple[TopicPartition, PartitionState | None, Partition | None]]:
    topics, visited = broker.context.topics, 0
    for topic in tuple(topics):
        for partition in range(len(topic.hosts)):
            if visited % PARTITIONS_PER_STEP == 0:
                await asyncio.sleep(0)
            visited += 1
            state, host = topics.state(topic, partition), topic.hosts[partition]
            if host is None or host.closed is None:
                yield TopicPartition(topic.name, partition), state, host


def standing_of(broker: Broker) -> Standing:
    """Return the state of the broker itself."""
    context, cluster = broker.context, broker.context.cluster
    problem = "" if broker.failure is None else str(broker.failure)
    if not problem and cluster is not None and not cluster.membership.is_in:
        problem = cluster.membership.refusal or context.topics.waits_for or "it has just started"
    return Standing(
        problem=problem,
        is_stopping=context.is_stopping,
        is_disk_hung=broker.disk_watch.is_hung,
        disk_space=broker.space.reason,
        others_decide=cluster is None or cluster.can_others_decide(),
        log_dirs=broker.log_dirs.problems,
    )


async def readiness_of(broker: Broker) -> Readiness:
    return readiness(await survey_of(broker), standing_of(broker))


async def values_of(broker: Broker, loop_delay: Durations, lags: LagTimes) -> Values:
    """Return the values of all metrics. ``lags``: of the same broker, for all calls."""
    values = Values()
    survey = await survey_of(broker)
    _put_broker(broker, values, readiness(survey, standing_of(broker)))
    _put_counters(broker, values)
    _put_partitions(values, survey)
    omitted_groups = await _put_groups(broker, values, lags)
    values.put("raftlog_omitted_series", survey.omitted_topics + omitted_groups)
    values.put_durations("raftlog_event_loop_delay_seconds", loop_delay)
    return values


def _put_broker(broker: Broker, values: Values, ready: Readiness) -> None:
    context, cluster = broker.context, broker.context.cluster
    operations = context.operations
    values.put(
        "raftlog_broker_info",
        1,
        str(context.broker_id),
        operations.cluster_id,
        metadata.version("raftlog"),
    )
    values.put("raftlog_ready", ready.is_ready)
    values.put("raftlog_restart_safe", ready.is_restart_safe)
    # While the broker stops, consensus may have ended, and no broker is known as the controller.
    is_controller = not context.is_stopping and operations.controller() == context.broker_id
    values.put("raftlog_controller", is_controller)
    states = {"up": 0, "fenced": 0, "down": 0}
    for record in () if cluster is None else cluster.machine.brokers.values():
        is_linked = cluster is not None and cluster.liveness.is_linked(record.id)
        states["down" if not is_linked else "fenced" if record.fenced else "up"] += 1
    if cluster is None:
        states["up"] = 1
    values.put_all("raftlog_brokers", states)
    values.put("raftlog_disk_hung", broker.disk_watch.is_hung)
    values.put("raftlog_disk_free_bytes", broker.space.free_bytes)
    values.put("raftlog_disk_size_bytes", broker.space.size_bytes)
    values.put("raftlog_disk_level", broker.space.level)
    values.put("raftlog_disk_writes_failing", bool(broker.space.failure))
    values.put("raftlog_disk_free_inodes", broker.space.last.free_inodes)
    values.put("raftlog_disk_inodes", broker.space.last.inodes)
    values.put("raftlog_open_files", broker.space.last.open_files)
    values.put("raftlog_open_files_max", broker.space.last.open_files_max)
    for log_dir in broker.log_dirs.log_dirs:
        space = broker.log_dirs.space(log_dir)
        values.put("raftlog_log_dir_failed", bool(log_dir.failure), log_dir.path)
        values.put("raftlog_log_dir_hung", broker.log_dirs.is_hung(log_dir), log_dir.path)
        values.put("raftlog_log_dir_free_bytes", space.free_bytes, log_dir.path)
        values.put("raftlog_log_dir_size_bytes", space.size_bytes, log_dir.path)
        values.put("raftlog_log_dir_level", space.level, log_dir.path)
        values.put("raftlog_log_dir_writes_failing", bool(space.failure), log_dir.path)
        values.put("raftlog_log_dir_free_inodes", space.last.free_inodes, log_dir.path)
        values.put("raftlog_log_dir_inodes", space.last.inodes, log_dir.path)
    values.put("raftlog_clock_error_seconds", context.clock.error_ms() / 1_000)
    values.put("raftlog_connections", len(broker.connections))
    values.put("raftlog_request_memory_bytes", broker.connections.requests.bytes)
    values.put("raftlog_journal_bytes", 0 if cluster is None else cluster.journal_bytes)


def _put_counters(broker: Broker, values: Values) -> None:
    counters = broker.context.counters
    for name, value in (
        ("raftlog_connections_accepted_total", counters.connections_accepted),
        ("raftlog_connections_refused_total", counters.connections_refused),
        ("raftlog_quota_refused_connections_total", counters.quota_refusals),
        ("raftlog_throttled_requests_total", counters.throttled),
        ("raftlog_audit_dropped_total", counters.audit_dropped),
        ("raftlog_log_dropped_total", log_lines.dropped()),
        ("raftlog_internal_errors_total", counters.mistakes),
        ("raftlog_produced_batches_total", counters.produced_batches),
        ("raftlog_produced_records_total", counters.produced_records),
        ("raftlog_produced_bytes_total", counters.produced_bytes),
        ("raftlog_fetched_bytes_total", counters.fetched_bytes),
        ("raftlog_replicated_bytes_total", counters.replicated_bytes),
        ("raftlog_damage_found_total", counters.damage_found),
        ("raftlog_compactions_total", counters.compactions),
        ("raftlog_compacted_records_total", counters.compacted_records),
        ("raftlog_scrubbed_bytes_total", counters.scrubbed_bytes),
    ):
        values.put(name, value)
    values.put_all("raftlog_request_errors_total", counters.request_errors)
    values.put_all("raftlog_events_total", dict.fromkeys(KINDS, 0) | broker.context.events.counts)
    for api, durations in sorted(counters.request_seconds.items()):
        values.put_durations("raftlog_request_seconds", durations, api)
    values.put_durations("raftlog_request_queue_seconds", counters.queue_seconds)
    values.put_durations("raftlog_fsync_seconds", counters.fsync_seconds)
    values.put_durations("raftlog_commit_seconds", counters.commit_seconds)
    values.put_durations("raftlog_replica_append_seconds", counters.replica_append_seconds)


def _put_partitions(values: Values, survey: Survey) -> None:
    values.put("raftlog_partitions", survey.leading, "leader")
    values.put("raftlog_partitions", survey.following, "follower")
    values.put("raftlog_partitions", survey.witnessing, "witness")
    values.put("raftlog_under_replicated_partitions", survey.under_replicated)
    values.put("raftlog_at_min_isr_partitions", survey.at_min_isr)
    values.put("raftlog_under_min_isr_partitions", survey.under_min_isr)
    values.put("raftlog_offline_partitions", survey.offline)
    values.put("raftlog_out_of_sync_replicas", len(survey.out_of_sync))
    values.put("raftlog_damaged_replicas", survey.damaged)
    for topic, sizes in survey.topics.items():
        values.put("raftlog_log_bytes", sizes.size_bytes, topic)
        values.put("raftlog_log_segments", sizes.segments, topic)
        values.put("raftlog_log_appended_bytes_total", sizes.appended_bytes, topic)
    for follower, lag in sorted(survey.followers.items()):
        values.put("raftlog_replica_lag_offsets", lag.offsets, str(follower))
        values.put("raftlog_replica_lag_seconds", lag.seconds, str(follower))


async def _put_groups(broker: Broker, values: Values, lags: LagTimes) -> int:
    """Add the consumer groups that this broker coordinates. Returns the number of omitted ones."""
    try:
        shards = broker.context.coordinator.shards()
    except RaftlogError:  # the broker stops, or does not know all topics yet
        return 0
    states = {"empty": 0, "reconciling": 0, "stable": 0}
    exported = omitted = visited = 0
    for groups in [shard.loaded for shard in shards if shard.loaded is not None]:
        for name in groups.names():
            visited += 1
            if visited % GROUPS_PER_STEP == 0:
                await asyncio.sleep(0)
            listed = groups.listing(name)
            if listed is None:
                continue  # deleted since
            states[listed.state] += 1
            topics = groups.committed_topics(name)
            if exported + max(1, len(topics)) > limits.METRICS_GROUPS_MAX:
                omitted += 1
                continue
            exported += max(1, len(topics))
            values.put("raftlog_group_members", listed.members, name)
            for topic in topics:
                await asyncio.sleep(0)
                _put_lag(broker, values, groups, name, topic, lags)
    values.put_all("raftlog_groups", states)
    return omitted


def _put_lag(
    broker: Broker, values: Values, groups: GroupShard, group: str, topic: str, lags: LagTimes
) -> None:
    hosted = broker.context.topics.get(topic)
    if hosted is None:
        return
    lag, unknown, seconds, now = 0, 0, 0.0, broker.context.clock.monotonic()
    for partition, offset in groups.committed_in(group, topic):
        host = hosted.hosts[partition] if partition < len(hosted.hosts) else None
        if host is None or offset < 0:
            unknown += 1
        else:
            end = host.high_watermark
            lag += max(0, end - offset)
            seconds = max(seconds, lags.age_s(hosted.id, partition, offset, end, now))
    values.put("raftlog_group_lag_offsets", lag, group, topic)
    values.put("raftlog_group_lag_seconds", seconds, group, topic)
    values.put("raftlog_group_lag_unknown_partitions", unknown, group, topic)
