"""Traces after OpenTelemetry: producers with spans, and the spans of consumed records.

``TracedProducer`` is a producer whose calls have a span each: from the call to the acknowledgement,
which with ``acks="all"`` follows the append, the replication and the commit. The context of the
span is in the header ``traceparent`` of the record (W3C Trace Context), and ``process`` continues
the trace where the record is consumed. Brokers store the header and do not read it; on request they
report the progress of each batch, from which the producer makes the spans of its way through the
leader. Names and attributes follow OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Self, TypeVar

from raftlog.client.aio.clients import AsyncProducer
from raftlog.client.delivery import DeliveryFuture, Journey, RangesFuture
from raftlog.client.producer import Producer
from raftlog.client.producer_core import ProducerCore, checked_headers
from raftlog.errors import RaftlogError
from raftlog.install import install_command
from raftlog.types import ConsumerRecord, Headers, OffsetRange, RecordMetadata

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise ImportError(f"traces require OpenTelemetry. Run {install_command('trace')}") from error

SYSTEM: Final = "raftlog"
_OFFSET: Final = "messaging.raftlog.offset"
_BROKER: Final = "messaging.raftlog.broker"
_FOLLOWER: Final = "messaging.raftlog.follower"  # the last one

F = TypeVar("F", DeliveryFuture, RangesFuture)


class TracedProducer(Producer):
    """Producer whose ``send`` and ``send_many`` have a span per call.

    Uses the global tracer provider of OpenTelemetry, and its propagators.
    """

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """``Producer.send``, in a span that ends with the acknowledgement."""
        with _SendSpan(topic, self._core) as span:
            return span.follow(
                super().send(topic, value, key, span.headers(headers), timestamp_ms, partition)
            )

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Any] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
        partition: int | None = None,
    ) -> RangesFuture:
        """``Producer.send_many``, in one span, whose context all records have."""
        with _SendSpan(topic, self._core, len(values)) as span:
            found = super().send_many(
                topic,
                values,
                keys,
                headers=span.headers_of_all(headers, len(values)),
                timestamps_ms=timestamps_ms,
                partition=partition,
            )
            return span.follow(found)


class TracedAsyncProducer(AsyncProducer):
    """Asynchronous producer whose ``send`` and ``send_many`` have a span per call.

    Uses the global tracer provider of OpenTelemetry, and its propagators.
    """

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """``AsyncProducer.send``, in a span that ends with the acknowledgement."""
        with _SendSpan(topic, self._core) as span:
            return span.follow(
                await super().send(
                    topic, value, key, span.headers(headers), timestamp_ms, partition
                )
            )

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Any] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
        partition: int | None = None,
    ) -> RangesFuture:
        """``AsyncProducer.send_many``, in one span, whose context all records have."""
        with _SendSpan(topic, self._core, len(values)) as span:
            found = await super().send_many(
                topic,
                values,
                keys,
                headers=span.headers_of_all(headers, len(values)),
                timestamps_ms=timestamps_ms,
                partition=partition,
            )
            return span.follow(found)


@contextmanager
def process(
    record: ConsumerRecord[Any, Any],
    *,
    group: str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Iterator[Span]:
    """Return a context manager: the span of the work on one consumed record.

    The span continues the trace of the record's producer, and is the current one in the block.
    ``group``: the consumer group, for the attributes. ``tracer_provider``: default: the global one.
    """
    attributes: dict[str, str | int] = {
        **_attributes(record.topic, "process"),
        "messaging.destination.partition.id": str(record.partition),
        _OFFSET: record.offset,
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    with trace.get_tracer(SYSTEM, tracer_provider=tracer_provider).start_as_current_span(
        f"process {record.topic}",
        context=context_of(record.headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
    ) as span:
        yield span


def context_of(headers: Headers | None) -> Context:
    """Return the context in the headers of a record, for spans and links; an empty one without."""
    return propagate.extract(headers or (), context=Context(), getter=_GETTER)


def _attributes(topic: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


class _HeaderSetter(Setter[list[tuple[str, bytes | None]]]):
    def set(self, carrier: list[tuple[str, bytes | None]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """Return the last value of a header, as text. Other bytes than text are no context."""
        for name, value in reversed(carrier):
            if name == key and value is not None:
                return [value.decode(errors="replace")]
        return None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_SETTER: Final = _HeaderSetter()
_GETTER: Final = _HeaderGetter()


class _SendSpan:
    """Span of one call. Leaving its block with an exception ends it; otherwise, the delivery."""

    def __init__(self, topic: str, core: ProducerCore, count: int | None = None) -> None:
        attributes: dict[str, str | int] = {
            **_attributes(topic, "send"),
            "messaging.client.id": core.cluster.settings.client_id,
        }
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        self._span = trace.get_tracer(SYSTEM).start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        self._context = trace.set_span_in_context(self._span)
        self._topic = topic
        self._began_at = core.monotonic()
        if self._span.is_recording():
            core.trace()

    def headers(self, headers: Any) -> Any:
        """Return the headers of a record, with the context."""
        own: list[tuple[str, bytes | None]] = []
        propagate.inject(own, context=self._context, setter=_SETTER)
        if not own:
            return headers
        names = {name for name, _ in own}
        kept = [pair for pair in checked_headers(headers) or () if pair[0] not in names]
        return [*kept, *own]

    def headers_of_all(self, headers: Sequence[Any] | None, count: int) -> Sequence[Any] | None:
        """Return the headers of many records, each with the context."""
        if headers is not None:
            return [self.headers(each) for each in headers]
        own = self.headers(None)
        return None if own is None else [own] * count

    def follow(self, future: F) -> F:
        """End the span when the outcome of the records is known."""
        future.observe(partial(self._delivered, future))
        return future

    def _delivered(self, future: F, value: Any, error: RaftlogError | None) -> None:
        span = self._span
        for journey in future.journeys:
            self._show(journey)
        if error is not None:
            self._failed(error)
        elif isinstance(value, RecordMetadata):
            span.set_attribute("messaging.destination.partition.id", str(value.partition))
            span.set_attribute(_OFFSET, value.offset)
        elif len(value) == 1:
            only: OffsetRange = value[0]
            span.set_attribute("messaging.destination.partition.id", str(only.partition))
            span.set_attribute(_OFFSET, only.first)
        span.end()

    def _show(self, journey: Journey) -> None:
        """Add the spans of a batch that is acknowledged now: its wait in the producer, its request,
        and its progress on the leader.
        """
        began_ns = getattr(self._span, "start_time", None)  # of the SDK
        if not (self._span.is_recording() and began_ns):
            return
        tracer, topic = trace.get_tracer(SYSTEM), self._topic

        def add(
            name: str,
            kind: SpanKind,
            start: float,
            end: float,
            context: Context,
            follower: int | None = None,
        ) -> Context:
            """Add a span from ``start`` to ``end``, in monotonic seconds; return its context."""
            start_ns, end_ns = (
                began_ns + round((at - self._began_at) * 1e9) for at in (start, end)
            )
            attributes = {_BROKER: journey.broker}
            if follower is not None:
                attributes[_FOLLOWER] = follower
            span = tracer.start_span(
                f"{name} {topic}", context, kind, attributes, start_time=start_ns
            )
            span.end(end_ns)
            return trace.set_span_in_context(span, context)

        sent, answered = journey.sent_at, journey.answered_at
        add("wait", SpanKind.INTERNAL, min(self._began_at, sent), sent, self._context)
        request = add("produce", SpanKind.CLIENT, sent, answered, self._context)
        # The clocks of brokers may differ: both ways of the request are taken to be equally long.
        began = sent + max(answered - sent - journey.done_s, 0.0) / 2
        appended, synced, done = (
            began + seconds for seconds in (journey.appended_s, journey.synced_s, journey.done_s)
        )
        broker = add("broker", SpanKind.SERVER, began, done, request)
        add("append", SpanKind.INTERNAL, began, appended, broker)
        add("sync", SpanKind.INTERNAL, appended, synced, broker)
        if done > synced:
            last = None if journey.last == journey.broker else journey.last
            add("replicate", SpanKind.INTERNAL, synced, done, broker, last)

    def _failed(self, error: BaseException) -> None:
        self._span.set_attribute("error.type", type(error).__name__)
        self._span.set_status(Status(StatusCode.ERROR, str(error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._failed(error)
            self._span.end()
