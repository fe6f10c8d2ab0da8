"""Batches of Kafka's clients: what is stored of them, and their rows as columns."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import CorruptBatchError, KafkaBatchError, KafkaBatchFault
from raftlog.record import (
    HEADER_BYTES,
    Codec,
    check,
    check_batch,
    decode_lists,
    kafka_compression,
    kafka_rows,
    parse_header,
    to_kafka,
    to_stored,
)
from raftlog.record.kafka_batch import ConvertedBatches
from raftlog.record.kafka_rows import RecordsError, RowFacts
from raftlog.types import Headers
from tests.golden.make_batches import path_of
from tests.record.batches import ALL_CODECS, NOW_MS, batch_of, resealed, stamped
from tests.record.kafka_batches import (
    KAFKA_CODECS,
    KafkaRecord,
    as_stored,
    kafka_batch,
    kafka_header,
    kafka_resealed,
    read_by_aiokafka,
)
from tests.record.strategies import entries, header_rows, timestamps

# -- batches ---------------------------------------------------------------------------------------

# Batches of Kafka's clients: what is stored of them, what is refused, and what clients get.


RICH = [
    KafkaRecord(b"one", b"k", NOW_MS + 5, (("trace", b"1"), ("none", None))),
    KafkaRecord(None, b"", NOW_MS + 2),
    KafkaRecord(b"", None, NOW_MS + 9, (("", b""), ("\xfcber", b"\xff"))),
    *[KafkaRecord(b"page view %d " % n * 9, b"u%d" % n, NOW_MS + n) for n in range(200)],
]
PLAIN = [KafkaRecord(b"value %d" % n) for n in range(3)]
SENT = kafka_batch(PLAIN)
BASES = {codec: kafka_batch(RICH[:70], codec=codec) for codec in KAFKA_CODECS}


def fetched(stored: bytes) -> bytes:
    return b"".join(to_kafka(stored))


def refused(batch: bytes, kind: KafkaBatchFault, **options: Any) -> KafkaBatchError:
    with pytest.raises(KafkaBatchError) as caught:
        check_batch(batch, **options)
    assert caught.value.kind is kind, caught.value
    return caught.value


# -- as sent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", KAFKA_CODECS)
@pytest.mark.parametrize("count", [1, 3, 203])
def test_a_client_gets_the_bytes_that_a_client_sent(codec: Codec, count: int) -> None:
    sent = kafka_batch(RICH[:count], codec=codec, producer=(77, 3, 5))
    stored = as_stored(sent, base_offset=41, leader_epoch=6)
    check(stored)
    again = fetched(stored)
    assert kafka_header(again) == kafka_header(sent)._replace(base_offset=41, leader_epoch=6)
    assert again[61:] == sent[61:]
    assert read_by_aiokafka(again) == (list(range(41, 41 + count)), RICH[:count])


@pytest.mark.parametrize("codec", KAFKA_CODECS)
def test_the_stored_header_has_what_the_records_have(codec: Codec) -> None:
    checked = check_batch(kafka_batch(RICH, codec=codec, producer=(77, 3, 5)))
    header = parse_header(to_stored(checked))
    assert (header.layout, header.codec, header.record_count) == (2, codec, 203)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 5)
    assert (header.first_timestamp, header.max_timestamp) == (NOW_MS + 5, NOW_MS + 199)
    assert checked.codec == codec
    assert not checked.is_transactional


def test_no_stored_byte_is_copied_for_a_fetch() -> None:
    stored = as_stored(SENT)
    head, section = to_kafka(stored)
    assert len(head) == 61
    assert isinstance(section, memoryview)
    assert section.obj is stored


@pytest.mark.parametrize(
    "fields",
    [
        {"max_timestamp": 1},
        {"producer_epoch": 0, "base_sequence": 0},
        {"producer_id": -5, "producer_epoch": 0, "base_sequence": 3},
        {"attributes": 1 << 3},
        {"attributes": 1 << 6},
        {"attributes": 1 << 7},
        {"attributes": -(1 << 15)},
    ],
)
def test_what_clients_leave_inconsistent_is_corrected(fields: dict[str, int]) -> None:
    again = fetched(as_stored(kafka_resealed(SENT, **fields)))
    assert again == kafka_resealed(SENT, leader_epoch=0)


def test_the_base_timestamp_need_not_be_the_first_records() -> None:
    sent = kafka_resealed(SENT, base_timestamp=NOW_MS - 50, max_timestamp=NOW_MS - 50)
    section = sent[61:].replace(b"\0\0\0\1", b"\0\x64\0\1", 1)  # the first delta is 50
    sent = kafka_resealed(sent, section, max_timestamp=NOW_MS)
    stored = as_stored(sent)
    assert decode_lists(stored).timestamps_ms == (NOW_MS, NOW_MS - 50, NOW_MS - 50)
    assert fetched(stored) == kafka_resealed(sent, leader_epoch=0)


# -- the time of the append ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_log_append_time_is_told_with_a_crc_that_agrees(codec: Codec) -> None:
    stored = as_stored(
        kafka_batch(PLAIN, codec=codec), log_append_time=True, append_timestamp_ms=NOW_MS + 70
    )
    again = fetched(stored)
    header = kafka_header(again)
    assert header.attributes == codec | 8
    assert header.max_timestamp == NOW_MS + 70
    assert read_by_aiokafka(again)[1] == [
        record._replace(timestamp_ms=NOW_MS + 70) for record in PLAIN
    ]


def test_damaged_records_get_no_crc_that_agrees() -> None:
    stored = bytearray(as_stored(SENT, log_append_time=True))
    stored[-3] ^= 1
    with pytest.raises(CorruptBatchError, match="Kafka's CRC"):
        to_kafka(stored)


def test_records_without_timestamps_get_the_time_of_the_append() -> None:
    sent = kafka_resealed(SENT, base_timestamp=-1, max_timestamp=-1)
    stored = as_stored(sent, append_timestamp_ms=NOW_MS + 70)
    header = check(stored)
    assert header.log_append_time
    assert header.newest_timestamp_ms == NOW_MS + 70
    assert list(decode_lists(stored).timestamps_ms) == [NOW_MS + 70] * 3
    assert {record.timestamp_ms for record in read_by_aiokafka(fetched(stored))[1]} == {NOW_MS + 70}
    with pytest.raises(CorruptBatchError, match="without timestamps"):
        parse_header(resealed(stored, leader_flags=0))


# -- refused ---------------------------------------------------------------------------------------


def test_what_is_refused_and_why() -> None:
    for fields, kind in [
        ({"magic": 1}, KafkaBatchFault.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"length": 60}, KafkaBatchFault.INVALID_RECORD),
        ({"length": 48}, KafkaBatchFault.CORRUPT_MESSAGE),
        ({"length": 1000}, KafkaBatchFault.CORRUPT_MESSAGE),
        ({"length": -1}, KafkaBatchFault.CORRUPT_MESSAGE),
        ({"crc": 0}, KafkaBatchFault.CORRUPT_MESSAGE),
        ({"attributes": 5}, KafkaBatchFault.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 1 << 5}, KafkaBatchFault.INVALID_RECORD),
        ({"attributes": Codec.GZIP}, KafkaBatchFault.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, KafkaBatchFault.INVALID_RECORD),
        ({"record_count": -1, "last_offset_delta": -2}, KafkaBatchFault.INVALID_RECORD),
        ({"record_count": 2, "last_offset_delta": 1}, KafkaBatchFault.INVALID_RECORD),
        ({"record_count": 4, "last_offset_delta": 3}, KafkaBatchFault.INVALID_RECORD),
        ({"last_offset_delta": 3}, KafkaBatchFault.INVALID_RECORD),
        ({"producer_id": 5}, KafkaBatchFault.INVALID_RECORD),
        ({"base_offset": 1}, KafkaBatchFault.INVALID_RECORD),
        ({"base_offset": -1}, KafkaBatchFault.INVALID_RECORD),
        ({"base_timestamp": -2}, KafkaBatchFault.INVALID_TIMESTAMP),
        ({"base_timestamp": limits.TIMESTAMP_MS_MAX + 1}, KafkaBatchFault.INVALID_TIMESTAMP),
        ({"base_timestamp": (1 << 63) - 1}, KafkaBatchFault.INVALID_TIMESTAMP),
    ]:
        refused(kafka_resealed(SENT, **fields), kind)


def test_the_time_of_the_leader_is_the_leaders_to_set() -> None:
    stamped = kafka_resealed(SENT, attributes=1 << 3)
    refused(stamped, KafkaBatchFault.INVALID_TIMESTAMP, is_stamped=True)
    check_batch(SENT, is_stamped=True)


def test_too_many_records_are_refused_before_they_are_read() -> None:
    count = limits.RECORDS_PER_BATCH_MAX + 1
    error = refused(
        kafka_resealed(SENT, record_count=count, last_offset_delta=count - 1),
        KafkaBatchFault.INVALID_RECORD,
    )
    assert f"1 to {limits.RECORDS_PER_BATCH_MAX}" in str(error)


def test_some_timestamps_and_some_none_are_refused() -> None:
    records = [KafkaRecord(b"", timestamp_ms=ms) for ms in (0, 1)]
    sent = kafka_resealed(kafka_batch(records), base_timestamp=-1)
    refused(sent, KafkaBatchFault.INVALID_TIMESTAMP)


@pytest.mark.parametrize("size", [0, 1, 60])
def test_less_than_a_header_is_corrupt(size: int) -> None:
    refused(SENT[:size], KafkaBatchFault.CORRUPT_MESSAGE)


def test_two_batches_are_not_one() -> None:
    refused(SENT + SENT, KafkaBatchFault.INVALID_RECORD)


def test_every_flipped_bit_of_what_the_crc_covers_is_found() -> None:
    for bit in range(21 * 8, (61 + 24) * 8, 7):
        flipped = bytearray(SENT)
        flipped[bit // 8] ^= 1 << bit % 8
        refused(bytes(flipped), KafkaBatchFault.CORRUPT_MESSAGE)


@pytest.mark.parametrize("codec", KAFKA_CODECS)
def test_records_over_the_bound_are_refused(codec: Codec) -> None:
    sent = kafka_batch([KafkaRecord(bytes(100_000))], codec=codec)
    refused(sent, KafkaBatchFault.INVALID_RECORD, uncompressed_max=100_000)
    assert check_batch(sent, uncompressed_max=100_100).uncompressed_bytes > 100_000


def test_a_batch_over_the_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", len(SENT) + 1000)
    check_batch(SENT)
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", len(SENT) + 40)
    error = refused(SENT, KafkaBatchFault.MESSAGE_TOO_LARGE)
    assert f"{len(SENT)} bytes" in str(error)


def test_what_cannot_be_stored_as_columns_is_refused() -> None:
    sent = kafka_batch([KafkaRecord(bytes(limits.BATCH_BYTES_MAX - 200))], codec=Codec.ZSTD)
    refused(sent, KafkaBatchFault.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("count", [3, 203, 500])
def test_records_without_keys_are_listed(count: int) -> None:
    records = [KafkaRecord(b"", None if n % 2 else b"") for n in range(count)]
    sent = kafka_batch(records)
    error = refused(sent, KafkaBatchFault.INVALID_RECORD, keys_required=True)
    assert error.rows == tuple(range(1, count, 2))[: limits.KEYLESS_ROWS_MAX]
    check_batch(sent)
    check_batch(kafka_batch(records[::2]), keys_required=True)


def without_attributes(sent: bytes) -> bytes:
    """The batch, not compressed, with 0 for its records' attributes: aiokafka reads a varint."""
    header = kafka_header(sent)
    codec = Codec(header.attributes & 7)
    section = bytearray(kafka_compression.decompress(sent[61:], codec, size_max=1 << 26))
    for start in kafka_rows._walk(bytes(section), 0, header.record_count)[0]:
        section[kafka_rows._varint(bytes(section[start : start + 6]), 0, 5)[1] + start] = 0
    return kafka_resealed(sent, bytes(section), attributes=header.attributes & ~7)


