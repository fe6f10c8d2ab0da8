"""Reads the state of a running broker: a survey of its partitions, and the values of all metrics.

The event loop serves other requests between the steps. So the values are of slightly different
times, and each is true.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import accumulate
from operator import itemgetter
from typing import Final, Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from raftlog import limits
from raftlog.consumer_groups import GroupShard
from raftlog.errors import RaftlogError
from raftlog.replication.cluster_commands import KINDS
from raftlog.replication.partition_state import PartitionState
from raftlog.server import main
from raftlog.server.broker import Broker
from raftlog.server.metrics import BOUNDS_SECONDS, Durations
from raftlog.server.partition import Partition
from raftlog.types import Offset, TopicPartition

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
        is_live = leader is not None and cluster.liveness.is_live(leader)
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
    if not problem and not cluster.membership.is_in:
        problem = cluster.membership.refusal or context.topics.waits_for or "it has just started"
    return Standing(
        problem=problem,
        is_stopping=context.is_stopping,
        is_disk_hung=broker.disk_watch.is_hung,
        disk_space=broker.space.reason,
        others_decide=len(cluster.machine.brokers) == 1 or cluster.can_others_decide(),
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
    values.put("raftlog_omitted_series", len(survey.omitted_topics) + omitted_groups)
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
    for record in cluster.machine.brokers.values():
        is_linked = cluster.liveness.is_linked(record.id)
        states["down" if not is_linked else "fenced" if record.fenced else "up"] += 1
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
    values.put("raftlog_journal_bytes", cluster.journal_bytes)


def _put_counters(broker: Broker, values: Values) -> None:
    counters = broker.context.counters
    for name, value in (
        ("raftlog_connections_accepted_total", counters.connections_accepted),
        ("raftlog_connections_refused_total", counters.connections_refused),
        ("raftlog_quota_refused_connections_total", counters.quota_refusals),
        ("raftlog_throttled_requests_total", counters.throttled),
        ("raftlog_audit_dropped_total", counters.audit_dropped),
        ("raftlog_log_dropped_total", main.dropped()),
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
        values.put("raftlog_open_transactions", sizes.open_transactions, topic)
        values.put("raftlog_stable_lag_offsets", sizes.stable_lag, topic)
    for follower, lag in sorted(survey.followers.items()):
        values.put("raftlog_replica_lag_offsets", lag.offsets, str(follower))
        values.put("raftlog_replica_lag_seconds", lag.seconds, str(follower))


async def _put_groups(broker: Broker, values: Values, lags: LagTimes) -> int:
    """Add the consumer groups that this broker coordinates. Returns the number of omitted ones."""
    try:
        shards = broker.context.coordinator.shards()
    except RaftlogError:  # the broker stops, or does not know all topics yet
        return 0
    # The last two: of groups of Kafka's classic protocol.
    states = Counter(
        empty=0, reconciling=0, stable=0, preparing_rebalance=0, completing_rebalance=0
    )
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


# -- series ----------------------------------------------------------------------------------------
#
# Table of all metrics, and their values at one time. Pure.
#
# Names follow the conventions of Prometheus: base units, ``_total`` for counters. Series are
# bounded by ``limits``: none has the number of a partition or the id of a client as a label.


Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """``labels``: names of the labels, in the order of ``Sample.labels``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value. ``labels``: values of the labels of the metric."""

    labels: tuple[str, ...]
    value: float


class HistogramSample(NamedTuple):
    """A histogram. ``counts`` and ``sum_seconds``: see ``Durations``."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]
    sum_seconds: float


