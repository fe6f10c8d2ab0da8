"""The named scenarios of agreement: who votes, who leads a Raft group, and who can be gone.

Consensus alone, in virtual time, or the partition's state alone: no processes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from raftlog.consensus import Applied
from raftlog.replication.election import choose_replacement
from raftlog.replication.partition_state import ChangeReplicas, Rejected, apply, initial_state
from tests.consensus.harness import GROUP, SETTINGS, Network, kinds
from tests.replication.partition_world import World
from tests.replication.samples import disks
from tests.replication.test_histories import agree, copy_all, values

ELECTION_S = SETTINGS.election_timeout_ms / 1_000


def opened(count: int) -> Network:
    network = Network(count)
    network.open()
    return network


def reach_only(network: Network, pairs: set[frozenset[int]]) -> None:
    """Cut every link but these."""
    for a, b in network.pairs():
        if frozenset((a, b)) not in pairs:
            network.cut(a, b)


def star(hub: int, others: list[int]) -> set[frozenset[int]]:
    return {frozenset((hub, other)) for other in others}


# -- S14, S35: a leader cut off, a voter that returns


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("link", ["silent", "down"])
def test_s14_raft_leader_isolated(count: int, link: str) -> None:
    """It steps down within about an election timeout, and names no leader: its news are old."""
    network = opened(count)
    leader = network.leader()
    network.agree(b"kept")
    for other in network.brokers:
        if link == "down":
            network.cut(leader.id, other) if other != leader.id else None
        else:  # the links stand, and nothing passes
            network.up -= {(leader.id, other), (other, leader.id)}
    outcomes = leader.propose(b"alone")
    network.run(1.5 * ELECTION_S, until=lambda: not leader.is_leader())
    assert leader.status().leader is None
    network.run(3 * ELECTION_S)
    assert leader.status().leader is None
    successors = [b for b in network.brokers.values() if b.is_leader()]
    assert len(successors) == 1
    assert kinds(outcomes) in (["NotProposed"], ["Unknown"]), "nobody agreed to it"
    assert leader.commands() == [b"kept"]


@pytest.mark.parametrize("count", [3, 5])
def test_s35_disruptive_rejoin(count: int) -> None:
    """A voter that was away for long, and has seen many terms, costs one election at most."""
    network = opened(count)
    leader = network.leader()
    network.agree(b"a")
    away = next(b for b in network.brokers.values() if b is not leader)
    network.cut_all(away.id)
    network.run(100 * ELECTION_S)
    journal = away.journal.group(GROUP)
    assert journal.getCurrentTerm() == leader.status().term, "pre-votes take no terms"
    journal.setCurrentTerm(journal.getCurrentTerm() + 50, None)  # as if it had none
    away.journal.sync()
    away.restart()
    before = leader.status().term
    network.connect_all()
    network.run(5 * ELECTION_S)
    after = network.leader().status().term
    assert after <= before + 51, "one election, in the term after the highest that anybody knows"
    network.run(20 * ELECTION_S)
    assert network.leader().status().term == after, "and then no more"
    network.agree(b"b")
    assert away.commands() == [b"a", b"b"]


# -- S21, S23: disks that are gone, brokers that are gone


def test_s21_wiped_voter() -> None:
    """A voter that returns with an empty disk has no vote, until it is let in with the new one."""
    network = opened(3)
    network.agree(b"a")
    old = network.voters()
    network.cut_all(3)
    wiped = network.add(3, "another disk")
    wiped.open(GROUP, old)
    network.connect_all()
    network.run(3 * ELECTION_S)
    assert wiped.status().role == "observer"
    network.cut(1, 2)
    network.run(5 * ELECTION_S)
    assert not any(broker.is_leader() for broker in network.brokers.values()), "1 of 2 voters"
    network.connect_all()
    leader = network.leader()
    sealed = leader.seal({**old, 3: "another disk"})
    network.run(10, until=lambda: bool(sealed))
    network.run(10, until=lambda: wiped.status().role == "follower")
    gone = leader.id
    network.cut_all(gone)
    network.agree(b"b", via=3)
    assert wiped.commands() == [b"a", b"b"], "it votes, and knows all that was agreed on"


@pytest.mark.parametrize("copies", [2, 3])
def test_s23_witness_matrix_of_votes(copies: int) -> None:
    """2n-1 voters: any n-1 of them may be gone, and all that was agreed on is there."""
    count = 2 * copies - 1
    for gone in itertools.combinations(range(1, count + 1), copies - 1):
        network = opened(count)
        network.agree(b"before")
        for broker in gone:
            network.cut_all(broker)
        left = [b for b in network.brokers.values() if b.id not in gone]
        network.run(3 * ELECTION_S, until=lambda left=left: any(b.is_leader() for b in left))  # type: ignore[misc]
        assert network.agree(b"after", via=left[0].id) == Applied(2)
        network.run(ELECTION_S)
        assert [b.commands() for b in left] == [[b"before", b"after"]] * copies


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("wiped", [False, True])
def test_s23_witness_matrix_of_copies(copies: int, wiped: bool) -> None:
    """Whoever is gone, and whoever the arbiter is, a replica leads that has every record.

    The arbiter may be a witness: it leads the Raft group, never the partition.
    """
    count = 2 * copies - 1
    everyone = range(1, count + 1)
    for gone in itertools.combinations(everyone, copies - 1):
        for arbiter in sorted(set(everyone) - set(gone)):
            world = World(copies, copies - 1, 1)
            world.append(1, 2)
            copy_all(world)
            assert world.nodes[1].high_watermark == 2
            for broker in gone:
                world.crash(broker)
                if wiped:
                    world.wipe(broker)
            world.elect(arbiter)
            agree(world)
            leader = world.state.leader
            assert leader is not None
            assert leader not in gone
            assert leader <= copies, "a witness has no records"
            world.review_isr(leader)
            agree(world)
            world.append(leader, 1)
            world.sync(leader)
            copy_all(world)
            world.check()
            assert values(world, leader) == [1, 2, 3]
            assert world.nodes[leader].high_watermark == 3
            assert all(world.nodes[witness].log == [] for witness in everyone[copies:])


# -- S34: some links are down, and everybody is up


def test_s34_partial_connectivity_quorum_loss() -> None:
    """The leader has lost its majority; one other still reaches everybody: it leads soon."""
    network = opened(5)
    leader = network.leader()
    hub = next(b for b in network.brokers if b != leader.id)
    reach_only(network, star(hub, [b for b in network.brokers if b != hub]))
    network.run(4 * ELECTION_S, until=network[hub].is_leader)
    assert not leader.is_leader()
    network.agree(b"x", via=hub)


def test_s34_partial_connectivity_constrained() -> None:
    """The leader is gone, and the others reach only one among them: that one leads soon."""
    network = opened(5)
    leader = network.leader()
    network.agree(b"a")
    network.run(ELECTION_S)
    hub, *rest = (b for b in network.brokers if b != leader.id)
    reach_only(network, star(hub, rest))
    network.run(4 * ELECTION_S, until=network[hub].is_leader)
    network.agree(b"b", via=rest[0])


def test_s34_partial_connectivity_constrained_to_one_that_lags() -> None:
    """Raft's limit: the only one with links lacks what is agreed on, so nobody may lead.

    Nothing is lost by it, and one more link is enough.
    """
    network = opened(5)
    leader = network.leader()
    hub, also_old, *rest = (b for b in network.brokers if b != leader.id)
    network.cut_all(hub)
    network.cut_all(also_old)
    network.agree(b"a", via=leader.id)
    network.run(1.0)
    for pair in star(hub, [also_old, *rest]):
        network.connect(*pair)
    reach_only(network, star(hub, [also_old, *rest]))
    network.run(10 * ELECTION_S)
    assert not any(b.is_leader() for b in network.brokers.values())
    network.connect(*rest)
    network.run(6 * ELECTION_S, until=lambda: any(network[b].is_leader() for b in rest))
    network.agree(b"b", via=hub)
    assert network[hub].commands() == [b"a", b"b"]


@pytest.mark.parametrize("count", [3, 5])
def test_s34_partial_connectivity_chained(count: int) -> None:
    """A chain: each reaches its neighbours only. With three the leader stays; five find one."""
    network = opened(count)
    leader = network.leader()
    network.agree(b"a")
    term = leader.status().term
    others = [b for b in network.brokers if b != leader.id]
    chain = [leader.id, *others] if count == 3 else [*others[:2], leader.id, *others[2:]]
    reach_only(network, {frozenset(pair) for pair in itertools.pairwise(chain)})
    network.run(20 * ELECTION_S)
    assert (leader.status().role, leader.status().term) == ("leader", term)
    network.agree(b"b", via=leader.id)
    if count == 3:
        network.agree(b"c", via=chain[1])


# -- S38: who stores a partition


def test_s38_membership_overlap() -> None:
    """Of two reassignments that are made of the same state, the group takes one."""
    state = initial_state((1, 2, 3), (4, 5), disks(range(1, 6)), 1)
    one = ChangeReplicas(state.version, (1, 2, 4), (3, 5))
    other = ChangeReplicas(state.version, (1, 3, 5), (2, 4))
    accepted = apply(state, one)
    refused = apply(accepted.state, other)
    assert isinstance(refused, Rejected)
    assert refused.state == accepted.state
    assert refused.state.replicas == (1, 2, 4)


def test_s38_membership_overlap_of_replacements() -> None:
    """What has been replaced is not replaced again while the new copy is on its way."""
    state = replace(initial_state((1, 2, 3), (4, 5), disks(range(1, 6)), 2), isr=disks((1, 2)))

    def next_step() -> ChangeReplicas | None:
        return choose_replacement(
            state,
            replication_factor=3,
            dead_seconds=lambda broker: 60.0 if broker == 3 else 0.0,
            delay_seconds=30.0,
            is_live=lambda broker: broker != 3,
        )

    first = next_step()
    assert first is not None
    assert first.replicas == (1, 2, 4)
    state = apply(state, first).state
    assert next_step() is None
    assert isinstance(apply(state, first), Rejected), "the same once more, late"


def test_s38_membership_overlap_of_voters() -> None:
    """Two changes of the voters at once: one counts, and the other is told so."""
    network = opened(5)
    network.agree(b"a")
    one, other = [b for b in network.brokers.values() if not b.is_leader()][:2]
    outcomes = [one.seal(network.voters(1, 2, 3)), other.seal(network.voters(3, 4, 5))]
    network.run(20, until=lambda: all(outcomes))
    applied = [outcome for (outcome,) in outcomes if isinstance(outcome, Applied)]
    assert len(applied) == 1
    network.run(20)
    leader = network.leader()
    assert sorted(leader.status().voters) in ([1, 2, 3], [3, 4, 5])
    assert leader.status().generation == 1
    network.agree(b"b")
