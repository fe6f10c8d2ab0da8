"""Stored batches: their header, and the bytes of every release."""

from __future__ import annotations

import struct

import pytest

from raftlog import limits
from raftlog.errors import CorruptBatchError
from raftlog.record import (
    HEADER_BYTES,
    LEADER_BYTES,
    BatchHeader,
    Codec,
    batch,
    check,
    check_batches,
    decode_arrow,
    decode_lists,
    decode_records,
    encode,
    parse_header,
    seal,
    split,
    split_checked,
    stamp,
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
from tests.record.batches import ALL_CODECS, NOW_MS, batch_of, resealed, stamped
from tests.record.kafka_batches import kafka_header, read_by_aiokafka

# -- the header ------------------------------------------------------------------------------------

# The header: bounds, sums, the leader's stamp and the chain.


BATCH = batch_of([b"one", b"two", None], keys=[b"k", None, b""], timestamps_ms=[5, 9, 7])
I64_MAX = (1 << 63) - 1


def test_a_producers_header_reads_back_as_drawn() -> None:
    body = encode([b"one", b"two"], timestamps_ms=[9, 5])
    data = seal(body, producer_id=7, producer_epoch=2, base_sequence=11) + body.payload
    assert parse_header(data) == BatchHeader(
        magic=1,
        layout=1,
        leader_flags=0,
        length=len(data),
        base_offset=0,
        chain=0,
        append_timestamp=-1,
        leader_epoch=-1,
        leader_crc=struct.unpack_from("<I", data, 36)[0],
        crc32c=struct.unpack_from("<I", data, 40)[0],
        attributes=0,
        producer_epoch=2,
        record_count=2,
        last_offset_delta=1,
        first_timestamp=9,
        max_timestamp=9,
        producer_id=7,
        base_sequence=11,
        uncompressed_length=len(body.payload),
    )
    assert body.size_bytes == len(data)


def test_positions_of_fields_are_as_drawn() -> None:
    data = stamped(
        batch_of([b"v"], producer=(0x77, 0x66, 0x55)),
        base_offset=0x0102030405060708,
        leader_epoch=0x11121314,
        append_timestamp_ms=0x2122,
        log_append_time=True,
    )
    assert data[:4] == b"\x01\x01\x01\x00"
    assert data[4:8] == len(data).to_bytes(4, "little")
    assert data[8:16] == bytes.fromhex("0807060504030201")
    assert data[24:32] == bytes.fromhex("2221000000000000")
    assert data[32:36] == bytes.fromhex("14131211")
    assert data[46:48] == b"\x66\x00"
    assert data[72:80] == b"\x77" + bytes(7)
    assert data[80:84] == b"\x55" + bytes(3)


def test_properties_of_a_header() -> None:
    header = check(stamped(BATCH, base_offset=10, append_timestamp_ms=77))
    assert (header.next_offset, header.codec, header.log_append_time) == (13, Codec.NONE, False)
    assert (header.newest_timestamp_ms, header.has_producer, header.is_dense) == (9, False, True)
    assert not header.is_transactional
    assert not header.is_control
    header = check(stamped(BATCH, append_timestamp_ms=77, log_append_time=True))
    assert (header.newest_timestamp_ms, header.log_append_time) == (77, True)
    header = parse_header(resealed(BATCH, attributes=0b110000, producer_id=1, producer_epoch=0,
                                   base_sequence=0))  # fmt: skip
    assert header.is_transactional
    assert header.is_control
    assert header.has_producer


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("log_append_time", [False, True])
def test_check_finds_every_flipped_bit(codec: Codec, log_append_time: bool) -> None:
    values = [b"value %d" % row for row in range(12)]
    data = bytearray(
        stamped(
            batch_of(values, codec=codec, headers=[(("h", b"1"),)] * 12),
            base_offset=1,
            log_append_time=log_append_time,
        )
    )
    assert check(data).codec is codec
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            check(data)
        data[bit // 8] ^= 1 << bit % 8
    assert check(data)


def test_a_header_outside_its_bounds_is_refused() -> None:
    for fields, fault in [
        ({"magic": 2}, "magic 2"),
        ({"layout": 9}, "layout 9"),
        ({"leader_flags": 4}, "leader flags 0x0004"),
        ({"length": HEADER_BYTES}, "length 88"),
        ({"length": limits.BATCH_BYTES_MAX + 1}, "length"),
        ({"base_offset": -1}, "offset"),
        ({"base_offset": I64_MAX - 2}, "offset"),
        ({"append_timestamp": -2}, "append timestamp"),
        ({"append_timestamp": limits.TIMESTAMP_MS_MAX + 1}, "append timestamp"),
        ({"leader_flags": 1, "append_timestamp": -1}, "append timestamp"),
        ({"leader_epoch": -2}, "leader epoch"),
        ({"attributes": 2}, "attributes 0x0002"),
        ({"attributes": 8}, "attributes"),
        ({"attributes": 1 << 15}, "attributes"),
        ({"record_count": limits.RECORDS_PER_BATCH_MAX + 1}, "records"),
        ({"record_count": 4}, "4 records in 3 offsets"),
        ({"first_timestamp": -1}, "timestamps"),
        ({"first_timestamp": 10}, "timestamps"),
        ({"max_timestamp": limits.TIMESTAMP_MS_MAX + 1}, "timestamps"),
        ({"uncompressed_length": 0}, "payload of 0 bytes"),
        ({"uncompressed_length": 24}, "payload of 24 bytes for 3 records"),
        ({"uncompressed_length": limits.BATCH_UNCOMPRESSED_BYTES_MAX + 1}, "payload"),
        ({"uncompressed_length": len(BATCH) - HEADER_BYTES + 1}, "promised"),
        ({"producer_id": 1}, "producer"),
        ({"producer_epoch": 1}, "producer"),
        ({"base_sequence": 1}, "producer"),
        ({"producer_id": 1, "producer_epoch": 1}, "producer"),
        ({"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}, "producer"),
    ]:
        with pytest.raises(CorruptBatchError, match=fault):
            parse_header(resealed(BATCH, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": I64_MAX - 3},
        {"append_timestamp": limits.TIMESTAMP_MS_MAX},
        {"max_timestamp": limits.TIMESTAMP_MS_MAX},
        {"leader_epoch": (1 << 31) - 1},
        {"producer_id": I64_MAX, "producer_epoch": 32_767, "base_sequence": (1 << 31) - 1},
        {"chain": (1 << 64) - 1},
        {"length": limits.BATCH_BYTES_MAX, "attributes": 4},
    ],
)
def test_a_header_at_its_bounds_is_accepted(fields: dict[str, int]) -> None:
    header = parse_header(resealed(BATCH, **fields))
    assert header._asdict().items() >= fields.items()
    assert header.next_offset <= I64_MAX


@pytest.mark.parametrize("size", [0, 1, LEADER_BYTES, HEADER_BYTES - 1])
def test_a_short_header_is_refused(size: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"takes 88 bytes; at byte 0 there are {size}"):
        parse_header(BATCH[:size])
    with pytest.raises(CorruptBatchError):
        parse_header(b"x" * 7 + BATCH[:size], 7)


def test_a_position_past_the_end_is_refused() -> None:
    with pytest.raises(CorruptBatchError, match="there are 0"):
        parse_header(BATCH, len(BATCH) + 5)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type[bytes]) -> None:
    assert check(kind(BATCH)) == check(BATCH)
    assert parse_header(kind(b"xy" + BATCH), 2) == parse_header(BATCH)
    assert [bytes(piece) for piece in split(kind(BATCH * 2))] == [BATCH, BATCH]


@pytest.mark.parametrize("data", [BATCH[:-1], BATCH + b"x", BATCH * 2, BATCH[:HEADER_BYTES]])
def test_check_wants_exactly_one_batch(data: bytes) -> None:
    with pytest.raises(CorruptBatchError, match=f"for a batch of {len(BATCH)}"):
        check(data)


def test_split_gives_whole_batches_and_refuses_a_cut_one() -> None:
    other = batch_of([b"x" * 100])
    assert [bytes(piece) for piece in split(BATCH + other + BATCH)] == [BATCH, other, BATCH]
    assert list(split(b"")) == []
    pieces = split(BATCH + other[:-1])
    assert bytes(next(pieces)) == BATCH
    with pytest.raises(CorruptBatchError, match=f"at byte {len(BATCH)}: "):
        next(pieces)
    with pytest.raises(CorruptBatchError, match="takes 88 bytes"):
        list(split(BATCH + other[:50]))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_batches_back_to_back_are_checked_together(kind: type) -> None:
    other = batch_of([b"x" * 100])
    data = kind(BATCH + other + BATCH)
    headers = check_batches(data)
    assert headers == [parse_header(BATCH), parse_header(other), parse_header(BATCH)]
    found = [(header, bytes(batch)) for header, batch in split_checked(data)]
    assert found == list(zip(headers, [BATCH, other, BATCH], strict=True))


def test_batches_before_a_corrupt_one_are_valid() -> None:
    rotten = bytearray(BATCH + BATCH)
    rotten[-1] ^= 1
    pieces = split_checked(rotten)
    assert next(pieces)[0] == parse_header(BATCH)
    with pytest.raises(CorruptBatchError, match=f"at byte {len(BATCH)}, base offset 0: the bytes"):
        next(pieces)
    assert list(split_checked(b"")) == []


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_batches_of_which_one_is_cut_or_none_is_there_are_refused(cut: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"at byte {len(BATCH)}"):
        check_batches(BATCH + BATCH[:-cut])
    with pytest.raises(CorruptBatchError, match="at byte 0 there are 0"):
        check_batches(b"")


def test_every_flipped_bit_of_batches_back_to_back_is_found() -> None:
    data = BATCH + BATCH
    for bit in range(len(data) * 8):
        rotten = bytearray(data)
        rotten[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            check_batches(rotten)


def test_stamp_changes_the_leaders_section_alone() -> None:
    header = parse_header(BATCH)
    section, chain = stamp(
        header,
        base_offset=100,
        leader_epoch=3,
        append_timestamp_ms=NOW_MS,
        log_append_time=False,
        previous_chain=99,
    )
    assert len(section) == LEADER_BYTES
    stored = check(section + BATCH[LEADER_BYTES:])
    assert stored.chain == chain
    assert stored == header._replace(
        base_offset=100,
        leader_epoch=3,
        append_timestamp=NOW_MS,
        chain=chain,
        leader_crc=stored.leader_crc,
    )
    assert verify_chain(stored, previous_chain=99)
    assert not verify_chain(stored, previous_chain=98)


def test_stamp_twice_is_stamp_once() -> None:
    once = stamped(BATCH, base_offset=4, leader_epoch=1)
    assert stamped(stamped(BATCH, base_offset=9, log_append_time=True), base_offset=4,
                   leader_epoch=1) == once  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 6},
        {"leader_epoch": 2},
        {"append_timestamp": 1},
        {"leader_flags": 1},
        {"crc32c": 1},
        {"length": 1_000},
        {"chain": 1},
    ],
)
def test_the_chain_covers_what_two_replicas_must_agree_on(fields: dict[str, int]) -> None:
    header = parse_header(stamped(BATCH, base_offset=5, leader_epoch=1, previous_chain=17))
    assert verify_chain(header, previous_chain=17)
    assert not verify_chain(header._replace(**fields), previous_chain=17)


@pytest.mark.parametrize("producer", [(1, -1, -1), (-1, 0, -1), (-1, -1, 0), (1, 1, -1)])
def test_seal_wants_all_of_a_producer_or_none(producer: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError):
        batch_of([b"v"], producer=producer)


# -- checksum --------------------------------------------------------------------------------------
#
# The sums against published vectors, and what the chain takes in.


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value of CRC-32C
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
    ],
)
def test_crc32c_is_castagnolis(data: bytes, crc: int) -> None:
    assert batch.crc32c(data) == crc


def test_crc32c_goes_on_from_a_crc() -> None:
    assert batch.crc32c(b"6789", batch.crc32c(b"12345")) == batch.crc32c(b"123456789")


def test_chain_is_xxh3_of_the_value_before_and_the_link() -> None:
    assert batch.chain_link(batch.CHAIN_START, b"") == 0xC77B3ABB6F87ACD9  # XXH3-64 of 8 zeros


def test_chain_depends_on_all_that_precedes() -> None:
    first, other = batch.chain_link(0, b"a"), batch.chain_link(0, b"b")
    assert first != other
    assert batch.chain_link(first, b"c") != batch.chain_link(other, b"c")
    assert batch.chain_link(first, b"c") != batch.chain_link(first, b"d")


# -- golden batches --------------------------------------------------------------------------------

# Stored batches as they were written down: every release reads them, and writes the same.


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