METRICS: Final = (
    Metric("raftlog_broker_info", "gauge", "Always 1; the labels identify the broker.",
           ("broker", "cluster", "version")),
    Metric("raftlog_ready", "gauge",
           "1 if the broker has joined the cluster and all its replicas are in sync (/readyz)."),
    Metric("raftlog_restart_safe", "gauge",
           "1 if a stop of the broker makes no partition unavailable (see /readyz)."),
    Metric("raftlog_controller", "gauge",
           "1 on the controller. The sum over all brokers is 1, except during an election."),
    Metric("raftlog_brokers", "gauge",
           "Brokers of the cluster, as this broker knows them. state: up, fenced or down.",
           ("state",)),
    Metric("raftlog_disk_hung", "gauge", "1 while a sync of the data disk does not complete."),
    Metric("raftlog_disk_free_bytes", "gauge",
           "Free bytes of the file system of data.dir, for an unprivileged process."),
    Metric("raftlog_disk_size_bytes", "gauge", "Size of the file system of data.dir."),
    Metric("raftlog_disk_level", "gauge",
           "0 with enough disk space; 1 below disk.watermark.producers: producers are refused; 2 "
           "below disk.watermark.replication: followers on this broker copy nothing either."),
    Metric("raftlog_disk_writes_failing", "gauge",
           "1 while writes to data.dir fail for lack of space, inodes or file descriptors."),
    Metric("raftlog_disk_free_inodes", "gauge",
           "Free inodes of the file system of data.dir; -1 if it has no limit."),
    Metric("raftlog_disk_inodes", "gauge",
           "Inodes of the file system of data.dir; -1 if it has no limit."),
    Metric("raftlog_open_files", "gauge", "Open file descriptors of the broker."),
    Metric("raftlog_open_files_max", "gauge",
           "Limit of open file descriptors (RLIMIT_NOFILE, which a broker raises to its hard "
           "limit)."),
    Metric("raftlog_log_dir_failed", "gauge",
           "1 if a directory of log.dirs has failed: the replicas in it are offline.",
           ("directory",)),
    Metric("raftlog_log_dir_hung", "gauge",
           "1 while a sync in a directory of log.dirs does not complete.", ("directory",)),
    Metric("raftlog_log_dir_free_bytes", "gauge",
           "Free bytes of the file system of a directory of log.dirs; -1 if it has failed.",
           ("directory",)),
    Metric("raftlog_log_dir_size_bytes", "gauge",
           "Size of the file system of a directory of log.dirs; -1 if it has failed.",
           ("directory",)),
    Metric("raftlog_log_dir_level", "gauge",
           "As raftlog_disk_level, of a directory of log.dirs.", ("directory",)),
    Metric("raftlog_log_dir_writes_failing", "gauge",
           "As raftlog_disk_writes_failing, of a directory of log.dirs.", ("directory",)),
    Metric("raftlog_log_dir_free_inodes", "gauge",
           "As raftlog_disk_free_inodes, of a directory of log.dirs.", ("directory",)),
    Metric("raftlog_log_dir_inodes", "gauge",
           "As raftlog_disk_inodes, of a directory of log.dirs.", ("directory",)),
    Metric("raftlog_clock_error_seconds", "gauge",
           "Time by which the wall clock is ahead of the trusted time, after a step; else 0."),
    Metric("raftlog_event_loop_delay_seconds", "histogram",
           "Delay of a timer of the event loop, measured ten times per second. The timers of the "
           "loop are accurate to a millisecond."),
    Metric("raftlog_omitted_series", "gauge",
           "Series that are not exported because of METRICS_TOPICS_MAX or METRICS_GROUPS_MAX."),
    # requests
    Metric("raftlog_connections", "gauge", "Open connections to the broker port."),
    Metric("raftlog_connections_accepted_total", "counter", "Connections since the start."),
    Metric("raftlog_connections_refused_total", "counter",
           "Connections refused because of max.connections."),
    Metric("raftlog_quota_refused_connections_total", "counter",
           "Connections refused because of a quota of their user or address."),
    Metric("raftlog_throttled_requests_total", "counter",
           "Requests after which the client had to wait because of a quota."),
    Metric("raftlog_log_dropped_total", "counter",
           "Lines that are missing in the log because nothing read stderr, or its file system was "
           "full."),
    Metric("raftlog_audit_dropped_total", "counter",
           "Events that are missing in the topic __audit because there were too many."),
    Metric("raftlog_request_seconds", "histogram",
           "Time to the response from the start of the share of the event loop in which the "
           "request is handled. api: the name of the request. fetch, replica_fetch and "
           "group_heartbeat include the wait for news; produce includes the wait for acks.",
           ("api",)),
    Metric("raftlog_request_queue_seconds", "histogram",
           "Time for which connections with received requests waited for their turn of the event "
           "loop, because others used it. Requests that are handled at once are not counted."),
    Metric("raftlog_request_errors_total", "counter",
           "Errors in responses, for a request or one partition of it. error: the class.",
           ("error",)),
    Metric("raftlog_internal_errors_total", "counter",
           "Requests that failed by an internal error. Each has a traceback in the broker log."),
    Metric("raftlog_request_memory_bytes", "gauge",
           "Memory of requests without a response (queued.max.request.bytes)."),
    Metric("raftlog_produced_batches_total", "counter", "Batches appended as leader."),
    Metric("raftlog_produced_records_total", "counter", "Records appended as leader."),
    Metric("raftlog_produced_bytes_total", "counter", "Bytes appended as leader, compressed."),
    Metric("raftlog_fetched_bytes_total", "counter", "Bytes sent to consumers, compressed."),
    # partitions
    Metric("raftlog_partitions", "gauge",
           "Partitions by the role of this broker: leader, follower or witness.", ("role",)),
    Metric("raftlog_under_replicated_partitions", "gauge",
           "Partitions led by this broker with a replica that is not in sync."),
    Metric("raftlog_at_min_isr_partitions", "gauge",
           "Partitions led by this broker whose ISR has exactly min.insync.replicas members, and "
           "fewer than replicas."),
    Metric("raftlog_under_min_isr_partitions", "gauge",
           "Partitions led by this broker that reject acks=all: the ISR is too small."),
    Metric("raftlog_offline_partitions", "gauge",
           "Partitions without a live leader, as this broker knows them. All brokers report the "
           "same ones: use the maximum, not the sum."),
    Metric("raftlog_out_of_sync_replicas", "gauge",
           "Replicas on this broker that are not in the ISR."),
    Metric("raftlog_damaged_replicas", "gauge", "Replicas on this broker with known corruption."),
    Metric("raftlog_damage_found_total", "counter",
           "Corrupt logs found since the start, by reads and by scrubbing."),
    Metric("raftlog_events_total", "counter",
           "Committed changes that this broker applied, by kind (see raftlog cluster events). All "
           "voters of a partition count the same election: use the maximum, not the sum.",
           ("kind",)),
    # replication
    Metric("raftlog_fsync_seconds", "histogram",
           "Time of a sync of a log, from its request to its completion in the event loop. One "
           "sync serves all batches that arrived before it."),
    Metric("raftlog_commit_seconds", "histogram",
           "Time from the append of a batch on the leader until it is committed: all members of "
           "the ISR have it on disk."),
    Metric("raftlog_replica_append_seconds", "histogram",
           "Time in which a follower verifies and appends the batches of one response."),
    Metric("raftlog_replicated_bytes_total", "counter", "Bytes copied from other leaders."),
    Metric("raftlog_replica_lag_offsets", "gauge",
           "Offsets by which a follower lags, summed over the partitions led by this broker. "
           "follower: id of the broker.", ("follower",)),
    Metric("raftlog_replica_lag_seconds", "gauge",
           "Longest time since a follower had all records of a partition led by this broker.",
           ("follower",)),
    # storage
    Metric("raftlog_log_bytes", "gauge", "Size of the replicas on this broker.", ("topic",)),
    Metric("raftlog_log_segments", "gauge", "Segment files on this broker.", ("topic",)),
    Metric("raftlog_open_transactions", "gauge",
           "Transactions that are open in partitions with a replica here.", ("topic",)),
    Metric("raftlog_stable_lag_offsets", "gauge",
           "Committed offsets that readers of committed transactions do not get yet, because a "
           "transaction is open. Alert when it does not fall: see `raftlog txn list`.",
           ("topic",)),
    Metric("raftlog_log_appended_bytes_total", "counter",
           "Bytes appended to the replicas on this broker, as leader or follower.", ("topic",)),
    Metric("raftlog_journal_bytes", "gauge", "Size of the consensus journal."),
    Metric("raftlog_compactions_total", "counter", "Completed compaction passes of logs."),
    Metric("raftlog_compacted_records_total", "counter", "Records removed by compaction."),
    Metric("raftlog_scrubbed_bytes_total", "counter",
           "Bytes verified by scrubbing (log.scrub.interval.ms), approximately."),
    # consumer groups
    Metric("raftlog_groups", "gauge", "Consumer groups that this broker coordinates, by state.",
           ("state",)),
    Metric("raftlog_group_members", "gauge",
           "Members of a consumer group that this broker coordinates.", ("group",)),
    Metric("raftlog_group_lag_offsets", "gauge",
           "Committed offsets of the group lag the high watermarks by this number, summed over "
           "the partitions of the topic. Reported by the coordinator of the group, from its own "
           "replicas.", ("group", "topic")),
    Metric("raftlog_group_lag_seconds", "gauge",
           "Age of the oldest record of the topic that the group has not committed, from high "
           "watermarks of the coordinator's replicas at the requests for metrics; at most the time "
           "since the first one. raftlog group describe has the exact value.", ("group", "topic")),
    Metric("raftlog_group_lag_unknown_partitions", "gauge",
           "Partitions with a committed offset that raftlog_group_lag_offsets omits, because the "
           "coordinator stores no replica of them.", ("group", "topic")),
)  # fmt: skip
BY_NAME: Final[Mapping[str, Metric]] = {metric.name: metric for metric in METRICS}


