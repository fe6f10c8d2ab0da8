"""Stored batches as they were written down: every release reads them, and writes the same."""

from __future__ import annotations

import pytest

from raftlog.record import (
    Codec,
    check,
    decode_arrow,
    decode_lists,
    decode_records,
    to_kafka,
    verify_chain,
)
from tests.golden.make_batches import (
    CASES,
    COMPACTED,
    FOLDER,
    ROWS,
    Case,
    CompactedCase,
    RowsCase,
    path_of,
)
from tests.record.kafka_batches import kafka_header, read_by_aiokafka

CHANGED = (
    "the batch format changed: logs on disk and other clients have the old one; "
    "see docs/reference/formats.md"
)
PRODUCED: dict[str, Case] = CASES | ROWS
cases = pytest.mark.parametrize(("name", "case"), PRODUCED.items(), ids=list(PRODUCED))


def test_every_golden_batch_has_its_case() -> None:
    assert {path.name for path in FOLDER.glob("batch-*.bin")} == {
        path_of(name).name for name in (*PRODUCED, *COMPACTED)
    }


@cases
def test_a_golden_batch_decodes_to_its_records(name: str, case: Case) -> None:
    lists = decode_lists(path_of(name).read_bytes())
    count = len(case.values)
    assert list(lists.offsets) == case.offsets, CHANGED
    assert list(lists.timestamps_ms) == case.read_timestamps_ms, CHANGED
    assert lists.keys == (case.keys or [None] * count), CHANGED
    assert lists.values == case.values, CHANGED
    assert lists.headers == (case.headers or [()] * count), CHANGED


@cases
def test_a_golden_batch_has_its_header(name: str, case: Case) -> None:
    header = check(path_of(name).read_bytes())
    assert header.codec is case.codec
    assert header.log_append_time is case.log_append_time
    assert header.leader_epoch == case.leader_epoch
    assert header.append_timestamp == case.append_timestamp_ms
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == case.producer
    assert header.next_offset == case.offsets[-1] + 1
    assert verify_chain(header, previous_chain=case.previous_chain), CHANGED


@cases
def test_every_reader_agrees_on_a_golden_batch(name: str, case: Case) -> None:
    data = path_of(name).read_bytes()
    records = decode_records(data, topic="t", partition=0)
    rows = decode_arrow([data], topic="t", partition=0).to_pylist()
    assert [record.offset for record in records] == [row["offset"] for row in rows]
    assert [record.value for record in records] == [row["value"] for row in rows]
    assert [record.key for record in records] == [row["key"] for row in rows]


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name, case in PRODUCED.items() if case.codec is Codec.NONE],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_uncompressed_golden_batch_is_made_again_byte_for_byte(name: str, case: Case) -> None:
    assert case.encoded() == path_of(name).read_bytes(), CHANGED


@pytest.mark.parametrize(("name", "case"), ROWS.items(), ids=list(ROWS))
def test_a_kafka_client_gets_the_golden_batch_that_one_sent(name: str, case: RowsCase) -> None:
    again = b"".join(to_kafka(path_of(name).read_bytes()))
    offsets, records = read_by_aiokafka(again)
    assert offsets == case.offsets
    assert [record.value for record in records] == case.values
    assert [record.timestamp_ms for record in records] == case.read_timestamps_ms
    sent = kafka_header(case.sent())
    expected = sent._replace(base_offset=case.base_offset, leader_epoch=case.leader_epoch)
    if case.codec is Codec.NONE and not case.log_append_time:
        assert kafka_header(again) == expected, CHANGED


compacted = pytest.mark.parametrize(("name", "case"), COMPACTED.items(), ids=list(COMPACTED))


@compacted
def test_a_compacted_golden_batch_decodes_to_what_was_kept(name: str, case: CompactedCase) -> None:
    data, original = path_of(name).read_bytes(), case.original
    lists = decode_lists(data)
    assert list(lists.offsets) == case.of_kept(original.offsets), CHANGED
    assert list(lists.timestamps_ms) == case.of_kept(original.read_timestamps_ms), CHANGED
    assert lists.keys == case.of_kept(original.keys or []), CHANGED
    assert lists.values == case.of_kept(original.values), CHANGED
    assert lists.headers == case.of_kept(original.headers or []), CHANGED
    header, before = check(data), check(original.encoded())
    assert header.is_compacted, CHANGED
    assert (header.base_offset, header.next_offset) == (before.base_offset, before.next_offset)
    assert (header.chain, header.leader_epoch) == (before.chain, before.leader_epoch), CHANGED
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == original.producer


@compacted
def test_an_uncompressed_compacted_golden_batch_is_made_again(
    name: str, case: CompactedCase
) -> None:
    if case.original.codec is Codec.NONE:
        assert case.encoded() == path_of(name).read_bytes(), CHANGED
