"""``produce``: validate, append, and respond as ``acks`` requires.

Everything up to the append happens in the order of arrival, so that a producer's requests on one
connection reach a partition in the order in which they were sent: batch by batch, in steps. Large
batches are validated in a thread while the connection's later requests wait.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias, cast

from raftlog import limits
from raftlog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RaftlogError,
    ThrottledError,
    UnknownProducerError,
)
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTimes,
)
from raftlog.protocol.schema import Failure, slices
from raftlog.record import KAFKA_ROWS, BatchHeader, layout_at, uncompressed_length_at, validate
from raftlog.security.acl import Principal
from raftlog.security.producer_ids import owned_id
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes, Reply, check_once
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge, Steps
from raftlog.storage import Appended
from raftlog.transactions import TransactionPart
from raftlog.types import (
    AUDIT_TOPIC,
    NO_BASE_OFFSET,
    NO_TIMESTAMP,
    Buffer,
    Offset,
    TimestampMs,
    check_not_internal,
)


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(ProduceRequest, request.message)
    parts = message.partitions
    check_once("produce", [(part.topic, part.partition) for part in parts])
    batches = slices(request.attachment, [part.length for part in parts])
    sizes = [uncompressed_length_at(batch) for batch in batches]
    if sum(sizes) > limits.PRODUCE_UNCOMPRESSED_BYTES_MAX:
        raise InvalidRequestError(
            f"the batches of one produce request have {sum(sizes)} bytes uncompressed, over "
            f"PRODUCE_UNCOMPRESSED_BYTES_MAX ({limits.PRODUCE_UNCOMPRESSED_BYTES_MAX}). Nothing "
            "was stored. Send fewer batches per request"
        )
    now = context.clock.monotonic if message.traced else None
    produce = _Produce(reply, message.acks, len(batches), now)
    for index, part in enumerate(parts):
        if index:
            yield None
        yield from produce.append(context, message, index, part, batches[index], sizes[index])


class _Times:
    """Progress of one batch of a traced request, in monotonic seconds."""

    __slots__ = ("_appended", "_began", "_host", "_now", "_synced")

    def __init__(self, began: float, now: Callable[[], float]) -> None:
        self._began = began
        self._now = now
        self._host: Partition | None = None
        self._appended: float | None = None
        self._synced: float | None = None

    def follow(self, host: Partition, end_offset: Offset) -> None:
        """Note the time now, as that of the append, and the time at which the batch is on disk."""
        self._host, self._appended = host, self._now()
        host.when_on_disk(end_offset, self._on_disk)

    def _on_disk(self, _error: RaftlogError | None) -> None:
        self._synced = self._now()

    def ended(self, *, of_all: bool) -> ProduceTimes:
        """Return the times of a batch that is acknowledged now. It may be so at once.

        ``of_all``: by all in-sync replicas.
        """
        done = self._now()
        leadership = self._host.leadership if self._host is not None and of_all else None
        return ProduceTimes(
            appended=self._micros(done if self._appended is None else self._appended),
            synced=self._micros(done if self._synced is None else self._synced),
            done=self._micros(done),
            last=None if leadership is None else leadership.advanced_by,
        )

    def _micros(self, seconds: float) -> int:
        return max(round((seconds - self._began) * 1e6), 0)


class _Produce:
    """One request. Its response is sent when every partition has a result."""

    __slots__ = ("_acks", "_now", "_outcomes", "_reply")

    def __init__(
        self, reply: Reply, acks: int, count: int, now: Callable[[], float] | None
    ) -> None:
        """``now``: monotonic seconds, of a traced request; else None."""
        self._reply = reply
        self._acks = acks
        self._now = now
        self._outcomes: Outcomes[ProducedPartition] = Outcomes(count, self._complete)

    def append(
        self,
        context: BrokerContext,
        message: ProduceRequest,
        index: int,
        part: ProducePartition,
        batch: Buffer,
        uncompressed_bytes: int,
    ) -> Steps:
        try:
            if self._reply.connection.peer_identity is None or part.topic != AUDIT_TOPIC:
                # guard: clients do not write to internal topics
                check_not_internal(part.topic)
            host = context.topics.host(part.topic, part.partition)
            # guard: a producer of another epoch
            host.check_epoch(part.leader_epoch)
            _check_layout(batch)
            config, oldest_ms = host.log.config, 0
            if part.base_offset == NO_BASE_OFFSET:  # else the source of the mirror has checked it
                oldest_ms = config.oldest_ms(context.clock.wall_ms())
            # guard: a compacted topic accepts only records with keys
            check = partial(validate, batch, keys_required=config.is_compacted, oldest_ms=oldest_ms)
            is_large = uncompressed_bytes > limits.VALIDATED_ON_LOOP_BYTES_MAX
            header: BatchHeader = (yield check) if is_large else check()
            config = host.log.config
            if config.has_schema and part.base_offset == NO_BASE_OFFSET:  # not of a mirror
                yield partial(context.registry.checks.check, part.topic, config, batch)
            times = None if self._now is None else _Times(self._reply.began, self._now)
            done = partial(self._done, index, part, times)
            if header.is_transactional and part.base_offset == NO_BASE_OFFSET:
                append_in_transaction(
                    context,
                    host,
                    bytes(batch),  # it may wait
                    header,
                    self._acks,
                    done,
                    transactional_id=message.transactional_id,
                    adds=True,
                )
                return
            end = append(host, batch, header, self._acks, done, at_offset=part.base_offset)
            if times is not None:
                times.follow(host, end)
        except UnknownProducerError as error:
            # The client may know another topic of this name, which was deleted.
            self._resolve(index, self._failed(part, error, host.topic_id))
        except RaftlogError as error:
            self._resolve(index, self._failed(part, error))

    def _done(
        self,
        index: int,
        part: ProducePartition,
        times: _Times | None,
        stored: Stored | RaftlogError,
    ) -> None:
        """Process an acknowledged batch, or the reason why it is not acknowledged."""
        if isinstance(stored, RaftlogError):
            self._resolve(index, self._failed(part, stored))
            return
        self._resolve(
            index,
            ProducedPartition(
                topic=part.topic,
                partition=part.partition,
                base_offset=stored.base_offset,
                append_timestamp_ms=stored.append_timestamp_ms,
                log_start_offset=stored.log_start_offset,
                times=None if times is None else times.ended(of_all=self._acks == ACKS_ALL),
            ),
        )

    def _failed(
        self, part: ProducePartition, error: RaftlogError, topic_id: str = ""
    ) -> ProducedPartition:
        what = f"produce to {part.topic}:{part.partition}"
        self._reply.connection.note_refusal(what, error, self._reply.request_id)
        self._reply.connection.services.counters.request_failed(error)
        failure = Failure.of(error)
        return ProducedPartition(
            topic=part.topic, partition=part.partition, failure=failure, topic_id=topic_id
        )

    def _resolve(self, index: int, answer: ProducedPartition) -> None:
        self._outcomes.resolve(index, answer)

    def _complete(self, answers: list[ProducedPartition]) -> None:
        if self._acks:
            self._reply.send(ProduceResponse(partitions=answers))
            return
        failures = [answer.failure for answer in answers if answer.failure is not None]
        if failures:
            self._reply.drop(failures[0].to_error())
        else:
            self._reply.none()


def _check_layout(batch: Buffer) -> None:
    """Reject rows before they are validated, which takes a step of Python for each record."""
    # guard: rows do not come by raftlog's own produce
    if layout_at(batch) == KAFKA_ROWS:
        raise InvalidRequestError(
            f"the batch has layout {KAFKA_ROWS}, of Kafka's clients. Send it by Kafka's protocol"
        )


# -- init producer id ------------------------------------------------------------------------------
#
# ``init_producer_id``: a producer id that is unique and cannot be guessed.


def handle_init_producer_id(context: BrokerContext, request: Request, reply: Reply) -> None:  # noqa: ARG001
    producer_id = draw(context.entropy, context.owner(reply.connection))
    reply.send(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))


# -- append ----------------------------------------------------------------------------------------
#
# Append of a validated batch, and its acknowledgement as ``acks`` requires.


ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0


class Stored(NamedTuple):
    """An acknowledged batch. ``append_timestamp_ms``: ``NO_TIMESTAMP`` unless the topic stamps
    records with the leader's time.
    """

    base_offset: Offset
    append_timestamp_ms: TimestampMs
    log_start_offset: Offset


# Called with the batch, or with the reason why it is not acknowledged.
OnStored: TypeAlias = Callable[[Stored | RaftlogError], None]


def append(
    host: Partition,
    batch: Buffer,
    header: BatchHeader,
    acks: int,
    done: OnStored,
    *,
    at_offset: Offset = NO_BASE_OFFSET,
) -> Offset:
    """Append a batch of a producer, and call ``done`` once it is as durable as ``acks`` requires.
    Returns the offset after its last record.

    ``at_offset``: as in ``Log.append``. Raises the errors of ``Partition.append``; ``done`` is
    then not called.
    """
    _check_producible(header, at_offset)
    appended = host.append(batch, header, to_be_committed=acks == ACKS_ALL, at_offset=at_offset)
    acknowledge = partial(_acknowledge, host, appended, done)
    end_offset = appended.last_offset + 1
    if acks == ACKS_ALL:
        # guard: acks=all waits for the commit
        host.when_committed(end_offset, acknowledge)
    elif acks == ACKS_LEADER:
        # guard: acks=1 waits for the disk
        host.when_on_disk(end_offset, acknowledge)
    else:
        acknowledge(None)
    return end_offset


def _acknowledge(
    host: Partition, appended: Appended, done: OnStored, error: RaftlogError | None
) -> None:
    """Call ``done``: the batch is durable; ``error`` is the reason if it will not be."""
    if error is not None:
        done(error)
        return
    log = host.log
    stamped = log.config.message_timestamp_type == "LogAppendTime"
    timestamp_ms = appended.append_timestamp_ms if stamped else NO_TIMESTAMP
    done(Stored(appended.base_offset, timestamp_ms, log.log_start_offset))


def _check_producible(header: BatchHeader, at_offset: Offset) -> None:
    """Reject batches that are valid, and that a producer must not send."""
    if header.is_control and at_offset == NO_BASE_OFFSET:
        raise CorruptBatchError(
            "a control batch, which the leader writes. Only a mirror may send one, with its offset"
        )
    # guard: only a mirror sends batches with gaps
    if not header.is_dense and at_offset == NO_BASE_OFFSET:
        raise CorruptBatchError(
            f"a batch of {header.record_count} records spans {header.last_offset_delta + 1} "
            "offsets. Only a mirror, which requests the base offset, may send a batch with gaps"
        )


# -- transactions ----------------------------------------------------------------------------------
#
# A leader appends the first batch of a transaction to its partition once the coordinator confirms
# that the partition is in the transaction, durably (KIP-890). So a marker is written wherever a
# transaction has records, and no late batch begins a transaction that no marker ends.


# Seconds to wait for the marker of the producer's last transaction, and then for its completion.
MARKER_SECONDS: Final = 0.1
COMPLETION_SECONDS: Final = 5.0


class Verification:
    """Batches of a producer in one partition that wait until its coordinator has confirmed that the
    partition is in the transaction. A marker of the transaction ends it: a confirmation that comes
    later has no effect.
    """

    __slots__ = (
        "_ask",
        "_host",
        "_timer",
        "_waiting",
        "is_over",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        host: Partition,
        header: BatchHeader,
        ask: Callable[[Verification], None],
        loop: AbstractEventLoop,
    ) -> None:
        """``ask``: requests the confirmation. If the last transaction of the producer is open here,
        its marker is waited for: this partition may be reserved for the next one.
        """
        self.producer_id, self.producer_epoch = header.producer_id, header.producer_epoch
        self.is_over = False
        self._ask = ask
        self._host = host
        self._waiting: list[Acknowledge] = []
        self._timer: TimerHandle | None = None
        host.verifications[header.producer_id] = self
        if header.producer_id in host.log.producers.transactions:
            self._timer = loop.call_later(MARKER_SECONDS, self._request)

    def last_has_ended(self, *, is_reserved: bool) -> None:
        """Note that the marker of the producer's last transaction is in the log."""
        if is_reserved:
            self.end(None)
        elif self._timer is not None:
            self._request()

    def begin(self) -> None:
        """Request the confirmation, unless it waits for a marker."""
        if self._timer is None:
            self._ask(self)

    def _request(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        self._ask(self)

    def add(self, go_on: Acknowledge) -> None:
        """Call ``go_on`` at the end, in the order of the calls. Raises ``ThrottledError``."""
        if len(self._waiting) >= limits.UNVERIFIED_BATCHES_MAX:
            raise ThrottledError(
                f"{len(self._waiting)} batches of producer {self.producer_id} wait for its "
                "coordinator, and UNVERIFIED_BATCHES_MAX is reached. Try again later"
            )
        self._waiting.append(go_on)

    def end(self, error: RaftlogError | None) -> None:
        """Append the batches that wait, or refuse them with ``error``."""
        if self.is_over:
            return
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        del self._host.verifications[self.producer_id]
        for go_on in self._waiting:
            go_on(error)


def append_in_transaction(
    context: BrokerContext,
    host: Partition,
    batch: Buffer,
    header: BatchHeader,
    acks: int,
    done: OnStored,
    *,
    transactional_id: str,
    adds: bool,
) -> None:
    """Append a batch of a transaction, as ``append`` does, once it is known to belong to one.

    ``adds``: whether the coordinator adds the partition to the transaction, if it is not in it.
    """
    _check_producible(header, NO_BASE_OFFSET)
    if not transactional_id or not header.has_producer:
        raise InvalidTransactionStateError(
            "a transactional batch without a transactional id, or without a producer id"
        )
    host.check_leading()
    release_marker = host.held_markers.get(header.producer_id)
    if release_marker is not None:
        release_marker()
    verification = host.verifications.get(header.producer_id)
    if verification is not None and verification.producer_epoch != header.producer_epoch:
        error = ProducerFencedError(
            f"producer {header.producer_id} has sent batches of epochs "
            f"{verification.producer_epoch} and {header.producer_epoch}. Stop the older instance"
        )
        if header.producer_epoch < verification.producer_epoch:
            raise error
        verification.end(error)
        verification = None
    # guard: a leader verifies the first batch of a transaction
    if verification is None and _is_verified(host, header):
        append(host, batch, header, acks, done)
        return

    def go_on(error: RaftlogError | None) -> None:
        if error is None:
            try:
                append(host, batch, header, acks, done)
            except RaftlogError as refusal:
                error = refusal
        if error is not None:
            done(error)

    def ask(verification: Verification) -> None:
        at = host.topic_partition
        context.transactions.verify(
            transactional_id,
            verification.producer_id,
            verification.producer_epoch,
            [TransactionPart(at.topic, host.topic_id, at.partition)],
            add=adds,
            done=verification.end,
            patience_s=COMPLETION_SECONDS,
        )

    if verification is not None:
        verification.add(go_on)
        return
    verification = Verification(host, header, ask, context.loop)
    verification.add(go_on)
    verification.begin()


def _is_verified(host: Partition, header: BatchHeader) -> bool:
    """Whether the coordinator need not be asked. Raises ``ProducerFencedError``, as
    ``ProducerTable.check`` does.
    """
    producers = host.log.producers
    try:
        is_known = producers.check(header) is not None  # a retry, of a transaction that may be over
    except OutOfOrderSequenceError:  # raised again by ``append``, unless the coordinator fences it
        is_known = False
    return (
        is_known
        or producers.has_open(header.producer_id, header.producer_epoch)
        or host.reserved.get(header.producer_id) == header.producer_epoch
    )


# -- producer ids ----------------------------------------------------------------------------------
#
# Producer ids: random, so that no client can guess the id of another producer.
#
# A batch with a producer's id and next sequence number counts as that producer's own: the broker
# would then treat the real batch as a retry, and acknowledge it without storing it. So an id must
# not follow from others that a client has seen.
#
# No broker remembers assigned ids, and brokers do not coordinate them. Two producers affect each
# other only if they have the same id and write to the same partition, which remembers at most
# 100,000 producers (``limits``): the probability that a new id is among them is 100,000 / 2^62, or
# 1 in 46 million million. For any two of 100,000 producers, it is 1 in 900 million.
#
# Ids are below 2^62. Ids of named producers start there (ADR 17). If clients authenticate, an id is
# bound to the principal of its client (``raftlog.security.producer_ids``).


# guard: producer ids differ from those of named producers
PRODUCER_ID_BITS: Final = 62


def draw(entropy: Callable[[int], bytes], principal: Principal | None = None) -> int:
    """Return a new producer id. ``entropy``: returns the requested number of unpredictable
    bytes. ``principal``: the owner, if clients authenticate.
    """
    # guard: producer ids cannot be guessed
    random = int.from_bytes(entropy(8)) >> (64 - PRODUCER_ID_BITS)
    return random if principal is None else owned_id(principal, random)
