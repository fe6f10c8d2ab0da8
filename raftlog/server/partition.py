"""Partition on this broker, the only owner of its log: appends, waits, and roles.

It leads the partition, follows the leader, or waits for an election. The leadership determines what
is committed (``raftlog.replication``); the partition's Raft group determines the leader. This
module has the log, the requests that wait for it, and the effects of a role change on them.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raftlog.config.keys import INT64_MAX
from raftlog.errors import (
    CommitUnknownError,
    DamagedLogError,
    DiskFullError,
    DiskHungError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
    StorageFailedError,
)
from raftlog.record import BatchHeader
from raftlog.replication.leadership import Leadership
from raftlog.replication.partition_state import PartitionState, state_alone
from raftlog.server.broker_clock import BrokerClock
from raftlog.server.disk_space import DiskSpace
from raftlog.server.disk_watch import DiskWatch
from raftlog.server.event_log import EventLog
from raftlog.server.fencing import check_epoch
from raftlog.server.flusher import GroupCommit
from raftlog.server.hindrance import Hindrance
from raftlog.server.log_compaction import LogCompaction
from raftlog.server.log_start import LogStartAdvancer
from raftlog.server.metrics import Counters
from raftlog.server.offset_waiters import Acknowledge, OffsetWaiters, Watcher
from raftlog.server.workers import Workers
from raftlog.storage import Appended, Log, TimestampSearch
from raftlog.types import (
    NO_BASE_OFFSET,
    Buffer,
    LeaderEpoch,
    Offset,
    TopicPartition,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostServices:
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
    log_dirs: Mapping[str, HostServices] = field(default_factory=dict)

    def of(self, log: Log) -> HostServices:
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
        "committed_bytes",
        "compaction",
        "conflict",
        "hindrance",
        "leader",
        "leader_epoch",
        "leadership",
        "log",
        "obstacle",
        "on_durable",
        "topic_id",
        "topic_partition",
        "unclean_epoch",
    )

    def __init__(
        self, topic_partition: TopicPartition, log: Log, services: HostServices, topic_id: str = ""
    ) -> None:
        self.topic_partition, self.topic_id, self.log = topic_partition, topic_id, log
        self.leader: int | None = None  # last known leader
        self.leader_epoch: LeaderEpoch = -1
        self.unclean_epoch: LeaderEpoch = -1  # of the last unclean election
        # Reason why the leader's log is not copied: it lacks committed records of this copy.
        self.conflict = ""
        self.leadership: Leadership | None = None  # while this broker leads
        self._following: LeaderEpoch | None = None  # epoch of the followed leader
        # Called after a sync of a follower.
        self.on_durable: Callable[[Partition], None] | None = None
        self.obstacle = ""  # reason why nothing can be committed though this broker leads
        self.hindrance = Hindrance(services.loop.time)
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
        self._commit = GroupCommit(
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
        log, hindrance = self.log, self.hindrance
        return (
            self._high_watermark == log.log_end_offset == log.durable_end_offset
            and self.closed is None
            and not (self.trouble or hindrance.is_short or hindrance.is_held_up)
            and not self._services.disk.is_hung
        )

    @property
    def trouble(self) -> str:
        """The problem of this copy, for operators; "" if none is known."""
        return self.log.damage or self.log.doubt or self.conflict

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last batch in the log; -1 if it has none."""
        return self.log.last_epoch

    # -- roles -------------------------------------------------------------------------------------

    def lead_alone(self, broker_id: int, directory_id: str) -> None:
        """Lead as the only replica: no group has to commit it.

        A leader that restarts takes a new epoch (KAFKA-10527), stored with its first batch.
        """
        self._high_watermark = self.log.acknowledged_end_offset
        state = state_alone(broker_id, directory_id, leader_epoch=self.log.leader_epoch + 1)
        self.lead(state, broker_id, lag_max_seconds=float("inf"))

    def lead(self, state: PartitionState, broker_id: int, *, lag_max_seconds: float) -> None:
        """Lead the partition in ``state``'s epoch, from the log's end on."""
        self._leave_role()
        log = self.log
        self.leader, self.leader_epoch = broker_id, state.leader_epoch
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
        return self._following == leader_epoch and self.leader == leader and self.closed is None

    def _leave_role(self) -> None:
        """Fail the waits for a commit by this leader: the next leader may or may not keep the
        records.
        """
        self.hindrance.begin_role()
        self.conflict = ""
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
        self._waiting_for_commit.refuse(reason)
        for watcher in (*self._watchers, *self._append_watchers):
            watcher.wake()

    def check_leading(self) -> Leadership:
        """Return the leadership, or raise ``NotLeaderError`` with the known leader."""
        self._check_open()
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
        leadership = self.check_leading()
        if self._is_disk_hung or (self._waits_for_disk and self._services.disk.is_hung):
            raise self._disk_hung()
        if to_be_committed and self.obstacle:
            raise NotEnoughReplicasError(f"{self.topic_partition}: {self.obstacle}")
        if to_be_committed and not leadership.has_quorum:
            raise self._too_few_in_sync(leadership)
        try:
            space = self._services.space
            if space.level and not self._is_stored(header):
                space.check_producer(self.topic_partition)
            now, now_ms = self._services.clock.read()
            appended = self.log.append(
                batch,
                header,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                at_offset=at_offset,
            )
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise
        except DiskFullError as error:
            self._refused(error)
            raise
        except DamagedLogError as error:
            if len(leadership.state.replicas) == 1:
                raise
            raise NotLeaderError(  # the producer retries instead of giving up
                f"{self.topic_partition}: this broker is losing its leadership: {error}"
            ) from error
        if not appended.duplicate:
            if self.hindrance.is_short:
                self._found_room()
            self._note_appended(appended.last_offset + 1, len(batch), now)
            counters = self._services.counters
            counters.produced_batches += 1
            counters.produced_records += header.record_count
            counters.produced_bytes += len(batch)
            self._appended()
            for watcher in tuple(self._append_watchers):
                watcher.wake()
        return appended

    def _refused(self, error: DiskFullError) -> None:
        """Record an append that failed, for the role manager and for the state of the disk."""
        self.hindrance.refused(error)
        space = self._services.space
        if not space.level:  # else it was refused before anything was written
            if not space.failure:
                logger.error("write failed: partition=%s error=%s", self.topic_partition, error)
            space.write_failed(error)

    def _found_room(self) -> None:
        self.hindrance.found()
        self._services.space.write_succeeded()

    @property
    def _is_disk_hung(self) -> bool:
        """Whether the log's disk hangs, and is another one than that of the data directory: the
        broker continues, and must not wait for this disk on its event loop."""
        return self.log.log_dir.is_expendable and self._services.disk.is_hung

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
        if self._is_disk_hung:
            self.hindrance.refused()  # so that it leaves the ISR
            raise self._disk_hung()
        try:
            self._services.space.check_replication(self.topic_partition)
            appended = self.log.append_replicated(batches)
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise
        except DiskFullError as error:
            self._refused(error)
            self._commit.request()  # some complete batches may have been appended
            raise
        if self.hindrance.is_short:
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

        With ``restart``, the log restarts empty there, as a copy that may lack tombstones below
        ``copied_without``. Nothing happens if this replica has left the epoch of the leader's
        response (S05).
        """
        epoch = self._following

        def work() -> None:
            if self.closed is None and epoch is not None and self._following == epoch:
                is_truncated = self._truncate_now(offset, restart=restart)
                if is_truncated and copied_without > offset:
                    self._changed_log(lambda: self.log.note_missing_tombstones(copied_without))
            done()

        self.compaction.when_over(lambda: self._commit.between_syncs(work))

    def _changed_log(self, change: Callable[[], None]) -> bool:
        """Return whether the log was changed as the leader requires. If not, the leader repeats the
        request.
        """
        if self._is_disk_hung:
            return False
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
        else:
            return True
        return False

    def _truncate_now(self, offset: Offset, *, restart: bool) -> bool:
        change = self.log.restart_at if restart else self.log.truncate_to
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
        committed = min(offset, self.log.log_end_offset)
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
        """Call ``done`` once everything below ``end_offset`` is committed, or never will be."""
        if end_offset <= self._high_watermark:
            done(None)
        else:
            self._waiting_for_commit.add(end_offset, done)

    def must_yield(self) -> bool:
        """Whether the disk has prevented this log from doing its role's work for too long."""
        disk, leadership, is_held_up = self._services.disk, self.leadership, False
        if self._waits_for_disk:
            now = self._services.loop.time()
            is_behind = leadership is not None and leadership.trails_s(now) >= disk.timeout_s
            is_held_up = disk.is_hung or is_behind
        self.hindrance.hold_up(is_held_up)
        has_all = self.log.durable_end_offset == self.log.log_end_offset
        if leadership is None and has_all and not self.hindrance.is_short:
            return False  # a follower that lacks nothing delays no broker
        return self.hindrance.is_overdue(leads=leadership is not None)

    def disk_hangs(self) -> None:
        """Fail the waits for the disk, which has begun to hang."""
        if self._waits_for_disk:
            reason = CommitUnknownError(
                f"{self.topic_partition}: the disk of this broker has completed no sync for "
                f"{self._services.disk.timeout_s:g} s. The record may or may not be stored"
            )
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

    def read(self, *, start_offset: Offset, bytes_max: int) -> list[bytes]:
        """Return committed batches from ``start_offset`` on. No other method reads a log for
        clients.

        It is a pread from the page cache, on the loop. If cold reads must leave the loop one day,
        this is the place.
        """
        self._check_open()
        if start_offset < self.log.log_start_offset:
            self._check_start()
        return self.log.read(
            start_offset=start_offset, end_offset=self._high_watermark, bytes_max=bytes_max
        )

    def read_uncommitted(self, *, start_offset: Offset, bytes_max: int) -> list[bytes]:
        """Return batches up to the log's end: for followers to copy."""
        self._check_open()
        return self.log.read(
            start_offset=start_offset, end_offset=self.log.log_end_offset, bytes_max=bytes_max
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampSearch:
        """Return the first committed record at or after a time, in steps."""
        self._check_open()
        return self.log.offset_for_timestamp(timestamp_ms, end_offset=self._high_watermark)

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
        ``LeaderNotAvailableError`` if the leadership changes before.
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
        except RaftlogError as error:
            done(error)
        else:
            self._await_start(leadership, start, committed)

    def _await_start(self, leadership: Leadership, start: Offset, done: Acknowledge) -> None:
        self._waiting_for_start.add(start, done)
        self._waiting_for_start.reached(leadership.committed_start)

    def _check_start(self) -> None:
        leadership, start = self.leadership, self.log.log_start_offset
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
        if not leadership.has_quorum:
            raise self._too_few_in_sync(leadership)
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
            if self.leadership is not None:
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
        for watcher in (*self._watchers, *self._append_watchers):
            watcher.wake()

    def when_quiet(self, done: Callable[[], None]) -> None:
        """Call ``done``, after ``close``, once no thread uses the files of the log."""
        self.compaction.when_over(lambda: self._drops.when_quiet(done))

    # -- inside ------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed
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