def judge(sent: bytes) -> bool:
    """Whether the batch is accepted. Every reader then has the same records of it."""
    try:
        stored = as_stored(sent, base_offset=7)
    except KafkaBatchError:
        return False
    lists = decode_lists(stored)
    offsets, records = read_by_aiokafka(without_attributes(fetched(stored)))
    assert offsets == list(lists.offsets)
    assert [record.value for record in records] == list(lists.values)
    assert [record.key for record in records] == list(lists.keys)
    if not parse_header(stored).log_append_time:
        assert [record.timestamp_ms for record in records] == list(lists.timestamps_ms)
    return True


@given(
    st.sampled_from(KAFKA_CODECS),
    st.lists(st.tuples(st.integers(21, 1 << 12), st.integers(0, 255)), max_size=3),
    st.integers(0, 40),
)
def test_what_is_accepted_is_read_by_all(
    codec: Codec, changes: list[tuple[int, int]], cut: int
) -> None:
    tampered = bytearray(BASES[codec])
    for position, octet in changes:
        tampered[position % len(tampered)] = octet
    if cut > 30:
        del tampered[30 - cut :]
    sent = kafka_resealed(bytes(tampered), base_offset=0, leader_epoch=0, magic=2)
    judge(sent)
    assert judge(BASES[codec])


