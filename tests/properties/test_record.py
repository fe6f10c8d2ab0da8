"""Record batches: what goes in comes out, and whatever comes in gives records or one error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raftlog.errors import CorruptBatchError
from raftlog.record import (
    BatchHeader,
    Codec,
    check,
    decode_arrow,
    decode_lists,
    decode_records,
    find_timestamp,
    parse_header,
    split,
    validate,
    verify_chain,
)
from raftlog.types import Buffer
from tests.record.batches import batch_of, forged, numpy_from, payload_of, resealed, stamped
from tests.record.strategies import (
    Records,
    codecs,
    garbage_payloads,
    numpy_thresholds,
    odd_columns,
    records,
    stored_batches,
    tampered_batches,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def attempt(call: Any, *args: Any, **options: Any) -> Any:
    """The answer, or the one error there may be."""
    try:
        return call(*args, **options)
    except CorruptBatchError as error:
        return error


def same_from_every_reader(data: Buffer) -> BatchHeader | None:
    """Check that all readers refuse ``data`` or all read the same records; the header if so."""
    header = attempt(validate, data)
    lists = attempt(decode_lists, data)
    found = attempt(decode_records, data, topic="t", partition=1)
    table = attempt(decode_arrow, [data], topic="t", partition=1)
    looked_up = attempt(find_timestamp, data, 0)
    if isinstance(header, CorruptBatchError):
        for answer in (lists, found, table, looked_up):
            assert str(answer) == str(header)
        attempt(decode_lists, data, check_crc=False)
        attempt(decode_arrow, [data], topic="t", partition=1, check_crc=False)
        return None
    offsets, timestamps_ms, keys, values, headers = map(list, lists)
    assert len(offsets) == header.record_count == len(found) == table.num_rows
    assert offsets == [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert header.base_offset <= offsets[0]
    # A mirror's copy of a compacted batch may span offsets after its last record, too.
    assert offsets[-1] < header.next_offset
    assert not header.is_dense or offsets == list(range(header.base_offset, header.next_offset))
    assert timestamps_ms == [record.timestamp_ms for record in found]
    assert max(timestamps_ms) == header.newest_timestamp_ms
    assert keys == [record.key for record in found]
    assert values == [record.value for record in found]
    assert headers == [record.headers for record in found]
    assert {(record.topic, record.partition, record.leader_epoch) for record in found} == {
        ("t", 1, header.leader_epoch)
    }
    assert looked_up == (offsets[0], timestamps_ms[0])
    table.validate(full=True)
    assert table.to_pydict() == {
        "topic": ["t"] * len(found),
        "partition": [1] * len(found),
        "offset": offsets,
        "key": keys,
        "value": values,
        "headers": [
            [{"key": name, "value": value} for name, value in row] or None for row in headers
        ],
        "timestamp": [EPOCH + timedelta(milliseconds=time) for time in timestamps_ms],
        "leader_epoch": [header.leader_epoch] * len(found),
    }
    return header


@given(records(), codecs, st.booleans(), numpy_thresholds)
def test_records_come_back_as_they_went_in(
    sent: Records, codec: Codec, log_append_time: bool, integers: int
) -> None:
    with numpy_from(integers):
        data = stamped(sent.encoded(codec), base_offset=1_000, log_append_time=log_append_time)
        header = same_from_every_reader(data)
        assert header is not None
        assert header.codec in {codec, Codec.NONE}
        assert header.next_offset == 1_001 + (sent.offset_deltas or range(len(sent.values)))[-1]
        assert verify_chain(header, previous_chain=0)
        lists = decode_lists(data)
    count = len(sent.values)
    assert lists.values == sent.values
    assert lists.keys == (sent.keys or [None] * count)
    assert lists.headers == (sent.headers or [()] * count)
    assert list(lists.offsets) == [1_000 + n for n in sent.offset_deltas or range(count)]
    if log_append_time:
        assert set(lists.timestamps_ms) == {header.append_timestamp}
    else:
        assert list(lists.timestamps_ms) == sent.timestamps_ms


@given(stored_batches(), st.integers(-3, 150), numpy_thresholds)
def test_from_an_offset_on_is_a_slice_of_everything(
    data: bytes, distance: int, integers: int
) -> None:
    with numpy_from(integers):
        from_offset = parse_header(data).base_offset + distance
        everything = decode_records(data, topic="t", partition=0)
        kept = [record for record in everything if record.offset >= from_offset]
        assert kept == decode_records(data, topic="t", partition=0, from_offset=from_offset)
        table = decode_arrow([data], topic="t", partition=0, from_offset=from_offset)
    table.validate(full=True)
    assert table.column("value").to_pylist() == [record.value for record in kept]
    assert table.column("offset").to_pylist() == [record.offset for record in kept]
    names = [[pair["key"] for pair in row or ()] for row in table.column("headers").to_pylist()]
    assert names == [[name for name, _ in record.headers] for record in kept]


@given(stored_batches(), st.integers(0, 1 << 48))
def test_find_timestamp_agrees_with_a_search(data: bytes, timestamp_ms: int) -> None:
    lists = decode_lists(data)
    for sought in (timestamp_ms, *lists.timestamps_ms):
        pairs = zip(lists.offsets, lists.timestamps_ms, strict=True)
        first = next((pair for pair in pairs if pair[1] >= sought), None)
        assert find_timestamp(data, sought) == first


@given(st.lists(stored_batches(), min_size=1, max_size=4))
def test_batches_split_and_join_in_arrow(batches: list[bytes]) -> None:
    pieces = list(split(b"".join(batches)))
    assert pieces == batches
    rows = decode_arrow(pieces, topic="t", partition=0).to_pylist()
    apart = [decode_arrow([data], topic="t", partition=0).to_pylist() for data in batches]
    assert rows == [row for part in apart for row in part]


@given(stored_batches(), st.data())
def test_a_flipped_bit_is_always_found(data: bytes, choice: st.DataObject) -> None:
    flipped = bytearray(data)
    bit = choice.draw(st.integers(0, len(data) * 8 - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    for reader in (check, validate, decode_lists):
        with pytest.raises(CorruptBatchError):
            reader(flipped)


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x01\x01" + bytes(86))
@example(b"\x01\x01\0\0" + b"\xff" * 84)
@example(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    assert same_from_every_reader(data) is None
    attempt(parse_header, data)
    attempt(check, data)
    attempt(lambda: list(split(data)))


@given(stored_batches(), st.data())
def test_a_cut_or_grown_batch_is_refused(data: bytes, choice: st.DataObject) -> None:
    size = choice.draw(st.integers(0, len(data) - 1))
    assert same_from_every_reader(data[:size]) is None
    assert same_from_every_reader(data + choice.draw(st.binary(min_size=1, max_size=9))) is None


@given(tampered_batches(), numpy_thresholds)
@example(stamped(batch_of([b"a", b"b"], offset_deltas=[0, 2], last_offset_delta=3)), 1)
@example(resealed(stamped(batch_of([b"a", b"b"])), last_offset_delta=2), 1)
def test_a_tampered_batch_with_the_right_sums_is_refused_or_read(
    data: bytes, integers: int
) -> None:
    with numpy_from(integers):
        same_from_every_reader(data)


@given(odd_columns(), numpy_thresholds)
@example(forged(payload_of(1)), 1)
def test_columns_of_any_kind_are_refused_or_read(data: bytes, integers: int) -> None:
    with numpy_from(integers):
        same_from_every_reader(data)


@given(garbage_payloads())
@example(batch_of([b"proper"]))
def test_any_payload_in_a_proper_header_is_refused_or_read(data: bytes) -> None:
    same_from_every_reader(data)
