"""Plans of reads: splits of batches, and what a stream reads next."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.cloudpickle import dumps
from pyspark.serializers import CloudPickleSerializer

from pyspark_raftlog.offsets import StreamOffset
from pyspark_raftlog.planning import (
    LOSSES_NAMED_MAX,
    NO_OFFSET,
    TASK_OFFSETS,
    TASKS_GATHERED,
    TASKS_MAX,
    UNLIMITED,
    DataLossError,
    LossKind,
    PartitionNow,
    PartitionRange,
    Rate,
    Step,
    StreamPlanner,
    View,
    backlog,
    bytes_per_record_of,
    damaged,
    error_of,
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

# -- splits ----------------------------------------------------------------------------------------

# Splits are exact and balanced, limits get on and stay below the end, each loss has its name.


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
    assert "earliest record" not in verdict.loss.warning(), "that is what a stream does"


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
    if kind is LossKind.RECREATED:
        assert loss is not None
        assert "it continues with the new topic's earliest record" in loss.warning()


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


# -- streams ---------------------------------------------------------------------------------------

# What a stream reads next, decided from offsets alone; and what may go wrong on the way.


T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
U0 = TopicPartition("u", 0)


def everything(tp: TopicPartition) -> bool:
    return True


def at(offsets: Mapping[TopicPartition, int], **ids: str) -> StreamOffset:
    return StreamOffset(offsets, {topic: "a" for topic, _ in offsets} | ids)


def view(ends: Mapping[TopicPartition, int], **ids: str) -> View:
    return View({topic: "a" for topic, _ in ends} | ids, ends)


class Stream:
    """A planner with a cluster beside it, whose ends and beginnings the test moves."""

    def __init__(self, ends: Mapping[TopicPartition, int], **ids: str) -> None:
        self.planner = StreamPlanner(everything)
        self.ends = dict(ends)
        self.ids = ids
        self.earliest: dict[TopicPartition, int] = {}
        self.now_s = 0.0

    def view(self) -> View:
        return view(dict(self.ends), **self.ids)

    def step(self, start: StreamOffset, rate: Rate = UNLIMITED) -> Step:
        now = self.view()
        known = {tp: self.earliest.get(tp, 0) for tp in self.planner.changed(start, now)}
        return self.planner.next_step(start, now, known, rate=rate, now_s=self.now_s)

    def end(self, start: StreamOffset, rate: Rate = UNLIMITED) -> StreamOffset:
        step = self.step(start, rate)
        assert step.losses == ()
        return step.end


def spans(planner: StreamPlanner, start: StreamOffset, end: StreamOffset) -> list[tuple[str, str]]:
    return [
        (str(piece.topic_partition), f"{piece.start}-{piece.end}")
        for piece in planner.ranges(start, end)
    ]


def test_a_batch_goes_to_the_ends_and_an_idle_stream_stays() -> None:
    stream = Stream({T0: 10, T1: 4})
    end = stream.end(at({T0: 3, T1: 4}))
    assert end == at({T0: 10, T1: 4})
    assert spans(stream.planner, at({T0: 3, T1: 4}), end) == [("t:0", "3-10")]
    assert stream.end(end).json() == end.json()
    assert stream.planner.changed(end, stream.view()) == [], "an idle stream asks for nothing more"


def test_the_first_batch_ends_where_it_starts() -> None:
    planner = StreamPlanner(everything)
    start = planner.begin(at({T0: 5}))
    assert planner.is_first(start)
    assert planner.ranges(start, start) == []
    assert not planner.is_first(start), "the checkpoint has it now"


def test_a_restarted_query_has_no_first_batch() -> None:
    assert not StreamPlanner(everything).is_first(at({T0: 5}))


def test_a_first_batch_that_is_repeated_from_a_later_start_reads_nothing() -> None:
    """The query died before the first batch was committed, and "latest" has moved meanwhile."""
    planner = StreamPlanner(everything)
    later = planner.begin(at({T0: 9}))
    assert planner.ranges(later, at({T0: 5})) == []
    assert not planner.is_first(at({T0: 5})), "the second batch has what came since"


def test_new_partitions_and_topics_enter_at_their_earliest_record_and_are_read_next() -> None:
    stream = Stream({T0: 10, T1: 8, U0: 3}, u="b")
    stream.earliest = {T1: 6, U0: 0}
    start = at({T0: 7})
    middle = stream.end(start)
    assert middle == at({T0: 10, T1: 6, U0: 0}, u="b")
    assert spans(stream.planner, start, middle) == [("t:0", "7-10")]
    end = stream.end(middle)
    assert spans(stream.planner, middle, end) == [("t:1", "6-8"), ("u:0", "0-3")]


def test_a_stream_may_begin_before_there_is_a_topic() -> None:
    stream = Stream({})
    assert stream.end(at({})) == at({})
    stream.ends = {T0: 4}
    assert stream.end(at({})) == at({T0: 0})


def test_a_checkpoint_of_kafkas_connector_gets_the_ids() -> None:
    stream = Stream({T0: 10})
    start = StreamOffset({T0: 7})
    end = stream.end(start)
    assert end == at({T0: 10})
    assert spans(stream.planner, start, end) == [("t:0", "7-10")]


# -- what is not selected


def test_what_is_not_selected_any_more_stays_where_it_is() -> None:
    planner = StreamPlanner(lambda tp: tp == T0)
    start = at({T0: 1, T1: 2, U0: 3})
    now = view({T0: 5})
    assert planner.suspect(start, now) == []
    step = planner.next_step(start, now, {T0: 0}, now_s=0)
    assert step == Step(at({T0: 5, T1: 2, U0: 3}))


def test_what_is_not_selected_of_a_topic_made_anew_is_forgotten() -> None:
    planner = StreamPlanner(lambda tp: tp == T0)
    step = planner.next_step(at({T0: 1, T1: 2}), view({T0: 5}, t="b"), {T0: 0}, now_s=0)
    assert step.end == at({T0: 0}, t="b")


# -- how much


def test_a_batch_has_no_more_offsets_than_allowed() -> None:
    stream = Stream({T0: 30, T1: 10})
    rate = Rate(max_offsets=8)
    first = stream.end(at({T0: 0, T1: 0}), rate)
    assert first == at({T0: 6, T1: 2})
    assert sum(piece.size for piece in stream.planner.ranges(at({T0: 0, T1: 0}), first)) == 8


def test_a_batch_has_about_the_bytes_allowed() -> None:
    planner = StreamPlanner(everything)
    start, now = at({T0: 0, T1: 0}), view({T0: 100, T1: 100})
    step = planner.next_step(
        start,
        now,
        {T0: 0, T1: 0},
        rate=Rate(max_bytes=1_000),
        sizes={T0: 10.0, T1: 30.0},
        now_s=0,
    )
    assert step.end == at({T0: 25, T1: 25})


def test_too_few_offsets_wait_until_the_delay_has_passed() -> None:
    stream = Stream({T0: 10})
    rate = Rate(min_offsets=5, max_delay_s=60)
    first = stream.end(at({T0: 9}), rate)
    assert first == at({T0: 10}), "the first batch never waits"
    stream.ends = {T0: 14}
    stream.now_s = 59
    assert stream.end(first, rate) == first
    stream.now_s = 60
    assert stream.end(first, rate) == at({T0: 14})
    stream.ends = {T0: 19}
    assert stream.end(at({T0: 14}), rate) == at({T0: 19}), "enough of them do not wait"


def test_a_new_partition_does_not_wait_for_more_records() -> None:
    stream = Stream({T0: 10})
    rate = Rate(min_offsets=5, max_delay_s=60)
    first = stream.end(at({T0: 0}), rate)
    stream.ends = {T0: 11, T1: 2}
    assert stream.end(first, rate) == at({T0: 10, T1: 0})


# -- Trigger.AvailableNow


def test_available_now_ends_exactly_at_its_target_and_takes_nothing_that_came_later() -> None:
    stream = Stream({T0: 10, T1: 2})
    stream.planner.aim(stream.view())
    stream.ends = {T0: 20, T1: 5, T2: 9, U0: 4}
    rate = Rate(max_offsets=6, min_offsets=100)
    offsets = [at({T0: 0})]
    while True:
        offsets.append(stream.end(offsets[-1], rate))
        if offsets[-1] == offsets[-2]:
            break
    assert offsets[1:] == [
        at({T0: 6, T1: 0}),
        at({T0: 10, T1: 2}),
        at({T0: 10, T1: 2}),
    ]
    assert all(
        sum(piece.size for piece in stream.planner.ranges(*pair)) <= 6
        for pair in itertools.pairwise(offsets)
    )


def test_available_now_does_not_go_back_to_a_target_below_its_start() -> None:
    stream = Stream({T0: 10})
    stream.planner.aim(view({T0: 7}))
    assert stream.end(at({T0: 9})) == at({T0: 9})


def test_available_now_does_not_pass_its_target_where_records_were_deleted() -> None:
    stream = Stream({T0: 20})
    stream.earliest = {T0: 15}
    stream.planner.aim(view({T0: 10}))
    step = stream.step(at({T0: 5}))
    assert [loss.kind for loss in step.losses] == [LossKind.AGED_OUT]
    assert step.end == at({T0: 10})
    assert stream.end(at({T0: 10})).positions[T0] == 10


# -- losses


def test_an_end_that_went_back_is_doubtful_and_then_a_loss() -> None:
    stream = Stream({T0: 7, T1: 3})
    start = at({T0: 9, T1: 2})
    assert stream.planner.suspect(start, stream.view()) == [T0]
    step = stream.step(start)
    (loss,) = step.losses
    assert loss.kind is LossKind.TRUNCATED
    assert "'t' partition 0" in loss.what
    assert "9" in loss.what
    assert step.end == at({T0: 7, T1: 3}), "it goes on at the new end"
    assert spans(stream.planner, start, step.end) == [("t:1", "2-3")]


def test_a_topic_made_anew_is_told_from_one_that_was_truncated() -> None:
    stream = Stream({T0: 50, T1: 8, U0: 1}, t="b")
    stream.earliest = {T0: 2, T1: 0}
    start = at({T0: 9, U0: 1})
    assert stream.planner.suspect(start, stream.view()) == [T0]
    step = stream.step(start)
    assert [loss.kind for loss in step.losses] == [LossKind.RECREATED]
    assert step.end == at({T0: 2, T1: 0, U0: 1}, t="b")
    assert stream.planner.ranges(start, step.end) == []
    assert spans(stream.planner, step.end, stream.end(step.end)) == [
        ("t:0", "2-50"),
        ("t:1", "0-8"),
    ]


def test_a_topic_made_anew_with_fewer_partitions_keeps_no_others() -> None:
    step = Stream({T0: 5}, t="b").step(at({T0: 9, T1: 9}))
    assert step.end == at({T0: 0}, t="b")
    assert len(step.losses) == 2


def test_a_deleted_topic_is_a_loss_and_is_left_out() -> None:
    stream = Stream({T0: 5})
    start = at({T0: 5, U0: 3})
    assert stream.planner.suspect(start, stream.view()) == [U0]
    step = stream.step(start)
    assert [loss.kind for loss in step.losses] == [LossKind.TOPIC_GONE]
    assert step.end == at({T0: 5})


def test_records_that_aged_out_count_for_nothing_in_the_limits() -> None:
    stream = Stream({T0: 1_000})
    stream.earliest = {T0: 900}
    start = at({T0: 0})
    step = stream.step(start, Rate(max_offsets=10))
    assert [loss.kind for loss in step.losses] == [LossKind.AGED_OUT]
    assert step.end == at({T0: 910})
    assert spans(stream.planner, start, step.end) == [("t:0", "0-910")], "so the loss can be told"


def test_where_all_aged_out_the_stream_goes_on_at_the_end() -> None:
    stream = Stream({T0: 1_000})
    stream.earliest = {T0: 1_000}
    assert stream.step(at({T0: 0})).end == at({T0: 1_000})


def test_one_error_names_all_that_was_lost() -> None:
    many = {TopicPartition("t", number): 9 for number in range(LOSSES_NAMED_MAX + 2)}
    losses = Stream(dict.fromkeys(many, 5)).step(at(many)).losses
    error = error_of(losses)
    assert isinstance(error, DataLossError)
    assert error.kind is LossKind.TRUNCATED
    assert "12 partitions" in str(error)
    assert "'t' partition 9:" in str(error)
    assert "and 2 more" in str(error)
    assert str(error_of(losses[:1])) == str(losses[0].error())


# -- any stream


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[dict[TopicPartition, int], int]]:
    """How far the log has grown before each trigger, with a limit for the batch."""
    partitions = draw(st.lists(st.sampled_from([T0, T1, T2, U0]), unique=True, min_size=1))
    grown = st.dictionaries(st.sampled_from(partitions), st.integers(0, 30))
    return draw(st.lists(st.tuples(grown, st.integers(4, 20)), min_size=1, max_size=12))


@given(moves(), st.integers(0, 12))
def test_every_record_is_read_once_and_offsets_never_go_back(
    history: list[tuple[dict[TopicPartition, int], int]], aim_at: int
) -> None:
    stream = Stream({})
    offset = stream.planner.begin(at({}))
    read: list[tuple[TopicPartition, int]] = []
    target: dict[TopicPartition, int] | None = None
    for number, (grown, limit) in enumerate([*history, *[({}, 20)] * 30]):
        for tp, count in grown.items():
            stream.ends[tp] = stream.ends.get(tp, 0) + count
        if number == aim_at:
            stream.planner.aim(stream.view())
            target = dict(stream.ends)
        end = stream.end(offset, Rate(max_offsets=limit))
        pieces = stream.planner.ranges(offset, end)
        assert sum(piece.size for piece in pieces) <= limit
        assert pieces == stream.planner.ranges(
            StreamOffset.parse(offset.json()), StreamOffset.parse(end.json())
        )
        read += [
            (piece.topic_partition, record)
            for piece in pieces
            for record in range(piece.start, piece.end)
        ]
        assert all(end.positions[tp] >= was for tp, was in offset.positions.items())
        offset = end
    expected = stream.ends if target is None else target
    assert sorted(read) == sorted((tp, n) for tp, count in expected.items() for n in range(count))


def test_ids_are_not_read_from_each_others_ranges() -> None:
    planner = StreamPlanner(everything)
    assert planner.ranges(at({T0: 1}), at({T0: 9}, t="b")) == []
    (piece,) = planner.ranges(StreamOffset({T0: 1}), at({T0: 9}, t="b"))
    assert piece.topic_id == "b"


@pytest.mark.parametrize("ends", [{T0: 5}, {T0: 5, U0: 0}])
def test_a_step_with_nothing_to_do_is_the_same_text(ends: dict[TopicPartition, int]) -> None:
    stream = Stream(ends)
    start = StreamOffset.parse(at(ends).json())
    assert stream.end(start).json() == start.json()
