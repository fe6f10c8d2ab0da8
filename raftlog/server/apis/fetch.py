"""``fetch``: committed batches, at once or when there are enough of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from raftlog import limits
from raftlog.errors import CorruptBatchError, DamagedLogError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    AbortedTransaction,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.record import check, parse_header, split
from raftlog.record.batch import length_at
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Exchange, Reply, check_once
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Steps, in_steps
from raftlog.storage.producer_state import Aborted
from raftlog.types import COMMITTED, LeaderEpoch, Offset


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(FetchRequest, request.message)
    check_once("fetch", [(part.topic, part.partition) for part in message.partitions])
    return Read(context, message, reply, partial(_send, reply)).begin()


def _send(reply: Reply, found: list[PartRead]) -> Steps:
    batches = [batch for one in found for batch in one.batches]
    partitions = yield from in_steps(found, _answer)
    reply.send(FetchResponse(partitions=partitions), batches)


def _answer(one: PartRead) -> FetchedPartition:
    part = one.part
    if one.error is not None:
        failure = Failure.of(one.error)
        return FetchedPartition(topic=part.topic, partition=part.partition, failure=failure)
    return FetchedPartition(
        topic=part.topic,
        partition=part.partition,
        high_watermark=one.high_watermark,
        log_start_offset=one.log_start_offset,
        length=one.size,
        stable_offset=one.stable_offset,
        aborted=[
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in one.aborted
        ],
        tombstones_removed_below=one.removed_below,
    )


# -- read ------------------------------------------------------------------------------------------
#
# Fetch: committed batches, at once or when there are enough of them.
#
# A fetch reads only while its client reads responses and the broker has memory for them.
# ``ResponseBudget`` and ``Connection`` implement these waits. Failures are per partition, and end
# the wait. Partitions are processed in steps, as there can be thousands.


CHECKED_PER_STEP: Final = 16  # partitions


class Part(Protocol):
    """Position to fetch from. ``doubtful``: the client received corrupt bytes there.
    ``topic_id``: "" matches any topic of the name.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> Offset: ...
    @property
    def bytes_max(self) -> int: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def doubtful(self) -> bool: ...
    @property
    def topic_id(self) -> str: ...


class PartitionRead(Protocol):
    """A fetch. ``replica_ok``: any in-sync replica can respond, with committed records.
    ``isolation``: as in ``FetchRequest``.
    """

    @property
    def partitions(self) -> Sequence[Part]: ...
    @property
    def wait_ms_max(self) -> int: ...
    @property
    def bytes_min(self) -> int: ...
    @property
    def bytes_max(self) -> int: ...
    @property
    def replica_ok(self) -> bool: ...
    @property
    def isolation(self) -> str: ...


class PartRead(NamedTuple):
    """Batches of a partition, or why they cannot be read. ``size``: of the batches, in bytes.
    ``aborted``: the aborted transactions of the batches, for a reader of committed ones.
    ``removed_below``: ``CompactionState.tombstones_removed_below``, after the batches were read.
    """

    part: Part
    error: RaftlogError | None
    batches: list[bytes]
    size: int
    high_watermark: Offset
    log_start_offset: Offset
    stable_offset: Offset
    aborted: list[Aborted]
    removed_below: Offset


# Sends the response, in steps. Partitions without new records are omitted from the argument.
Send: TypeAlias = Callable[[list[PartRead]], Steps]