@pytest.mark.seeds
@pytest.mark.timeout(600)
def test_very_many_tampered_batches(seed: int) -> None:
    rnd = random.Random(seed)
    accepted = 0
    for _ in range(30_000):
        tampered = bytearray(BASES[rnd.choice(KAFKA_CODECS)])
        for _ in range(rnd.randrange(1, 4)):
            tampered[rnd.randrange(21, len(tampered))] = rnd.randrange(256)
        if not rnd.randrange(5):
            del tampered[rnd.randrange(61, len(tampered)) :]
        accepted += judge(kafka_resealed(bytes(tampered)))
    assert accepted


# -- batches of columns ----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("count", [1, 3, 203])
def test_a_client_reads_the_batch_of_a_raftlog_client(codec: Codec, count: int) -> None:
    stored = stamped(
        batch_of(
            [record.value for record in RICH[:count]],
            keys=[record.key for record in RICH[:count]],
            headers=[record.headers for record in RICH[:count]],
            timestamps_ms=[record.timestamp_ms for record in RICH[:count]],
            codec=codec,
            producer=(9, 1, 0),
        ),
        base_offset=1000,
        leader_epoch=4,
    )
    again = fetched(stored)
    assert read_by_aiokafka(again) == (list(range(1000, 1000 + count)), RICH[:count])
    header = kafka_header(again)
    assert header.attributes == parse_header(stored).codec or count < 203  # others are too small
    assert header.leader_epoch == 4
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 0)
    assert header.max_timestamp == parse_header(stored).max_timestamp


