"""Rows to columns and back: two readers with one verdict, whatever the bytes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import CorruptBatchError
from raftlog.record import Codec, decode_lists, kafka_rows, to_kafka
from raftlog.record.kafka_rows import RecordsError, RowFacts
from raftlog.types import Headers
from tests.record.batches import NOW_MS, batch_of, resealed, stamped
from tests.record.kafka_batches import (
    KAFKA_CODECS,
    KafkaRecord,
    as_stored,
    kafka_batch,
    read_by_aiokafka,
)
from tests.record.strategies import entries, header_rows, timestamps

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
