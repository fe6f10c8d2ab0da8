"""What a stream reads next, decided from offsets alone; and what may go wrong on the way."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.offsets import StreamOffset
from pyspark_raftlog.planning import (
    LOSSES_NAMED_MAX,
    UNLIMITED,
    DataLossError,
    LossKind,
    Rate,
    Step,
    StreamPlanner,
    View,
    error_of,
)
from raftlog.types import TopicPartition

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
