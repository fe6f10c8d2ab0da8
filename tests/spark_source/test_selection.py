"""Which partitions are read, from where to where: selection, bounds, and offsets as text."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.bounds import extent, resolve_end, resolve_start, select
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.offsets import (
    EARLIEST,
    LATEST,
    RESERVED_KEY,
    Bound,
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
from pyspark_raftlog.options import (
    Assigned,
    Bounds,
    Pattern,
    SourceOptions,
    Texts,
    Topics,
    parse_bounds,
    parse_selection,
    parse_strategy,
)
from raftlog import TopicPartition, limits
from raftlog.errors import (
    InvalidRequestError,
    InvalidTopicError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.types import check_topic_name
from tests.spark_source.fakes import FakeAdmin, FakePartition, catalog_of

# -- selection -------------------------------------------------------------------------------------

# One way to choose partitions; bounds by precedence, and refused when they read nothing.


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


# -- bounds ----------------------------------------------------------------------------------------

# Where a read begins and ends: partitions that there are, words, offsets and times.


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOTH = "a,b"


@pytest.fixture
def catalog() -> Catalog:
    """Records at 10 times their offsets: ``a:0`` has 5 to 9, ``a:1`` none, ``b:0`` 2 to 29."""
    partitions = [FakePartition(5, 10), FakePartition(4, 4)]
    return catalog_of(FakeAdmin({"a": partitions, "b": [FakePartition(2, 30)]}))


def options(**given: str) -> SourceOptions:
    if not any(name in given for name in ("subscribe", "subscribePattern", "assign")):
        given["subscribe"] = BOTH
    return SourceOptions.parse({"bootstrap.servers": "127.0.0.1:1", **given}, streaming=False)


def starts(catalog: Catalog, **given: str) -> dict[TopicPartition, int]:
    chosen = options(**given)
    selected = select(catalog, chosen.selection)
    return resolve_start(catalog, chosen, selected, extent(catalog, selected.partitions))


def ends(catalog: Catalog, **given: str) -> dict[TopicPartition, int]:
    chosen = options(**given)
    selected = select(catalog, chosen.selection)
    return resolve_end(catalog, chosen, selected, extent(catalog, selected.partitions))


# -- which partitions


def test_topics_have_all_of_their_partitions(catalog: Catalog) -> None:
    found = select(catalog, options(subscribe="b,a").selection)
    assert found.partitions == (A0, A1, B0)
    assert found.topic_ids == {"a": "a-id", "b": "b-id"}
    assert found.numbers() == {"a": [0, 1], "b": [0]}


def test_a_pattern_is_searched_for(catalog: Catalog) -> None:
    assert select(catalog, options(subscribePattern="^a").selection).partitions == (A0, A1)
    assert select(catalog, options(subscribePattern="c").selection).partitions == ()


def test_assigned_partitions_are_those_and_no_others(catalog: Catalog) -> None:
    assert select(catalog, options(assign='{"b":[0],"a":[1]}').selection).partitions == (A1, B0)


def test_what_is_not_there_is_named(catalog: Catalog) -> None:
    with pytest.raises(UnknownTopicError, match="'c'"):
        select(catalog, options(subscribe="a,c").selection)
    with pytest.raises(
        UnknownPartitionError, match=r"assign: topic 'a' has no partition 2: it has 2, numbered"
    ):
        select(catalog, options(assign='{"a":[0,2]}').selection)


# -- where


def test_by_default_it_is_all_that_there_is(catalog: Catalog) -> None:
    assert starts(catalog) == {A0: 5, A1: 4, B0: 2}
    assert ends(catalog) == {A0: 10, A1: 4, B0: 30}


def test_offsets_and_words_mix(catalog: Catalog) -> None:
    text = json.dumps({"a": {"0": 7, "1": -2}, "b": "earliest"})
    assert starts(catalog, startingOffsets=text) == {A0: 7, A1: 4, B0: 2}
    text = json.dumps({"a": {"0": 99, "1": -1}, "b": "latest"})
    assert ends(catalog, endingOffsets=text) == {A0: 99, A1: 4, B0: 30}, "99 is not judged here"


def test_exactly_the_partitions_have_to_be_named(catalog: Catalog) -> None:
    with pytest.raises(InvalidRequestError, match=r"startingOffsets .* does not name a:1"):
        starts(catalog, subscribe="a", startingOffsets='{"a":{"0":7}}')
    with pytest.raises(InvalidRequestError, match=r"endingOffsets .* names a:2"):
        ends(catalog, subscribe="a", endingOffsets='{"a":{"0":7,"1":7,"2":7}}')
    with pytest.raises(InvalidRequestError, match=r"startingOffsets .* does not name 'b'"):
        starts(catalog, subscribePattern=".", startingOffsets='{"a":{"0":7,"1":-2}}')


def test_a_time_is_where_its_first_record_is(catalog: Catalog) -> None:
    found = starts(catalog, startingTimestamp="71", startingOffsetsByTimestampStrategy="latest")
    assert found == {A0: 8, A1: 4, B0: 8}
    text = json.dumps({"a": {"0": 0, "1": 0}, "b": {"0": 91}})
    found = starts(
        catalog, startingOffsetsByTimestamp=text, startingOffsetsByTimestampStrategy="latest"
    )
    assert found == {A0: 5, A1: 4, B0: 10}


def test_a_start_without_a_record_is_an_error_that_names_partitions(catalog: Catalog) -> None:
    with pytest.raises(
        InvalidRequestError,
        match=r"startingTimestamp: no record at or after 95 \(.*\) is in a:0, a:1\. Set",
    ):
        starts(catalog, startingTimestamp="95")


def test_the_error_names_only_a_few() -> None:
    catalog = catalog_of(FakeAdmin({"many": [FakePartition() for _ in range(9)]}))
    with pytest.raises(InvalidRequestError, match=r"many:4 and 4 more\. Set"):
        starts(catalog, subscribe="many", startingTimestamp="1")


def test_an_end_without_a_record_is_the_end_of_the_log(catalog: Catalog) -> None:
    assert ends(catalog, endingTimestamp="95") == {A0: 10, A1: 4, B0: 10}


def test_a_record_that_came_after_the_ends_were_looked_up_is_none() -> None:
    """Else the read would begin beyond its own end."""
    admin = FakeAdmin({"a": [FakePartition(0, 10)]})
    catalog = catalog_of(admin)
    chosen = options(
        subscribe="a", startingTimestamp="100", startingOffsetsByTimestampStrategy="latest"
    )
    selected = select(catalog, chosen.selection)
    now = extent(catalog, selected.partitions)
    admin.topics["a"][0].latest = 50
    assert resolve_start(catalog, chosen, selected, now) == {A0: 10}


def test_retention_between_the_two_questions_makes_no_end_before_the_start() -> None:
    class Forgetful(FakePartition):
        def at(self, at: object) -> int | None:
            return 7 if at == "earliest" else 5

    catalog = catalog_of(FakeAdmin({"a": [Forgetful()]}))
    assert extent(catalog, [A0]).latest == {A0: 7}


# -- offsets ---------------------------------------------------------------------------------------

# Offsets as text: what is taken, what is refused and why, and equal text for equal positions.


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
