"""Traces: spans from the producer to the consumer, through the headers of records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from raftlog.client.aio.clients import AsyncConsumer
from raftlog.client.base import ClientEnvironment
from raftlog.client.tracing import TracedAsyncProducer, TracedProducer, context_of, process
from raftlog.errors import ClosedError
from raftlog.protocol import api as apis
from raftlog.protocol.records import ProduceRequest
from raftlog.types import TopicPartition
from tests.client.world import FakeCluster, ignore, run
from tests.running import runs

EXPORTER = InMemorySpanExporter()
TIMEOUT_S = 20
UNSAMPLED = trace.NonRecordingSpan(
    trace.SpanContext(1, 1, is_remote=True, trace_flags=trace.TraceFlags(0))
)
WAY = ("wait", "produce", "broker", "append", "sync", "replicate")


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """OpenTelemetry accepts one global provider per process."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(made)


@pytest.fixture(autouse=True)
def exporter() -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    return EXPORTER


def all_spans() -> list[ReadableSpan]:
    found = list(EXPORTER.get_finished_spans())
    EXPORTER.clear()
    return found


def spans() -> list[ReadableSpan]:
    """All spans except those of the way of a batch."""
    way = {f"{name} t" for name in WAY}
    return [span for span in all_spans() if span.name not in way]


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {
        name.removeprefix("messaging."): value
        for name, value in (span.attributes or {}).items()
        if name != "messaging.system"
    }


@runs(run)
async def test_a_trace_continues_where_the_record_is_consumed(fake: FakeCluster) -> None:
    fake.create("t")
    tracer = trace.get_tracer("test")
    async with TracedAsyncProducer(fake.bootstrap, host=fake.host, client_id="app") as producer:
        with tracer.start_as_current_span("request") as outer:
            await (await producer.send("t", b"v", headers=[("h", b"x"), ("traceparent", b"old")]))
    sent, request = spans()
    assert (sent.name, sent.kind, request.name) == ("send t", SpanKind.PRODUCER, "request")
    assert sent.parent is not None
    assert sent.parent.span_id == outer.get_span_context().span_id
    assert attributes(sent) == {
        "operation.name": "send",
        "operation.type": "send",
        "destination.name": "t",
        "client.id": "app",
        "destination.partition.id": "0",
        "raftlog.offset": 0,
    }
    async with AsyncConsumer(fake.bootstrap, host=fake.host) as consumer:
        await consumer.assign([TopicPartition("t", 0)])
        await consumer.seek_to_beginning()
        (record,) = await consumer.poll(timeout_ms=1_000)
    assert record.headers is not None
    assert [name for name, _ in record.headers] == ["h", "traceparent"]
    with (
        pytest.raises(ValueError, match="not a number"),
        process(record, group="g"),
        tracer.start_as_current_span("work"),
    ):
        raise ValueError("not a number")
    work, processed = spans()
    context = sent.get_span_context()
    assert context is not None
    assert processed.parent is not None
    assert (processed.parent.trace_id, processed.parent.span_id) == (
        context.trace_id,
        context.span_id,
    )
    assert work.parent == processed.get_span_context()
    assert (processed.kind, processed.status.status_code) == (SpanKind.CONSUMER, StatusCode.ERROR)
    assert attributes(processed) == {
        "operation.name": "process",
        "operation.type": "process",
        "destination.name": "t",
        "destination.partition.id": "0",
        "raftlog.offset": 0,
        "consumer.group.name": "g",
    }


