"""``produce``: validate, append, and respond as ``acks`` requires.

Everything up to the append happens in the order of arrival, so that a producer's requests on one
connection reach a partition in the order in which they were sent: batch by batch, in steps. Large
batches are validated in a thread while the connection's later requests wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError, UnknownProducerError
from raftlog.protocol.attachments import slices
from raftlog.protocol.connection import Request
from raftlog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTimes,
)
from raftlog.protocol.schema import Failure
from raftlog.record import KAFKA_ROWS, BatchHeader, layout_at, uncompressed_length_at, validate
from raftlog.server.context import BrokerContext
from raftlog.server.once import check_once
from raftlog.server.partition import Partition
from raftlog.server.reply import Reply
from raftlog.server.requests.append import ACKS_ALL, Stored, append
from raftlog.server.requests.outcomes import Outcomes
from raftlog.server.turns import Steps
from raftlog.types import AUDIT_TOPIC, Buffer, Offset, check_not_internal


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
        yield from produce.append(context, index, part, batches[index], sizes[index])


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
        index: int,
        part: ProducePartition,
        batch: Buffer,
        uncompressed_bytes: int,
    ) -> Steps:
        try:
            if self._reply.connection.peer_identity is None or part.topic != AUDIT_TOPIC:
                check_not_internal(part.topic)
            host = context.topics.host(part.topic, part.partition)
            host.check_epoch(part.leader_epoch)
            _check_layout(batch)
            check = partial(validate, batch, keys_required=host.log.config.is_compacted)
            is_large = uncompressed_bytes > limits.VALIDATED_ON_LOOP_BYTES_MAX
            header: BatchHeader = (yield check) if is_large else check()
            times = None if self._now is None else _Times(self._reply.began, self._now)
            done = partial(self._done, index, part, times)
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
    if layout_at(batch) == KAFKA_ROWS:
        raise InvalidRequestError(
            f"the batch has layout {KAFKA_ROWS}, of Kafka's clients. Send it by Kafka's protocol"
        )
