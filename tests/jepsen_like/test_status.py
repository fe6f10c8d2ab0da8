"""What brokers say is put together: the newest word counts, and who is silent holds nothing up."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from raftlog.config import Address
from raftlog.protocol.cluster import BrokerStatus, DescribeClusterResponse, ReplicaStatus
from raftlog.protocol.cluster import PartitionStatus as WireStatus
from raftlog.protocol.records import (
    DescribeTopicsResponse,
    PartitionDescription,
    PartitionInfo,
    TopicDescription,
)
from raftlog.testing import Cluster, cluster
from raftlog.types import TopicPartition
from raftlog_jepsen import status
from raftlog_jepsen.status import (
    Answers,
    Asking,
    PartitionStatus,
    lacking,
    missing,
    until_nothing,
)

NAME = TopicPartition("t", 0)
IDS = (1, 2, 3)


def said(
    leader: int | None = 1,
    epoch: int = 5,
    isr: tuple[int, ...] = IDS,
    ends: dict[int, int] | None = None,
    **rest: Any,
) -> WireStatus:
    """One broker's word on partition t:0. ``ends``: what a leader knows of replicas' logs."""
    return WireStatus(
        **{
            "topic": "t",
            "topic_id": "id-1",
            "partition": 0,
            "leader": leader,
            "leader_epoch": epoch,
            "replicas": list(IDS),
            "isr": list(isr),
            "witnesses": [4, 5],
            "elr": [],
            "min_isr": 2,
            "replica_status": [
                ReplicaStatus(broker=broker, log_end_offset=end)
                for broker, end in (ends or {}).items()
            ],
            **rest,
        }
    )


def broker(broker_id: int, **rest: Any) -> BrokerStatus:
    facts = {"directory_id": "", "broker_epoch": 1, "fenced": False, "live": True, **rest}
    return BrokerStatus(id=broker_id, host="h", port=1, **facts)


def answer(*parts: WireStatus, controller: int | None = 1, **out: Any) -> DescribeClusterResponse:
    """``out``: what is wrong with broker 3, if anything."""
    brokers = [broker(1), broker(2), broker(3, **out)]
    return DescribeClusterResponse(
        cluster_id="c", controller=controller, brokers=brokers, partitions=list(parts)
    )


def log(end: int, *, epoch: int = 5, topic_id: str = "id-1", damage: str = "") -> Any:
    info = PartitionInfo(
        partition=0, leader=1, leader_epoch=epoch, replicas=list(IDS), isr=list(IDS)
    )
    part = PartitionDescription(info=info, log_end_offset=end, damage=damage)
    topic = TopicDescription(name="t", id=topic_id, partitions=[part])
    return DescribeTopicsResponse(topics=[topic])


def merged(
    clusters: dict[int, DescribeClusterResponse],
    logs: dict[int, DescribeTopicsResponse] | None = None,
) -> PartitionStatus:
    (part,) = Answers(clusters, logs or {}).status().values()
    return part


def test_all_agree() -> None:
    leading = answer(said(ends={1: 7, 2: 3}, high_watermark=6))
    part = merged(
        {1: leading, 2: answer(said()), 3: answer(said())}, {1: log(7), 2: log(9), 3: log(7)}
    )
    assert part == PartitionStatus(
        topic="t",
        partition=0,
        leader=1,
        leader_epoch=5,
        replicas=IDS,
        isr=frozenset(IDS),
        witnesses=(4, 5),
        high_watermark=6,
        topic_id="id-1",
        min_isr=2,
        log_end_offset=7,
        agreed=frozenset(IDS),
        caught_up=frozenset(IDS),
    )
    assert part.is_whole
    assert part.name == NAME
    assert part.voters == {1, 2, 3, 4, 5}


def test_the_newest_leader_epoch_counts() -> None:
    old = answer(said(leader=1, epoch=5, ends={1: 100}, high_watermark=90))
    new = answer(said(leader=2, epoch=6, isr=(2, 3), ends={2: 10}, high_watermark=10))
    part = merged({1: old, 2: new, 3: old}, {1: log(100), 2: log(10, epoch=6), 3: log(10, epoch=6)})
    assert (part.leader, part.isr, part.log_end_offset) == (2, {2, 3}, 10)
    assert part.agreed == {2}
    assert part.caught_up == {2, 3}  # by what 3 says of its own log, a moment later


def test_of_one_epoch_its_leader_knows_best() -> None:
    leading = answer(said(isr=(1, 2), ends={1: 4}))
    part = merged({2: answer(said()), 1: leading, 3: answer(said(isr=(1, 2)))})
    assert part.isr == {1, 2}
    assert part.agreed == {1, 3}


@pytest.mark.parametrize(
    ("own", "is_caught_up"),
    [
        (log(7), True),
        (log(6), False),
        (log(8, epoch=4), False),
        (log(8, topic_id="id-0"), False),
        (log(8, damage="segment 0"), False),
        (DescribeTopicsResponse(topics=[]), False),
    ],
)
def test_who_has_caught_up_says_so_itself(own: DescribeTopicsResponse, is_caught_up: bool) -> None:
    part = merged({1: answer(said(ends={1: 7, 2: 7}))}, {1: log(7), 2: own})
    assert part.caught_up == ({1, 2} if is_caught_up else {1})


def test_without_the_leaders_word_nobody_has_caught_up() -> None:
    part = merged({2: answer(said()), 3: answer(said())}, {2: log(7), 3: log(7)})
    assert part.leader == 1
    assert part.log_end_offset == -1
    assert part.caught_up == frozenset()


def test_a_topic_made_again_is_another() -> None:
    """The old one had later epochs; who still tells of it has not heard of its end."""
    old = answer(said(leader=2, epoch=9), controller=None)
    new = answer(said(topic_id="id-2", epoch=1))
    assert merged({1: new, 2: old, 3: old}).topic_id == "id-2"
    assert merged({2: old, 3: old}).topic_id == "id-1"
    mixed = {1: answer(said(topic_id="id-2", epoch=1), controller=None), 2: old, 3: old}
    assert merged(mixed).topic_id == "id-1"  # nobody decides: what most say
    assert Answers({1: answer(), 2: old}, {}).status() == {}


def test_members_are_those_of_the_controller() -> None:
    assert Answers({1: answer(), 2: answer()}, {}).members == {1, 2, 3}
    assert Answers({1: answer(live=False)}, {}).members == {1, 2}
    assert Answers({1: answer(fenced=True)}, {}).members == {1, 2}
    assert Answers({2: answer()}, {}).members == frozenset()
    assert Answers({}, {}).members == frozenset()


def test_what_lacks_is_named() -> None:
    whole = answer(said(ends={1: 7}))
    logs = {1: log(7), 2: log(7), 3: log(7)}
    quiet = Answers({1: whole, 2: whole, 3: whole}, logs)
    assert lacking(IDS, IDS, quiet) == []
    assert lacking(IDS, (1, 3), quiet) == ["broker 2 down"]
    assert lacking((1, 2, 3, 4), IDS, quiet) == [
        "broker 4 down",
        "broker 4 not alive for controller 1",
    ]
    assert lacking(IDS, IDS, Answers({2: answer()}, {})) == [
        "brokers 1, 3 not responding",
        "the cluster has no controller",
    ]


@pytest.mark.parametrize(
    ("word", "logs", "lack"),
    [
        (said(leader=None), {}, "t:0 has no leader"),
        (said(leader=2), {}, "t:0: leader 2 does not respond as the leader"),
        (said(isr=(1, 2), ends={1: 7}), {}, "t:0: broker 3 not in the ISR"),
        (said(ends={1: 7}), {1: log(7), 2: log(6)}, "t:0: brokers 2, 3 not caught up"),
    ],
)
def test_what_a_partition_lacks_is_named(
    word: WireStatus, logs: dict[int, DescribeTopicsResponse], lack: str
) -> None:
    assert missing(Answers({1: answer(word)}, logs).status()) == [lack]


def test_looking_ends_when_nothing_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "POLL_S", 0.0)
    looks = iter([["a", "b"], ["b"], []])
    assert until_nothing(lambda: next(looks), timeout_s=60) == []
    assert until_nothing(lambda: ["b"], timeout_s=0) == ["b"]


@pytest.fixture(scope="module")
def running() -> Any:
    with cluster() as one:
        yield one


@pytest.mark.integration
def test_who_is_mute_holds_nobody_up(
    running: Cluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(status, "ROUND_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        places = {
            1: running.brokers[0].address,
            2: Address(*mute.getsockname()),
            3: Address(*closed.getsockname()),
        }
        asking = Asking(places)
        try:
            for _ in range(3):
                found = asking.answers(places)
                assert found.clusters.keys() == found.topics.keys() == {1}
                assert found.controller == 1
        finally:
            mute.close()  # nobody waits for it any more
            asking.close()
