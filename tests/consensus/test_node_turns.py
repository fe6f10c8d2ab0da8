"""Many groups have work at once: each call processes some of them, and one sync serves them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.consensus import ConsensusSettings
from raftlog.consensus.hosted_group import HostedGroup
from raftlog.consensus.transport import Envelope, decode
from tests.consensus.harness import Broker, ListMachine, Network

GROUPS = [f"topic/{number}" for number in range(40)]
SHORT = ConsensusSettings(groups_per_turn=4)


def opened(count: int, settings: ConsensusSettings) -> Network:
    network = Network(count, settings=settings)
    for group in GROUPS:
        network.open(group)
    for group in GROUPS:
        network.leader(group)
    return network


def do(broker: Broker, act: Callable[[], object]) -> int:
    """Let a broker's node do all work that follows from a call; return the number of syncs."""
    node, syncs = broker.node, 0
    act()
    while (task := node.begin_sync()) is not None or node.is_busy:
        if task is None:
            node.tick(broker.network.now)
        else:
            task.run()
            node.complete_sync(task, broker.network.now)
            syncs += 1
    return syncs


@pytest.fixture
def processed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the groups of all brokers do, in order."""
    done: list[str] = []
    for name in ("step", "speak", "peer_down", "receive"):
        real = getattr(HostedGroup, name)

        def noted(self: HostedGroup, *args: Any, name: str = name, real: Any = real) -> Any:
            done.append(f"{name} {self.group_id}")
            return real(self, *args)

        monkeypatch.setattr(HostedGroup, name, noted)
    return done


def test_a_call_processes_some_groups_and_the_next_ones_the_others(processed: list[str]) -> None:
    network = opened(3, SHORT)
    node = network[1].node
    processed.clear()
    calls = 0
    node.peer_down(2, network.now)
    while node.is_busy:
        assert node.next_tick(network.now) == network.now
        assert len(processed) <= SHORT.groups_per_turn * (calls + 1)
        node.tick(network.now)
        calls += 1
    assert calls >= 2 * len(GROUPS) // SHORT.groups_per_turn
    assert {f"peer_down {group}" for group in GROUPS} <= set(processed)


def test_messages_of_one_envelope_are_processed_in_turns(processed: list[str]) -> None:
    network = opened(2, SHORT)
    leader = network.leader(GROUPS[0])
    (follower,) = (each for each in network.brokers.values() if each is not leader)
    led = [group for group in GROUPS if leader.is_leader(group)]
    assert len(led) > 2 * SHORT.groups_per_turn
    sent: list[bytes] = []
    network.send = lambda _sender, _peer, data: sent.append(data)  # type: ignore[method-assign]
    for group in led:
        leader.node.propose(group, b"command", lambda _outcome: None, network.now)
    do(leader, lambda: None)
    processed.clear()
    follower.node.receive(leader.id, max(sent, key=len), network.now)
    assert len(processed) <= SHORT.groups_per_turn
    do(follower, lambda: None)
    assert {f"receive {group}" for group in led} <= set(processed)


def test_the_groups_of_many_turns_share_a_sync() -> None:
    """A sync of a slow disk takes longer than a turn."""
    network = Network(1, settings=SHORT)
    broker = network[1]
    broker.is_held = True  # syncs are those of ``do``
    node = broker.node
    for group in GROUPS:
        node.open_group(group, ListMachine(), voters=network.voters(), base=b"", now=network.now)
    syncs = do(broker, lambda: None)
    network.now += 60  # all elections are due
    syncs += do(broker, lambda: node.tick(network.now))
    assert syncs <= 3
    assert all(node.leads(group) for group in GROUPS)


def test_calls_between_two_turns_wait_in_order(processed: list[str]) -> None:
    network = opened(1, SHORT)
    node, outcomes = network[1].node, []
    network.now += 1
    node.peer_up(2, "disk-2", 1, network.now)
    assert node.is_busy
    node.propose(GROUPS[0], b"while it is busy", outcomes.append, network.now)
    processed.clear()
    assert not outcomes
    do(network[1], lambda: None)
    assert network[1].commands(GROUPS[0]) == [b"while it is busy"]
    assert len(outcomes) == 1


def test_groups_may_be_closed_and_opened_between_two_turns() -> None:
    network = opened(3, SHORT)
    broker = network[1]
    broker.node.peer_down(2, network.now)
    assert broker.node.is_busy
    for group in GROUPS:
        broker.node.close_group(group, forget=False)
        broker.open(group)
    network.connect(1, 2)
    for group in GROUPS:
        network.agree(b"x", group)


def test_beats_do_not_wait_for_the_work_of_all_groups() -> None:
    """Else a broker that needs seconds for its groups is taken for silent, and elections follow."""
    network = opened(3, SHORT)
    broker = network[1]
    broker.node.peer_down(2, network.now)
    assert broker.node.is_busy
    sent: list[Envelope] = []
    network.send = lambda _sender, _peer, data: sent.append(decode(data))  # type: ignore[method-assign]
    network.now += SHORT.heartbeat_ms / 1_000
    broker.node.tick(network.now)
    assert broker.node.is_busy
    assert [envelope.messages for envelope in sent] == [[]], "to broker 3"
