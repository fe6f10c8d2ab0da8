"""Batches being filled, and the queues of a topic: sizes that bound, partitions that take turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.client.accumulator import (
    BATCH_BYTES,
    PLAIN_RECORD_BYTES,
    RECORD_BYTES,
    PartitionQueue,
    PendingBatch,
    Run,
    TopicQueues,
    header_bytes,
)
from raftlog.errors import RecordTooLargeError
from raftlog.record import Codec, RecordLists, decode_lists, encode, parse_header, seal
from raftlog.types import Headers
from tests.client.samples import MAX_MESSAGE_BYTES, topic_view

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
HEADERS = st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=8)), max_size=4).map(tuple)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=30),
        st.none() | HEADERS,
        st.integers(0, limits.TIMESTAMP_MS_MAX),
    ),
    min_size=1,
    max_size=30,
)


def batch() -> PendingBatch:
    return PendingBatch(PartitionQueue("t", 0), due_at=0.0, expires_at=1.0)


def size_of(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    return RECORD_BYTES + len(value or b"") + len(key or b"") + header_bytes(headers or ())


@given(RECORDS)
def test_a_batch_is_never_larger_than_its_records_were_said_to_be(
    records: list[tuple[bytes | None, bytes | None, Headers | None, int]],
) -> None:
    body = encode(
        [value for value, _, _, _ in records],
        keys=[key for _, key, _, _ in records],
        headers=[headers for _, _, headers, _ in records],
        timestamps_ms=[stamp for _, _, _, stamp in records],
    )
    promised = BATCH_BYTES + sum(size_of(*record[:3]) for record in records)
    assert body.size_bytes <= promised


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=200))
def test_plain_records_take_less(values: list[bytes]) -> None:
    body = encode(values, timestamps_ms=0)
    assert body.size_bytes <= BATCH_BYTES + sum(PLAIN_RECORD_BYTES + len(v) for v in values)


def test_a_full_batch_is_within_every_limit() -> None:
    count = limits.PRODUCER_BATCH_BYTES_MAX // PLAIN_RECORD_BYTES
    assert count <= limits.RECORDS_PER_BATCH_MAX
    assert limits.PRODUCER_BATCH_BYTES_MAX + BATCH_BYTES < limits.BATCH_BYTES_MAX


def test_keys_and_headers_begin_with_the_first_record_that_has_them() -> None:
    pending = batch()
    for index, (value, key, headers) in enumerate(
        [(b"0", None, None), (b"1", b"k", None), (b"2", None, (("h", b"x"),)), (b"3", b"l", None)]
    ):
        pending.values.append(value)
        pending.timestamps_ms.append(index)
        if key is not None or pending.keys is not None:
            pending.add_key(index, key)
        if headers is not None or pending.headers is not None:
            pending.add_headers(index, headers)
    lists = stored(pending)
    assert lists.values == [b"0", b"1", b"2", b"3"]
    assert lists.keys == [None, b"k", None, b"l"]
    assert lists.headers == [(), (), (("h", b"x"),), ()]
    assert list(lists.timestamps_ms) == [0, 1, 2, 3]


def stored(pending: PendingBatch, codec: Codec = Codec.NONE) -> RecordLists:
    body = pending.encode(codec, None)
    assert pending.encode(codec, None) is body, "it is encoded once"
    assert not pending.values, "its records are free"
    return decode_lists(seal(body) + body.payload)


def test_runs_of_all_kinds_join_one_batch() -> None:
    pending = batch()
    pending.extend(Run([b"0", b"1"], None, None, 5, 0))
    pending.extend(Run([b"2"], [b"k"], None, [6], 0))
    pending.extend(Run([b"3"], None, [(("h", None),)], 7, 0))
    pending.extend(Run([b"4"], None, None, 8, 0))
    lists = stored(pending, Codec.LZ4)
    assert lists.values == [b"0", b"1", b"2", b"3", b"4"]
    assert lists.keys == [None, None, b"k", None, None]
    assert lists.headers == [(), (), (), (("h", None),), ()]
    assert list(lists.timestamps_ms) == [5, 5, 6, 7, 8]


def test_parts_and_picks_of_a_run() -> None:
    run = Run([b"a", b"b", b"c"], [b"1", None, b"3"], [None, (), (("h", b""),)], [1, 2, 3], 0)
    assert run.part(1, 3, 9) == Run([b"b", b"c"], [None, b"3"], [(), (("h", b""),)], [2, 3], 9)
    assert run.part(0, 3, 9).values is run.values
    assert run.pick([2, 0]) == Run([b"c", b"a"], [b"3", b"1"], [(("h", b""),), None], [3, 1], 0)
    plain = Run([b"a", b"b"], None, None, 4, 0)
    assert plain.part(1, 2, 1) == Run([b"b"], None, None, 4, 1)
    assert plain.pick([1]) == Run([b"b"], None, None, 4, 0)


@given(st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=9)), max_size=9))
def test_header_sizes_count_bytes_not_characters(pairs: list[tuple[str, bytes | None]]) -> None:
    exact = sum(len(name.encode()) + len(value or b"") for name, value in pairs)
    assert exact <= header_bytes(tuple(pairs)) <= exact + 12 * len(pairs)


def test_keyless_records_take_partitions_in_turn() -> None:
    topic = TopicQueues(topic_view(partitions=3), batch_bytes_max=1_000, start=1)
    assert [topic.sticky.partition] + [topic.rotate().partition for _ in range(3)] == [2, 0, 1, 2]
    assert topic.sticky.partition == 2


def test_partitions_without_a_leader_are_passed_over_unless_none_has_one() -> None:
    topic = TopicQueues(topic_view(leaders=(None, 1, None, 1)), batch_bytes_max=1_000, start=0)
    assert {topic.rotate().partition for _ in range(8)} == {1, 3}
    topic.update(topic_view(leaders=(None,) * 4), batch_bytes_max=1_000)
    assert {topic.rotate().partition for _ in range(8)} == {0, 1, 2, 3}


def test_a_topic_grows_and_keeps_its_queues() -> None:
    topic = TopicQueues(topic_view(partitions=1), batch_bytes_max=1_000, start=0)
    first = topic.queues[0]
    topic.update(topic_view(partitions=3), batch_bytes_max=1_000)
    assert topic.count == 3
    assert topic.queues[0] is first


def test_keyless_records_leave_a_partition_that_the_topic_made_anew_does_not_have() -> None:
    topic = TopicQueues(topic_view(partitions=3), batch_bytes_max=1_000, start=1)
    assert topic.sticky.partition == 2
    topic.update(replace(topic_view(partitions=2), id="another"), batch_bytes_max=1_000)
    assert topic.sticky.partition < 2


@pytest.mark.parametrize(
    ("setting", "topic_max", "effective"),
    [(limits.MIB, 2_000, 2_000), (1_500, 2_000, 1_500)],
)
def test_batches_fit_the_topic_and_the_setting(
    setting: int, topic_max: int, effective: int
) -> None:
    topic = TopicQueues(topic_view(max_message_bytes=topic_max), batch_bytes_max=setting, start=0)
    assert topic.batch_bytes_max == effective - BATCH_BYTES


def test_a_record_that_can_never_fit_is_refused_at_once() -> None:
    topic = TopicQueues(topic_view(), batch_bytes_max=limits.MIB, start=0)
    topic.check_size(MAX_MESSAGE_BYTES, compressed=False)  # the encoded batch decides
    with pytest.raises(RecordTooLargeError, match=r"'t' .* max\.message\.bytes=1048588"):
        topic.check_size(RECORD_BYTES + MAX_MESSAGE_BYTES + 1, compressed=False)
    topic.check_size(RECORD_BYTES + MAX_MESSAGE_BYTES + 1, compressed=True)


def test_a_sealed_batch_is_what_was_pending() -> None:
    pending = batch()
    pending.extend(Run([b"x"], None, None, 1, 0))
    body = pending.encode(Codec.NONE, None)
    assert parse_header(seal(body) + body.payload).record_count == 1
