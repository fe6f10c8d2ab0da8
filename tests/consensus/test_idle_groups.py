"""Groups without news: few heartbeats, and still a new leader soon when one is needed."""

from __future__ import annotations

from typing import Any

from raftlog.consensus.transport import APPEND, PRE_VOTE, decode
from tests.consensus.harness import GROUP, Broker, Network

IDLE_S = 60.0
OTHER = "topic/1"


class Listening(Network):
    """Keeps what is sent of ``GROUP``; brokers of ``without_beats`` are of an earlier release."""

    without_beats: frozenset[int] = frozenset()

    def __init__(self, *args: Any, **options: Any) -> None:
        self.said: list[tuple[float, int, list[Any]]] = []
        super().__init__(*args, **options)

    def send(self, sender: int, receiver: int, data: bytes) -> None:
        messages = decode(data).messages
        if sender in self.without_beats and not messages:
            return
        self.said += [(self.now, sender, each) for each in messages if each[0] == GROUP]
        super().send(sender, receiver, data)

    def appends_in(self, seconds: float) -> int:
        self.said.clear()
        self.run(seconds)
        return sum(message[3] == APPEND for _at, _sender, message in self.said)


def idle(**options: Any) -> tuple[Network, Broker, list[Broker]]:
    """A group that has been without news for some time: network, leader, followers."""
    network = Listening(**options)
    network.open()
    network.agree(b"first")
    network.run(IDLE_S)
    leader = network.leader()
    return network, leader, [each for each in network.brokers.values() if each is not leader]


def terms(network: Network) -> set[int]:
    return {broker.status().term for broker in network.brokers.values()}


def successor(network: Network, leader: Broker, seconds: float) -> float:
    """Seconds until another broker leads."""
    began = network.now
    rest = [each for each in network.brokers.values() if each is not leader]
    network.run(seconds, until=lambda: any(each.is_leader() for each in rest))
    return network.now - began


def test_an_idle_group_sends_few_heartbeats_and_keeps_its_leader() -> None:
    network, leader, followers = idle()
    assert isinstance(network, Listening)
    term = terms(network)
    appends = network.appends_in(160)
    assert 2 * 10 <= appends <= 2 * 20, "one in 8 to 16 s for each follower"
    assert terms(network) == term
    assert leader.is_leader()
    assert not any(message[3] == PRE_VOTE for _at, _sender, message in network.said)
    assert all(broker.commands() == [b"first"] for broker in (leader, *followers))


def test_many_idle_groups_do_not_send_at_once() -> None:
    network = Network()
    for number in range(40):
        network.open(f"t/{number}")
    network.run(IDLE_S)
    sent = network.sent
    network.run(60)
    beats = 60 * 3 * 2
    assert beats - 6 <= network.sent - sent <= beats + 40 * 2 * 2 * 60 / 8


def test_news_of_an_idle_group_reach_all_brokers_at_once() -> None:
    network, _leader, followers = idle()
    assert isinstance(network, Listening)
    network.agree(b"second", via=followers[0].id)
    network.run(0.1)
    assert all(each.commands() == [b"first", b"second"] for each in network.brokers.values())
    assert network.appends_in(2) >= 2 * 2, "heartbeats at the usual interval until it is idle again"
    network.run(IDLE_S)
    assert network.appends_in(32) <= 2 * 4


def test_the_leader_of_an_idle_group_dies() -> None:
    network, leader, _followers = idle()
    network.cut_all(leader.id)
    assert successor(network, leader, 20) <= 0.5


def test_the_leader_of_an_idle_group_restarts() -> None:
    network, leader, _followers = idle()
    leader.restart()
    network.connect_all()
    network.leader(seconds=1.0)


def test_the_disk_of_a_leader_of_an_idle_group_hangs() -> None:
    network, leader, _followers = idle()
    network.open(OTHER)
    network.run(5)
    leader.hold_disk()
    leader.propose(b"waits for the disk", OTHER)
    leader.node.peer_up(9, "disk-9", 1, network.now)  # whatever is journaled
    leader.sync()
    assert successor(network, leader, 20) <= 6.5
    assert leader.is_leader(), "it cannot learn of it yet"
    leader.free_disk()
    network.leader(seconds=5.0)
    assert not leader.is_leader()


def test_a_leader_of_an_idle_group_that_nobody_answers_steps_down() -> None:
    network, leader, followers = idle()
    for follower in followers:
        network.up.discard((follower.id, leader.id))  # its messages are lost, the link stands
    network.run(10, until=lambda: not leader.is_leader())


def test_a_leader_of_an_idle_group_steps_down_and_asks_for_votes() -> None:
    network, leader, _followers = idle()
    host = leader.node._groups[GROUP]
    assert host.raft is not None
    host.raft._step_down(network.now)
    leader.node._touch(host)
    leader.node.tick(network.now)
    leader.sync()
    network.leader(seconds=3.0)


def test_followers_do_not_wait_forever_for_an_idle_leader() -> None:
    network, leader, _followers = idle()
    leader.node.close_group(GROUP, forget=False)  # its beats go on
    began, rest = network.now, [each for each in network.brokers.values() if each is not leader]
    network.run(120, until=lambda: any(each.is_leader() for each in rest))
    assert network.now - began <= 3 * 16 + 16 + 5


def test_heartbeats_continue_for_brokers_of_an_earlier_release() -> None:
    network = Listening()
    network.open()
    leader = network.leader()
    network.without_beats = frozenset({leader.id % 3 + 1})
    for other in network.brokers:
        network.cut(*sorted((other, leader.id % 3 + 1)))
    network.connect_all()
    network.run(IDLE_S)
    term = terms(network)
    assert network.appends_in(20) >= 2 * 19
    assert terms(network) == term
