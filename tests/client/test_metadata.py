"""A client's view of the cluster: merging news, finding leaders, saying why not."""

from __future__ import annotations

import pytest

from raftlog.client.cluster import ClusterView, PartitionView, unreachable
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    FrameError,
    LeaderNotAvailableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.records import BrokerInfo, MetadataResponse, PartitionInfo, TopicInfo
from raftlog.protocol.schema import Failure


def response(*topics: TopicInfo) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="c", brokers=[BrokerInfo(id=1, host="::1", port=9)], topics=list(topics)
    )


def topic(name: str, *leaders: int | None) -> TopicInfo:
    return TopicInfo(
        name=name,
        id="x",
        max_message_bytes=100,
        partitions=[
            PartitionInfo(partition=number, leader=leader, leader_epoch=0, replicas=[], isr=[])
            for number, leader in reversed(list(enumerate(leaders)))
        ],
    )


def missing(name: str) -> TopicInfo:
    return TopicInfo(name=name, failure=Failure.of(UnknownTopicError(f"no {name}")))


def test_news_are_merged() -> None:
    view = ClusterView().merge(response(topic("a", 1, 2), topic("b", 1)), asked=["a", "b"])
    assert view.brokers == {1: Address("::1", 9)}
    assert view.topic("a").leaders == (1, 2)
    later = view.merge(response(topic("a", 2, 2, None)), asked=["a"])
    assert later.topic("a").partition_count == 3
    assert later.topic("b") == view.topic("b")
    assert view.topic("a").partition_count == 2, "a view never changes"


def test_an_answer_for_all_topics_replaces_all() -> None:
    view = ClusterView().merge(response(topic("a", 1), missing("c")), asked=["a", "c"])
    assert set(view.merge(response(topic("b", 1)), asked=None).topics) == {"b"}
    assert not view.merge(response(), asked=None).failures


def test_a_broker_that_has_just_started_refuses_no_partition() -> None:
    """A topic was given up, and may be there again; who waits for it goes on waiting."""
    not_ready = TopicInfo(name="a", failure=Failure.of(ClusterNotReadyError("just started")))
    view = ClusterView().merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError):
        view.partition("a", 0)
    later = view.merge(response(not_ready), asked=["a"])
    assert later.partition("a", 0) == PartitionView(None)
    with pytest.raises(ClusterNotReadyError):
        later.topic("a")


def test_a_topic_comes_and_goes() -> None:
    view = ClusterView().merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError, match="no a"):
        view.topic("a")
    view = view.merge(response(topic("a", 1)), asked=["a"])
    assert view.leader("a", 0) == 1
    view = view.merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError):
        view.leader("a", 0)
    with pytest.raises(UnknownTopicError, match="raftlog topic create zz"):
        view.topic("zz")


def test_leaders() -> None:
    view = ClusterView().merge(response(topic("a", 1, None)), asked=["a"])
    assert view.leader("a", 0) == 1
    with pytest.raises(LeaderNotAvailableError, match="a:1"):
        view.leader("a", 1)
    for partition in (-1, 2):
        with pytest.raises(UnknownPartitionError, match=rf"no partition {partition}\. It has 2"):
            view.leader("a", partition)


def test_what_cannot_be_reached_is_named_with_its_reason_and_what_to_do() -> None:
    error = unreachable(
        {
            Address("a", 1): BrokerUnavailableError("connection refused"),
            Address("::1", 2): FrameError("an HTTP server"),
        }
    )
    assert isinstance(error, BrokerUnavailableError)
    for part in ("a:1 (connection refused)", "[::1]:2 (an HTTP server)", "raftlog up"):
        assert part in str(error)
    assert "check the argument bootstrap (RAFTLOG_BOOTSTRAP)" in str(error)


def test_a_stranger_at_every_address_is_no_reason_to_wait() -> None:
    error = unreachable({Address("a", 1): FrameError("a:1: an HTTP server")})
    assert isinstance(error, FrameError)


# -- several brokers, some of which are behind -----------------------------------------------------


def cluster_says(*topics: TopicInfo, brokers: tuple[int, ...] = (1, 2, 3)) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="c",
        brokers=[BrokerInfo(id=broker, host=f"b{broker}", port=9) for broker in brokers],
        topics=list(topics),
    )


def led(
    leader: int | None, epoch: int, *, name: str = "a", id_: str = "x", partitions: int = 1
) -> TopicInfo:
    return TopicInfo(
        name=name,
        id=id_,
        partitions=[
            PartitionInfo(
                partition=number, leader=leader, leader_epoch=epoch, replicas=[1, 2, 3], isr=[1, 2]
            )
            for number in range(partitions)
        ],
    )


def seen(*answers: tuple[int, MetadataResponse]) -> ClusterView:
    view = ClusterView()
    for source, answer in answers:
        view = view.merge(answer, asked=["a"], source=source)
    return view


