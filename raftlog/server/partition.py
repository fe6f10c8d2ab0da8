"""Partition on this broker, the only owner of its log: appends, waits, and roles.

It leads the partition, follows the leader, or waits for an election. The leadership determines what
is committed (``raftlog.replication``); the partition's Raft group determines the leader. This
module has the log, the requests that wait for it, and the effects of a role change on them.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from asyncio import AbstractEventLoop
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.config.keys import INT64_MAX
from raftlog.errors import (
    CommitUnknownError,
    DamagedLogError,
    DiskFullError,
    DiskHungError,
    FencedLeaderEpochError,
    InvalidTransactionStateError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    ProducerFencedError,
    RaftlogError,
    StorageFailedError,
    UnknownLeaderEpochError,
)
from raftlog.record import BatchHeader, parse_header
from raftlog.record.kafka_batch import marker_batch
from raftlog.replication.cluster_commands import Event
from raftlog.replication.leadership import Leadership
from raftlog.replication.partition_state import PartitionState
from raftlog.server.clock import BrokerClock
from raftlog.server.disks import DiskProblem, DiskSpace, DiskWatch
from raftlog.server.metrics import Counters
from raftlog.server.scheduling import Acknowledge, OffsetWaiters, Watcher, Workers
from raftlog.storage import Appended, DeleteTask, Log, SyncTask, TimestampSearch
from raftlog.types import NO_BASE_OFFSET, Buffer, LeaderEpoch, Offset, TimestampMs, TopicPartition

if TYPE_CHECKING:
    from raftlog.server.apis.produce import Verification
    from raftlog.storage import CompactionTask
    from raftlog.storage.producer_state import Aborted
    from raftlog.transactions import Marker


logger = logging.getLogger(__name__)


# -- event log -------------------------------------------------------------------------------------
#
# Event history of a broker: the last committed changes that it applied, in memory.
#
# All voters of a partition and all brokers of a cluster record the same events, so the history of a
# broker that restarts is on the others.


class TimedEvent(NamedTuple):
    """``at_ms``: wall-clock time at which this broker applied the change."""

    at_ms: TimestampMs
    event: Event


class EventLog:
    """The last ``limits.EVENTS_KEPT_MAX`` events, oldest first. ``counts``: all, by kind."""

    def __init__(self) -> None:
        self.events: deque[TimedEvent] = deque(maxlen=limits.EVENTS_KEPT_MAX)
        self.counts: Counter[str] = Counter()

    def add(self, event: Event, at_ms: TimestampMs) -> None:
        self.counts[event.kind] += 1
        self.events.append(TimedEvent(at_ms, event))


# -- partition -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaServices:
    """Services of the broker that all its hosts share."""

    clock: BrokerClock
    loop: AbstractEventLoop
    sync_workers: Workers
    disk: DiskWatch
    on_failed: Callable[[StorageFailedError], None]
    on_damage: Callable[[Partition], None]  # the files of a host are missing
    space: DiskSpace = field(default_factory=DiskSpace)
    counters: Counters = field(default_factory=Counters)
    events: EventLog = field(default_factory=EventLog)
    # Of hosts in other log directories than the data directory, by the id of the directory.
    log_dirs: Mapping[str, ReplicaServices] = field(default_factory=dict)

    def of(self, log: Log) -> ReplicaServices:
        """Return the services of the host of a log."""
        return self.log_dirs.get(log.log_dir.id, self)


class Partition:
    """Invariant: no batch at or above ``high_watermark`` is returned to clients. Only ``truncate``
    lowers it.
    """

    __slots__ = (
        "_append_watchers",
        "_commit",
        "_drops",
        "_following",
        "_high_watermark",
        "_segment_count",
        "_services",
        "_uncommitted",
        "_waiting_for_commit",
        "_waiting_for_disk",
        "_waiting_for_start",
        "_watchers",
        "appended_bytes",
        "closed",
        "commit_problem",
        "committed_bytes",
        "compaction",
        "disk_problem",
        "divergence",
        "held_markers",
        "leader",
        "leader_epoch",
        "leadership",
        "log",
        "on_durable",
        "reserved",
        "topic_id",
        "topic_partition",
        "unclean_epoch",
        "verifications",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: Log,
        services: ReplicaServices,
        topic_id: str = "",
    ) -> None:
        self.topic_partition, self.topic_id, self.log = topic_partition, topic_id, log
        self.leader: int | None = None  # last known leader
        self.leader_epoch: LeaderEpoch = -1
        self.unclean_epoch: LeaderEpoch = -1  # of the last unclean election
        # Reason why the leader's log is not copied: it lacks committed records of this copy.
        self.divergence = ""
        self.leadership: Leadership | None = None  # while this broker leads
        self._following: LeaderEpoch | None = None  # epoch of the followed leader
        # Called after a sync of a follower.
        self.on_durable: Callable[[Partition], None] | None = None
        self.commit_problem = ""  # reason why nothing can be committed though this broker leads
        self.disk_problem = DiskProblem(services.loop.time)
        # Of this leader, by producer: batches that are not known yet to be of a transaction.
        self.verifications: dict[int, Verification] = {}
        # Epochs in which producers have reserved this partition for their next transactions: it is
        # committed at the coordinator that the partition is in them. Of this leader.
        self.reserved: dict[int, int] = {}
        # By producer: calls that append markers, which wait for its next batch.
        self.held_markers: dict[int, Callable[[], None]] = {}
        self.closed: RaftlogError | None = None  # reason, once nothing may be appended or read here
        self.committed_bytes = 0  # total of this host: shows a waiting fetch how much is new
        self.appended_bytes = 0  # total of this host, as leader and as follower
        # Ends of appended batches, bytes up to them, and monotonic seconds of the append.
        self._uncommitted: deque[tuple[Offset, int, float]] = deque()
        self._services = services
        log.on_missing = self._files_are_missing
        self._high_watermark = log.high_watermark
        self._waiting_for_commit = OffsetWaiters()
        self._waiting_for_disk = OffsetWaiters()
        self._waiting_for_start = OffsetWaiters()
        self._watchers: dict[Watcher, None] = {}  # a set that keeps the order of arrival
        self._append_watchers: dict[Watcher, None] = {}  # followers that wait for more to copy
        self._segment_count = log.segment_count
        self._commit = LogFlusher(
            log,
            services.loop,
            services.sync_workers,
            on_durable=self._progress,
            on_failed=services.on_failed,
            counters=services.counters,
        )
        self._drops = LogStartAdvancer(
            log,
            self._commit,
            services.sync_workers,
            on_start=self._start_advanced,
            on_failed=services.on_failed,
        )
        self.compaction = LogCompaction(log, self._commit)

    @property
    def high_watermark(self) -> Offset:
        """The high watermark: the end of the committed records, and of what a consumer may see."""
        return self._high_watermark

    @property
    def is_ready(self) -> bool:
        """Whether the high watermark has reached every end that earlier leaders may have returned
        (P3).
        """
        return self.leadership is None or self.leadership.is_ready

    @property
    def is_at_rest(self) -> bool:
        """Whether all records are durable and committed, and no disk problem is known."""
        log, disk_problem = self.log, self.disk_problem
        # guard: a partition with a problem is not at rest
        return (
            self._high_watermark == log.log_end_offset == log.durable_end_offset
            and self.closed is None
            and not (self.problem or disk_problem.is_short or disk_problem.is_held_up)
            and not self._services.disk.is_hung
        )

    @property
    def problem(self) -> str:
        """The problem of this copy, for operators; "" if none is known."""
        return self.log.damage or self.log.doubt or self.divergence

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last batch in the log; -1 if it has none."""
        return self.log.last_epoch

    # -- roles -------------------------------------------------------------------------------------

    def lead(self, state: PartitionState, broker_id: int, *, lag_max_seconds: float) -> None:
        """Lead the partition in ``state``'s epoch, from the log's end on."""
        self._leave_role()
        log = self.log
        self.leader, self.leader_epoch = broker_id, state.leader_epoch
        # guard: a leader starts a new epoch at its log's end
        self.leadership = Leadership(
            state,
            broker_id,
            epoch_start=log.log_end_offset,
            high_watermark=self._high_watermark,
            log_end=log.log_end_offset,
            durable_end=log.acknowledged_end_offset,
            now=self._services.loop.time(),
            lag_max_s=lag_max_seconds,
            log_start=log.durable_start_offset,
        )
        self._commit.request()
        self._progress()

    def follow(self, leader: int | None, leader_epoch: LeaderEpoch) -> None:
        """Copy the log of ``leader``; None while there is none."""
        self._leave_role()
        self.leader, self.leader_epoch = leader, leader_epoch
        self._following = None if leader is None else leader_epoch

    def on_state(self, state: PartitionState) -> None:
        """Apply a new committed state within this leader's epoch."""
        assert self.leadership is not None
        assert state.leader_epoch == self.leader_epoch
        self.leadership.on_state(state, self._services.loop.time())
        self._progress()

    def follows(self, leader: int, leader_epoch: LeaderEpoch) -> bool:
        """Whether a response of ``leader`` in that epoch is for this replica."""
        # guard: following is of one epoch
        return self._following == leader_epoch and self.leader == leader and self.closed is None

    def _leave_role(self) -> None:
        """Fail the waits for a commit by this leader: the next leader may or may not keep the
        records.
        """
        self._end_verifications(
            NotLeaderError(f"{self.topic_partition}: leadership changed. Nothing was appended")
        )
        self.reserved.clear()
        self.disk_problem.begin_role()
        self.divergence = ""
        if self.leadership is None:
            self._following = None
            return
        self.leadership = None
        reason = CommitUnknownError(
            f"{self.topic_partition}: leadership changed before the record was committed. The "
            "record may or may not be stored"
        )
        self._waiting_for_start.refuse(
            OutcomeUnknownError(
                f"{self.topic_partition}: leadership changed before all in-sync replicas had "
                "deleted the records. Delete them again"
            )
        )
        self._waiting_for_disk.refuse(reason)
        # guard: waiting producers fail when the role ends
        self._waiting_for_commit.refuse(reason)
        for watcher in (*self._watchers, *self._append_watchers):
            watcher.wake()

    def check_committable(self) -> None:
        """Raise ``NotEnoughReplicasError`` if this broker cannot commit anything now."""
        leadership = self.leadership
        if self.commit_problem or leadership is None or not leadership.has_quorum:
            reason = self.commit_problem or "Too few in-sync replicas. Start the missing brokers"
            raise NotEnoughReplicasError(
                f"{self.topic_partition}: nothing can be committed. {reason}"
            )

    def check_leading(self) -> Leadership:
        """Return the leadership, or raise ``NotLeaderError`` with the known leader."""
        self._check_open()
        # guard: only the leader appends
        if self.leadership is None:
            whose = (
                "no leader is known"
                if self.leader is None
                else f"broker {self.leader} is the leader"
            )
            raise NotLeaderError(
                f"this broker is not the leader of {self.topic_partition}: {whose}"
            )
        return self.leadership

    def check_epoch(self, known_epoch: LeaderEpoch) -> None:
        """Raise unless the epoch of the client is this replica's; -1 matches any."""
        check_epoch(known_epoch, self.leader_epoch, self.topic_partition)

    def check_topic(self, topic_id: str) -> None:
        """Raise ``NotLeaderError`` for another topic that has, or had, the same name. "" matches
        any.
        """
        if topic_id not in ("", self.topic_id):
            raise NotLeaderError(
                f"{self.topic_partition}: this broker stores topic id {self.topic_id}; the request "
                f"is for topic id {topic_id} with the same name. Refresh the metadata"
            )

    def check_readable(self, *, replica_ok: bool) -> None:
        """Raise unless consumers may read here: from the leader, or with ``replica_ok`` from any
        replica.

        A replica that does not lead returns committed records too, but possibly fewer.
        """
        if not replica_ok:
            self.check_leading()
        else:
            self._check_open()

    # -- writing -----------------------------------------------------------------------------------

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        to_be_committed: bool = True,
        at_offset: Offset = NO_BASE_OFFSET,
    ) -> Appended:
        """Append a validated batch. ``when_committed`` and ``when_on_disk`` report its progress.

        ``at_offset``: as in ``Log.append``.

        Raises ``NotLeaderError``, also when the log is corrupt and other brokers can lead, and
        ``NotEnoughReplicasError`` if it is ``to_be_committed``.
        """

        def write() -> Appended:
            space = self._services.space
            # guard: a retry is acknowledged below a watermark
            # guard: producers do not use the last disk space
            if space.level and not self._is_stored(header):
                space.check_producer(self.topic_partition)
            now_ms = self._services.clock.wall_ms()
            return self.log.append(
                batch,
                header,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                at_offset=at_offset,
            )

        return self._append_by(write, header, len(batch), to_be_committed=to_be_committed)

    def append_marker(self, marker: Marker, done: Acknowledge) -> None:
        """End a transaction here: append its marker, and call ``done`` once it is committed.

        Also when an earlier marker has ended it: coordinators repeat markers. A full disk does not
        refuse it, because readers of committed records would wait. Batches of the transaction that
        are not verified yet are refused: they come after its end. Raises the errors of ``append``
        and ``StaleTransactionCoordinatorError``. ``done`` gets a ``ProducerFencedError``, which
        tells a coordinator that the transaction has ended, once what it depends on is committed.
        """
        self.check_leading()
        try:
            is_needed = self.log.producers.needs(marker)
        except ProducerFencedError as error:
            fenced = error
            # guard: a marker is refused by what is committed
            self.when_committed(self.log.log_end_offset, lambda failed: done(failed or fenced))
            return
        if not is_needed:
            # guard: a marker refuses batches that wait for their verification
            self._on_marker(marker)
            self.when_committed(self.log.log_end_offset, done)
            return
        now_ms = self._services.clock.wall_ms()
        batch = marker_batch(marker, now_ms=now_ms)
        write = partial(
            self.log.append_marker, batch, leader_epoch=self.leader_epoch, now_ms=now_ms
        )
        appended = self._append_by(write, parse_header(batch), len(batch), to_be_committed=True)
        self._on_marker(marker)
        self.when_committed(appended.last_offset + 1, done)

    def _on_marker(self, marker: Marker) -> None:
        """Note what follows from a marker that is in the log."""
        self.reserved.pop(marker.producer_id, None)
        if marker.reserves and len(self.reserved) < limits.RESERVING_PRODUCERS_MAX:
            self.reserved[marker.producer_id] = marker.producer_epoch
        # A bumped epoch is that of the producer's next transaction, which waits for this marker.
        ended = marker.producer_epoch - marker.is_bumped
        verification = self.verifications.get(marker.producer_id)
        if verification is None:
            return
        if verification.producer_epoch > ended:
            epoch = self.reserved.get(marker.producer_id)
            # guard: a reservation is of the epoch of its marker
            verification.last_has_ended(is_reserved=epoch == verification.producer_epoch)
        else:
            verification.end(
                InvalidTransactionStateError(
                    f"{self.topic_partition}: the transaction of producer {marker.producer_id} "
                    "has ended before its batch arrived"
                )
            )

    def _end_verifications(self, reason: RaftlogError) -> None:
        for verification in tuple(self.verifications.values()):
            verification.end(reason)

    def _append_by(
        self,
        write: Callable[[], Appended],
        header: BatchHeader,
        size_bytes: int,
        *,
        to_be_committed: bool,
    ) -> Appended:
        """Check that this broker may append, ``write``, and note what was written."""
        leadership = self.check_leading()
        if self._is_disk_hung or (self._waits_for_disk and self._services.disk.is_hung):
            raise self._disk_hung()
        if to_be_committed and self.commit_problem:
            raise NotEnoughReplicasError(f"{self.topic_partition}: {self.commit_problem}")
        # guard: NOT_ENOUGH_REPLICAS precedes the append
        if to_be_committed and not leadership.has_quorum:
            raise self._too_few_in_sync(leadership)
        try:
            appended = write()
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise
        except DiskFullError as error:
            self._refused(error)
            raise
        except DamagedLogError as error:
            # guard: a corrupt copy redirects producers to another leader
            if len(leadership.state.replicas) == 1:
                raise
            raise NotLeaderError(  # the producer retries instead of giving up
                f"{self.topic_partition}: this broker is losing its leadership: {error}"
            ) from error
        if not appended.duplicate:
            if self.disk_problem.is_short:
                self._found_room()
            now = self._services.clock.monotonic()
            self._note_appended(appended.last_offset + 1, size_bytes, now)
            counters = self._services.counters
            counters.produced_batches += 1
            counters.produced_records += header.record_count
            counters.produced_bytes += size_bytes
            self._appended()
            if header.is_control:  # the producer's next batch may follow at once
                self._services.loop.call_soon(self._wake_followers)
            else:
                self._wake_followers()
        return appended

    def _wake_followers(self) -> None:
        for watcher in tuple(self._append_watchers):
            watcher.wake()

    def _refused(self, error: DiskFullError) -> None:
        """Record an append that failed, for the role manager and for the state of the disk."""
        self.disk_problem.refused(error)
        space = self._services.space
        if not space.level:  # else it was refused before anything was written
            if not space.failure:
                logger.error("write failed: partition=%s error=%s", self.topic_partition, error)
            space.write_failed(error)

    def _found_room(self) -> None:
        self.disk_problem.found()
        self._services.space.write_succeeded()

    @property
    def _is_disk_hung(self) -> bool:
        """Whether the log's disk hangs, and is another one than that of the data directory: the
        broker continues, and must not wait for this disk on its event loop."""
        return self.log.log_dir.is_expendable and self._services.disk.is_hung

    def check_disk(self) -> None:
        """Raise ``DiskHungError`` while the disk hangs, unless the broker ends with it."""
        if self._is_disk_hung:
            raise self._disk_hung()

    def _disk_hung(self) -> DiskHungError:
        return DiskHungError(
            f"{self.topic_partition}: the disk of this broker has completed no sync for "
            f"{self._services.disk.timeout_s:g} s. Nothing was appended. Check the disk"
        )

    def _is_stored(self, header: BatchHeader) -> bool:
        """Whether the log has this batch of an idempotent producer: a retry, which needs no
        space.
        """
        return header.producer_id >= 0 and self.log.producers.check(header) is not None

    def _too_few_in_sync(self, leadership: Leadership) -> NotEnoughReplicasError:
        state = leadership.state
        return NotEnoughReplicasError(
            f"{self.topic_partition}: too few in-sync replicas: ISR {sorted(state.isr)}, "
            f"min.insync.replicas={state.min_isr}. Start the missing brokers or lower "
            "min.insync.replicas"
        )

    def append_copied(self, batches: Buffer) -> None:
        """Append the leader's batches unchanged. Raises the errors of ``Log.append_replicated``."""
        self._check_open()
        # guard: a follower appends nothing to a disk that hangs
        if self._is_disk_hung:
            self.disk_problem.refused()  # so that it leaves the ISR
            raise self._disk_hung()
        try:
            # guard: a follower does not use the last disk space
            self._services.space.check_replication(self.topic_partition)
            appended = self.log.append_replicated(batches)
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise
        except DiskFullError as error:
            self._refused(error)
            self._commit.request()  # some complete batches may have been appended
            raise
        if self.disk_problem.is_short:
            self._found_room()
        self._note_appended(appended.next_offset, len(batches), self._services.clock.monotonic())
        self._appended()

    def _note_appended(self, end_offset: Offset, size_bytes: int, now: float) -> None:
        self.appended_bytes += size_bytes
        self._uncommitted.append((end_offset, self.appended_bytes, now))

    def truncate(
        self,
        offset: Offset,
        done: Callable[[], None],
        *,
        restart: bool = False,
        copied_without: Offset = 0,
    ) -> None:
        """Truncate the log to ``offset``, where the leader's log diverges; then call ``done``.

        With ``restart``, or if no record remains, the log restarts empty there, as a copy that may
        lack tombstones below ``copied_without``. Nothing happens if this replica has left the epoch
        of the leader's response (S05).
        """
        epoch = self._following

        def work() -> None:
            # guard: a truncation of an old epoch
            if self.closed is None and epoch is not None and self._following == epoch:
                is_truncated = self._truncate_now(offset, restart=restart)
                # guard: a copy records what its leader lacks
                if is_truncated and copied_without > offset:
                    self._changed_log(lambda: self.log.note_missing_tombstones(copied_without))
            done()

        # guard: a log is not truncated while it is compacted
        self.compaction.when_over(lambda: self._commit.between_syncs(work))

    def _changed_log(self, change: Callable[[], None]) -> bool:
        """Return whether the log was changed as the leader requires. If not, the leader repeats the
        request.
        """
        if self._is_disk_hung:
            return False
        known = self.log.damage
        try:
            change()
        except OSError as error:
            self._drops.disk_error(f"truncating {self.log.directory}", error)
        except StorageFailedError as error:
            self._services.on_failed(error)
        except (DamagedLogError, DiskFullError) as error:
            if isinstance(error, DiskFullError):
                self._refused(error)
            logger.warning("truncation failed: partition=%s error=%s", self.topic_partition, error)
            if self.log.damage != known:
                # guard: corruption that a truncation finds is reported
                self._services.on_damage(self)
        else:
            return True
        return False

    def _truncate_now(self, offset: Offset, *, restart: bool) -> bool:
        # The log start may have moved since the decision to truncate: no record remains then.
        is_empty = restart or offset <= self.log.log_start_offset
        change = self.log.restart_at if is_empty else self.log.truncate_to
        if not self._changed_log(lambda: change(offset)):
            return False
        while self._uncommitted and self._uncommitted[-1][0] > offset:
            self._uncommitted.pop()
        self._high_watermark = max(
            self.log.log_start_offset, min(self._high_watermark, self.log.log_end_offset)
        )
        self._commit.request()
        return True

    def advance_high_watermark(self, offset: Offset) -> None:
        """Apply the leader's high watermark: everything below ``offset`` is committed."""
        # guard: a follower's watermark is in its log
        committed = min(offset, self.log.log_end_offset)
        # guard: a follower's watermark never decreases
        if committed > self._high_watermark:
            self._high_watermark = committed
            self._on_high_watermark_advanced()

    def _appended(self) -> None:
        if self._waits_for_disk:
            self._commit.request()
            return
        # Committed at once; synced when a segment ends, and periodically.
        if self.log.segment_count != self._segment_count or self.log.log_dir.has_surplus():
            self._segment_count = self.log.segment_count
            self._commit.request()
        self._progress()

    def when_committed(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` once everything below ``end_offset`` is committed, or never will be; with
        ``NotEnoughReplicasError`` at once if this leader cannot commit anything now. Callers come
        again, and give up: their waits would stay for as long.
        """
        # guard: waiting for a commit
        if end_offset <= self._high_watermark:
            done(None)
            return
        try:
            if self.leadership is not None:
                self.check_committable()
        except NotEnoughReplicasError as error:
            done(error)
        else:
            self._waiting_for_commit.add(end_offset, done)

    def must_yield(self) -> bool:
        """Whether the disk has prevented this log from doing its role's work for too long."""
        disk, leadership, is_held_up = self._services.disk, self.leadership, False
        if self._waits_for_disk:
            now = self._services.loop.time()
            is_behind = leadership is not None and leadership.trails_s(now) >= disk.timeout_s
            # guard: a leader whose disk is slow transfers leadership
            # guard: a leader whose disk hangs transfers leadership
            is_held_up = disk.is_hung or is_behind
        self.disk_problem.hold_up(is_held_up)
        has_all = self.log.durable_end_offset == self.log.log_end_offset
        if leadership is None and has_all and not self.disk_problem.is_short:
            return False  # a follower that lacks nothing delays no broker
        return self.disk_problem.is_overdue(leads=leadership is not None)

    def disk_hangs(self) -> None:
        """Fail the waits for the disk, which has begun to hang."""
        if self._waits_for_disk:
            reason = CommitUnknownError(
                f"{self.topic_partition}: the disk of this broker has completed no sync for "
                f"{self._services.disk.timeout_s:g} s. The record may or may not be stored"
            )
            # guard: no producer waits for a disk that hangs
            self._waiting_for_disk.refuse(reason)
            self._waiting_for_commit.refuse(reason)

    def _files_are_missing(self) -> None:
        """Fail the waits: the files of the log are missing, and uncommitted records may be lost."""
        if self.closed is not None:
            return
        reason = CommitUnknownError(
            f"{self.topic_partition}: the record may or may not be stored: {self.log.damage}"
        )
        self._waiting_for_disk.refuse(reason)
        self._waiting_for_commit.refuse(reason)
        self._services.on_damage(self)

    @property
    def _waits_for_disk(self) -> bool:
        return self.log.config.flush_policy == "fsync"

    def when_on_disk(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` once this broker's own log has the records as durably as the topic
        requires.
        """
        if end_offset <= self.log.acknowledged_end_offset:
            done(None)
        else:
            self._waiting_for_disk.add(end_offset, done)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what a reader of committed transactions may see: up to the high watermark."""
        stable = self.log.producers.transactions.last_stable_offset(self._high_watermark)
        return max(stable, self.log.log_start_offset)

    def aborted(self, start_offset: Offset, end_offset: Offset) -> list[Aborted]:
        """Return the aborted transactions of a range below the last stable offset."""
        return self.log.producers.transactions.aborted(start_offset, end_offset)

    @property
    def last_aborted(self) -> Offset:
        """The offset of the newest abort marker; -1 if no aborted transaction is stored."""
        return self.log.producers.transactions.last_aborted

    def read(
        self, *, start_offset: Offset, bytes_max: int, end_offset: Offset | None = None
    ) -> list[bytes]:
        """Return committed batches from ``start_offset`` on, below ``end_offset``, which is not
        above the high watermark, the default. No other method reads a log for clients.

        It is a pread from the page cache, on the loop. If cold reads must leave the loop one day,
        this is the place.
        """
        self._check_open()
        if start_offset < self.log.log_start_offset:
            self._check_start()
        end_offset = self._high_watermark if end_offset is None else end_offset
        # guard: reads end at the high watermark
        return self.log.read(start_offset=start_offset, end_offset=end_offset, bytes_max=bytes_max)

    def read_uncommitted(self, *, start_offset: Offset, bytes_max: int) -> list[bytes]:
        """Return batches up to the log's end: for followers to copy."""
        self._check_open()
        return self.log.read(
            start_offset=start_offset, end_offset=self.log.log_end_offset, bytes_max=bytes_max
        )

    def offset_for_timestamp(
        self, timestamp_ms: int, *, skip_aborted: bool = False
    ) -> TimestampSearch:
        """Return the first committed record at or after a time, in steps."""
        self._check_open()
        # guard: times are looked up below the high watermark
        return self.log.offset_for_timestamp(
            timestamp_ms, end_offset=self._high_watermark, skip_aborted=skip_aborted
        )

    def watch(self, watcher: Watcher) -> None:
        """Wake ``watcher`` whenever the high watermark changes, and when the host closes."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def watch_appends(self, watcher: Watcher) -> None:
        """Wake ``watcher`` at every append here, and when the role changes."""
        self._append_watchers[watcher] = None

    def unwatch_appends(self, watcher: Watcher) -> None:
        self._append_watchers.pop(watcher, None)

    @property
    def tombstones_kept_from(self) -> Offset:
        """The offset from which compaction keeps tombstones: a follower that copies now needs
        them.
        """
        if self.leadership is None:
            return INT64_MAX
        return self.leadership.slowest_copy(self._services.loop.time())

    # -- keeping house -----------------------------------------------------------------------------

    def committed_start(self, done: Callable[[Offset | RaftlogError], None]) -> None:
        """Call ``done`` with the log start offset once every later leader has it, too: another
        leader could start lower, and the log start offset that clients see must not go back.
        Call it with the error of ``check_leading`` if this broker does not lead, or with
        ``LeaderNotAvailableError`` if the leadership changes before, or nothing can be committed.
        """
        start = self.log.log_start_offset

        def committed(error: RaftlogError | None) -> None:
            if error is None:
                done(start)
            else:
                done(
                    LeaderNotAvailableError(
                        f"{self.topic_partition}: leadership changed before all in-sync replicas "
                        f"had deleted the records before offset {start}"
                    )
                )

        try:
            leadership = self.check_leading()
            if leadership.committed_start < start and not leadership.has_quorum:
                raise LeaderNotAvailableError(
                    f"{self.topic_partition}: too few in-sync replicas to delete the records "
                    f"before offset {start}. Start the missing brokers"
                )
        except RaftlogError as error:
            done(error)
        else:
            # guard: a start is reported when it is committed
            self._await_start(leadership, start, committed)

    def _await_start(self, leadership: Leadership, start: Offset, done: Acknowledge) -> None:
        self._waiting_for_start.add(start, done)
        self._waiting_for_start.reached(leadership.committed_start)

    def _check_start(self) -> None:
        leadership, start = self.leadership, self.log.log_start_offset
        # guard: a read below the start ends permanently when the start is committed
        if leadership is not None and leadership.committed_start < start:
            raise LeaderNotAvailableError(
                f"{self.topic_partition}: records before offset {start} are being deleted, and not "
                "all in-sync replicas have confirmed it"
            )

    def delete_records(self, before_offset: Offset, done: Acknowledge) -> None:
        """Delete the records below ``before_offset``; call ``done`` once every member of the ISR
        has done so, durably: then no later leader has them.

        Raises ``NotEnoughReplicasError`` before anything is deleted, ``OffsetOutOfRangeError``.
        """
        leadership = self.check_leading()
        # guard: nothing is deleted below min_isr
        if not leadership.has_quorum:
            raise self._too_few_in_sync(leadership)
        # guard: only what is committed is deleted
        if before_offset > self._high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: cannot delete records before offset {before_offset}: the "
                f"high watermark is {self._high_watermark}"
            )

        def deleted(error: RaftlogError | None) -> None:
            if error is not None:
                done(error)
            elif self.leadership is not leadership:
                done(OutcomeUnknownError(f"{self.topic_partition}: another leader was elected"))
            else:
                # guard: a deletion waits for the ISR
                self._await_start(leadership, before_offset, done)

        self.advance_log_start(before_offset, deleted)

    def advance_log_start(self, before_offset: Offset, done: Acknowledge) -> None:
        """Delete the records below ``before_offset``, as a user or the leader requires."""
        self._drops.advance_log_start(before_offset, done)

    def apply_retention(self) -> None:
        """Delete the records that the topic's retention expires; start a segment if it is due.

        The leader decides what is deleted; its followers apply its log start offset.
        """

        def retire() -> None:
            if self.closed is not None or self._is_disk_hung:
                return
            clock = self._services.clock
            self._drops.go_on()
            if self.leadership is not None:
                # guard: retention uses the trusted time
                self._drops.apply_retention(
                    now_ms=clock.deletion_ms(), high_watermark=self._high_watermark
                )
            if self._drops.roll_if_due(now_ms=clock.wall_ms()):
                self._commit.request()

        self._commit.between_syncs(retire)

    def reconsider(self) -> None:
        """Apply changed settings of the topic: waits may be complete now."""
        if self.closed is None:
            self._commit.request()
            self._progress()

    def save_snapshot(self) -> None:
        """Save the data that makes the next start fast."""
        if self.closed is None:
            self._commit.request(snapshot=True)

    def close(self, reason: RaftlogError) -> None:
        """Reject everything from now on, with ``reason``, and end every wait."""
        self.closed = self._drops.closed = self.compaction.closed = reason
        self._commit.stop()
        self._waiting_for_disk.refuse(reason)
        self._waiting_for_commit.refuse(reason)
        self._waiting_for_start.refuse(reason)
        self._end_verifications(reason)
        for watcher in (*self._watchers, *self._append_watchers):
            watcher.wake()

    def when_quiet(self, done: Callable[[], None]) -> None:
        """Call ``done``, after ``close``, once no thread uses the files of the log."""
        # guard: files stay until their compaction is over
        self.compaction.when_over(lambda: self._drops.when_quiet(done))

    # -- inside ------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed
        # guard: an offline log answers no request
        if self.log.is_offline:
            # The end of the log is unknown, so no request can be answered.
            if self.leadership is not None and len(self.leadership.state.replicas) == 1:
                raise DamagedLogError(self.log.log_dir.failure)
            raise NotLeaderError(f"{self.topic_partition}: {self.log.log_dir.failure}")

    def _progress(self) -> None:
        """Process a new durable end offset: complete the waits, in offset order."""
        log = self.log
        self._waiting_for_disk.reached(log.acknowledged_end_offset)
        leadership = self.leadership
        if leadership is None:
            if self.on_durable is not None and self._following is not None:
                self.on_durable(self)
            return
        leadership.on_local(log_end=log.log_end_offset, durable_end=log.acknowledged_end_offset)
        self._apply_progress()

    def _start_advanced(self) -> None:
        """Process a durable log start offset. The leader propagates it to its followers, which
        confirm it.
        """
        if self.leadership is not None:
            self.leadership.on_local_start(self.log.durable_start_offset)
            for watcher in tuple(self._append_watchers):
                watcher.wake()
        self._progress()

    def on_follower(
        self,
        follower: int,
        directory_id: str,
        *,
        boot: int = 0,
        fetch_offset: Offset,
        durable_offset: Offset,
        log_start: Offset = 0,
    ) -> None:
        """Process the log end offset and durable end offset of a follower; this broker leads.

        ``log_start``: its durable log start offset.
        """
        leadership, log = self.leadership, self.log
        assert leadership is not None
        # A follower may be faster than this broker's own disk, which has not reported yet.
        leadership.on_local(log_end=log.log_end_offset, durable_end=log.acknowledged_end_offset)
        leadership.on_fetch(
            follower,
            directory_id,
            boot=boot,
            fetch_offset=fetch_offset,
            durable_offset=durable_offset,
            log_start=log_start,
            now=self._services.loop.time(),
        )
        self._apply_progress()

    def _apply_progress(self) -> None:
        """Process the leadership's progress: a higher commit or log start offset completes
        waits.
        """
        assert self.leadership is not None
        self._waiting_for_start.reached(self.leadership.committed_start)
        if self.leadership.high_watermark > self._high_watermark:
            self._high_watermark = self.leadership.high_watermark
            self._on_high_watermark_advanced()

    def _on_high_watermark_advanced(self) -> None:
        self.log.note_high_watermark(self._high_watermark)
        uncommitted, counters = self._uncommitted, self._services.counters
        now = counters.now()
        while uncommitted and uncommitted[0][0] <= self._high_watermark:
            _, self.committed_bytes, appended_at = uncommitted.popleft()
            if self.leadership is not None:
                counters.commit_seconds.observe(now - appended_at)
        self._waiting_for_commit.reached(self._high_watermark)
        for watcher in tuple(self._watchers):
            watcher.wake()


# -- flusher ---------------------------------------------------------------------------------------
#
# Group commit: one fdatasync at a time per log, for everything appended since the last one began.
#
# The log determines what a sync makes durable (``complete_sync``); the host acts on it.


class LogFlusher:
    """Syncs of one log. Invariant: at most one task is in flight, and none after one has
    failed.
    """

    __slots__ = (
        "_began",
        "_counters",
        "_jobs",
        "_log",
        "_loop",
        "_on_durable",
        "_on_failed",
        "_scheduled",
        "_snapshot_due",
        "_stopped",
        "_task",
        "_workers",
    )

    def __init__(
        self,
        log: Log,
        loop: AbstractEventLoop,
        workers: Workers,
        *,
        on_durable: Callable[[], None],
        on_failed: Callable[[StorageFailedError], None],
        counters: Counters,
    ) -> None:
        self._log = log
        self._loop = loop
        self._workers = workers
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._scheduled = False
        self._snapshot_due = False
        self._task: SyncTask | None = None
        self._jobs: list[Callable[[], None]] = []
        self._stopped = False
        self._counters = counters
        self._began = 0.0  # monotonic seconds, of the task

    def request(self, *, snapshot: bool = False) -> None:
        """Sync the log, including everything that this turn of the loop still appends to it.

        With ``snapshot``, also save the data that makes the next start fast.
        """
        self._snapshot_due |= snapshot
        if self._task is None and not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def between_syncs(self, job: Callable[[], None]) -> None:
        """Run ``job`` while no task is in flight, before the next one begins: now, if there is
        none.
        """
        # guard: truncations wait for the sync in progress
        if self._task is None:
            job()
        else:
            self._jobs.append(job)

    def stop(self) -> None:
        """Start no further syncs. ``between_syncs`` reports the end of the last one."""
        self._stopped = True

    def _begin(self) -> None:
        self._scheduled = False
        if self._stopped or self._task is not None:
            return  # a job of the last sync requested one, and its end started it
        self._task = task = self._log.begin_sync(snapshot=self._snapshot_due)
        self._snapshot_due = False
        if task is not None:
            self._began = self._counters.now()
            # guard: progress is reported after the sync
            self._workers.submit(task.run, self._finished)

    def _finished(self, _result: None, error: Exception | None) -> None:
        task, self._task = self._task, None
        assert task is not None
        if error is None:
            self._counters.fsync_seconds.observe(self._counters.now() - self._began)
            self._log.complete_sync(task)
            jobs, self._jobs = self._jobs, []
            for job in jobs:
                job()
            self._begin()  # the disk syncs newer appends while responses are created
            self._on_durable()
            return
        # guard: a failed sync is the last
        self._stopped = True
        if not isinstance(error, OSError):  # for any error, the outcome of the sync is unknown
            error = OSError(errno.EIO, repr(error))
        failure = self._log.failed_sync(task, error)
        # Otherwise the log is corrupt, and has reported it.
        if isinstance(failure, StorageFailedError):
            # guard: a failed sync ends the broker
            self._on_failed(failure)
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job()


# -- log start -------------------------------------------------------------------------------------
#
# Advances the log start offset of a partition, by deletion requests and retention.
#
# Whole segments are deleted, so this module also rolls the active segment by its age. The log start
# offset changes at once; the files are deleted in a thread, and never while the log is being
# synced. The caller decides the offset.


class LogStartAdvancer:
    """Deletions of one log. With ``closed`` set, none is started."""

    __slots__ = (
        "_commit",
        "_log",
        "_on_failed",
        "_on_start",
        "_out",
        "_quiet",
        "_workers",
        "closed",
    )

    def __init__(
        self,
        log: Log,
        commit: LogFlusher,
        workers: Workers,
        *,
        on_start: Callable[[], None],
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``on_start``: called when a new log start offset is durable."""
        self.closed: RaftlogError | None = None  # reason why none is started
        self._log = log
        self._commit = commit
        self._workers = workers
        self._on_start = on_start
        self._on_failed = on_failed
        self._out = 0
        self._quiet: list[Callable[[], None]] = []

    def advance_log_start(self, before_offset: Offset, done: Acknowledge) -> None:
        """Delete the records below ``before_offset``; call ``done`` once that is durable."""

        def drop() -> None:
            if self.closed is not None:
                done(self.closed)
                return
            # The log may have been truncated since the request.
            offset = min(before_offset, self._log.log_end_offset)
            offset = max(offset, self._log.log_start_offset)
            self._run(lambda: self._log.advance_log_start(offset), done)

        self._commit.between_syncs(drop)

    def go_on(self) -> None:
        """Complete deletions that a lack of disk space or file descriptors has interrupted. Until
        then, their start is not durable, and no compaction begins. Called between syncs.
        """
        for task in [] if self._out else self._log.interrupted_deletions():
            self._submit(task, _ignore)

    def apply_retention(self, *, now_ms: int | None, high_watermark: Offset) -> None:
        """Delete the records that the topic's retention expires. Called between syncs. ``now_ms``:
        see ``Log.apply_retention``.
        """
        self._run(
            lambda: self._log.apply_retention(now_ms=now_ms, high_watermark=high_watermark),
            _ignore,
        )

    def roll_if_due(self, *, now_ms: int) -> bool:
        """Start a segment if the last one is old enough, and return whether it was. Called between
        syncs.
        """
        try:
            return self._log.roll_if_due(now_ms=now_ms)
        except (DiskFullError, DamagedLogError):
            return False  # producers get the error of a full disk; rolling can wait
        except StorageFailedError as error:
            self._on_failed(error)
            return False

    def when_quiet(self, done: Callable[[], None]) -> None:
        """Call ``done``, after the close, once no thread uses the files of the log."""
        assert self.closed is not None
        self._quiet.append(done)
        self._commit.between_syncs(self._check_quiet)

    def disk_error(self, what: str, error: Exception) -> RaftlogError:
        """Return the error for a failure of the disk. One that leaves its state unknown is
        reported.
        """
        failure = self._log.disk_failed(what, error)
        if isinstance(failure, StorageFailedError):
            self._on_failed(failure)
        return failure

    def _run(self, plan: Callable[[], DeleteTask | None], done: Acknowledge) -> None:
        """Take a deletion task from the log and run it; the log start offset has already
        changed.
        """
        try:
            task = plan()
        except OSError as error:
            done(self.disk_error(self._what, error))
            return
        if task is None:
            done(None)
        else:
            self._submit(task, done)

    @property
    def _what(self) -> str:
        return f"deleting old records in {self._log.directory}"

    def _submit(self, task: DeleteTask, done: Acknowledge) -> None:
        self._out += 1

        def finished(_result: None, error: Exception | None) -> None:
            self._out -= 1
            if error is None:
                self._log.start_is_durable(task)
                self._on_start()
            done(None if error is None else self.disk_error(self._what, error))
            self._commit.between_syncs(self._check_quiet)

        self._workers.submit(task.run, finished)

    def _check_quiet(self) -> None:
        if self.closed is not None and self._out == 0:
            waiting, self._quiet = self._quiet, []
            for done in waiting:
                done()


def _ignore(_outcome: RaftlogError | None) -> None:
    """Ignore the outcome: retention is retried at the next round; a failed disk was already
    reported.
    """


# -- fencing ---------------------------------------------------------------------------------------
#
# Fencing by leader epoch: compares the epoch of a client with this broker's (KIP-320). Pure.


def check_epoch(
    known_epoch: LeaderEpoch, leader_epoch: LeaderEpoch, topic_partition: TopicPartition
) -> None:
    """Raise unless the epoch of the client is this replica's; -1 matches any.

    ``FencedLeaderEpochError`` for an older one, ``UnknownLeaderEpochError`` for a newer one.
    """
    # guard: clients of any other epoch are rejected
    if known_epoch == -1 or known_epoch == leader_epoch:
        return
    # guard: clients of an older epoch are fenced
    if known_epoch < leader_epoch:
        raise FencedLeaderEpochError(
            f"{topic_partition} is in leader epoch {leader_epoch}; the request knows {known_epoch}"
        )
    raise UnknownLeaderEpochError(
        f"{topic_partition}: this broker has not received leader epoch {known_epoch} yet"
    )


# -- log compaction --------------------------------------------------------------------------------
#
# Compaction of one log: a task is taken from it, run in a thread, and returned to it.
#
# ``raftlog.storage`` decides which records are removed, and replaces files safely. This module
# decides when it runs (never while the log is being synced), limits the thread (it shares the
# interpreter's lock with the loop, and the disk with the syncs), and cancels it.


# Maximum sleep of a throttled thread before it checks for cancellation.
SLEEP_SECONDS_MAX: Final = 0.1
# The loop also needs the interpreter's lock. After this time without a pause, the thread releases
# it, for long enough that the loop gets it before the thread returns: sleep(0) does not guarantee
# that.
WORK_SECONDS_MAX: Final = 0.0005
YIELD_SECONDS: Final = 0.00005

Pause: TypeAlias = Callable[[int], None]


def stand_still(seconds: float) -> None:
    """Sleep. ``time.sleep`` fails with EINVAL under libfaketime, which sets wall clocks."""
    threading.Event().wait(seconds)


class GivenUpError(Exception):
    """The compaction was cancelled. Raised in its thread, and handled by its owner only."""


class Terms(NamedTuple):
    """Parameters of a compaction."""

    now_ms: int
    chance_seed: int
    memory_bytes: int


class Pass(NamedTuple):
    """Result of a compaction. ``error``: None if it completed, or was cancelled."""

    is_done: bool = False
    error: Exception | None = None


Finished: TypeAlias = Callable[[Pass], None]


class Pace:
    """Called by a compaction after each step, in its thread: yields to other threads, and limits
    the rate.

    Raises ``GivenUpError`` once ``is_given_up`` returns True.
    """

    def __init__(
        self,
        is_given_up: Callable[[], bool],
        *,
        bytes_per_second: int = 0,
        sleep: Callable[[float], None] = stand_still,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``bytes_per_second``: of reading and writing together; 0 means no limit."""
        self._is_given_up = is_given_up
        self._bytes_per_second = bytes_per_second
        self._sleep = sleep
        self._monotonic = monotonic
        self._free_at = self._yielded_at = monotonic()

    def __call__(self, size_bytes: int) -> None:
        """``size_bytes``: read or written since the last call."""
        self._poll()
        now = self._monotonic()
        if self._bytes_per_second:
            self._throttle(size_bytes, now)
        elif now - self._yielded_at >= WORK_SECONDS_MAX:
            self._sleep(YIELD_SECONDS)
            self._yielded_at = self._monotonic()

    def _throttle(self, size_bytes: int, now: float) -> None:
        """Sleep until the work so far is within the rate limit."""
        self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_second
        while (left := self._free_at - now) > 0:
            self._sleep(min(left, SLEEP_SECONDS_MAX))
            self._poll()
            now = self._monotonic()

    def _poll(self) -> None:
        if self._is_given_up():
            raise GivenUpError


class LogCompaction:
    """Compactions of one log. Invariant: at most one is in progress, and the log is not truncated
    and its files are not removed until it ends.
    """

    __slots__ = ("_commit", "_is_out", "_log", "_waiting", "closed")

    def __init__(self, log: Log, commit: LogFlusher) -> None:
        self.closed: RaftlogError | None = None  # reason why no compaction starts any longer
        self._log = log
        self._commit = commit
        self._is_out = False
        self._waiting: list[Callable[[], None]] = []  # called at the end of the one in progress

    @property
    def is_given_up(self) -> bool:
        """Whether the compaction in progress must end soon. Read by its thread."""
        return self.closed is not None or bool(self._waiting)

    def when_over(self, job: Callable[[], None]) -> None:
        """Cancel the compaction in progress, and call ``job`` when it has ended. Without one, call
        ``job`` immediately.
        """
        if self._is_out:
            self._waiting.append(job)
        else:
            job()

    def begin(
        self,
        terms: Terms,
        *,
        high_watermark: Callable[[], Offset],
        tombstones_kept_from: Callable[[], Offset],
        workers: Workers,
        pause: Pause,
        finished: Finished,
    ) -> None:
        """Compact the log, if it is worthwhile; ``finished`` gets the result.

        Only records below ``high_watermark()``. Therefore members of the ISR never lack
        compacted records (see ``replication.following.must_restart``). Tombstones at or above
        ``tombstones_kept_from()`` are kept.
        """
        assert not self._is_out, "one compaction at a time"
        self._is_out = True
        self._commit.between_syncs(
            partial(
                self._begin, terms, high_watermark, tombstones_kept_from, workers, pause, finished
            )
        )

    def _begin(
        self,
        terms: Terms,
        high_watermark: Callable[[], Offset],
        tombstones_kept_from: Callable[[], Offset],
        workers: Workers,
        pause: Pause,
        finished: Finished,
    ) -> None:
        if self.is_given_up:
            self._over(finished, Pass())
            return
        try:
            task = self._log.begin_compaction(
                now_ms=terms.now_ms,
                high_watermark=high_watermark(),
                tombstones_kept_from=tombstones_kept_from(),
                chance_seed=terms.chance_seed,
                memory_bytes=terms.memory_bytes,
            )
        except (RaftlogError, OSError) as error:
            self._over(finished, Pass(error=error))
            return
        if task is None:
            self._over(finished, Pass())
            return

        def came_back(_result: None, error: Exception | None) -> None:
            # guard: compaction begins and ends between syncs
            self._commit.between_syncs(partial(self._end, task, error, finished))

        workers.submit(partial(task.run, pause), came_back)

    def _end(self, task: CompactionTask, error: Exception | None, finished: Finished) -> None:
        """Process the end of the thread's work on the task. Called between syncs."""
        # The log cannot use a stale task, because it lost records during the compaction.
        # guard: an abandoned compaction has no effect
        is_done = error is None and not self.is_given_up and not task.is_stale
        try:
            if is_done:
                self._log.complete_compaction(task)
            else:
                self._log.abandon_compaction(task)
        except (RaftlogError, OSError) as failure:
            is_done, error = False, failure
        self._commit.request()  # makes the new files durable, and their indexes
        self._over(finished, Pass(is_done, None if isinstance(error, GivenUpError) else error))

    def _over(self, finished: Finished, outcome: Pass) -> None:
        self._is_out = False
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            job()
        finished(outcome)
