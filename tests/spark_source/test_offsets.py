"""Offsets as text: what is taken, what is refused and why, and equal text for equal positions."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.offsets import (
    EARLIEST,
    LATEST,
    RESERVED_KEY,
    Offsets,
    StreamOffset,
    Time,
    Times,
    Word,
    check_covers,
    parse_offsets,
    parse_partitions,
    parse_times,
)
from raftlog import limits
from raftlog.errors import InvalidRequestError, InvalidTopicError
from raftlog.types import TopicPartition, check_topic_name

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,12}", fullmatch=True).filter(
    lambda name: name not in {".", ".."}
)
PARTITIONS = st.integers(0, limits.PARTITIONS_PER_TOPIC_MAX - 1)
OFFSETS = st.integers(0, limits.OFFSET_MAX + 1)


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["earliest", " Earliest ", "EARLIEST"])
def test_a_word_stands_for_every_partition(text: str) -> None:
    assert parse_offsets("startingOffsets", text) is Word.EARLIEST
    assert Word("latest").offset == LATEST


def test_offsets_are_named_by_partition_or_by_a_word_for_the_topic() -> None:
    bound = parse_offsets("startingOffsets", '{"a": {"0": 7, "10": -2, "2": -1}, "b": "Latest"}')
    assert bound == Offsets({"a": {0: 7, 10: EARLIEST, 2: LATEST}, "b": Word.LATEST})
    assert isinstance(bound, Offsets)
    assert [bound.at("a", 10), bound.at("a", 0), bound.at("b", 99)] == [EARLIEST, 7, LATEST]
    with pytest.raises(KeyError):
        bound.at("a", 1)


def test_times_are_named_by_partition() -> None:
    bound = parse_times("startingOffsetsByTimestamp", '{"a": {"0": 1700000000000, "1": 0}}')
    assert bound == Times({"a": {0: 1_700_000_000_000, 1: 0}})
    assert bound.at("a", 0) == 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("erliest", "is not valid"),
        ("", "is not valid"),
        ("[1]", "is not an object of topics"),
        ("5", "is not an object of topics"),
        ("{}", "names no topic"),
        ('{"a": {}}', "takes an offset, -2"),
        ('{"a": 5}', 'as in {"a":{"0":5'),
        ('{"a": "erliest"}', '"erliest"'),
        ('{"a": {"0": true}}', "has true"),
        ('{"a": {"0": 1.0}}', "has 1.0"),
        ('{"a": {"0": null}}', "has null"),
        ('{"a": {"0": "5"}}', "without quotes"),
        ('{"a": {"0": "earliest"}}', "without quotes"),
        ('{"a": {"0": -3}}', "from -2 to"),
        ('{"a": {"0": 9223372036854775807}}', "from -2 to"),
        ('{"a": {"0": 1' + "0" * 5_000 + "}}", "too large a number"),
        ('{"a": {"0": NaN}}', "NaN is no number"),
        ('{"a": {"0": 1, "0": 2}}', "it has '0' twice"),
        ('{"a": "latest", "a": "earliest"}', "it has 'a' twice"),
        ('{"a": {"00": 1}}', "'00' is not a partition"),
        ('{"a": {"-1": 1}}', "'-1' is not a partition"),
        ('{"a": {"٣": 1}}', "is not a partition"),
        ('{"a": {"10000": 1}}', "a number from 0 to 9999"),
        ('{"a": {"' + "1" * 5_000 + '": 1}}', "is not a partition"),
        ('{"a b": {"0": 1}}', "is not a topic name"),
        ('{"~raftlog": {"0": 1}}', "is not a topic name"),
        ("[" * 200_000, "too deep"),
    ],
)
def test_what_is_no_offsets_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_offsets("startingOffsets", text)
    assert str(caught.value).startswith("startingOffsets")
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "text", ['{"a": {"0": -1}}', '{"a": "latest"}', '{"a": 5}', "latest", '{"a": {"0": 1e3}}']
)
def test_times_take_no_words_and_nothing_negative(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="endingOffsetsByTimestamp"):
        parse_times("endingOffsetsByTimestamp", text)


def test_a_text_without_bound_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidRequestError, match="are allowed"):
        parse_offsets("startingOffsets", "{" + " " * 16 * limits.MIB)


def test_partitions_are_listed() -> None:
    assert parse_partitions("assign", '{"a": [2, 0], "b": [1]}') == {"a": (0, 2), "b": (1,)}


@pytest.mark.parametrize(
    "text",
    ['{"a": []}', '{"a": 1}', '{"a": [true]}', '{"a": ["0"]}', '{"a": [-1]}', '{"a": [0, 0]}',
     '{"a": [10000]}', '{"a": [0], "a": [1]}', "a", "{}", '["a"]'],
)  # fmt: skip
def test_what_is_no_list_of_partitions_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^assign"):
        parse_partitions("assign", text)


def test_a_bound_names_exactly_what_is_read() -> None:
    there = {"a": [0, 1], "b": [0]}
    check_covers("o", Offsets({"a": {0: 1, 1: 2}, "b": Word.LATEST}), there)
    for bound in (Word.EARLIEST, Time(5)):
        check_covers("o", bound, there)
    with pytest.raises(InvalidRequestError) as caught:
        check_covers("o", Offsets({"a": {0: 1, 2: 3}, "c": Word.LATEST}), there)
    assert "it does not name a:1, 'b', which are read" in str(caught.value)
    assert "it names 'c', a:2, which are not read" in str(caught.value)
    with pytest.raises(InvalidRequestError, match=r"a:0, a:1, .* and 90 more"):
        check_covers("o", Times({"a": {100: 1}}), {"a": range(100)})


# -- where a stream has come to --------------------------------------------------------------------


@st.composite
def stream_offsets(draw: st.DrawFn) -> StreamOffset:
    positions = draw(
        st.dictionaries(st.builds(TopicPartition, TOPICS, PARTITIONS), OFFSETS, max_size=20)
    )
    ids = draw(st.dictionaries(TOPICS, st.uuids().map(str), max_size=5))
    ids |= {topic: f"id-{topic}" for topic, partition in positions if partition % 2}
    return StreamOffset(positions, ids)


@given(stream_offsets(), st.randoms(use_true_random=False))
def test_equal_positions_are_equal_text_and_come_back(offset: StreamOffset, chance: Random) -> None:
    assert StreamOffset.parse(offset.json()) == offset
    # As Spark stores it and hands it over again.
    assert StreamOffset.from_dict(json.loads(json.dumps(offset.as_dict()))) == offset
    shuffled = list(offset.positions.items())
    chance.shuffle(shuffled)
    ids = dict(reversed(offset.topic_ids.items()))
    again = StreamOffset(dict(shuffled), ids)
    assert again.json() == offset.json()
    assert json.dumps(again.as_dict()) == json.dumps(offset.as_dict())


def test_partitions_stand_in_the_order_of_their_numbers() -> None:
    positions = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 7, TopicPartition("a", 2): 5}
    assert StreamOffset(positions).json() == '{"a":{"2":5,"10":7},"b":{"0":1}}'
    with_ids = StreamOffset(positions, {"b": "B", "a": "A", "gone": "G"})
    assert with_ids.json() == (
        '{"a":{"2":5,"10":7},"b":{"0":1},"~raftlog":{"topic_ids":{"a":"A","b":"B"},"version":1}}'
    )
    assert with_ids.topic_id("a") == "A"
    assert with_ids.topic_id("c") == ""


def test_the_reserved_key_is_no_topic_and_sorts_behind_all_of_them() -> None:
    with pytest.raises(InvalidTopicError):
        check_topic_name(RESERVED_KEY)
    assert max("azAZ09._-") < RESERVED_KEY[0]


def test_what_the_kafka_connector_wrote_is_read() -> None:
    offset = StreamOffset.parse('{"clicks": {"10": 4, "0": 17}}')
    assert offset == StreamOffset(
        {TopicPartition("clicks", 0): 17, TopicPartition("clicks", 10): 4}
    )
    assert offset.topic_ids == {}
    assert StreamOffset.parse("{}") == StreamOffset({})
    assert StreamOffset({}).json() == "{}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "not an offset of raftlog"),
        ('{"a": 5}', "not an offset of raftlog"),
        ('{"a": {"0": -1}}', "a whole number from 0"),
        ('{"a": {"0": true}}', "has true"),
        ('{"logOffset": 3}', "belongs to a query on another source"),
        ('{"a b": {"0": 1}}', "is not a topic name"),
        ('{"a": {"0": 1}, "a": {"0": 1}}', "'a' twice"),
        ("v1", "is not valid"),
        ('{"~raftlog": 1}', "without a version"),
        ('{"~raftlog": {"version": 1}}', "topic_ids"),
        ('{"~raftlog": {"version": 1, "topic_ids": {"a": 5}}}', "topic_ids"),
        ('{"~raftlog": {"version": true, "topic_ids": {}}}', "without a version"),
        ('{"~raftlog": {"version": 2}}', "written by a newer release"),
        ('{"~epochs": {}}', "written by a newer release"),
    ],
)
def test_a_checkpoint_of_another_hand_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match="stream's offset") as caught:
        StreamOffset.parse(text)
    assert problem in str(caught.value)


def test_a_number_as_a_topic_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"not an offset of raftlog"):
        StreamOffset.from_dict({5: {"0": 1}})
