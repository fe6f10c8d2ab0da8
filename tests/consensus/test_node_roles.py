"""Who leads a group, and how soon, in small clusters in virtual time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raftlog.consensus import Applied
from tests.consensus.harness import GROUP, Broker, Network, kinds

ROOT = Path(__file__).parents[2]


def opened(count: int = 3, **options: Any) -> Network:
    network = Network(count, **options)
    network.open()
    return network


def followers(network: Network) -> list[Broker]:
    leader = network.leader()
    return [broker for broker in network.brokers.values() if broker is not leader]


# -- who leads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_new_group_has_a_leader_soon(count: int) -> None:
    network = opened(count)
    network.leader(seconds=0.0 if count == 1 else 1.0)


def test_a_leader_whose_broker_died_is_replaced_soon() -> None:
    network = opened()
    leader = network.leader()
    network.run(5)
    network.cut_all(leader.id)
    network.run(0.5)
    assert sum(follower.is_leader() for follower in network.brokers.values()) == 1
    assert not leader.is_leader()


def test_a_silent_leader_is_replaced_within_twice_the_election_timeout() -> None:
    network = opened()
    leader = network.leader()
    network.run(5)
    rest = followers(network)
    for follower in rest:  # links stand, but nothing of the leader's passes
        network.up.discard((leader.id, follower.id))
        network.up.discard((follower.id, leader.id))
    network.run(6.5)
    assert sum(follower.is_leader() for follower in rest) == 1
    assert not leader.is_leader()


def test_a_broker_that_comes_back_costs_no_election() -> None:
    network = opened()
    leader = network.leader()
    term = leader.status().term
    for follower in followers(network):
        network.cut_all(follower.id)
        network.run(30)
        network.connect_all()
        network.run(3)
        assert (leader.status().role, leader.status().term) == ("leader", term)


def test_a_leader_linked_to_a_majority_stays_though_one_follower_is_not_linked_to_it() -> None:
    network = opened()
    leader = network.leader()
    one, other = followers(network)
    term = leader.status().term
    network.cut(leader.id, one.id)
    network.run(30)
    assert (leader.status().role, leader.status().term) == ("leader", term)
    assert network.agree(b"x", via=other.id) == Applied(1)


def test_whoever_reaches_a_majority_leads_in_the_end() -> None:
    network = opened(5)
    leader = network.leader()
    hub = followers(network)[0]
    for a, b in network.pairs():
        if hub.id not in (a, b):
            network.cut(a, b)
    network.run(10)
    assert hub.is_leader()
    assert not leader.is_leader()
    network.agree(b"x", via=hub.id)


def test_a_leader_without_a_majority_agrees_to_nothing() -> None:
    network = opened(5)
    leader = network.leader()
    rest = followers(network)
    network.split([leader.id, rest[0].id], [each.id for each in rest[1:]])
    outcomes = leader.propose(b"lost")
    network.run(1)
    network.agree(b"kept", via=rest[1].id)
    network.connect_all()
    network.run(3)
    assert kinds(outcomes) == ["NotProposed"]
    assert all(broker.commands() == [b"kept"] for broker in network.brokers.values())


def test_all_that_was_agreed_outlives_a_power_cut_of_all() -> None:
    network = opened()
    for number in range(20):
        network.agree(b"%d" % number)
    for broker in network.brokers.values():
        broker.restart(power_cut=True)
    network.connect_all()
    network.leader()
    network.run(2)
    for broker in network.brokers.values():
        assert broker.commands() == [b"%d" % number for number in range(20)]


def test_users_are_told_of_roles_leaders_and_generations() -> None:
    network = opened()
    network.leader()
    network.run(2)
    for broker in network.brokers.values():
        assert set(broker.news) == {GROUP}
        broker.news.clear()
    network.run(10)
    assert all(broker.news == [] for broker in network.brokers.values()), "only of changes"
    network.leader().seal(network.voters())
    network.run(1)
    assert all(broker.news for broker in network.brokers.values())


# -- the same in every process ---------------------------------------------------------------------

SCRIPT = """
import hashlib
from tests.consensus.harness import Network
network = Network(5)
digest = hashlib.sha256()
send = network.send
def record(*envelope):
    digest.update(repr(envelope).encode())
    send(*envelope)
network.send = record
for number in range(5):
    network.open(f"t/{number}")
network.run(2)
for number in range(5):
    network.agree(b"x", f"t/{number}")
network.cut_all(network.leader("t/0").id)
network.run(5)
network.leader("t/1").seal(network.voters(), "t/1")
network.connect_all()
network.run(5)
print(digest.hexdigest())
"""


@pytest.mark.integration
def test_hash_order_does_not_matter() -> None:
    outputs = set()
    for hash_seed in ("0", "1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add(done.stdout)
    assert len(outputs) == 1