class Values:
    """Values of all metrics at one time, by the name of the metric."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}
        self.histograms: dict[str, list[HistogramSample]] = {}

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add a value. Only metrics of the table exist."""
        assert len(labels) == len(BY_NAME[name].labels), name
        self.samples.setdefault(name, []).append(Sample(labels, float(value)))

    def put_durations(self, name: str, durations: Durations, *labels: str) -> None:
        """Add a histogram; it does not change any more."""
        assert BY_NAME[name].kind == "histogram" and len(labels) == len(BY_NAME[name].labels)
        sample = HistogramSample(labels, tuple(durations.counts), durations.sum_seconds)
        self.histograms.setdefault(name, []).append(sample)

    def put_all(self, name: str, values: Mapping[str, float]) -> None:
        """Add values by their only label."""
        for label, value in sorted(values.items()):
            self.put(name, value, label)

    def of(self, name: str) -> Sequence[Sample]:
        return self.samples.get(name, ())


# -- exposition ------------------------------------------------------------------------------------
#
# Values as the text that Prometheus reads: OpenMetrics, or the older text format. Pure except for
# the metrics of the process, which are read here.


BUCKETS: Final = (*map(str, BOUNDS_SECONDS), "+Inf")


class _Values(Collector):
    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        """Return the metrics in the order of the table; those without a value are omitted."""
        for metric in METRICS:
            if metric.kind == "histogram":
                yield _histogram(metric, self._values)
            else:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.name, metric.help, labels=metric.labels)
                for sample in self._values.of(metric.name):
                    family.add_metric(sample.labels, sample.value)
                yield family


