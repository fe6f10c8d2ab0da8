"""Splits are exact and balanced, limits get on and stay below the end, each loss has its name."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.cloudpickle import dumps
from pyspark.serializers import CloudPickleSerializer

from pyspark_raftlog.planning import (
    NO_OFFSET,
    TASK_OFFSETS,
    TASKS_GATHERED,
    TASKS_MAX,
    DataLossError,
    LossKind,
    PartitionNow,
    PartitionRange,
    backlog,
    bytes_per_record_of,
    damaged,
    is_enough,
    judge,
    judge_position,
    limit_bytes,
    limit_offsets,
    plan_tasks,
    split,
)
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.types import Offset, TopicPartition

TP = TopicPartition("clicks", 3)


def clicks(start: Offset, end: Offset, partition: int = 3, topic_id: str = "old") -> PartitionRange:
    return PartitionRange("clicks", topic_id, partition, start, end)


# -- splits ----------------------------------------------------------------------------------------


@st.composite
def ranges(draw: st.DrawFn) -> list[PartitionRange]:
    numbers = st.integers(0, 1 << 40)
    spans = draw(st.lists(st.tuples(numbers, st.integers(-3, 5_000)), max_size=12))
    return [clicks(start, start + size, index) for index, (start, size) in enumerate(spans)]


@given(
    ranges(),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 6_000),
)
def test_pieces_are_the_ranges_exactly(
    wanted: list[PartitionRange], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split(wanted, min_partitions=min_partitions, max_records=max_records)
    kept = [each for each in wanted if each.size]
    assert [piece.partition for piece in pieces] == sorted(piece.partition for piece in pieces)
    for whole in kept:
        mine = [piece for piece in pieces if piece.partition == whole.partition]
        assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)
        assert all(one.end == other.start for one, other in pairwise(mine))
        sizes = [piece.size for piece in mine]
        assert min(sizes) > 0
        assert max(sizes) - min(sizes) <= 1
        assert max_records is None or max(sizes) <= max_records
    total = sum(each.size for each in kept)
    assert len(pieces) >= min(min_partitions or 0, total)
    if max_records is None:
        assert len(pieces) == max(len(kept), min(min_partitions or 0, total))
    assert {piece.partition for piece in pieces} == {each.partition for each in kept}


@given(ranges(), st.integers(1, 60))
def test_no_range_could_give_a_piece_to_another(wanted: list[PartitionRange], count: int) -> None:
    pieces = split(wanted, min_partitions=count)
    by_partition: dict[int, list[int]] = {}
    for piece in pieces:
        by_partition.setdefault(piece.partition, []).append(piece.size)
    # A range in pieces would, with one piece fewer, have larger ones than any other has now.
    for mine in by_partition.values():
        if len(mine) > 1:
            fewer = sum(mine) / (len(mine) - 1)
            assert all(sum(sizes) / len(sizes) <= fewer for sizes in by_partition.values())


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "counts"),
    [
        # As the tests of KafkaOffsetRangeCalculator have them.
        ([1, 1], None, [1, 1]),
        ([1, 1], 1, [1, 1]),
        ([1, 1], 2, [1, 1]),
        ([5], 1, [1]),
        ([5], 2, [2]),
        ([1, 20], 3, [1, 2]),
        ([100, 100, 100], 6, [2, 2, 2]),
        ([1, 10_000, 2], 10, [1, 8, 1]),
        ([0, 7], 1, [0, 1]),
        ([3], 10, [3]),
        ([], 10, []),
    ],
)
def test_more_pieces_go_where_more_records_are(
    sizes: list[int], min_partitions: int | None, counts: list[int]
) -> None:
    wanted = [clicks(10, 10 + size, index) for index, size in enumerate(sizes)]
    pieces = split(wanted, min_partitions=min_partitions)
    found = [sum(piece.partition == index for piece in pieces) for index in range(len(sizes))]
    assert found == counts


@pytest.mark.parametrize(
    ("sizes", "limits", "tasks"),
    [
        ([], {}, []),
        ([1] * TASKS_GATHERED, {}, [1] * TASKS_GATHERED),  # each piece has a task
        ([1] * (3 * TASKS_GATHERED), {}, [3] * TASKS_GATHERED),
        ([TASK_OFFSETS] * 40, {}, [1] * 40),  # large ones, too
        ([TASK_OFFSETS // 2] * 128, {}, [2] * 64),
        ([5_000_000, *[1] * 40, 5_000_000], {}, [1, 40, 1]),
        ([1] * 96, {"min_partitions": 8}, [3] * 32),
        ([1] * 96, {"min_partitions": 48}, [2] * 48),
        ([1] * 96, {"min_partitions": 96}, [1] * 96),
        ([5_000_000, *[1] * 40], {"min_partitions": 8}, [1, 34, *[1] * 6]),
        ([5_000_000, *[1] * 40], {"min_partitions": 41}, [1] * 41),
        ([1] * 96, {"max_records": 2}, [2] * 48),
    ],
)
def test_small_pieces_share_a_task(
    sizes: list[int], limits: dict[str, int], tasks: list[int]
) -> None:
    """As many tasks remain as are wanted at least, and none has more offsets than at most."""
    pieces = [clicks(0, size, number) for number, size in enumerate(sizes)]
    found = [each if isinstance(each, tuple) else (each,) for each in plan_tasks(pieces, **limits)]
    read = [piece for each in found for piece in each]
    assert {p.partition for p in read} == set(range(len(sizes)))
    assert sum(piece.size for piece in read) == sum(sizes)
    assert [len(each) for each in found] == tasks


def test_both_limits_at_once() -> None:
    wanted = [clicks(0, 95, 0), clicks(0, 10, 1)]
    assert [piece.size for piece in split(wanted, max_records=50)] == [47, 48, 10]
    assert [piece.size for piece in split(wanted, max_records=50, min_partitions=4)] == [
        31, 32, 32, 10,
    ]  # fmt: skip


def test_too_many_tasks_are_refused_before_they_are_made() -> None:
    with pytest.raises(InvalidRequestError, match="maxRecordsPerPartition=1: 100000 are allowed"):
        split([clicks(0, 1 << 60)], max_records=1)
    assert len(split([clicks(0, 1 << 60)], min_partitions=1 << 40)) == TASKS_MAX


# -- how much at a time ----------------------------------------------------------------------------


@st.composite
def backlogs(
    draw: st.DrawFn,
) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]]:
    sizes = draw(st.lists(st.integers(-2, 10_000) | st.integers(0, 1 << 50), max_size=10))
    starts = draw(st.lists(st.integers(0, 1 << 61), min_size=10, max_size=10))
    start = {TopicPartition("t", index): starts[index] for index in range(len(sizes))}
    return start, {tp: start[tp] + sizes[tp.partition] for tp in start}


@given(backlogs(), st.integers(1, 100_000))
def test_a_limit_of_offsets_is_kept_and_gets_on(
    bounds: tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]], most: int
) -> None:
    start, end = bounds
    found = limit_offsets(start, end, most)
    assert found.keys() == end.keys()
    waiting = [tp for tp in end if end[tp] > start[tp]]
    taken = {tp: found[tp] - start[tp] for tp in found}
    for tp in end:
        if tp in waiting:
            assert 1 <= taken[tp] <= end[tp] - start[tp]
        else:
            assert taken[tp] == 0
    total = backlog(start, end)
    assert total == sum(end[tp] - start[tp] for tp in waiting)
    assert sum(taken.values()) <= max(most, len(waiting))
    if len(waiting) < most:
        assert sum(taken.values()) == min(most, total)
    # In proportion: who waits with more gets no less, and twice as much gets about twice as much.
    for one in waiting if total > most else ():
        for other in waiting:
            size, than = end[one] - start[one], end[other] - start[other]
            assert (taken[one] - 1) * than <= (taken[other] + 1) * size


def test_a_limit_is_shared_by_backlog() -> None:
    start = {TopicPartition("t", number): 100 for number in range(4)}
    end = {TopicPartition("t", 0): 700, TopicPartition("t", 1): 400, TopicPartition("t", 2): 101,
           TopicPartition("t", 3): 100}  # fmt: skip
    assert list(limit_offsets(start, end, 90).values()) == [159, 130, 101, 100]
    assert limit_offsets(start, end, 901) == end
    assert list(limit_offsets(start, end, 1).values()) == [101, 101, 101, 100]


def test_an_end_below_the_start_is_the_start() -> None:
    assert limit_offsets({TP: 9}, {TP: 4}, 5) == {TP: 9}
    assert limit_bytes({TP: 9}, {TP: 4}, 5, {}) == {TP: 9}
    assert backlog({TP: 9}, {TP: 4}) == 0


@given(
    backlogs(),
    st.integers(1, 1 << 30),
    st.lists(st.floats(0, 1e6), min_size=10, max_size=10),
)
def test_a_limit_of_bytes_gets_on_and_is_kept_but_for_one_record_each(
    bounds: tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]],
    most: int,
    each: list[float],
) -> None:
    start, end = bounds
    sizes = {tp: each[tp.partition] for tp in end if each[tp.partition]}
    found = limit_bytes(start, end, most, sizes)
    waiting = [tp for tp in end if end[tp] > start[tp]]
    for tp in end:
        taken = found[tp] - start[tp]
        assert (1 if tp in waiting else 0) <= taken <= max(0, end[tp] - start[tp])
    beyond_one = sum(
        (found[tp] - start[tp]) * sizes[tp]
        for tp in waiting
        if tp in sizes and found[tp] - start[tp] > 1
    )
    assert beyond_one <= most * 1.000001


def test_a_limit_of_bytes_goes_by_the_estimates() -> None:
    start = {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}
    end = {TopicPartition("t", 0): 1_000, TopicPartition("t", 1): 100}
    large = {TopicPartition("t", 0): 10.0, TopicPartition("t", 1): 1_000.0}
    assert list(limit_bytes(start, end, 55_000, large).values()) == [500, 50]
    assert limit_bytes(start, end, 110_000, large) == end
    # Without an estimate, as the others: 1,000 + 100 records of 10 bytes.
    assert list(limit_bytes(start, end, 5_500, {TopicPartition("t", 0): 10.0}).values()) == [
        500,
        50,
    ]
    assert list(limit_bytes(start, end, 1, large).values()) == [1, 1]


def test_the_mean_size_of_a_record() -> None:
    assert bytes_per_record_of(5_000, 100, 200) == 50
    assert bytes_per_record_of(0, 0, 10) == bytes_per_record_of(10, 5, 5) == 0
    assert bytes_per_record_of(-1, NO_OFFSET, NO_OFFSET) == 0


@pytest.mark.parametrize(
    ("waiting", "since_s", "least", "enough"),
    [
        (0, 1e9, None, False),
        (0, 1e9, 10, False),
        (1, 0.0, None, True),
        (9, 59.9, 10, False),
        (10, 0.0, 10, True),
        (9, 60.0, 10, True),
    ],
)
def test_a_batch_waits_for_records_but_not_for_ever(
    waiting: int, since_s: float, least: int | None, enough: bool
) -> None:
    assert is_enough(waiting, since_s, least, 60.0) is enough


# -- data loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "earliest", "latest", "left", "kind"),
    [
        (100, 200, 0, 200, (100, 200), None),
        (100, 200, 100, 900, (100, 200), None),
        (100, 200, 150, 900, (150, 200), LossKind.AGED_OUT),
        (100, 200, 200, 900, (200, 200), LossKind.AGED_OUT),
        (100, 200, 500, 900, (200, 200), LossKind.AGED_OUT),
        (100, 200, 0, 150, (100, 150), LossKind.TRUNCATED),
        (100, 200, 0, 50, (100, 100), LossKind.TRUNCATED),
        (100, 200, 120, 150, (120, 150), LossKind.TRUNCATED),
        (100, 200, 0, 0, (100, 100), LossKind.TRUNCATED),
        # It asks for nothing, and so nothing is missing.
        (100, 100, 150, 900, (100, 100), None),
        (100, 100, 0, 50, (100, 100), None),
    ],
)
def test_a_range_is_read_as_far_as_it_is_there(
    start: Offset, end: Offset, earliest: Offset, latest: Offset,
    left: tuple[Offset, Offset], kind: LossKind | None,
) -> None:  # fmt: skip
    verdict = judge(clicks(start, end), PartitionNow("old", earliest, latest))
    assert (verdict.range.start, verdict.range.end) == left
    assert (verdict.loss and verdict.loss.kind) == kind
    assert verdict.allowed(fail_on_data_loss=False) is verdict.range
    if kind is None:
        assert verdict.allowed(fail_on_data_loss=True) == clicks(start, end)
    else:
        with pytest.raises(DataLossError) as caught:
            verdict.allowed(fail_on_data_loss=True)
        assert caught.value.kind is kind


@given(*[st.integers(0, 20)] * 4)
def test_what_is_left_is_within_what_was_asked_for_and_what_is_there(
    start: int, size: int, earliest: int, there: int
) -> None:
    wanted, now = clicks(start, start + size), PartitionNow("old", earliest, earliest + there)
    verdict = judge(wanted, now)
    left = set(range(verdict.range.start, verdict.range.end))
    asked = set(range(wanted.start, wanted.end))
    assert left == asked & set(range(now.earliest, now.latest))
    assert (verdict.loss is None) == (left == asked)
    assert wanted.start <= verdict.range.start <= verdict.range.end <= wanted.end


@pytest.mark.parametrize(
    ("now", "kind", "words"),
    [
        (PartitionNow("new", 0, 900), LossKind.RECREATED, "its id was old, and is new"),
        (PartitionNow("new"), LossKind.RECREATED, "the new one has no such partition"),
        (PartitionNow("new", 4, 4), LossKind.RECREATED, "none (it is empty, at 4)"),
        (PartitionNow("old"), LossKind.PARTITION_GONE, "no longer has this partition"),
        (PartitionNow(), LossKind.TOPIC_GONE, "the topic was deleted"),
    ],
)
def test_of_another_topic_nothing_is_read(now: PartitionNow, kind: LossKind, words: str) -> None:
    verdict = judge(clicks(100, 200), now)
    assert verdict.range.size == 0
    assert verdict.loss is not None
    assert verdict.loss.kind is kind
    assert words in str(verdict.loss.error())


def test_without_an_id_a_topic_is_taken_for_the_same() -> None:
    assert judge(clicks(1, 2, topic_id=""), PartitionNow("new", 0, 9)).loss is None
    assert judge_position(TP, 1, "", PartitionNow("new", 0, 9)) == (1, None)


@pytest.mark.parametrize(
    ("now", "onwards", "kind"),
    [
        (PartitionNow("old", 0, 100), 100, None),
        (PartitionNow("old", 100, 300), 100, None),
        (PartitionNow("old", 120, 300), 120, LossKind.AGED_OUT),
        (PartitionNow("old", 0, 99), 99, LossKind.TRUNCATED),
        (PartitionNow("new", 7, 300), 7, LossKind.RECREATED),
        (PartitionNow("new"), None, LossKind.RECREATED),
        (PartitionNow("old"), None, LossKind.PARTITION_GONE),
        (PartitionNow(), None, LossKind.TOPIC_GONE),
    ],
)
def test_a_stream_goes_on_where_it_can(
    now: PartitionNow, onwards: Offset | None, kind: LossKind | None
) -> None:
    position, loss = judge_position(TP, 100, "old", now)
    assert position == onwards
    assert (loss and loss.kind) == kind


def test_a_message_names_all_that_is_needed() -> None:
    loss = judge(clicks(100, 200), PartitionNow("old", 150, 900)).loss
    assert loss is not None
    assert str(loss.error()) == (
        "data loss (aged out): topic 'clicks' partition 3: requested offsets 100 to 199, but its "
        "log has offsets 150 to 899: retention or an operator has deleted offsets 100 to 149. "
        "To continue without these records, set failOnDataLoss=false: offsets 150 to 199 are read. "
        "To prevent this, read sooner, or increase the topic's retention.ms and retention.bytes"
    )
    assert loss.warning() == (
        "data loss (aged out): topic 'clicks' partition 3: requested offsets 100 to 199, but its "
        "log has offsets 150 to 899: retention or an operator has deleted offsets 100 to 149; "
        "failOnDataLoss=false: offsets 150 to 199 are read"
    )
    _, loss = judge_position(TP, 500, "old", PartitionNow("old", 0, 300))
    assert loss is not None
    assert "requested offset 500 and later, but its log has offsets 0 to 299" in loss.what
    assert "its end decreased to 300" in loss.what
    assert "it continues from offset 300" in loss.warning()


def test_an_offset_that_somebody_wrote_is_not_a_log_that_went_back() -> None:
    now = PartitionNow("old", 0, 300)
    loss = judge(clicks(100, 500), now, asked_by="endingOffsets").loss
    assert loss is not None
    assert loss.kind is LossKind.BEYOND_END
    assert loss.what.startswith("endingOffsets: topic 'clicks' partition 3: ")
    assert "decreased" not in loss.what


def test_damage_is_told_with_what_is_wrong() -> None:
    error = damaged(clicks(5, 6), "offset 5: the checksum differs").error()
    assert error.kind is LossKind.DAMAGED
    assert re.search(r"requested offsets 5, .*: offset 5: the checksum differs", str(error))
    assert isinstance(error, RaftlogError)


def test_plans_and_errors_travel_to_spark_and_back() -> None:
    error = damaged(clicks(5, 6), "bad").error()
    again = CloudPickleSerializer().loads(dumps(error))
    assert (str(again), again.kind) == (str(error), LossKind.DAMAGED)
    assert CloudPickleSerializer().loads(dumps(clicks(5, 6))) == clicks(5, 6)
    assert clicks(5, 6).topic_partition == TP
