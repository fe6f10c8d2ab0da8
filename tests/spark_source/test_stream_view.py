"""What a stream asks of the cluster, of one that is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

import pytest

from pyspark_raftlog.bounds import record_sizes, selects, starting_offset, view_of
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.options import Assigned, Pattern, Selection, SourceOptions, Topics
from pyspark_raftlog.planning import DataLossError, View
from raftlog import Admin, PartitionDescription, TopicDescription, TopicListing, TopicPartition
from raftlog.errors import InvalidRequestError, UnknownTopicError
from raftlog.types import Offset

T0, T1, T2, U0 = (TopicPartition(*each) for each in (("t", 0), ("t", 1), ("t", 2), ("u", 0)))


class FakeCatalog:
    """Topics "t" with 3 partitions and "u" with one; each ends at 10 and begins at 4."""

    topics_there: ClassVar = {"t": TopicListing("t", "id-t", 3), "u": TopicListing("u", "id-u", 1)}

    def topics(self, names: Iterable[str]) -> dict[str, TopicListing]:
        found = self.existing(names)
        if len(found) < len(list(names)):
            raise UnknownTopicError("one is missing")
        return found

    def existing(self, names: Iterable[str]) -> dict[str, TopicListing]:
        return {name: self.topics_there[name] for name in names if name in self.topics_there}

    def matching(self, matches: Callable[[str], bool]) -> dict[str, TopicListing]:
        return self.existing(filter(matches, self.topics_there))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        return dict.fromkeys(partitions, 4)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        return dict.fromkeys(partitions, 10)


CATALOG = cast(Catalog, FakeCatalog())


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (Topics(("t",)), [T0, T1, T2]),
        (Topics(("u", "gone")), [U0]),
        (Topics(("gone",)), []),
        (Pattern("^t"), [T0, T1, T2]),
        (Pattern("."), [T0, T1, T2, U0]),
        (Pattern("x"), []),
        (Assigned({"t": (0, 2, 7)}), [T0, T2]),
        (Assigned({"t": (1,), "gone": (0,)}), [T1]),
    ],
)
def test_what_is_selected_and_there_is_seen(
    selection: Selection, selected: list[TopicPartition]
) -> None:
    view = view_of(CATALOG, selection)
    assert sorted(view.latest.items()) == [(tp, 10) for tp in selected]
    assert {tp.topic for tp in selected} == view.topic_ids.keys()
    assert [tp for tp in (T0, T1, T2, U0) if selects(selection, tp)] == selected


def options(**given: str) -> SourceOptions:
    address = {"bootstrap.servers": "127.0.0.1:1"}
    return SourceOptions.parse(address | given, streaming=True)


@pytest.mark.parametrize(
    ("start", "positions"),
    [
        ({}, {T0: 10, T1: 10, T2: 10}),
        ({"startingOffsets": "earliest"}, {T0: 4, T1: 4, T2: 4}),
        ({"startingOffsets": '{"t":{"0":7,"1":-1,"2":-2}}'}, {T0: 7, T1: 10, T2: 4}),
        ({"startingOffsets": '{"t":{"0":1,"1":-1,"2":-2}}'}, {T0: 1, T1: 10, T2: 4}),
    ],
)
def test_a_new_query_starts_where_the_options_say(
    start: dict[str, str], positions: dict[TopicPartition, Offset]
) -> None:
    offset = starting_offset(CATALOG, options(subscribe="t", **start))
    assert (offset.positions, offset.topic_ids) == (positions, {"t": "id-t"})


def test_a_start_has_to_name_the_partitions_that_there_are() -> None:
    with pytest.raises(InvalidRequestError, match=r"t:1, t:2"):
        starting_offset(CATALOG, options(subscribe="t", startingOffsets='{"t":{"0":7}}'))


def test_every_start_beyond_an_end_is_named() -> None:
    given = {"subscribe": "t", "startingOffsets": '{"t":{"0":11,"1":5,"2":12}}'}
    with pytest.raises(DataLossError, match=r"2 partitions: \(1\) .* offset 11.* offset 12"):
        starting_offset(CATALOG, options(**given))
    lenient = starting_offset(CATALOG, options(failOnDataLoss="false", **given))
    assert lenient.positions == {T0: 10, T1: 5, T2: 10}


def test_records_are_as_large_as_what_is_stored_of_them() -> None:
    def partition(number: int, size_bytes: int, start: Offset, end: Offset) -> PartitionDescription:
        ends: dict[str, Any] = {"log_start_offset": start, "high_watermark": end}
        return PartitionDescription(
            partition=number,
            leader=1,
            leader_epoch=1,
            replicas=(1,),
            isr=(1,),
            witnesses=(),
            log_end_offset=end,
            size_bytes=size_bytes,
            damage="",
            **ends,
        )

    class FakeAdmin:
        def describe_topics(self, topics: Iterable[str]) -> list[TopicDescription]:
            assert list(topics) == ["t"]
            parts = (partition(0, 1_000, 10, 20), partition(1, 0, 5, 5))
            return [TopicDescription("t", "id-t", {}, (), parts)]

    sizes = record_sizes(cast(Admin, FakeAdmin()), View({"t": "id-t"}, {T0: 20, T1: 5}))
    assert sizes == {T0: 100.0, T1: 0.0}
