"""Bodies of copies: the same payload and offsets, holes, and the rest of a joined batch."""

from __future__ import annotations

import pytest

from raftlog.errors import CorruptBatchError
from raftlog.mirror.mirror import SPAN_MAX, bodies, copy_of, holes
from raftlog.record import COLUMNS, Codec, decode_records, parse_header, seal, validate
from tests.record.kafka_batches import KafkaRecord, as_stored, kafka_batch
from tests.record.test_compaction import FOURS, log_of, rewritten


def test_a_copy_has_the_payload_and_the_range_of_its_original() -> None:
    (batch,) = rewritten(log_of(FOURS[:1]), [[False, True, False, False]])
    header = parse_header(batch)
    body = copy_of(header, batch)
    copy = seal(body, producer_id=1, producer_epoch=0, base_sequence=0) + body.payload
    assert validate(copy).last_offset_delta == header.last_offset_delta == 3
    assert [r.offset for r in decode_records(copy, topic="t", partition=0)] == [1]
    assert body.payload == batch[-len(body.payload) :]


def test_a_hole_is_a_batch_without_records_that_a_compacted_topic_accepts() -> None:
    (hole,) = holes(5, 25)
    header = validate(seal(hole) + hole.payload, keys_required=True)
    assert (header.record_count, header.last_offset_delta, header.codec) == (0, 19, Codec.NONE)
    assert [body.last_offset_delta + 1 for body in holes(0, 2 * SPAN_MAX + 1)] == [
        SPAN_MAX,
        SPAN_MAX,
        1,
    ]
    assert not list(holes(7, 7))


def test_what_is_appended_ends_where_the_batch_ends() -> None:
    joined = rewritten(log_of(FOURS), [[True] * 4] * len(FOURS))
    assert len(joined) == 1
    header = parse_header(joined[0])
    for position in range(header.next_offset + 1):
        spans = [body.last_offset_delta + 1 for body in bodies((header, joined[0]), position)]
        assert position + sum(spans) == header.next_offset
        records = sum(body.record_count for body in bodies((header, joined[0]), position))
        assert records == header.next_offset - position


def test_offsets_before_the_batch_become_a_hole() -> None:
    second = log_of(FOURS[:2])[1]
    batch = parse_header(second), second
    assert [body.record_count for body in bodies(batch, 1)] == [0, 4]


def test_a_position_inside_of_an_original_batch_is_of_another_log() -> None:
    data = log_of(FOURS[:1])[0]
    with pytest.raises(CorruptBatchError, match="inside the source batch"):
        list(bodies((parse_header(data), data), 2))


def test_a_batch_of_a_kafka_client_is_copied_as_columns() -> None:
    """Its checksum covers the producer fields, which are the mirror's in the copy."""
    data = as_stored(kafka_batch([KafkaRecord(b"a", b"k"), KafkaRecord(b"b")]), base_offset=7)
    (body,) = bodies((parse_header(data), data), 7)
    copy = seal(body, producer_id=1, producer_epoch=0, base_sequence=7) + body.payload
    assert validate(copy).layout == COLUMNS
    found = [(r.key, r.value) for r in decode_records(copy, topic="t", partition=0)]
    assert found == [(b"k", b"a"), (None, b"b")]
