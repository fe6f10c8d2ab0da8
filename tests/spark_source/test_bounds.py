"""Where a read begins and ends: partitions that there are, words, offsets and times."""

from __future__ import annotations

import json

import pytest

from pyspark_raftlog.bounds import extent, resolve_end, resolve_start, select
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.options import SourceOptions
from raftlog import TopicPartition
from raftlog.errors import InvalidRequestError, UnknownPartitionError, UnknownTopicError
from tests.spark_source.fakes import FakeAdmin, FakePartition, catalog_of

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
