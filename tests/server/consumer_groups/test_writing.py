"""A step's records as batches: one, where that can be; in order, whole, and not too large."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consumer_groups import GroupRecord
from raftlog.record import Codec, decode_lists, parse_header, validate
from raftlog.server.groups.shard import batches_of

NOW_MS = 1_700_000_000_000
MIB = 1 << 20

RECORDS = st.lists(
    st.builds(
        GroupRecord,
        st.binary(min_size=1, max_size=50),
        st.none() | st.binary(max_size=3_000),
    ),
    max_size=40,
)


def read(batches: list[bytes]) -> list[GroupRecord]:
    found: list[GroupRecord] = []
    for batch in batches:
        validate(batch)
        records = decode_lists(batch)
        assert set(records.timestamps_ms) == {NOW_MS}
        for key, value in zip(records.keys, records.values, strict=True):
            assert key is not None
            found.append(GroupRecord(key, value))
    return found


@given(records=RECORDS, bytes_max=st.integers(6_000, 40_000))
def test_they_come_back_as_they_were(records: list[GroupRecord], bytes_max: int) -> None:
    batches = list(batches_of(records, now_ms=NOW_MS, bytes_max=bytes_max))
    assert read(batches) == records
    assert all(len(batch) <= bytes_max for batch in batches)
    total = sum(len(one.key) + len(one.value or b"") + 32 for one in records)
    if records and total + 1_024 <= bytes_max:
        assert len(batches) == 1


def test_nothing_is_no_batch() -> None:
    assert list(batches_of([], now_ms=NOW_MS, bytes_max=MIB)) == []


def test_a_record_is_never_split() -> None:
    large = GroupRecord(b"k", Random(1).randbytes(10_000))
    small = GroupRecord(b"k", b"v")
    batches = list(batches_of([small, large, small], now_ms=NOW_MS, bytes_max=5_000))
    assert read(batches) == [small, large, small]
    assert [len(batch) > 5_000 for batch in batches] == [False, True, False]


@pytest.mark.parametrize(("size", "codec"), [(100, Codec.NONE), (10_000, Codec.LZ4)])
def test_what_is_large_is_compressed(size: int, codec: Codec) -> None:
    records = [GroupRecord(b"k", b"v" * size)]
    (batch,) = batches_of(records, now_ms=NOW_MS, bytes_max=MIB)
    assert parse_header(batch).codec == codec
