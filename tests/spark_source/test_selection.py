"""One way to choose partitions; bounds by precedence, and refused when they read nothing."""

from __future__ import annotations

import pytest

from pyspark_raftlog.offsets import Bound, Offsets, Time, Times, Word
from pyspark_raftlog.options import (
    Assigned,
    Bounds,
    Pattern,
    Texts,
    Topics,
    parse_bounds,
    parse_selection,
    parse_strategy,
)
from raftlog.errors import InvalidRequestError

ANY = Pattern(".")


def bounds(*, streaming: bool = False, **options: str) -> Bounds:
    return parse_bounds(Texts(options), ANY, streaming=streaming)


def refused(selection: Topics | Pattern | Assigned = ANY, **options: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        parse_bounds(Texts(options), selection, streaming=False)
    return str(caught.value)


# -- which partitions ------------------------------------------------------------------------------


def test_topics_have_commas_between_them() -> None:
    assert parse_selection(Texts({"subscribe": " a, b ,,a,"})) == Topics(("a", "b"))


def test_a_pattern_is_found_anywhere_in_the_name() -> None:
    pattern = parse_selection(Texts({"subscribePattern": "clicks-[0-9]"}))
    assert isinstance(pattern, Pattern)
    assert [pattern.matches(name) for name in ("eu.clicks-1.raw", "clicks-", "Clicks-1")] == [
        True, False, False,
    ]  # fmt: skip


def test_partitions_are_assigned_by_json() -> None:
    selection = parse_selection(Texts({"assign": '{"a": [1, 0]}'}))
    assert selection == Assigned({"a": (0, 1)})


def test_exactly_one_of_the_three_is_given() -> None:
    with pytest.raises(InvalidRequestError, match=r"exactly one of the options .*: none is set"):
        parse_selection(Texts({}))
    with pytest.raises(InvalidRequestError, match="subscribe and assign are set"):
        parse_selection(Texts({"subscribe": "a", "assign": '{"a":[0]}'}))


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("subscribe", ",", "names no topic"),
        ("subscribe", "a,b c", "'b c' is not a topic name"),
        ("subscribe", "events.*", "use subscribePattern"),
        ("subscribe", "", "is empty"),
        ("subscribePattern", "a(", "is not a regular expression of Python's"),
        ("subscribePattern", "a{99999999999999}", "is not a regular expression of Python's"),
        ("subscribePattern", "(" * 9_000 + ")" * 9_000, "has 18000 characters"),
        ("assign", "a:0", "assign"),
    ],
)
def test_what_names_no_partitions_is_refused(option: str, text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        parse_selection(Texts({option: text}))


# -- from where, to where --------------------------------------------------------------------------


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    assert bounds() == Bounds("startingOffsets", Word.EARLIEST, "endingOffsets", Word.LATEST)
    assert bounds(streaming=True).starting is Word.LATEST


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_time_comes_before_times_and_these_before_offsets(side: str) -> None:
    options = {
        f"{side}Offsets": '{"a": {"0": 5}}',
        f"{side}OffsetsByTimestamp": '{"a": {"0": 7}}',
        f"{side}Timestamp": "9",
    }
    expected: list[Bound] = [Time(9), Times({"a": {0: 7}}), Offsets({"a": {0: 5}})]
    for name, bound in zip(reversed(list(options)), expected, strict=True):
        found = bounds(**options)
        option = found.starting_option if side == "starting" else found.ending_option
        assert (option, found.starting if side == "starting" else found.ending) == (name, bound)
        del options[name]


def test_what_has_no_effect_is_checked_all_the_same() -> None:
    assert "startingOffsets" in refused(startingTimestamp="9", startingOffsets="sometimes")
    assert "startingTimestamp='-1'" in refused(startingTimestamp="-1")


@pytest.mark.parametrize(
    "text",
    ["latest", '{"a": {"0": 3, "1": -1}}', '{"a": "latest"}', '{"b": {"0": 2}, "a": "latest"}'],
)
def test_a_batch_does_not_start_at_the_end(text: str) -> None:
    assert "startingOffsets is latest (-1)" in refused(startingOffsets=text)
    assert isinstance(bounds(streaming=True, startingOffsets=text).starting, Word | Offsets)


@pytest.mark.parametrize("text", ["earliest", '{"a": {"0": 3, "1": -2}}', '{"a": "earliest"}'])
def test_a_batch_does_not_end_at_the_start(text: str) -> None:
    assert "endingOffsets is earliest (-2)" in refused(endingOffsets=text)


def test_the_partition_that_is_wrong_is_named() -> None:
    assert "latest (-1) for a:1:" in refused(startingOffsets='{"a": {"0": 3, "1": -1}}')


def test_an_end_before_the_start_is_refused() -> None:
    assert "startingTimestamp is 9, and endingTimestamp is 8" in refused(
        startingTimestamp="9", endingTimestamp="8"
    )
    message = refused(startingOffsets='{"a":{"0":1,"1":9}}', endingOffsets='{"a":{"0":1,"1":8}}')
    assert "startingOffsets is 9 for a:1, and endingOffsets is 8" in message
    assert "startingOffsetsByTimestamp is 9 for a:0" in refused(
        startingOffsetsByTimestamp='{"a":{"0":9}}', endingOffsetsByTimestamp='{"a":{"0":8}}'
    )


def test_an_end_that_only_the_cluster_knows_is_not_judged() -> None:
    for starting, ending in (
        ('{"a":{"0":9}}', '{"a":{"0":-1}}'),
        ('{"a":{"0":-2}}', '{"a":{"0":0}}'),
        ('{"a":"earliest"}', '{"a":"latest"}'),
        ('{"a":{"0":9}}', '{"a":{"0":9}}'),
    ):
        found = bounds(startingOffsets=starting, endingOffsets=ending)
        assert isinstance(found.starting, Offsets)


def test_a_bound_names_the_partitions_that_are_assigned() -> None:
    assigned = Assigned({"a": (0, 1)})
    assert "it does not name a:1" in refused(assigned, startingOffsets='{"a":{"0":1}}')
    assert "it names a:2" in refused(assigned, endingOffsets='{"a":{"0":1,"1":1,"2":1}}')
    parse_bounds(Texts({"startingOffsets": '{"a":"earliest"}'}), assigned, streaming=False)


def test_a_bound_names_the_topics_that_are_subscribed() -> None:
    topics = Topics(("a", "b"))
    assert "it does not name 'b'" in refused(topics, startingOffsets='{"a":{"0":1}}')
    message = refused(topics, endingOffsets='{"a":{"0":1},"b":"latest","c":{"0":1}}')
    assert "it names 'c'" in message
    given = {"startingOffsets": '{"a":{"0":1,"7":1},"b":"earliest"}'}
    parse_bounds(Texts(given), topics, streaming=False)


def test_a_stream_whose_topics_have_changed_starts_from_its_checkpoint() -> None:
    given = {"startingOffsets": '{"a":{"0":1}}'}
    assert parse_bounds(Texts(given), Topics(("a", "b")), streaming=True).starting == Offsets(
        {"a": {0: 1}}
    )


def test_the_strategy_is_error_or_latest() -> None:
    name = "startingOffsetsByTimestampStrategy"
    assert parse_strategy(Texts({})) == parse_strategy(Texts({name: "Error"})) == "error"
    assert parse_strategy(Texts({name: "latest"})) == "latest"
    with pytest.raises(InvalidRequestError, match="it is error or latest"):
        parse_strategy(Texts({name: "earliest"}))