def _histogram(metric: Metric, values: Values) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for sample in values.histograms.get(metric.name, ()):
        buckets = list(zip(BUCKETS, map(float, accumulate(sample.counts)), strict=True))
        family.add_metric(sample.labels, buckets, sample.sum_seconds)
    return family


def render(values: Values, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type. ``accept``: header of the request; unknown or empty
    selects the older text format.
    """
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Values(values))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return encode(registry), content_type


# -- lag times -------------------------------------------------------------------------------------
#
# Lag of consumer groups in seconds, from high watermarks over time. Pure.
#
# The time at which a record was committed lies between two samples of the high watermark; it is
# interpolated. So no log is read, and values are as accurate as the interval of the samples.
# Samples begin with the first request for metrics: until then, a lag can be longer than reported.


_Partition: TypeAlias = tuple[str, int]  # topic id, number


class LagTimes:
    """High watermarks of ``METRICS_LAG_PARTITIONS_MAX`` partitions with committed offsets.

    If there are more, those that lag come first, and others take the place of one that was not
    asked for ``METRICS_LAG_KEPT_S``. A partition keeps ``METRICS_LAG_SAMPLES_MAX`` samples; older
    ones become sparse.
    """

    def __init__(self) -> None:
        # The one that was not asked for the longest time is the first.
        self._samples: OrderedDict[_Partition, list[tuple[float, Offset]]] = OrderedDict()
        self._idle: dict[_Partition, None] = {}  # those of them without a lag

    def age_s(
        self, topic_id: str, partition: int, committed: Offset, high_watermark: Offset, now: float
    ) -> float:
        """Add a sample, and return the seconds since the record at ``committed`` was committed by
        the log; 0 if there is none. ``now``: monotonic seconds.
        """
        key, lags = (topic_id, partition), committed < high_watermark
        # guard: lags in seconds are kept for a bounded number of partitions
        if key not in self._samples and not self._has_room(lags=lags, now=now):
            return 0.0
        samples = self._samples.setdefault(key, [])
        self._samples.move_to_end(key)
        self._idle.pop(key, None)
        if not lags:
            self._idle[key] = None
        if samples and high_watermark < samples[-1][1]:
            samples.clear()  # an unclean election has removed records
        if len(samples) > 1 and samples[-2][1] == high_watermark == samples[-1][1]:
            samples.pop()  # nothing was added for longer
        samples.append((now, high_watermark))
        if len(samples) > limits.METRICS_LAG_SAMPLES_MAX:
            del samples[1:-2:2]
        if committed >= high_watermark:
            return 0.0
        place = bisect_right(samples, committed, key=itemgetter(1))  # the first one above it
        after_s, above = samples[place]
        if not place:
            return now - after_s
        before_s, below = samples[place - 1]
        part = (committed - below) / (above - below)
        return now - (before_s + part * (after_s - before_s))

    def _has_room(self, *, lags: bool, now: float) -> bool:
        """Whether there is room for another partition; forgets one for it that needs it less."""
        if len(self._samples) < limits.METRICS_LAG_PARTITIONS_MAX:
            return True
        key = next(iter(self._samples))
        if now - self._samples[key][-1][0] < limits.METRICS_LAG_KEPT_S:
            if not (lags and self._idle):
                return False
            key = next(iter(self._idle))
        del self._samples[key]
        self._idle.pop(key, None)
        return True


# -- survey ----------------------------------------------------------------------------------------
#
# State of all partitions, as one broker sees it, in numbers; and whether the broker is ready.


EXAMPLES_MAX: Final = 3  # partitions that a reason names


@dataclass(slots=True)
class TopicSizes:
    """Replicas of one topic on this broker."""

    size_bytes: int = 0
    segments: int = 0
    appended_bytes: int = 0
    open_transactions: int = 0
    stable_lag: int = 0


@dataclass(slots=True)
class FollowerLag:
    """Lag of one follower behind the partitions that this broker leads."""

    offsets: Offset = 0  # sum
    seconds: float = 0.0  # maximum


@dataclass(slots=True)
class Survey:
    """Filled by ``add``, partition by partition.

    ``out_of_sync``: replicas here that are not in the ISR. ``needed``: partitions that would reject
    writes, or have no in-sync replica, without this broker.
    """

    broker_id: int
    leading: int = 0
    following: int = 0
    witnessing: int = 0
    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    offline: int = 0
    damaged: int = 0
    out_of_sync: list[TopicPartition] = field(default_factory=list)
    needed: list[TopicPartition] = field(default_factory=list)
    topics: dict[str, TopicSizes] = field(default_factory=dict)
    omitted_topics: set[str] = field(default_factory=set)
    followers: dict[int, FollowerLag] = field(default_factory=dict)

    def add(
        self,
        where: TopicPartition,
        state: PartitionState | None,
        host: Partition | None,
        *,
        is_leader_live: bool,
        now: float,
    ) -> None:
        """Add one partition. ``state``: None if it is unknown; ``now``: seconds of the loop."""
        if state is None or state.leader is None or not is_leader_live:
            self.offline += 1
        if host is not None:
            self._add_replica(where, host, now)
        if state is None:
            return
        me = self.broker_id
        self.witnessing += me in state.witnesses
        if me in state.isr:
            if len(state.isr) - 1 < state.min_isr:
                self.needed.append(where)
        elif me in state.replicas:
            self.out_of_sync.append(where)
        if host is not None and host.leadership is not None:
            in_sync = len(host.leadership.state.isr)
            self.under_replicated += in_sync < len(state.replicas)
            self.under_min_isr += in_sync < state.min_isr
            self.at_min_isr += in_sync == state.min_isr and in_sync < len(state.replicas)

    def _add_replica(self, where: TopicPartition, host: Partition, now: float) -> None:
        log, leadership = host.log, host.leadership
        self.damaged += bool(log.damage)
        sizes = self.topics.get(where.topic)
        if sizes is None and len(self.topics) < limits.METRICS_TOPICS_MAX:
            sizes = self.topics[where.topic] = TopicSizes()
        if sizes is None:
            self.omitted_topics.add(where.topic)
        else:
            sizes.size_bytes += log.size_bytes
            sizes.segments += log.segment_count
            sizes.appended_bytes += host.appended_bytes
            sizes.open_transactions += len(host.log.producers.transactions)
            sizes.stable_lag += host.high_watermark - host.last_stable_offset
        if leadership is None:
            self.following += 1
            return
        self.leading += 1
        for follower, progress in leadership.followers(now).items():
            lag = self.followers.setdefault(follower, FollowerLag())
            lag.offsets += max(0, log.log_end_offset - max(progress.end, 0))
            lag.seconds = max(lag.seconds, progress.lag_s)


@dataclass(frozen=True, slots=True)
class Standing:
    """State of the broker itself. ``problem``: reason why it has not joined; "" if it has.

    ``others_decide``: whether the other connected brokers are a majority of the cluster's voters.
    """

    problem: str
    is_stopping: bool
    is_disk_hung: bool
    disk_space: str  # why growth is refused; "" at the normal level
    others_decide: bool
    log_dirs: tuple[str, ...] = ()  # problems of log directories besides the data directory


@dataclass(frozen=True, slots=True)
class Readiness:
    """``not_ready`` and ``not_safe``: reasons; empty if the broker is ready, or safe to restart."""

    not_ready: tuple[str, ...]
    not_safe: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        return not self.not_ready

    @property
    def is_restart_safe(self) -> bool:
        return not self.not_ready and not self.not_safe


def readiness(survey: Survey, standing: Standing) -> Readiness:
    """Return whether the broker is ready to serve, and whether its stop harms no partition."""
    not_ready: list[str] = []
    if standing.is_stopping:
        not_ready.append("the broker is stopping")
    if standing.problem:
        not_ready.append(f"the broker has not joined the cluster: {standing.problem}")
    if standing.is_disk_hung:
        not_ready.append("the disk completes no sync: check it (dmesg, SMART)")
    if standing.disk_space:
        not_ready.append(standing.disk_space)
    not_ready += standing.log_dirs
    if survey.out_of_sync:
        not_ready.append(f"replicas on this broker are not in sync: {_named(survey.out_of_sync)}")
    not_safe: list[str] = []
    if not standing.others_decide:
        not_safe.append("the other connected brokers are no majority of the cluster's voters")
    if survey.needed:
        not_safe.append(
            "without this broker, the ISR is empty or below min.insync.replicas: "
            + _named(survey.needed)
        )
    return Readiness(tuple(not_ready), tuple(not_safe))


def _named(partitions: list[TopicPartition]) -> str:
    """Return the number of partitions and the first ones."""
    first = ", ".join(map(str, partitions[:EXAMPLES_MAX]))
    more = ", …" if len(partitions) > EXAMPLES_MAX else ""
    return f"{len(partitions)} ({first}{more})"
