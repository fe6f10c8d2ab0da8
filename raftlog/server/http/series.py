"""Table of all metrics, and their values at one time. Pure.

Names follow the conventions of Prometheus: base units, ``_total`` for counters. Series are bounded
by ``limits``: none has the number of a partition or the id of a client as a label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from raftlog.server.metrics import Durations

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