def test_replicas_and_epochs_are_known() -> None:
    known = seen((1, cluster_says(led(1, 5)))).partition("a", 0)
    assert known == PartitionView(1, 5, (1, 2, 3), (1, 2))


@pytest.mark.parametrize(
    ("known", "news", "leader", "epoch"),
    [
        ((1, 5), (2, 6), 2, 6),
        ((2, 6), (1, 5), 2, 6),  # cut off, or behind: KIP-320
        ((2, 6), (None, -1), 2, 6),  # it knows nothing of the partition yet
        ((2, 6), (None, 6), 2, 6),  # it cannot see the leader; nobody else can be that now
        ((2, 6), (None, 7), None, 7),
        ((None, 7), (2, 7), 2, 7),
        ((None, -1), (1, 0), 1, 0),
    ],
)
def test_the_newer_epoch_counts(
    known: tuple[int | None, int], news: tuple[int | None, int], leader: int | None, epoch: int
) -> None:
    view = seen((1, cluster_says(led(*known))), (2, cluster_says(led(*news))))
    found = view.partition("a", 0)
    assert (found.leader, found.leader_epoch) == (leader, epoch)


def test_who_is_behind_is_noticed() -> None:
    view = seen((1, cluster_says(led(1, 5, partitions=2))))
    assert view.is_ahead_of(cluster_says(led(1, 4, partitions=2)))
    assert view.is_ahead_of(cluster_says(led(1, 6, partitions=1)))
    assert view.is_ahead_of(cluster_says(missing("a")))
    assert view.is_ahead_of(cluster_says(led(1, 9, id_="y", partitions=2)))
    assert not view.is_ahead_of(cluster_says(led(2, 6, partitions=3)))
    assert not view.is_ahead_of(cluster_says(led(1, 0, name="b")))


def test_partitions_are_only_ever_added() -> None:
    view = seen((1, cluster_says(led(1, 5, partitions=3))), (2, cluster_says(led(2, 6))))
    assert view.topic("a").leaders == (2, 1, 1)


def test_one_broker_alone_does_not_take_a_topic_away() -> None:
    view = seen((1, cluster_says(led(1, 5))), (2, cluster_says(missing("a"))))
    assert view.leader("a", 0) == 1
    assert set(view.doubts) == {"a"}
    again = view.merge(cluster_says(missing("a")), asked=["a"], source=2)
    assert again.leader("a", 0) == 1, "the same broker again is no second opinion"
    gone = again.merge(cluster_says(missing("a")), asked=["a"], source=3)
    with pytest.raises(UnknownTopicError):
        gone.topic("a")
    assert not gone.doubts
    kept = again.merge(cluster_says(led(1, 5)), asked=["a"], source=3)
    assert not kept.doubts
    assert kept.merge(cluster_says(missing("a")), asked=["a"], source=3).leader("a", 0) == 1


def test_a_topic_made_anew_counts_when_two_say_so_whatever_its_epoch() -> None:
    new = cluster_says(led(3, 0, id_="y"))
    view = seen((1, cluster_says(led(1, 5))), (2, new))
    assert view.topic("a").id == "x"
    view = view.merge(new, asked=["a"], source=3)
    assert (view.topic("a").id, view.leader("a", 0)) == ("y", 3)
    old = view.merge(cluster_says(led(1, 5)), asked=["a"], source=1)
    assert old.topic("a").id == "y", "one that is cut off does not bring the old one back"


def test_a_broker_that_stands_alone_is_believed() -> None:
    alone = (1,)
    view = seen(
        (1, cluster_says(led(1, 5), brokers=alone)), (1, cluster_says(led(1, 4), brokers=alone))
    )
    assert view.partition("a", 0).leader_epoch == 4, "its disk has lost the end; there is no other"


def test_a_topic_that_nobody_knows_is_refused_even_if_one_alone_says_so() -> None:
    view = seen((1, cluster_says(missing("a"))))
    with pytest.raises(UnknownTopicError, match="no a"):
        view.topic("a")
    assert set(view.doubts) == {"a"}, "another may be asked"
    assert view.merge(cluster_says(led(1, 5)), asked=["a"], source=2).leader("a", 0) == 1


def test_brokers_with_partitions_stay_known_when_one_that_is_cut_off_names_itself_alone() -> None:
    view = seen((1, cluster_says(led(1, 5), brokers=(1, 2, 3, 4))), (3, cluster_says(brokers=(3,))))
    assert set(view.brokers) == {1, 2, 3, 4}
    view = view.merge(cluster_says(brokers=(1, 5)), asked=["a"], source=1)
    assert set(view.brokers) == {1, 2, 3, 5}, "four has left"
    moved = view.merge(
        MetadataResponse(
            cluster_id="c", brokers=[BrokerInfo(id=2, host="new", port=8, rack="r")], topics=[]
        ),
        asked=[],
        source=2,
    )
    assert set(moved.brokers) == {1, 2, 3, 5}
    assert moved.brokers[2] == Address("new", 8)
    assert moved.racks == {2: "r"}
