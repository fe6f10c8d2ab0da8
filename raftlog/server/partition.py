"""The one owner of a partition's log on this broker: appends, waits for durability, wakes readers.

It leads the partition, follows who does, or waits for an election. What is committed is the
leadership's to say (``raftlog.replication``); who leads is the partition's Raft group's. Here stand
the log, those who wait for it, and what a change of role does to them.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
from raftlog.server.disk_watch import DiskWatch
from raftlog.server.fencing import check_epoch
from raftlog.server.flusher import GroupCommit
from raftlog.server.hindrance import Hindrance
from raftlog.server.log_compaction import LogCompaction
from raftlog.server.log_start import LogStartAdvancer
from raftlog.server.offset_waiters import Acknowledge, OffsetWaiters, Watcher
from raftlog.server.workers import Workers
from raftlog.storage import Appended, Log
from raftlog.types import Buffer, LeaderEpoch, Offset, OffsetAndTimestamp, TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostServices:
    """What a broker lends to all its hosts."""

    clock: BrokerClock
    loop: AbstractEventLoop
    sync_workers: Workers
    disk: DiskWatch
    on_failed: Callable[[StorageFailedError], None]
    on_damage: Callable[[Partition], None]  # a host's files are missing


class Partition:
    """Invariant: no batch at or above ``high_watermark`` is handed out. Only ``cut`` lowers it."""

    __slots__ = (
        "_append_watchers",
        "_appended_bytes",
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
        self.leader: int | None = None  # as far as this broker knows
        self.leader_epoch: LeaderEpoch = -1
        self.unclean_epoch: LeaderEpoch = -1  # of the last unclean election
        self.conflict = ""  # why the leader's log is not copied: it lacks what is committed here
        self.leadership: Leadership | None = None  # while this broker leads
        self._following: LeaderEpoch | None = None  # the epoch of the leader that is followed
        self.on_durable: Callable[[Partition], None] | None = None  # a follower's fsync
        self.obstacle = ""  # why nothing can be committed for now though this broker leads
        self.hindrance = Hindrance(services.loop.time)
        self.closed: RaftlogError | None = None  # why, once nothing may be appended or read here
        self.committed_bytes = 0  # ever, by this host: tells a waiting fetch how much is new
        self._appended_bytes = 0
        self._uncommitted: deque[tuple[Offset, int]] = deque()  # batch ends, and bytes up to them
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
        )
        self._drops = LogStartAdvancer(
            log,
            self._commit,
            services.sync_workers,
            on_start=self._started_higher,
            on_failed=services.on_failed,
        )
        self.compaction = LogCompaction(log, self._commit)

    @property
    def high_watermark(self) -> Offset:
        """The end of what is committed, and so of what a consumer may see."""
        return self._high_watermark

    @property
    def is_ready(self) -> bool:
        """Whether the high watermark has reached what earlier leaders may have shown (P3)."""
        return self.leadership is None or self.leadership.is_ready

    @property
    def trouble(self) -> str:
        """What is wrong with this copy, for operators; "" if nothing is known."""
        return self.log.damage or self.log.doubt or self.conflict

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last batch in the log; -1 when it has none."""
        return self.log.last_epoch

    # -- roles -------------------------------------------------------------------------------------

    def lead_alone(self, broker_id: int, directory_id: str) -> None:
        """Lead as the only replica there is: no group has to agree.

        A leader that starts again takes a new epoch (KAFKA-10527), stored with its first batch.
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
        """The group has agreed on a new state within this leader's epoch."""
        assert self.leadership is not None
        assert state.leader_epoch == self.leader_epoch
        self.leadership.on_state(state, self._services.loop.time())
        self._progress()

    def follows(self, leader: int, leader_epoch: LeaderEpoch) -> bool:
        """Whether what ``leader`` says in that epoch is for this replica."""
        return self._following == leader_epoch and self.leader == leader and self.closed is None

    def _leave_role(self) -> None:
        """What waits for a commit by this leader may be kept by the next, or not."""
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
        """The leadership, or raise ``NotLeaderError`` that says who leads."""
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
        """Raise unless the epoch that a client knows is this replica's; -1 is any."""
        check_epoch(known_epoch, self.leader_epoch, self.topic_partition)

    def check_topic(self, topic_id: str) -> None:
        """Raise ``NotLeaderError`` for another topic that has, or had, the same name. "" is any."""
        if topic_id not in ("", self.topic_id):
            raise NotLeaderError(
                f"{self.topic_partition}: this broker stores topic id {self.topic_id}; the request "
                f"is for topic id {topic_id} with the same name. Refresh the metadata"
            )

    def check_readable(self, *, replica_ok: bool) -> None:
        """Raise unless consumers may read here: from the leader, or with ``replica_ok`` anywhere.

        What a replica that does not lead hands out is committed too, and may be less.
        """
        if not replica_ok:
            self.check_leading()
        else:
            self._check_open()

    # -- writing -----------------------------------------------------------------------------------

    def append(
        self, batch: Buffer, header: BatchHeader, *, to_be_committed: bool = True
    ) -> Appended:
        """Append a validated batch. How far it got: ``when_committed``, ``when_on_disk``.

        Raises ``NotLeaderError``, also when the log is damaged and there are others to lead, and
        ``NotEnoughReplicasError`` if it is ``to_be_committed``.
        """
        leadership = self.check_leading()
        if self._waits_for_disk and self._services.disk.is_hung:
            raise DiskHungError(
                f"{self.topic_partition}: the disk of broker {leadership.broker_id} has "
                f"completed no sync for {self._services.disk.timeout_s:g} s. Nothing was "
                "appended. Check the disk"
            )
        if to_be_committed and self.obstacle:
            raise NotEnoughReplicasError(f"{self.topic_partition}: {self.obstacle}")
        if to_be_committed and not leadership.has_quorum:
            raise self._too_few_in_sync(leadership)
        try:
            appended = self.log.append(
                batch, header, leader_epoch=self.leader_epoch, now_ms=self._services.clock.wall_ms()
            )
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise
        except DiskFullError:
            self.hindrance.refused()
            raise
        except DamagedLogError as error:
            if len(leadership.state.replicas) == 1:
                raise
            raise NotLeaderError(  # the producer is to ask again, and not to give up
                f"{self.topic_partition}: this broker is losing its leadership: {error}"
            ) from error
        if not appended.duplicate:
            if self.hindrance.is_short:
                self.hindrance.found()
            self._appended_bytes += len(batch)
            self._uncommitted.append((appended.last_offset + 1, self._appended_bytes))
            self._appended()
            for watcher in tuple(self._append_watchers):
                watcher.wake()
        return appended

    def _too_few_in_sync(self, leadership: Leadership) -> NotEnoughReplicasError:
        state = leadership.state
        return NotEnoughReplicasError(
            f"{self.topic_partition}: too few in-sync replicas: ISR {sorted(state.isr)}, "
            f"min.insync.replicas={state.min_isr}. Start the missing brokers or lower "
            "min.insync.replicas"
        )

    def append_copied(self, batches: Buffer) -> None:
        """Append what the leader sent, as it is. Raises what ``Log.append_replicated`` raises."""
        self._check_open()
        try:
            appended = self.log.append_replicated(batches)
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise
        except DiskFullError:
            self.hindrance.refused()
            self._commit.request()  # whole batches of a prefix may have found room
            raise
        if self.hindrance.is_short:
            self.hindrance.found()
        self._appended_bytes += len(batches)
        self._uncommitted.append((appended.next_offset, self._appended_bytes))
        self._appended()

    def cut(
        self,
        offset: Offset,
        done: Callable[[], None],
        *,
        restart: bool = False,
        copied_without: Offset = 0,
    ) -> None:
        """Truncate the log to ``offset``, as the leader's differs from there; then ``done``.

        With ``restart``, the log begins anew and empty there, to be a copy that may lack tombstones
        below ``copied_without``. Nothing happens if this replica has left the epoch in which it was
        told so (S05).
        """
        epoch = self._following

        def work() -> None:
            if self.closed is None and epoch is not None and self._following == epoch:
                is_cut = self._cut_now(offset, restart=restart)
                if is_cut and copied_without > offset:
                    self._changed_log(lambda: self.log.note_missing_tombstones(copied_without))
            done()

        self.compaction.when_over(lambda: self._commit.between_syncs(work))

    def _changed_log(self, change: Callable[[], None]) -> bool:
        """Whether the log could be changed as the leader requires. If not, the leader will require
        the same again."""
        try:
            change()
        except OSError as error:
            self._drops.disk_error(f"truncating {self.log.directory}", error)
        except StorageFailedError as error:
            self._services.on_failed(error)
        except (DamagedLogError, DiskFullError) as error:
            if isinstance(error, DiskFullError):
                self.hindrance.refused()
            logger.warning("truncation failed: partition=%s error=%s", self.topic_partition, error)
        else:
            return True
        return False

    def _cut_now(self, offset: Offset, *, restart: bool) -> bool:
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
        """The leader says that everything below ``offset`` is committed."""
        committed = min(offset, self.log.log_end_offset)
        if committed > self._high_watermark:
            self._high_watermark = committed
            self._on_high_watermark_advanced()

    def _appended(self) -> None:
        if self._waits_for_disk:
            self._commit.request()
            return
        # Committed at once; synced when a segment ends, and now and then.
        if self.log.segment_count != self._segment_count:
            self._segment_count = self.log.segment_count
            self._commit.request()
        self._progress()

    def when_committed(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` once everything below ``end_offset`` is committed, or never will be."""
        if end_offset <= self._high_watermark:
            done(None)
        else:
            self._waiting_for_commit.add(end_offset, done)

    def must_give_way(self) -> bool:
        """Whether its disk has kept this log from what its role asks for, for too long."""
        disk, leadership, is_held_up = self._services.disk, self.leadership, False
        if self._waits_for_disk:
            now = self._services.loop.time()
            is_behind = leadership is not None and leadership.trails_s(now) >= disk.timeout_s
            is_held_up = disk.is_hung or is_behind
        self.hindrance.hold_up(is_held_up)
        has_all = self.log.durable_end_offset == self.log.log_end_offset
        if leadership is None and has_all and not self.hindrance.is_short:
            return False  # a follower that lacks nothing is in nobody's way
        return self.hindrance.is_overdue(leads=leadership is not None)

    def disk_hangs(self) -> None:
        """The disk has begun to hang: nobody is to wait for it any longer."""
        if self._waits_for_disk:
            reason = CommitUnknownError(
                f"{self.topic_partition}: the disk of this broker has completed no sync for "
                f"{self._services.disk.timeout_s:g} s. The record may or may not be stored"
            )
            self._waiting_for_disk.refuse(reason)
            self._waiting_for_commit.refuse(reason)

    def _files_are_missing(self) -> None:
        """The log's: what is not committed yet may never be."""
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
        """Call ``done`` once this broker's own log has it as durably as its topic asks for."""
        if end_offset <= self.log.acknowledged_end_offset:
            done(None)
        else:
            self._waiting_for_disk.add(end_offset, done)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, bytes_max: int) -> list[bytes]:
        """Committed batches from ``start_offset`` on: the one place where the broker reads a log.

        It is a pread from the page cache, on the loop. Should cold reads have to leave the loop,
        this is where they leave it.
        """
        self._check_open()
        if start_offset < self.log.log_start_offset:
            self._check_start()
        return self.log.read(
            start_offset=start_offset, end_offset=self._high_watermark, bytes_max=bytes_max
        )

    def read_uncommitted(self, *, start_offset: Offset, bytes_max: int) -> list[bytes]:
        """Batches up to the log's end: for followers to copy."""
        self._check_open()
        return self.log.read(
            start_offset=start_offset, end_offset=self.log.log_end_offset, bytes_max=bytes_max
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first committed record at or after a time."""
        self._check_open()
        return self.log.offset_for_timestamp(timestamp_ms, end_offset=self._high_watermark)

    def watch(self, watcher: Watcher) -> None:
        """Wake ``watcher`` whenever the high watermark moves, and when the host closes."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def watch_appends(self, watcher: Watcher) -> None:
        """Wake ``watcher`` whenever something is appended here, and when the role changes."""
        self._append_watchers[watcher] = None

    def unwatch_appends(self, watcher: Watcher) -> None:
        self._append_watchers.pop(watcher, None)

    @property
    def tombstones_kept_from(self) -> Offset:
        """From there on compaction keeps tombstones: a follower that copies now needs them."""
        if self.leadership is None:
            return INT64_MAX
        return self.leadership.slowest_copy(self._services.loop.time())

    # -- keeping house -----------------------------------------------------------------------------

    @property
    def committed_start(self) -> Offset:
        """Where the log starts on this broker, which leads, and on all that may lead after it.

        Raises ``LeaderNotAvailableError`` while that is not so: another leader could start lower,
        and where a log starts, as clients are told it, must not go back.
        """
        self.check_leading()
        self._check_start()
        return self.log.log_start_offset

    def _check_start(self) -> None:
        leadership, start = self.leadership, self.log.log_start_offset
        if leadership is not None and leadership.committed_start < start:
            raise LeaderNotAvailableError(
                f"{self.topic_partition}: records before offset {start} are being deleted, and not "
                "all in-sync replicas have confirmed it"
            )

    def delete_records(self, before_offset: Offset, done: Acknowledge) -> None:
        """Delete the records below ``before_offset``; ``done`` once every member of the ISR has
        done so, durably: then no later leader has them.

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
                self._waiting_for_start.add(before_offset, done)
                self._waiting_for_start.reached(leadership.committed_start)

        self.advance_log_start(before_offset, deleted)

    def advance_log_start(self, before_offset: Offset, done: Acknowledge) -> None:
        """Drop what lies below ``before_offset``, as a user or the leader says."""
        self._drops.advance_log_start(before_offset, done)

    def apply_retention(self) -> None:
        """Drop what the topic's retention no longer keeps; start a segment if it is time.

        The leader decides what is dropped; its followers take over where its log starts.
        """

        def retire() -> None:
            if self.closed is not None:
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
        """The topic's settings have changed: what waits may have waited long enough."""
        if self.closed is None:
            self._commit.request()
            self._progress()

    def save_snapshot(self) -> None:
        """Save what makes the next start quick."""
        if self.closed is None:
            self._commit.request(snapshot=True)

    def close(self, reason: RaftlogError) -> None:
        """Refuse everything from now on, with ``reason``, and end every wait."""
        self.closed = self._drops.closed = self.compaction.closed = reason
        self._commit.stop()
        self._waiting_for_disk.refuse(reason)
        self._waiting_for_commit.refuse(reason)
        self._waiting_for_start.refuse(reason)
        for watcher in (*self._watchers, *self._append_watchers):
            watcher.wake()

    def when_quiet(self, done: Callable[[], None]) -> None:
        """Call ``done``, after ``close``, once no thread works on the log's files any more."""
        self.compaction.when_over(lambda: self._drops.when_quiet(done))

    # -- inside ------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed

    def _progress(self) -> None:
        """More of the log is durable: answer those who waited for it, in the order of the log."""
        log = self.log
        self._waiting_for_disk.reached(log.acknowledged_end_offset)
        leadership = self.leadership
        if leadership is None:
            if self.on_durable is not None and self._following is not None:
                self.on_durable(self)
            return
        leadership.on_local(log_end=log.log_end_offset, durable_end=log.acknowledged_end_offset)
        self._take_progress()

    def _started_higher(self) -> None:
        """The log's start has moved, durably. The leader has its followers follow; they say so."""
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
        """A follower's log ends at one offset and is durable up to another; this broker leads.

        ``log_start``: where it starts, durably.
        """
        leadership, log = self.leadership, self.log
        assert leadership is not None
        # A follower may be quicker than this broker's own disk, of which nothing was heard yet.
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
        self._take_progress()

    def _take_progress(self) -> None:
        """The leadership may have committed more, or a higher start: tell those who wait for it."""
        assert self.leadership is not None
        self._waiting_for_start.reached(self.leadership.committed_start)
        if self.leadership.high_watermark > self._high_watermark:
            self._high_watermark = self.leadership.high_watermark
            self._on_high_watermark_advanced()

    def _on_high_watermark_advanced(self) -> None:
        self.log.note_high_watermark(self._high_watermark)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= self._high_watermark:
            self.committed_bytes = uncommitted.popleft()[1]
        self._waiting_for_commit.reached(self._high_watermark)
        for watcher in tuple(self._watchers):
            watcher.wake()