@runs(run)
async def test_the_way_of_a_batch_has_spans(fake: FakeCluster) -> None:
    fake.create("t")
    async with TracedAsyncProducer(fake.bootstrap, host=fake.host) as producer:
        await (await producer.send("t", b"v"))
    found = {span.name.removesuffix(" t"): span for span in all_spans()}
    assert set(found) == {"send", *WAY}
    parents = {name: found[name].parent for name in WAY}
    contexts = {name: span.get_span_context() for name, span in found.items()}
    assert parents["wait"] == parents["produce"] == contexts["send"]
    assert parents["broker"] == contexts["produce"]
    assert [parents[name] for name in WAY[3:]] == [contexts["broker"]] * 3
    assert {(found[name].attributes or {})["messaging.raftlog.broker"] for name in WAY} == {1}
    followers = [(found[name].attributes or {}).get("messaging.raftlog.follower") for name in WAY]
    assert followers == [None] * 5 + [2], "that of the slowest copy"
    assert [found[name].kind for name in WAY] == [
        *(SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.SERVER),
        *[SpanKind.INTERNAL] * 3,
    ]
    assert [took_us(found[name]) for name in WAY[3:]] == [100, 200, 400]
    assert took_us(found["broker"]) == 700
    sent = found["send"]
    for span in found.values():
        assert (sent.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0)


@runs(run)
async def test_a_way_without_replication_and_of_an_older_broker(fake: FakeCluster) -> None:
    fake.create("t")
    fake.times = (100, 300, 300)
    async with TracedAsyncProducer(fake.bootstrap, host=fake.host) as producer:
        await (await producer.send_many("t", [b"1", b"2"]))
        assert [span.name for span in all_spans()][-2:] == ["sync t", "send t"]
        fake.times = None
        await (await producer.send("t", b"v"))
    assert [span.name for span in all_spans()] == ["send t"]


@runs(run)
async def test_brokers_report_times_from_the_first_sampled_call_on(fake: FakeCluster) -> None:
    fake.create("t")

    def traced() -> list[bool]:
        found = [m.traced for _, m in fake.requests if isinstance(m, ProduceRequest)]
        fake.requests.clear()
        return found

    async with TracedAsyncProducer(fake.bootstrap, host=fake.host) as producer:
        with trace.use_span(UNSAMPLED):
            await (await producer.send("t", b"v"))
        assert traced() == [False]
        await (await producer.send("t", b"v"))
        assert traced() == [True]


def took_us(span: ReadableSpan) -> float:
    return round(((span.end_time or 0) - (span.start_time or 0)) / 1_000)


@runs(run)
async def test_many_records_share_a_span(fake: FakeCluster) -> None:
    fake.create("t")
    async with TracedAsyncProducer(fake.bootstrap, host=fake.host) as producer:
        await (await producer.send("t", b"0"))
        await (await producer.send_many("t", [b"1", b"2"]))
        await (await producer.send_many("t", [b"3"], headers=[{"h": b"x"}]))
        with pytest.raises(TypeError):
            await producer.send_many("t", [b"4"], headers=[5])
    _, many, one, refused = spans()
    assert attributes(many)["batch.message_count"] == 2
    assert attributes(many)["raftlog.offset"] == 1
    assert attributes(one)["raftlog.offset"] == 3
    assert (refused.status.status_code, attributes(refused)["error.type"]) == (
        StatusCode.ERROR,
        "TypeError",
    )


def test_a_synchronous_producer_ends_spans_with_the_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeCluster()
    fake.create("t")
    host = ClientEnvironment(connector=fake.connect)
    with TracedProducer(fake.bootstrap, host=host, linger_ms=0) as producer:
        assert producer.send("t", b"v").result(TIMEOUT_S).offset == 0
        producer.send_many("t", [b"1", b"2"]).result(TIMEOUT_S)
        assert [span.status.status_code for span in spans()] == [StatusCode.UNSET] * 2
        fake.always[apis.PRODUCE] = ignore
        producer.send("t", b"lost")
        producer.close(0)
    (lost,) = spans()
    assert lost.status.status_code == StatusCode.ERROR
    assert "records not delivered" in caplog.text, "watching is not looking at the outcome"
    with pytest.raises(ClosedError):
        producer.send("u", b"v")
    (closed,) = spans()
    assert attributes(closed)["error.type"] == "ClosedError"


@pytest.mark.parametrize("value", [b"\xff\xfe", b"00-zz", None])
def test_headers_without_a_valid_context_begin_a_new_trace(value: bytes | None) -> None:
    assert not context_of((("traceparent", value),))
    assert not context_of(None)