def test_holes_are_holes() -> None:
    stored = stamped(batch_of([b"a", b"b"], offset_deltas=[2, 7], last_offset_delta=9))
    again = fetched(stored)
    assert read_by_aiokafka(again)[0] == [2, 7]
    assert kafka_header(again).last_offset_delta == 9


def test_a_compacted_batch_without_records_is_a_header() -> None:
    stored = path_of("compacted-empty").read_bytes()
    again = fetched(stored)
    header, before = kafka_header(again), parse_header(stored)
    assert (len(again), header.record_count, header.attributes) == (61, 0, 0)
    assert header.base_offset == before.base_offset
    assert header.last_offset_delta == before.last_offset_delta == 43
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    assert again == kafka_resealed(again)


def test_log_append_time_of_columns() -> None:
    stored = stamped(batch_of([b"a"]), log_append_time=True, append_timestamp_ms=NOW_MS + 3)
    assert read_by_aiokafka(fetched(stored))[1] == [KafkaRecord(b"a", timestamp_ms=NOW_MS + 3)]


def test_the_crc_of_columns_is_checked() -> None:
    stored = bytearray(stamped(batch_of([b"aaaa"])))
    stored[-2] ^= 1
    with pytest.raises(CorruptBatchError):
        to_kafka(stored)


def test_a_payload_without_its_first_fields_is_corrupt() -> None:
    stored = as_stored(SENT)
    cut = resealed(stored[: HEADER_BYTES + 8], length=HEADER_BYTES + 8, uncompressed_length=22)
    with pytest.raises(CorruptBatchError):
        to_kafka(cut)


# -- converted batches -----------------------------------------------------------------------------


def test_converted_batches_belong_to_a_place_and_a_header() -> None:
    batch, other = (stamped(batch_of([b"a"]), base_offset=offset) for offset in range(2))
    kept, rows = ConvertedBatches(), to_kafka(batch)
    kept.keep("t", 0, batch, rows)
    assert kept.find("t", 0, batch) is rows
    assert kept.find("u", 0, batch) is None, "a client could make the header of another topic"
    assert kept.find("t", 1, batch) is None
    assert kept.find("t", 0, other) is None


