"""Replication fetcher of a follower: copies partitions from each leader over its peer link.

One long poll per leader is always in flight. A request contains only the partitions whose position
changed since the last one; the leader keeps the rest (``protocol.replica_session``). Fetched
batches are appended at once, so that the next bytes are in flight while these are synced. The end
of the sync is reported by ``replica_progress``, and only that counts for a commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Final, cast

from raftlog import limits
from raftlog.errors import (
    ChainMismatchError,
    CorruptBatchError,
    DiskFullError,
    DiskHungError,
    RaftlogError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.peer import (
    DurablePosition,
    FollowerSession,
    PartitionKey,
    ReplicaFetched,
    ReplicaFetchResponse,
    ReplicaPosition,
    ReplicaProgressRequest,
)
from raftlog.protocol.schema import slices
from raftlog.record import parse_header
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.replication.leadership import (
    Diverged,
    copied_without,
    may_lose_committed,
    must_restart,
    truncation_point,
)
from raftlog.replication.placement import CopyThrottle
from raftlog.server.metrics import Counters
from raftlog.server.partition import Partition
from raftlog.server.peers import Answer, PeerLinks
from raftlog.storage import Log
from raftlog.types import Buffer, Offset

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 0.1  # back-off after a failure of one partition, or of a request
FULL_SECONDS: Final = 1.0  # back-off of a partition for which there is no disk space
# The second request replaces the first one: it carries an urgent position.
REQUESTS_IN_FLIGHT_MAX: Final = 2
# Longer than the wait time of the request: the leader has lost the request.
RESPONSE_SECONDS_MAX: Final = 5.0


def key_of(host: Partition) -> PartitionKey:
    return host.topic_id, host.topic_partition.partition


class _Copy:
    """One partition that is copied."""

    __slots__ = ("copied_below", "epoch", "host", "is_first", "is_paused")

    def __init__(self, host: Partition) -> None:
        self.host = host
        self.epoch = host.leader_epoch
        self.is_paused = False  # being truncated, or in back-off after a failure: not fetched
        self.is_first = True  # the leader has sent no records in this epoch
        # guard: what a copy lacks counts in one leader epoch
        self.copied_below: Offset = 0  # see ``leadership.must_restart``


class ReplicaFetcher:
    """Fetcher for one leader. ``add`` and ``remove`` may be called at any time."""

    def __init__(
        self,
        leader: int,
        *,
        loop: asyncio.AbstractEventLoop,
        links: PeerLinks,
        bytes_max: int,
        wait_ms_max: int,
        on_damage: Callable[[Partition, RaftlogError], None],
        counters: Counters,
        throttle: MoveThrottle,
    ) -> None:
        """``on_damage``: called when this replica's log does not fit the leader's log, or is
        corrupt.
        """
        self._leader = leader
        self._loop = loop
        self._links = links
        self._bytes_max = bytes_max
        self._wait_ms_max = wait_ms_max
        self._on_damage = on_damage
        self._counters = counters
        self._throttle = throttle
        self._copies: dict[PartitionKey, _Copy] = {}
        self._session = FollowerSession()
        self._round = 0  # highest round in the responses of this session
        # Partitions whose durable end offset must be reported.
        self._durable: dict[PartitionKey, None] = {}
        self._in_flight = 0
        self._scheduled = False
        self._paused_until = 0.0
        self._closed = False

    # -- copied partitions

    @property
    def is_idle(self) -> bool:
        return not self._copies

    def add(self, host: Partition) -> None:
        """Copy this partition, in its current leader epoch."""
        key = key_of(host)
        copy = self._copies[key] = _Copy(host)
        host.on_durable = self._on_durable
        self._report_position(key, copy)

    def remove(self, host: Partition) -> None:
        key = key_of(host)
        copy = self._copies.get(key)
        if copy is None or copy.host is not host:
            return
        del self._copies[key]
        self._throttle.forget(copy)
        self._durable.pop(key, None)
        self._session.forget(*key)
        self._schedule()

    def link_up(self) -> None:
        """Start a new session: the leader of a new connection has no session state."""
        # guard: a fetch session begins with all positions
        self._session = FollowerSession()
        self._round = 0
        self._in_flight = 0
        self._paused_until = 0.0
        for key, copy in self._copies.items():
            if not copy.is_paused:
                self._report_position(key, copy)
        self._schedule()

    def close(self) -> None:
        self._closed = True

    # -- asking

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Report durable end offsets, and fetch if the leader does not know the current
        positions.
        """
        self._scheduled = False
        if self._closed or not self._links.is_up(self._leader):
            return
        if self._durable:
            self._report_durable()
        if not self._copies and self._session.is_sent:
            return
        if self._paused_until > self._loop.time():
            return
        may_fetch = self._in_flight < REQUESTS_IN_FLIGHT_MAX and not self._session.is_sent
        if self._in_flight == 0 or may_fetch:
            self._fetch()

    def _report_position(self, key: PartitionKey, copy: _Copy) -> None:
        """Send the log end offset of this replica to the leader."""
        log = copy.host.log
        # guard: positions are reported for durable records
        self._session.set(
            ReplicaPosition(
                topic_id=key[0],
                partition=key[1],
                leader_epoch=copy.epoch,
                fetch_offset=log.log_end_offset,
                last_epoch=copy.host.last_epoch,
                durable_offset=log.acknowledged_end_offset,
                bytes_max=self._throttle.bytes_max(copy, copy.host, is_first=copy.is_first),
                high_watermark=copy.host.high_watermark,
                log_start=log.durable_start_offset,
            )
        )
        self._durable.pop(key, None)
        self._schedule()

    def _report_durable(self) -> None:
        """Report durable end offsets. Nothing repeats them: those that cannot be sent now stay
        queued.
        """
        while self._durable:
            keys = list(islice(self._durable, limits.PARTITIONS_PER_REQUEST_MAX))
            positions = [self._durable_position(key) for key in keys]
            progress = ReplicaProgressRequest(partitions=positions)
            if not self._links.notify(self._leader, apis.REPLICA_PROGRESS, progress):
                self._loop.call_later(BACKOFF_SECONDS, self._schedule)
                return
            for key in keys:
                del self._durable[key]

    def _durable_position(self, key: PartitionKey) -> DurablePosition:
        copy = self._copies[key]
        log = copy.host.log
        # guard: progress is reported for durable records
        return DurablePosition(
            topic_id=key[0],
            partition=key[1],
            leader_epoch=copy.epoch,
            durable_offset=log.acknowledged_end_offset,
            log_start=log.durable_start_offset,
        )

    def _fetch(self) -> None:
        session = self._session
        request = session.request(
            wait_ms_max=self._wait_ms_max, bytes_max=self._bytes_max, round_=self._round
        )
        try:
            future = self._links.request(self._leader, apis.REPLICA_FETCH, request)
        except RaftlogError as error:
            self._failed(error)
            return
        self._in_flight += 1
        seconds_max = self._wait_ms_max / 1_000 + RESPONSE_SECONDS_MAX
        timer = self._loop.call_later(seconds_max, self._time_out, session)

        def answered(done: asyncio.Future[Answer]) -> None:
            timer.cancel()
            self._on_response(session, done)

        future.add_done_callback(answered)

    def _time_out(self, session: FollowerSession) -> None:
        if session is self._session:
            logger.warning("replica fetch timed out: leader=%d", self._leader)
            self._restart(session)

    # -- answers

    def _on_response(self, session: FollowerSession, done: asyncio.Future[Answer]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        # guard: responses of another connection are discarded
        if session is not self._session or self._closed:
            return
        self._in_flight -= 1
        if error is not None:
            self._failed(error)
            return
        try:
            self._apply_all(done.result())
        except Exception as mistake:  # copying must continue after any error
            logger.exception(
                "replica fetch failed: leader=%d reason=internal_error. Report this error",
                self._leader,
            )
            self._failed(mistake)
            return
        self._run()

    def _apply_all(self, answer: Answer) -> None:
        response = cast(ReplicaFetchResponse, answer.message)
        began = self._counters.now()
        self._round = max(self._round, response.round)
        parts = response.partitions
        for part, data in zip(
            parts, slices(answer.attachment, [part.length for part in parts]), strict=True
        ):
            self._apply(part, data)
        if len(answer.attachment):
            self._counters.replicated_bytes += len(answer.attachment)
            self._counters.replica_append_seconds.observe(self._counters.now() - began)

    def _apply(self, part: ReplicaFetched, data: Buffer) -> None:
        key = part.topic_id, part.partition
        copy = self._copies.get(key)
        # guard: a partition that is being truncated rejects appends
        # guard: a response has the epoch that is followed
        if copy is None or copy.is_paused or part.leader_epoch != copy.epoch:
            return
        host = copy.host
        # guard: a follower accepts responses of its leader only
        if not host.follows(self._leader, copy.epoch):
            return
        if part.failure is not None:
            # The leader has another epoch: the broker that lags learns it from the partition's
            # group.
            self._pause(key, copy)
        elif part.diverged is not None:
            self._diverged(key, copy, Diverged(part.diverged.epoch, part.diverged.end_offset))
        elif part.restart_at is not None:
            if not self._may_truncate(key, copy, part.restart_at):
                return
            logger.warning(
                "log restarts empty: partition=%s leader=%d from_offset=%d "
                "reason=leader_log_starts_there",
                host.topic_partition,
                self._leader,
                part.restart_at,
            )
            self._truncate(key, copy, part.restart_at, restart=True)
        else:
            self._append(key, copy, part, data)

    def _diverged(self, key: PartitionKey, copy: _Copy, diverged: Diverged) -> None:
        host, log = copy.host, copy.host.log
        point = truncation_point(
            log.epochs,
            log_end=log.log_end_offset,
            log_start=log.log_start_offset,
            diverged=diverged,
        )
        if not self._may_truncate(key, copy, point):
            return
        logger.warning(
            "log diverges from the leader, truncating: partition=%s leader=%d end_offset=%d "
            "to_offset=%d high_watermark=%d",
            host.topic_partition,
            self._leader,
            log.log_end_offset,
            point,
            host.high_watermark,
        )
        self._truncate(key, copy, point)

    def _may_truncate(self, key: PartitionKey, copy: _Copy, offset: int) -> bool:
        """Whether the log may be truncated to ``offset``, or restarted there. If not, it is
        unchanged.

        Committed records are truncated only after an operator has accepted their loss. Otherwise it
        is the leader that has lost them: each position tells it the high watermark of this replica,
        and it replaces its copy.
        """
        host = copy.host
        # guard: a follower keeps what is committed
        if offset >= host.high_watermark or may_lose_committed(
            last_epoch=host.last_epoch, unclean_epoch=host.unclean_epoch
        ):
            return True
        if not host.divergence:
            host.divergence = (
                f"divergence below the high watermark: broker {self._leader} leads and lacks "
                f"committed records from offset {offset} to {host.high_watermark}, which this copy "
                "holds. This copy is kept"
            )
            logger.error(
                "truncation refused: partition=%s reason=%s", host.topic_partition, host.divergence
            )
        self._pause(key, copy)
        return False

    def _append(self, key: PartitionKey, copy: _Copy, part: ReplicaFetched, data: Buffer) -> None:
        host = copy.host
        if len(data):
            # guard: a copy that lacks removed tombstones restarts
            if must_restart(
                log_end=host.log.log_end_offset,
                copied_below=copy.copied_below,
                removed_below=part.tombstones_removed_below,
            ):
                self._begin_copy(key, copy, part)
                return
            was_short = host.disk_problem.is_short
            try:
                _append_batches(host, data)
            except ChainMismatchError as error:
                self._pause(key, copy)
                # guard: a hash-chain mismatch is corruption of the follower
                self._on_damage(host, error)
                return
            except CorruptBatchError as error:
                # The leader sent corrupt bytes. Fetching them again makes the leader verify its
                # disk.
                logger.error(
                    "fetched batch corrupt: partition=%s leader=%d reason=%s",
                    host.topic_partition,
                    self._leader,
                    error,
                )
                self._pause(key, copy)
                return
            except (DiskFullError, DiskHungError) as error:
                if not was_short:
                    logger.warning(
                        "copying paused: partition=%s error=%s", host.topic_partition, error
                    )
                self._pause(key, copy, FULL_SECONDS)
                return
            except RaftlogError as error:
                logger.warning(
                    "replica append failed: partition=%s error=%s", host.topic_partition, error
                )
                self._pause(key, copy)
                return
            copy.is_first = False
            # guard: copies that a move adds keep to the throttle
            if self._throttle.must_wait(host, part.high_watermark):
                self._wait_turn(key, copy, len(data))
            else:
                self._throttle.forget(copy)
                self._report_position(key, copy)
        host.advance_high_watermark(part.high_watermark)
        if part.log_start_offset > host.log.log_start_offset:
            # guard: a log starts at most where it is committed
            host.advance_log_start(
                min(part.log_start_offset, host.high_watermark), lambda _error: None
            )

    def _begin_copy(self, key: PartitionKey, copy: _Copy, part: ReplicaFetched) -> None:
        """Empty the log, and record what that of the leader lacks (``leadership.must_restart``)."""
        host, log = copy.host, copy.host.log
        start = log.log_end_offset
        if log.log_start_offset < log.log_end_offset:
            start = part.log_start_offset
            logger.warning(
                "copy restarts: partition=%s end_offset=%d leader=%d tombstones_removed_below=%d "
                "from_offset=%d. The leader has removed tombstones that this copy never received, "
                "so deleted records could remain in it. The in-sync replicas are complete",
                host.topic_partition,
                log.log_end_offset,
                self._leader,
                part.tombstones_removed_below,
                start,
            )
        lacks = copied_without(
            removed_below=part.tombstones_removed_below, clean_end=part.clean_end
        )
        self._truncate(key, copy, start, restart=True, lacks=lacks)

    def _truncate(
        self,
        key: PartitionKey,
        copy: _Copy,
        offset: Offset,
        *,
        restart: bool = False,
        lacks: Offset = 0,
    ) -> None:
        """``lacks``: a copy that starts there may lack tombstones below that offset."""
        log = copy.host.log
        before = log.log_start_offset, log.log_end_offset, log.tombstones_removed_below

        def done() -> None:
            now = log.log_start_offset, log.log_end_offset, log.tombstones_removed_below
            if lacks and log.log_start_offset == log.log_end_offset:
                # guard: a copy restarts once
                copy.copied_below = log.tombstones_removed_below
            if now == before:
                self._pause(key, copy)  # it failed: do not fetch the same again at once
            else:
                self._resume(key, copy)

        copy.is_paused = True
        copy.copied_below = 0
        self._session.forget(*key)
        copy.host.truncate(offset, done, restart=restart, copied_without=lacks)

    def _pause(self, key: PartitionKey, copy: _Copy, seconds: float = BACKOFF_SECONDS) -> None:
        """Pause one partition; the others continue."""
        copy.is_paused = True
        if self._copies.get(key) is copy:
            self._session.forget(*key)
        self._loop.call_later(seconds, self._resume, key, copy)

    def _wait_turn(self, key: PartitionKey, copy: _Copy, received: int) -> None:
        """Pause a copy that a move adds until the throttle lets it fetch the next chunk."""
        copy.is_paused = True
        self._session.forget(*key)
        self._throttle.wait(copy, received, lambda: self._resume(key, copy))

    def _resume(self, key: PartitionKey, copy: _Copy) -> None:
        copy.is_paused = False
        if self._copies.get(key) is copy and not self._closed:
            self._report_position(key, copy)

    def _on_durable(self, host: Partition) -> None:
        key = key_of(host)
        if key in self._copies:
            self._durable[key] = None
            self._schedule()

    def _failed(self, error: BaseException) -> None:
        """Restart the session after a back-off: the leader refused, or the link is down."""
        logger.debug("replica fetch failed: leader=%d error=%s", self._leader, error)
        self._paused_until = self._loop.time() + BACKOFF_SECONDS
        self._loop.call_later(BACKOFF_SECONDS, self._restart, self._session)

    def _restart(self, session: FollowerSession) -> None:
        if session is self._session and not self._closed:
            self.link_up()


def _append_batches(host: Partition, data: Buffer) -> None:
    """Append the batches that the leader sent. Raises the errors of ``append_copied``."""
    try:
        host.append_copied(data)
    except CorruptBatchError:
        fitted = _fitted(host.log, data)
        if fitted is None:
            raise
        host.append_copied(fitted)


def _fitted(log: Log, data: Buffer) -> bytes | None:
    """Remove records from the first batch that the log already has; None if that does not help."""
    end = log.log_end_offset
    try:
        first = parse_header(data)
        is_inside = first.base_offset < end < first.next_offset
        # guard: a batch of another epoch is not accepted in part
        # guard: only compacted batches are accepted in part
        if not is_inside or not first.is_compacted or first.leader_epoch != log.last_epoch:
            return None
        from raftlog.record.compaction import tail_of  # the first call imports numpy

        return tail_of(data[: first.length], end) + data[first.length :]
    except CorruptBatchError:
        return None


class ReplicaFetchers:
    """One fetcher per leader that this broker follows."""

    def __init__(self, make: Callable[[int], ReplicaFetcher]) -> None:
        self._make = make
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._by_host: dict[Partition, ReplicaFetcher] = {}

    def assign(self, host: Partition, leader: int | None) -> None:
        """Copy the partition of ``host`` from ``leader``; None: stop copying."""
        before = self._by_host.pop(host, None)
        if before is not None:
            before.remove(host)
        host.on_durable = None
        if leader is None:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = self._make(leader)
        self._by_host[host] = fetcher
        fetcher.add(host)

    def link_up(self, leader: int) -> None:
        fetcher = self._fetchers.get(leader)
        if fetcher is not None:
            fetcher.link_up()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()

    def __iter__(self) -> Iterator[ReplicaFetcher]:
        return iter(self._fetchers.values())


# -- move throttle ---------------------------------------------------------------------------------
#
# Throttle of moves on one broker: which of its copies are throttled, and the timer of their turns.
#
# ``replication.copy_throttle`` decides. The rate is in the cluster state (``SetMoveThrottle``).


class MoveThrottle:
    """One for all fetchers of a broker."""

    def __init__(
        self,
        broker_id: int,
        machine: ClusterMachine,
        loop: asyncio.AbstractEventLoop,
        *,
        chunk_bytes_max: int,
    ) -> None:
        self._broker_id = broker_id
        self._machine = machine
        self._loop = loop
        self._copies: CopyThrottle[Hashable] = CopyThrottle(
            lambda: machine.move_throttle, chunk_bytes_max=chunk_bytes_max
        )
        self._resume: dict[Hashable, Callable[[], None]] = {}  # by copy that waits
        self._timer: asyncio.TimerHandle | None = None

    def bytes_max(self, copy: Hashable, host: Partition, *, is_first: bool) -> int:
        """Return the maximum size of the next fetch of a copy, in bytes. ``is_first``: the leader
        has sent no records yet.
        """
        return self._copies.bytes_max(copy, is_first=is_first and self._is_added(host))

    def must_wait(self, host: Partition, high_watermark: int) -> bool:
        """Whether the copy must wait for its turn after a response with that high watermark: a move
        adds it, and it is not in sync.
        """
        # guard: a copy that reaches the high watermark is not throttled
        return host.log.log_end_offset < high_watermark and self._is_added(host)

    def wait(self, copy: Hashable, received: int, resume: Callable[[], None]) -> None:
        """Call ``resume`` when the copy may fetch the next chunk. ``received``: bytes of the last
        response.
        """
        self._resume[copy] = resume
        self._copies.wait(copy, received, self._loop.time())
        if self._timer is None:
            self._poll()

    def forget(self, copy: Hashable) -> None:
        """Stop throttling a copy: it has caught up, or is not copied any longer."""
        self._resume.pop(copy, None)
        self._copies.forget(copy, self._loop.time())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _is_added(self, host: Partition) -> bool:
        """Whether a move adds this broker to the replicas, and moves are throttled."""
        if not self._copies.is_on:
            return False
        held = self._machine.assignment(host.topic_id, host.topic_partition.partition)
        target = None if held is None else held.target
        return target is not None and self._broker_id not in target.origin

    def _poll(self) -> None:
        due, seconds = self._copies.due(self._loop.time())
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._poll)
        for copy in due:
            self._resume.pop(copy)()