class Read:
    """One request until it is answered. The result of a read that was too small is discarded."""

    __slots__ = (
        "_answers",
        "_committed_bytes",
        "_context",
        "_deadline_seconds",
        "_failures",
        "_found_bytes",
        "_hosts",
        "_is_committed",
        "_is_unstable",
        "_parts",
        "_reply",
        "_request",
        "_send",
        "_unconfirmed",
    )

    def __init__(
        self, context: BrokerContext, request: PartitionRead, reply: Exchange, send: Send
    ) -> None:
        """``send``: sends what was read, in steps."""
        self._context = context
        self._request = request
        self._reply = reply
        self._send = send
        self._deadline_seconds = context.loop.time() + request.wait_ms_max / 1_000
        self._parts: list[Part] = []  # readable partitions, and their hosts
        self._hosts: list[Partition] = []
        self._failures: list[PartRead] = []
        # Size of the last read. Before the first read, the requested minimum, so that one is made.
        self._found_bytes = request.bytes_min
        self._committed_bytes = 0  # sum over all hosts, at the last read
        self._is_committed = request.isolation == COMMITTED
        # Whether a transaction was open at the last read: its end shows more than its own bytes.
        self._is_unstable = False
        self._unconfirmed = 0  # partitions that wait for the confirmation that this broker leads

    def begin(self) -> Steps:
        """Respond, or wait for data."""
        context, parts = self._context, self._request.partitions
        beyond: list[tuple[Part, Partition]] = []
        for number, part in enumerate(parts, start=1):
            try:
                host = context.topics.host(part.topic, part.partition)
                host.check_topic(part.topic_id)
                # guard: a consumer of another epoch
                host.check_epoch(part.leader_epoch)
                host.check_readable(replica_ok=self._may_be_any(host))
            except RaftlogError as error:
                self._failures.append(_failed(part, error))
            else:
                if self._is_beyond_the_end(part, host):
                    beyond.append((part, host))
                else:
                    self._add(part, host)
            if number % CHECKED_PER_STEP == 0:
                yield None
        self._unconfirmed = len(beyond)
        for part, host in beyond:
            context.cluster.confirm(host, partial(self._confirmed, part, host))
        if not beyond:
            yield from self._go_on(final=False)

    def _is_beyond_the_end(self, part: Part, host: Partition) -> bool:
        """Whether the client's offset is above this broker's end, and this broker cannot know that
        it is wrong.

        The client may have read up to there from a newer leader, or from this broker before its
        copy was corrupted. Only a confirmed leader may report an offset as out of range: a consumer
        that resets its position reads records again, or skips some.
        """
        # guard: an offset beyond a corrupt copy's end is not out of range
        may_lead = host.leadership is not None or not self._request.replica_ok
        # guard: an offset beyond a leader's end is out of range once it is known to lead
        return may_lead and part.offset > host.log.log_end_offset

    def _add(self, part: Part, host: Partition) -> None:
        self._parts.append(part)
        self._hosts.append(host)

    def _confirmed(self, part: Part, host: Partition, error: RaftlogError | None) -> None:
        """Process the confirmation that this broker leads a partition; ``error`` is the reason if
        it does not.
        """
        if error is None:
            self._add(part, host)
        else:
            self._failures.append(_failed(part, error))
        self._unconfirmed -= 1
        if not self._unconfirmed:
            self._context.loop.call_soon(self.resume)  # this call may be within a step of ``begin``

    def resume(self, *, final: bool = False) -> None:
        """Continue after a wait: for data, for the time limit, for buffer space, or for the
        client.
        """
        self._reply.go_on(self._go_on(final=final))

    def may_be_enough(self) -> bool:
        """Whether enough new data for a read may be there."""
        committed = sum(host.committed_bytes for host in self._hosts)
        closed = any(self._is_over(host) for host in self._hosts)
        new_bytes = committed - self._committed_bytes
        is_enough = self._found_bytes + new_bytes >= self._request.bytes_min
        return closed or is_enough or (self._is_unstable and new_bytes > 0)

    def _go_on(self, *, final: bool) -> Steps:
        """Respond if there is enough data, and in any case if ``final`` or after the time limit."""
        context = self._context
        # Again after a read that found too little: records may have arrived during its steps.
        while True:
            remaining_seconds = self._deadline_seconds - context.loop.time()
            final = final or remaining_seconds <= 0 or context.is_stopping
            if not (final or self.may_be_enough()):
                break
            connection, responses = self._reply.connection, context.responses
            if not connection.may_answer_at_length:
                connection.when_writable(self.resume)
                return
            if responses.full:
                responses.when_room(self.resume)
                return
            found = yield from self._read()
            failed = any(one.error is not None for one in found)
            if final or failed or self._found_bytes >= self._request.bytes_min:
                context.counters.fetched_bytes += self._found_bytes
                meter = self._reply.connection.meter
                if meter is not None:
                    meter.use("consumer_byte_rate", self._found_bytes)
                yield from self._send(found)
                return
        context.purgatory.park(
            self._reply.connection,
            self._hosts,
            self,
            timer_seconds=remaining_seconds,
            size_bytes=self._reply.size_bytes,
        )

    def _may_be_any(self, host: Partition) -> bool:
        """Whether the host may be read without being the leader. A corrupt one may, because it can
        be the only copy left: its valid batches are readable until another broker leads. The end
        offset of a log with a torn write is not returned to consumers: the next leader has more
        records.
        """
        log = host.log
        return self._request.replica_ok or bool(log.damage and not log.is_torn)

    def _is_over(self, host: Partition) -> bool:
        """Whether nothing further can be read here: the host is closed, or another broker leads."""
        return host.closed is not None or (host.leadership is None and not self._may_be_any(host))

    def _read(self) -> Generator[None, Any, list[PartRead]]:
        """Read committed batches within the limits: complete batches, at least one if there is any.

        The bytes count in the response budget from the read on.
        """
        found = list(self._failures)
        bytes_left = min(self._request.bytes_max, self._context.config.fetch_max_bytes)
        self._committed_bytes = sum(host.committed_bytes for host in self._hosts)
        self._found_bytes = aborted = 0
        self._is_unstable = False
        responses = self._context.responses
        try:
            for part, host in self._in_turn():
                if self._found_bytes and (bytes_left <= 0 or responses.full):
                    break
                one = self._read_one(part, host, bytes_left)
                if one is not None:
                    aborted += len(one.aborted)
                    if self._found_bytes and aborted > limits.ABORTED_PER_RESPONSE_MAX:
                        break  # the header of a response has a limit, too
                    found.append(one)
                    bytes_left -= one.size
                    self._found_bytes += one.size
                    responses.set(self, self._found_bytes)
                yield None
        finally:
            responses.set(self, 0)
        return found

    def _read_one(self, part: Part, host: Partition, bytes_left: int) -> PartRead | None:
        """Return what one partition adds to the response: a failure, batches, or nothing."""
        stable = host.last_stable_offset
        self._is_unstable |= self._is_committed and stable < host.high_watermark
        try:
            host.check_readable(replica_ok=self._may_be_any(host))
            # guard: readers of committed records end at the last stable offset
            end = stable if self._is_committed else host.high_watermark
            batches = self._read_batches(part, host, end, bytes_left)
        except RaftlogError as error:
            return _failed(part, error)
        size = sum(map(len, batches))
        if not batches or (size > bytes_left and self._found_bytes):
            return None  # only an empty response may exceed the limit, by one batch
        aborted: list[Aborted] = []
        if self._is_committed and part.offset <= host.last_aborted:
            aborted = host.aborted(part.offset, _end_of(batches))
        log = host.log
        return PartRead(
            part, None, batches, size, host.high_watermark, log.log_start_offset, stable, aborted,
            log.tombstones_removed_below,
        )  # fmt: skip

    def _read_batches(
        self, part: Part, host: Partition, end: Offset, bytes_left: int
    ) -> list[bytes]:
        """Read the batches of one partition below ``end``. They are verified only if the log is in
        doubt. Reading continues up to the corruption.
        """
        if part.offset == end and host.closed is None:
            return []
        if host.high_watermark >= part.offset > end:
            return []  # it has read uncommitted records before
        verifier, bytes_max = self._context.verifier, min(part.bytes_max, bytes_left)
        # guard: a consumer's report makes the broker verify its disk
        if part.doubtful:
            verifier.verify_suspect(host, part.offset, bytes_max=bytes_max)
        try:
            return self._batches_of(host, part, end, bytes_max)
        except DamagedLogError:
            if host.log.damage:
                raise
            verifier.verify_suspect(host, part.offset, bytes_max=bytes_max)
        return self._batches_of(host, part, end, bytes_max)

    def _batches_of(self, host: Partition, part: Part, end: Offset, bytes_max: int) -> list[bytes]:
        found = host.read(start_offset=part.offset, bytes_max=bytes_max, end_offset=end)
        if not self._request.isolation:
            found = _without_markers(found)
        return found

    def _in_turn(self) -> Iterator[tuple[Part, Partition]]:
        """Return the partitions, starting with a different one each time: with a limit, none is
        always last.
        """
        count = len(self._hosts)
        start = self._context.next_turn() % count if count else 0
        for index in (*range(start, count), *range(start)):
            yield self._parts[index], self._hosts[index]


def _failed(part: Part, error: RaftlogError) -> PartRead:
    return PartRead(part, error, [], 0, -1, -1, -1, [], 0)


def _end_of(chunks: list[bytes]) -> Offset:
    """Return the offset after the last of these batches."""
    last = chunks[-1]
    position = 0
    while position + (length := length_at(last, position)) < len(last):
        position += length
    return parse_header(last, position).next_offset


def _without_markers(chunks: list[bytes]) -> list[bytes]:
    """Return the batches without those that a client of an earlier release takes for records.

    Raises ``DamagedLogError`` for a batch that only seems to be one.
    """
    kept: list[bytes] = []
    for batch in chain.from_iterable(map(split, chunks)):
        if parse_header(batch).is_control:
            try:
                # guard: a broker drops no records as markers
                check(batch)
            except CorruptBatchError as error:
                raise DamagedLogError(f"a marker is corrupt: {error}") from error
        else:
            kept.append(bytes(batch))
    return kept
