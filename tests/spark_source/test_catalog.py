"""What the driver and a stream learn of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar, cast

import pytest

from pyspark_raftlog.bounds import record_sizes, selects, starting_offset, view_of
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.options import Assigned, Pattern, Selection, SourceOptions, Topics
from pyspark_raftlog.planning import NO_OFFSET, DataLossError, PartitionNow, View
from raftlog import (
    Admin,
    Consumer,
    PartitionDescription,
    Producer,
    TopicDescription,
    TopicListing,
    TopicPartition,
)
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    NotLeaderError,
    RequestTimedOutError,
    UnknownTopicError,
)
from raftlog.testing import Cluster
from raftlog.testing.cluster import free_port
from raftlog.types import Offset
from tests.spark_source.fakes import FakeAdmin, FakeClock, FakePartition, catalog_of
from tests.spark_source.fixtures import NewTopicFunction
from tests.spark_source.sinks import stored_values

# -- the driver ------------------------------------------------------------------------------------

# What the driver learns of the cluster: in few requests, in time, again after failures.


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def admin_double() -> FakeAdmin:
    return FakeAdmin(
        {
            "a": [FakePartition(5, 10), FakePartition(0, 0)],
            "b": [FakePartition(2, 3)],
            "__audit": [FakePartition()],
        }
    )


def test_each_question_is_one_request(admin_double: FakeAdmin) -> None:
    catalog = catalog_of(admin_double)
    assert catalog.topics(["b", "a", "b"]) == {
        "b": TopicListing("b", "b-id", 1),
        "a": TopicListing("a", "a-id", 2),
    }
    assert catalog.earliest([A0, A1, B0]) == {A0: 5, A1: 0, B0: 2}
    assert catalog.latest([A0, A1, B0]) == {A0: 10, A1: 0, B0: 3}
    assert catalog.at_times({A0: 61, A1: 0, B0: 31}) == {A0: 7, A1: None, B0: None}
    assert list(catalog.existing(["gone", "b"])) == ["b"]
    assert admin_double.calls == ["find_topics", *["list_offsets"] * 3, "find_topics"]


def test_a_question_about_nothing_asks_nobody(admin_double: FakeAdmin) -> None:
    catalog = catalog_of(admin_double)
    assert catalog.earliest([]) == catalog.latest([]) == catalog.at_times({}) == {}
    assert catalog.now([]) == {}
    assert catalog.existing([]) == {}
    assert admin_double.calls == []


def test_a_pattern_finds_no_internal_topics(admin_double: FakeAdmin) -> None:
    catalog = catalog_of(admin_double)
    assert list(catalog.matching(lambda name: "a" in name)) == ["a"]
    assert catalog.matching(lambda name: name == "c") == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clik", r"there is no topic 'clik'\. Did you mean 'clicks'\?"),
        ("orders", r"there is no topic 'orders'\. `raftlog topic list` shows the existing topics"),
    ],
)
def test_an_unknown_topic_is_named_with_those_like_it(name: str, message: str) -> None:
    admin = FakeAdmin({"clicks": [], "views": [], "__audit": []})
    clock = FakeClock()
    with pytest.raises(UnknownTopicError, match=message):
        catalog_of(admin, clock).topics(["clicks", name])
    assert clock.slept == [0.1] * 3, "it may be so new that not every broker knows of it"


def test_an_unknown_topic_of_a_cluster_without_any() -> None:
    with pytest.raises(UnknownTopicError, match="The cluster has no topics yet"):
        catalog_of(FakeAdmin({}), retries=0).topics(["t"])


@pytest.mark.parametrize("error", [NotLeaderError("moved"), RequestTimedOutError("silence")])
def test_a_failure_that_may_pass_is_asked_again(admin_double: FakeAdmin, error: Exception) -> None:
    admin_double.failures = [error] * 3
    clock = FakeClock()
    assert catalog_of(admin_double, clock).latest([B0]) == {B0: 3}
    assert clock.slept == [0.1] * 3


def test_not_more_often_than_asked_for(admin_double: FakeAdmin) -> None:
    admin_double.failures = [NotLeaderError(str(number)) for number in range(9)]
    with pytest.raises(NotLeaderError, match="2"):
        catalog_of(admin_double, retries=2).latest([B0])
    assert len(admin_double.calls) == 3


def test_not_beyond_the_deadline(admin_double: FakeAdmin) -> None:
    admin_double.failures = [NotLeaderError(str(number)) for number in range(9)]
    with pytest.raises(NotLeaderError, match="2"):
        catalog_of(admin_double, timeout_ms=250, retries=9).latest([B0])
    assert len(admin_double.calls) == 3


def test_a_failure_that_stays_is_raised_at_once(admin_double: FakeAdmin) -> None:
    admin_double.failures = [InvalidRequestError("no")]
    with pytest.raises(InvalidRequestError, match="no"):
        catalog_of(admin_double).earliest([B0])
    assert len(admin_double.calls) == 1


def test_now_tells_what_is_there_of_what_is_not(admin_double: FakeAdmin) -> None:
    missing, gone = TopicPartition("a", 2), TopicPartition("gone", 0)
    assert catalog_of(admin_double).now([A0, missing, gone]) == {
        A0: PartitionNow("a-id", 5, 10),
        missing: PartitionNow("a-id", NO_OFFSET, NO_OFFSET),
        gone: PartitionNow("", NO_OFFSET, NO_OFFSET),
    }


def test_closing_closes_the_client(admin_double: FakeAdmin) -> None:
    catalog_of(admin_double).close()
    assert admin_double.closed


def test_brokers_that_cannot_be_reached_are_named_in_time() -> None:
    """And in not much more than what the settings allow, of which the first counts here."""
    address = f"127.0.0.1:{free_port()}"
    admin = Admin(address, bootstrap_timeout_ms=20)
    catalog = Catalog(admin, timeout_ms=30_000, retries=2, retry_interval_ms=1)
    with pytest.raises(
        BrokerUnavailableError, match=f"bootstrap.servers: 3 attempts in .* s: .*{address}"
    ):
        catalog.topics(["t"])
    catalog.close()


@pytest.mark.spark
def test_on_real_brokers(brokers: Cluster, admin: Admin, new_topic: NewTopicFunction) -> None:
    name = new_topic(2)
    one = TopicPartition(name, 1)
    with Producer(brokers.bootstrap) as producer:
        for timestamp_ms in (1_000, 2_000, 3_000):
            producer.send(name, b"x", partition=1, timestamp_ms=timestamp_ms)
        producer.flush()
    catalog = Catalog(Admin(brokers.bootstrap))
    try:
        found = catalog.topics([name])[name]
        assert found.partition_count == 2
        assert found.id == admin.describe_topics([name])[0].id
        assert name in catalog.matching(lambda there: there.startswith("topic-"))
        assert catalog.latest([one]) == {one: 3}
        assert catalog.at_times({one: 1_001}) == {one: 1}
        assert catalog.at_times({one: 3_001}) == {one: None}
        assert catalog.now([one]) == {one: PartitionNow(found.id, 0, 3)}
        with pytest.raises(UnknownTopicError, match=f"'{name}-'. Did you mean"):
            catalog.topics([f"{name}-"])
    finally:
        catalog.close()


@pytest.mark.spark
def test_a_time_is_that_of_a_record_that_readers_get(
    brokers: Cluster, admin: Admin, new_topic: NewTopicFunction
) -> None:
    """Not that of a marker, or of an attempt that was aborted. Both are before the records here."""
    topic = new_topic()
    tp = TopicPartition(topic, 0)
    with Producer(brokers.bootstrap, transactional_id=topic) as producer:
        for attempt in ("first", "second"):
            with suppress(RuntimeError), producer.transaction() as transaction:
                for number in range(3):
                    transaction.send(topic, b"x", timestamp_ms=1_000 + number)
                    producer.flush()
                if attempt == "first":
                    raise RuntimeError("aborted")
    stored_values(brokers.bootstrap, topic)  # waits for the marker
    catalog = Catalog(admin)
    assert catalog.at_times({tp: 1_001}) == {tp: 5}
    assert catalog.at_times({tp: 1_003}) == {tp: None}
    for isolation, offset in (("committed", 5), ("uncommitted", 1)):
        with Consumer(brokers.bootstrap, isolation=isolation) as consumer:
            found = consumer.offsets_for_times({tp: 1_001})[tp]
        assert found is not None
        assert found.offset == offset


# -- streams ---------------------------------------------------------------------------------------

# What a stream asks of the cluster, of one that is made up.


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