def test_the_converted_batches_that_were_read_last_are_kept() -> None:
    batches = [stamped(batch_of([b"a"]), base_offset=offset) for offset in range(10)]
    size = HEADER_BYTES + sum(map(len, to_kafka(batches[0])))
    kept = ConvertedBatches(bytes_max=5 * size)
    for batch in batches[:5]:
        kept.keep("t", 0, batch, to_kafka(batch))
    kept.find("t", 0, batches[0])
    kept.keep("t", 0, batches[5], to_kafka(batches[5]))
    assert [kept.find("t", 0, each) is not None for each in batches[:6]] == [1, 0, 1, 1, 1, 1]
    small = ConvertedBatches(bytes_max=4 * size - 1)
    small.keep("t", 0, batches[0], to_kafka(batches[0]))
    assert small.find("t", 0, batches[0]) is None, "one batch must not displace all others"


# -- rows ------------------------------------------------------------------------------------------

# Rows to columns and back: two readers with one verdict, whatever the bytes.


kafka_records = st.builds(KafkaRecord, entries, entries, timestamps, header_rows)


@contextmanager
def numpy_for_all(*, live_min: int = 1, numpy_from: int = 1, run_min: int = 2) -> Iterator[None]:
    """Let numpy decode a handful of records too, runs of equal length, and their headers."""
    usual = kafka_rows.NUMPY_FROM, kafka_rows._LIVE_MIN, kafka_rows._RUN_MIN
    plain = kafka_rows.CHECKED_IN_PYTHON_MAX
    kafka_rows.NUMPY_FROM, kafka_rows._LIVE_MIN = numpy_from, live_min
    kafka_rows._RUN_MIN, kafka_rows.CHECKED_IN_PYTHON_MAX = run_min, 0
    try:
        yield
    finally:
        kafka_rows.NUMPY_FROM, kafka_rows._LIVE_MIN, kafka_rows._RUN_MIN = usual
        kafka_rows.CHECKED_IN_PYTHON_MAX = plain


def verdict(section: bytes, count: int) -> RowFacts | None:
    try:
        return kafka_rows.check(section, count)
    except RecordsError:
        return None


def both(section: bytes, count: int) -> RowFacts | None:
    """The verdict of both readers, and of the check of few records without headers."""
    with numpy_for_all():
        rounds = verdict(section, count)
    with numpy_for_all(live_min=3, run_min=64):
        assert verdict(section, count) == rounds
    with numpy_for_all(numpy_from=count + 1):
        assert verdict(section, count) == rounds
    assert verdict(section, count) == rounds
    return rounds


def section_of(records: list[KafkaRecord]) -> bytes:
    return kafka_batch(records)[61:]


def varint(integer: int) -> bytes:
    raw = (integer << 1) ^ (integer >> 63)
    octets = bytearray()
    while raw > 127:
        octets.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*octets, raw])


def record(*fields: bytes | int, length: int | None = None) -> bytes:
    """A record of varints (integers) and bytes, after its length and attributes."""
    body = b"\0" + b"".join(
        field if isinstance(field, bytes) else varint(field) for field in fields
    )
    return varint(len(body) if length is None else length) + body


ONE = (0, 0, -1, -1, 0)  # timestamp delta, offset delta, no key, no value, no headers


# -- reading ---------------------------------------------------------------------------------------


@given(st.lists(kafka_records, min_size=1, max_size=12), st.sampled_from(KAFKA_CODECS))
def test_columns_are_what_was_sent(records: list[KafkaRecord], codec: Codec) -> None:
    stored = as_stored(kafka_batch(records, codec=codec))
    lists = decode_lists(stored)
    assert list(map(KafkaRecord._make, zip(*lists[2:4][::-1], *lists[1:2], lists[4], strict=True)))
    assert [r.value for r in records] == list(lists.values)
    assert [r.key for r in records] == list(lists.keys)
    assert [r.timestamp_ms for r in records] == list(lists.timestamps_ms)
    assert [r.headers for r in records] == list(lists.headers)
    with numpy_for_all():
        assert decode_lists(stored) == lists


