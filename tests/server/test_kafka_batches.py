"""Batches of Kafka's clients on a broker: what raftlog's clients read of them."""

from __future__ import annotations

from pathlib import Path

from raftlog import Consumer, TopicPartition
from raftlog.errors import InvalidRequestError
from raftlog.record import check_batch, parse_header, to_stored
from tests.record.kafka_batches import KAFKA_CODECS, KafkaRecord, kafka_batch
from tests.server.harness import RunningBroker, batch_of, error_of, running

NOW_MS = 1_700_000_000_000
LATER_MS = 20_000


def records_of(base: int, count: int) -> list[KafkaRecord]:
    return [
        KafkaRecord(b"v%d" % n, b"k%d" % n if n % 2 else None, NOW_MS + n, (("h", b"%d" % n),))
        for n in range(base, base + count)
    ]


def append(broker: RunningBroker, sent: bytes) -> None:
    """What the port for Kafka's clients does with a batch."""
    batch = to_stored(check_batch(sent))
    host = broker.broker.context.topics.host("t", 0)
    end = broker.call(lambda: host.append(batch, parse_header(batch))).last_offset + 1
    broker.wait_until(lambda: host.high_watermark >= end)


def test_raftlogs_clients_read_what_kafkas_clients_wrote(tmp_path: Path) -> None:
    expected = records_of(0, 100 * len(KAFKA_CODECS))
    with running(tmp_path) as broker:
        with broker.client() as client:
            client.create("t")
            for number, codec in enumerate(KAFKA_CODECS):
                append(broker, kafka_batch(expected[number * 100 :][:100], codec=codec))
            client.produce("t", batch_of(b"columns", timestamp_ms=NOW_MS + 900))
        tp = TopicPartition("t", 0)
        address = str(broker.address)
        with Consumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            rows = []
            while len(rows) <= len(expected):
                rows += consumer.poll(timeout_ms=LATER_MS)
            assert [row.offset for row in rows] == list(range(len(expected) + 1))
            found = [KafkaRecord(r.value, r.key, r.timestamp_ms, r.headers) for r in rows]
            assert found[:-1] == expected
            assert found[-1].value == b"columns"
            assert consumer.offsets_for_times({tp: NOW_MS + 250})[tp].offset == 250
            consumer.seek(tp, 150)
            table = consumer.poll_arrow(timeout_ms=LATER_MS)
            assert table.column("offset").to_pylist()[:2] == [150, 151]
            assert table.column("value").to_pylist()[:2] == [b"v150", b"v151"]


def test_a_raftlog_client_cannot_send_rows(tmp_path: Path) -> None:
    batch = bytes(to_stored(check_batch(kafka_batch(records_of(0, 3)))))
    with running(tmp_path) as broker, broker.client() as client:
        client.create("t")
        error = error_of(client.produce("t", batch))
        assert isinstance(error, InvalidRequestError)
        assert "Kafka's protocol" in str(error)
