"""The one owner of a partition's log on this broker: appends, waits for durability, wakes readers.

Replication will stand between here and the log: a follower's progress moves the high watermark, an
election ends what waits. The seam is ``_committed_end`` and the two ``when_`` methods: nothing
outside this module knows what makes a record committed.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from raftlog.clock import Clock
from raftlog.disk import NO_ROOM
from raftlog.errors import DiskFullError, OffsetOutOfRangeError, RaftlogError, StorageFailedError
from raftlog.record import BatchHeader
from raftlog.server.flusher import GroupCommit
from raftlog.server.workers import Workers
from raftlog.storage import Appended, DropTicket, Log
from raftlog.types import Buffer, LeaderEpoch, Offset, OffsetAndTimestamp, TopicPartition

# Called once, with None, or with why it will never be.
Acknowledge: TypeAlias = Callable[[RaftlogError | None], None]


class Watcher(Protocol):
    """Who wants to know that there is more to read (a waiting fetch)."""

    def wake(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HostServices:
    """What a broker lends to all its hosts."""

    clock: Clock
    loop: AbstractEventLoop
    sync_workers: Workers
    on_failed: Callable[[StorageFailedError], None]


class PartitionHost:
    """Invariant: ``high_watermark`` never goes back, and no batch at or above it is handed out."""

    __slots__ = (
        "_appended_bytes",
        "_commit",
        "_drops_out",
        "_high_watermark",
        "_quiet",
        "_segment_count",
        "_services",
        "_uncommitted",
        "_waiting_for_commit",
        "_waiting_for_disk",
        "_watchers",
        "closed",
        "committed_bytes",
        "leader_epoch",
        "log",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, log: Log, services: HostServices) -> None:
        self.topic_partition = topic_partition
        self.log = log
        # A leader that starts again takes a new epoch (KAFKA-10527), stored with its first batch.
        self.leader_epoch: LeaderEpoch = log.leader_epoch + 1
        self.closed: RaftlogError | None = None  # why, once nothing may be appended or read here
        self.committed_bytes = 0  # ever, by this host: tells a waiting fetch how much is new
        self._appended_bytes = 0
        self._uncommitted: deque[tuple[Offset, int]] = deque()  # batch ends, and bytes up to them
        self._services = services
        self._high_watermark = log.acknowledged_end_offset
        self._waiting_for_commit: deque[tuple[Offset, Acknowledge]] = deque()
        self._waiting_for_disk: deque[tuple[Offset, Acknowledge]] = deque()
        self._watchers: dict[Watcher, None] = {}  # a set that keeps the order of arrival
        self._segment_count = log.segment_count
        self._drops_out = 0
        self._quiet: list[Callable[[], None]] = []
        self._commit = GroupCommit(
            log,
            services.loop,
            services.sync_workers,
            on_durable=self._progress,
            on_failed=services.on_failed,
        )

    @property
    def high_watermark(self) -> Offset:
        """The end of what is committed, and so of what a consumer may see."""
        return self._high_watermark

    # -- writing -----------------------------------------------------------------------------------

    def append(self, batch: Buffer, header: BatchHeader) -> Appended:
        """Append a validated batch. How far it got: ``when_committed``, ``when_on_disk``."""
        self._check_open()
        try:
            appended = self.log.append(
                batch, header, leader_epoch=self.leader_epoch, now_ms=self._services.clock.wall_ms()
            )
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise
        if not appended.duplicate:
            self._appended_bytes += len(batch)
            self._uncommitted.append((appended.last_offset + 1, self._appended_bytes))
            if self.log.config.flush_policy == "fsync":
                self._commit.request()
            else:
                self._appended_unsynced()
        return appended

    def _appended_unsynced(self) -> None:
        """``flush.policy=os``: committed at once; synced when a segment ends, and now and then."""
        if self.log.segment_count != self._segment_count:
            self._segment_count = self.log.segment_count
            self._commit.request()
        self._progress()

    def when_committed(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` once everything below ``end_offset`` is committed, or never will be."""
        if end_offset <= self._high_watermark:
            done(None)
        else:
            self._waiting_for_commit.append((end_offset, done))

    def when_on_disk(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` once this broker's own log has it as durably as its topic asks for."""
        if end_offset <= self.log.acknowledged_end_offset:
            done(None)
        else:
            self._waiting_for_disk.append((end_offset, done))

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, bytes_max: int) -> list[bytes]:
        """Committed batches from ``start_offset`` on: the one place where the broker reads a log.

        It is a pread from the page cache, on the loop. Should cold reads have to leave the loop,
        this is where they leave it.
        """
        self._check_open()
        return self.log.read(
            start_offset=start_offset, end_offset=self._high_watermark, bytes_max=bytes_max
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

    # -- keeping house -----------------------------------------------------------------------------

    def delete_records(self, before_offset: Offset, done: Acknowledge) -> None:
        """Delete the records below ``before_offset``; ``done`` once that is durable."""
        self._check_open()
        if before_offset > self._high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition} has committed records up to offset "
                f"{self._high_watermark}; those before {before_offset} cannot be deleted"
            )

        def drop() -> None:
            if self.closed is not None:
                done(self.closed)
                return
            offset = max(before_offset, self.log.log_start_offset)
            self._drop(lambda: self.log.advance_log_start(offset), done)

        self._commit.between_syncs(drop)

    def apply_retention(self) -> None:
        """Drop what the topic's retention no longer keeps; start a segment if it is time."""

        def retire() -> None:
            if self.closed is not None:
                return
            now_ms = self._services.clock.wall_ms()
            self._drop(
                lambda: self.log.apply_retention(
                    now_ms=now_ms, high_watermark=self._high_watermark
                ),
                _ignore,
            )
            try:
                rolled = self.log.roll_if_due(now_ms=now_ms)
            except DiskFullError:
                return  # a full disk is told to producers; rolling can wait
            except StorageFailedError as error:
                self._services.on_failed(error)
                return
            if rolled:
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
        self.closed = reason
        self._commit.stop()
        for waiting in (self._waiting_for_disk, self._waiting_for_commit):
            while waiting:
                waiting.popleft()[1](reason)
        self._wake_watchers()

    def when_quiet(self, done: Callable[[], None]) -> None:
        """Call ``done``, after ``close``, once no thread works on the log's files any more."""
        assert self.closed is not None
        self._quiet.append(done)
        self._commit.between_syncs(self._check_quiet)

    # -- inside ------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed

    def _committed_end(self) -> Offset:
        """The least durable end over the in-sync replicas: while there is one replica, its own."""
        return self.log.acknowledged_end_offset

    def _progress(self) -> None:
        """More of the log is durable: answer those who waited for it, in the order of the log."""
        _answer(self._waiting_for_disk, self.log.acknowledged_end_offset)
        committed = self._committed_end()
        if committed > self._high_watermark:
            self._high_watermark = committed
            self._on_high_watermark_advanced()

    def _on_high_watermark_advanced(self) -> None:
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= self._high_watermark:
            self.committed_bytes = uncommitted.popleft()[1]
        _answer(self._waiting_for_commit, self._high_watermark)
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.wake()

    def _drop(self, plan: Callable[[], DropTicket | None], done: Acknowledge) -> None:
        """Take a drop ticket from the log and have it run; the log's start moved already."""
        try:
            ticket = plan()
        except OSError as error:
            done(self._disk_error(error))
            return
        if ticket is None:
            done(None)
            return
        self._drops_out += 1

        def finished(_result: None, error: Exception | None) -> None:
            self._drops_out -= 1
            done(None if error is None else self._disk_error(error))
            self._commit.between_syncs(self._check_quiet)

        self._services.sync_workers.submit(ticket.run, finished)

    def _disk_error(self, error: Exception) -> RaftlogError:
        what = f"deleting old records in {self.log.directory} failed: {error}"
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return DiskFullError(what)
        failure = StorageFailedError(what)
        self._services.on_failed(failure)
        return failure

    def _check_quiet(self) -> None:
        if self.closed is not None and self._drops_out == 0:
            waiting, self._quiet = self._quiet, []
            for done in waiting:
                done()


def _answer(waiting: deque[tuple[Offset, Acknowledge]], reached: Offset) -> None:
    """A duplicate may wait behind newer batches; what stands before it ends no earlier than it."""
    while waiting and waiting[0][0] <= reached:
        waiting.popleft()[1](None)


def _ignore(_outcome: RaftlogError | None) -> None:
    """Retention is tried again at the next round; a failed disk was reported already."""