def test_columns_of_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        KafkaRecord(
            None if n % 7 == 0 else b"%d" % n,
            None if n % 5 == 0 else b"k%d" % n,
            NOW_MS + n % 11,
            tuple((f"h{k}", None if k % 2 else b"v" * 100) for k in range(n % 4)),
        )
        for n in range(1000)
    ]
    stored = as_stored(kafka_batch(records))
    whole = decode_lists(stored)
    assert list(whole.headers) == [r.headers for r in records]
    assert list(whole.keys) == [r.key for r in records]
    assert list(whole.values) == [r.value for r in records]
    monkeypatch.setattr(kafka_rows, "_PART_RECORDS", 300)
    assert decode_lists(stored) == whole


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None  # as if it were not installed
from raftlog.record import decode_lists
print(sum(map(int, decode_lists(sys.stdin.buffer.read()).values)))
"""


@pytest.mark.integration
def test_a_client_without_numpy_reads_rows() -> None:
    stored = as_stored(kafka_batch([KafkaRecord(b"%d" % n) for n in range(300)]))
    out = subprocess.check_output([sys.executable, "-c", WITHOUT_NUMPY], input=stored)
    assert out.strip() == b"%d" % sum(range(300))


def test_a_record_with_very_many_headers() -> None:
    headers: Headers = (("n", b""),) * 20_000
    records = [KafkaRecord(b"", headers=headers if n == 50 else ()) for n in range(100)]
    section = section_of(records)
    assert kafka_rows.check(section, 100).header_count == 20_000
    assert list(decode_lists(as_stored(kafka_batch(records))).headers)[50] == headers


@pytest.mark.parametrize(
    "fields",
    [{"first_timestamp": NOW_MS - 1}, {"max_timestamp": NOW_MS + 1}, {"uncompressed_length": 24}],
    ids=str,
)
def test_a_stored_header_has_to_agree(fields: dict[str, int]) -> None:
    stored = as_stored(kafka_batch([KafkaRecord(b"x" * 40)], codec=Codec.GZIP))
    with pytest.raises(CorruptBatchError, match="base offset 0"):
        decode_lists(resealed(stored, **fields))


# -- one verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "section",
    [
        record(*ONE),
        record(0, 0, 1, b"k", 2, b"vv", 1, 1, b"n", -1),
        record(b"\x80\x80\0", b"\x80\0", b"\x81\0", b"\x81\x80\x80\x80\0", b"\x80\0"),  # long zeros
        record(b"\xff" * 9 + b"\x01", 0, -1, -1, 0),  # 64 bits of timestamp delta
    ],
)
def test_accepted(section: bytes) -> None:
    assert both(section, 1) is not None


def test_refused() -> None:
    for section in [
        b"",
        b"\0",
        record(),
        record(*ONE)[:-1],
        record(*ONE) + b"\0",
        record(*ONE, length=5),
        record(*ONE, length=7) + b"\0",
        record(*ONE, length=-7),
        record(*ONE, length=1 << 40),
        record(*ONE, length=70),
        record(*ONE, length=7000),
        record(*ONE, length=700_000),
        record(0, 1, -1, -1, 0),
        record(0, -1, -1, -1, 0),
        record(0, 0, -2, -1, 0),
        record(0, 0, 9, -1, 0),
        record(0, 0, 1 << 33, -1, 0),
        record(0, 0, -1, -2, 0),
        record(0, 0, -1, 9, 0),
        record(0, 0, -1, 1 << 33, 0),
        record(0, 0, -1, -1, -1),
        record(0, 0, -1, -1, 1),
        record(0, 0, -1, -1, 1 << 33),
        record(0, 0, -1, -1, 1, 0),
        record(0, 0, -1, -1, 1, -1, 0),
        record(0, 0, -1, -1, 1, 7, 0),
        record(0, 0, -1, -1, 1, 0, -2),
        record(0, 0, -1, -1, 1, 0, 9),
        record(0, 0, -1, -1, 1, 1, b"\xff", 0),
        record(0, 0, -1, -1, 2, 1, b"\xc3", 0, 1, b"\xbc", 0),
        record(0, 0, -1, -1, 2, 0, 0),
        record(0, 0, -1, -1, 0, 0),
        record(b"\xff" * 9 + b"\x02", 0, -1, -1, 0),
        record(b"\xff" * 10 + b"\x01", 0, -1, -1, 0),
        record(0, b"\x80" * 5 + b"\0", -1, -1, 0),
        b"\x80" * 5 + b"\0" + record(*ONE)[1:],
        b"\xff" * 40,
        b"\x80" * 40,
    ]:
        assert both(section, 1) is None
        after = section_of([KafkaRecord(b"")] * 2)
        moved = section.replace(record(*ONE)[2:], record(0, 2, -1, -1, 0)[2:])
        assert both(after + moved, 3) is None


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 55, 56, 57, 9_000]), st.integers(1, 40)),
        min_size=1,
        max_size=6,
    ),
    st.integers(2, 9),
    st.integers(0, 3),
)
def test_runs_of_equal_length_are_found_as_by_single_steps(
    runs: list[tuple[int, int]], run_min: int, cut: int
) -> None:
    values = [bytes(size) for size, count in runs for _ in range(count)]
    section = section_of([KafkaRecord(value) for value in values])
    size = len(section) - cut
    body = section[:size] + bytes(16)
    with numpy_for_all(run_min=run_min):
        starts, end = kafka_rows._starts(body, size, 0, len(values))
    assert (starts.tolist(), end) == kafka_rows._walk(body, 0, len(values))


def test_a_length_in_a_run_that_leads_elsewhere_is_refused() -> None:
    section = bytearray(section_of([KafkaRecord(b"12345")] * 300))
    assert verdict(bytes(section), 300) is not None
    stride = len(record(0, 0, -1, 5, b"12345", 0))
    section[40 * stride] += 2
    assert both(bytes(section), 300) is None


@given(
    st.lists(kafka_records, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    st.integers(-3, 3),
    st.integers(-1, 1),
)
def test_readers_agree_about_tampered_records(
    records: list[KafkaRecord], changes: list[tuple[int, int]], growth: int, more: int
) -> None:
    section = bytearray(section_of(records))
    for position, octet in changes:
        section[position % len(section)] = octet
    section = section + bytes(growth) if growth > 0 else section[: len(section) + growth]
    both(bytes(section), max(1, len(records) + more))


@pytest.mark.seeds
def test_readers_agree_about_very_many_tampered_records(seed: int) -> None:
    rnd = random.Random(seed)
    bases = []
    for count in (1, 3, 40, 63):
        heads: Headers = (("n\xfc", b"v"), ("m", None))
        records = [
            KafkaRecord(
                rnd.randbytes(n % 200), rnd.choice([None, b"k"]), NOW_MS + n, heads[: n % 3]
            )
            for n in range(count)
        ]
        bases += [(section_of(records), count), (section_of([records[0]] * count), count)]
    for _ in range(30_000):
        start, count = rnd.choice(bases)
        section = bytearray(start)
        for _ in range(rnd.randrange(3)):
            section[rnd.randrange(min(len(section), rnd.choice((20, 1000))))] = rnd.randrange(256)
        if not rnd.randrange(4):
            del section[rnd.randrange(len(section)) :]
        both(bytes(section), max(1, count + rnd.choice((-1, 0, 0, 0, 1))))


# -- writing ---------------------------------------------------------------------------------------


@given(st.lists(kafka_records, min_size=1, max_size=12), st.booleans())
def test_rows_are_what_the_columns_are(records: list[KafkaRecord], has_holes: bool) -> None:
    deltas = [3 * n + 1 for n in range(len(records))] if has_holes else None
    stored = stamped(
        batch_of(
            [r.value for r in records],
            keys=[r.key for r in records],
            headers=[r.headers for r in records],
            timestamps_ms=[r.timestamp_ms for r in records],
            offset_deltas=deltas,
        ),
        base_offset=10,
    )
    again = b"".join(to_kafka(stored))
    with numpy_for_all():
        assert b"".join(to_kafka(stored)) == again
    offsets = [10 + delta for delta in deltas or range(len(records))]
    assert read_by_aiokafka(again) == (offsets, records)
    if not has_holes:
        assert kafka_rows.check(again[61:], len(records)).header_count == sum(
            len(r.headers) for r in records
        )


def test_headers_over_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    section = section_of([KafkaRecord(b"", headers=(("", b""),) * 3)] * 3)
    monkeypatch.setattr(limits, "HEADERS_PER_BATCH_MAX", 9)
    assert both(section, 3) is not None
    monkeypatch.setattr(limits, "HEADERS_PER_BATCH_MAX", 8)
    assert both(section, 3) is None
