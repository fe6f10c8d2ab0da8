"""One broker's groups together: turns, syncs, links, limits; and small clusters in virtual time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus import (
    Applied,
    ConsensusSettings,
    NotProposed,
    Outcome,
    hosted_group,
    node,
    transport,
)
from raftlog.consensus.hosted_group import HostedGroup
from raftlog.consensus.transport import COMMAND, Envelope, decode
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.testing.disk import Fault
from tests.consensus.harness import GROUP, Broker, ListMachine, Network, kinds

ROOT = Path(__file__).parents[2]


def opened(count: int = 3, **options: Any) -> Network:
    network = Network(count, **options)
    network.open()
    return network


def followers(network: Network) -> list[Broker]:
    leader = network.leader()
    return [broker for broker in network.brokers.values() if broker is not leader]


# -- nothing before it is durable ------------------------------------------------------------------


def test_nothing_is_sent_counted_or_done_while_the_journal_is_dirty() -> None:
    network = opened()  # hazard 6
    leader = network.leader()
    network.run(1.01)
    leader.hold_disk()
    outcomes = leader.propose(b"x")
    network.run(0.5)
    assert all(not network.queues[leader.id, each.id] for each in followers(network))
    assert outcomes == []
    assert all(broker.commands() == [] for broker in network.brokers.values())
    leader.free_disk()
    network.run(0.01)
    assert outcomes == [Applied(1)]


def test_an_entry_of_ours_counts_only_once_it_is_durable() -> None:
    network = opened(1)
    broker = network[1]
    network.run(1)
    outcomes: list[Outcome] = []
    broker.node.propose(GROUP, b"x", outcomes.append, network.now)
    broker.node.tick(network.now + 1)
    broker.node.receive(2, b"", network.now + 1)
    broker.node.flush(network.now + 1)
    assert (outcomes, broker.commands()) == ([], [])
    broker.sync()
    assert (outcomes, broker.commands()) == ([Applied(1)], [b"x"])


def test_what_is_journaled_during_a_sync_waits_for_the_next() -> None:
    network = opened()
    leader = network.leader()
    network.run(1)
    leader.propose(b"x")
    network.deliver_all()
    leader.hold_disk()
    outcomes = leader.propose(b"y")
    leader.node.open_group("t/1", ListMachine(), voters=network.voters(), base=b"", now=network.now)
    task, leader.task = leader.task, None
    task.run()
    sent = network.sent
    leader.node.complete_sync(task, network.now)
    leader.node.flush(network.now)
    assert (network.sent, outcomes) == (sent, []), "the other group is not durable"
    leader.free_disk()
    network.deliver_all()
    assert outcomes == [Applied(2)]


def test_a_follower_answers_only_when_its_entries_are_durable() -> None:
    network = opened()
    leader = network.leader()
    for follower in followers(network):
        follower.hold_disk()
    outcomes = leader.propose(b"x")
    network.run(0.5)
    assert outcomes == []
    follower.free_disk()
    network.run(0.01)
    assert outcomes == [Applied(1)]


def test_a_voter_forgets_no_vote_in_a_power_cut() -> None:
    network = opened(connect=False)
    network.connect(1, 2)
    network.leader()
    term = network[1].status().term
    for each in (1, 2):
        network[each].restart(power_cut=True)
        assert network[each].status().term == term


def test_inputs_that_arrive_during_a_sync_are_handled_after_it_in_order() -> None:
    network = opened(1)
    broker = network[1]
    network.run(1)
    broker.hold_disk()
    outcomes = [broker.propose(b"%d" % number) for number in range(5)]
    broker.node.close_group(GROUP, forget=False)
    broker.free_disk()
    assert [kinds(each) for each in outcomes[:1]] == [["Unknown"]]
    assert [kinds(each) for each in outcomes[1:]] == [["NotProposed"]] * 4


def test_what_is_durable_counts_though_every_sync_leaves_more_to_journal() -> None:
    network = opened(1)
    broker = network[1]
    network.run(1)
    broker.hold_disk()
    for number in range(1, 6):
        outcomes = broker.propose(b"%d" % number)
        for boot in (2 * number, 2 * number + 1):  # it is placed, and counted
            bring_news(broker, boot)
            broker.finish_one_sync()
        assert outcomes == [Applied(number)]


def test_a_leader_that_is_behind_with_its_messages_takes_nobody_for_silent() -> None:
    network = opened()
    leader, (a, b) = network.leader(), followers(network)
    term, election_s = leader.status().term, network.settings.election_timeout_ms / 1_000
    network.run(2)
    outcomes = leader.propose(b"x")
    for each in (a, b):
        network.deliver(leader.id, each.id)
    leader.hold_disk()
    bring_news(leader, 1)
    network.deliver(a.id, leader.id)
    bring_news(leader, 2)
    assert outcomes == [], "a's answer has come, and is not counted"
    network.now += election_s + 0.5
    network.deliver(b.id, leader.id)
    for _ in range(2):  # the second one stores what the peers have reported
        leader.finish_one_sync()
    assert outcomes == [Applied(1)]
    assert (leader.status().term, leader.is_leader()) == (term, True)


def bring_news(broker: Broker, boot: int) -> None:
    """An input that the broker journals, and that has nothing to do with its groups."""
    broker.node.peer_up(99, "disk-99", boot, broker.network.now)
    broker.sync()


def test_one_sync_covers_what_many_groups_say() -> None:
    network = Network()
    for number in range(50):
        network.open(f"t/{number}")
    network.run(5)
    leader = network[1]
    mine = [f"t/{number}" for number in range(50) if leader.is_leader(f"t/{number}")]
    assert len(mine) > 5
    leader.hold_disk()
    outcomes = [leader.propose(b"x", raft_id) for raft_id in mine]
    before = leader.journal._sequence
    leader.free_disk()
    network.deliver_all()
    assert all(outcome == [Applied(1)] for outcome in outcomes)
    assert leader.journal._sequence == before + 2, "the first one's, and all the others'"


def test_an_uncontended_command_takes_one_round_trip_and_no_time() -> None:
    network = opened()
    leader = network.leader()
    follower = followers(network)[0]
    network.run(1)
    outcomes = leader.propose(b"x")
    assert network.deliver(leader.id, follower.id) == 1
    assert network.deliver(follower.id, leader.id) == 1
    assert outcomes == [Applied(1)]


def test_a_forwarded_command_takes_two_round_trips_and_no_time() -> None:
    network = opened()
    follower = followers(network)[0]
    network.run(1)
    now = network.now
    outcomes = follower.propose(b"x")
    network.deliver_all()
    assert outcomes == [Applied(1)]
    assert follower.commands() == [b"x"], "it is applied here when that is said"
    assert network.now == now


# -- the disk --------------------------------------------------------------------------------------


def test_a_full_disk_stops_votes_and_agreement_until_there_is_room() -> None:
    network = opened(1)
    broker = network[1]
    network.run(1)
    broker.disk.capacity_bytes = 0
    outcomes: list[Outcome] = []
    broker.node.propose(GROUP, b"x", outcomes.append, network.now)
    task = broker.node.begin_sync()
    assert task is not None
    with pytest.raises(OSError) as raised:
        task.run()
    assert isinstance(broker.node.failed_sync(task, raised.value), DiskFullError)
    broker.node.tick(network.now + 1)
    assert outcomes == []
    assert broker.node.next_tick(network.now + 1) > network.now + 1, "no busy loop"
    broker.disk.capacity_bytes = None
    broker.sync()
    assert outcomes == [Applied(1)]


def test_a_failed_sync_ends_all_that_the_broker_does() -> None:
    network = opened()
    leader = network.leader()
    outcomes = [*leader.propose(b"a")]
    leader.disk.faults.append(Fault(["sync"]))
    waiting: list[Outcome] = []
    leader.node.propose(GROUP, b"b", waiting.append, network.now)
    task = leader.node.begin_sync()
    assert task is not None
    with pytest.raises(OSError) as raised:
        task.run()
    sent = network.sent
    assert isinstance(leader.node.failed_sync(task, raised.value), StorageFailedError)
    assert kinds(outcomes + waiting) == ["Unknown"]
    leader.node.tick(network.now + 100)
    leader.node.receive(2, b"", network.now)
    assert leader.node.begin_sync() is None
    assert network.sent == sent
    assert leader.node.next_tick(network.now) == float("inf")
    leader.node.propose(GROUP, b"c", outcomes.append, network.now)
    assert isinstance(outcomes[-1], NotProposed)


# -- groups ----------------------------------------------------------------------------------------


def test_a_group_that_was_forgotten_begins_anew() -> None:
    network = opened(1)
    network.agree(b"x")
    for forget, expected in ((False, [b"x"]), (True, [])):
        network[1].node.close_group(GROUP, forget=forget)
        network[1].sync()
        network[1].open(GROUP)
        network.run(1)
        assert network[1].commands() == expected
    assert network[1].journal.raft_ids() == [GROUP]


def test_closing_what_is_not_open_does_no_harm() -> None:
    network = opened(1)
    network[1].node.close_group("another", forget=True)
    with pytest.raises(KeyError):
        network[1].node.status("another")
    with pytest.raises(KeyError):
        network[1].node.force_generation("another", {1: "disk-1"}, network.now)
    assert kinds(network[1].propose(b"x", "another")) == ["NotProposed"]


def test_a_group_begins_with_its_base() -> None:
    network = Network(1)
    base = ListMachine()
    base.apply(b"before")
    network[1].open(GROUP, base=base.snapshot())
    assert network[1].commands() == [b"before"]
    assert network.agree(b"x") == Applied(2)


def test_a_group_may_be_opened_and_closed_while_another_applies() -> None:
    network = Network(1)

    class Parent(ListMachine):
        def apply(self, command: bytes) -> object:
            if command == b"open":
                network[1].open("child", machine=ListMachine())
            else:
                network[1].node.close_group("child", forget=True)
            return super().apply(command)

    network[1].open(GROUP, machine=Parent())
    network.agree(b"open")
    network.agree(b"x", "child")
    network.agree(b"close")
    assert network[1].journal.raft_ids() == [GROUP]


def test_a_machine_may_close_its_own_group() -> None:
    network = Network(1)

    class Closing(ListMachine):
        def apply(self, command: bytes) -> object:
            network[1].node.close_group(GROUP, forget=True)
            return super().apply(command)

    network[1].open(GROUP, machine=Closing())
    network.run(1)
    assert kinds(network[1].propose(b"x")) == ["Unknown"]
    network.run(10)
    assert network[1].journal.raft_ids() == []


def test_a_group_whose_base_cannot_be_read_is_not_opened() -> None:
    network = Network(1)
    with pytest.raises(ValueError):
        network[1].open(GROUP, base=b"\xc1")
    with pytest.raises(KeyError):
        network[1].node.status(GROUP)
    assert network[1].journal.raft_ids() == []


# -- callbacks -------------------------------------------------------------------------------------


def test_what_is_told_of_an_outcome_may_propose_the_next() -> None:
    network = opened(1)
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) < 10:
            network[1].node.propose(GROUP, b"again", done, network.now)

    network[1].node.propose(GROUP, b"first", done, network.now)
    network[1].sync()
    assert outcomes == [Applied(number) for number in range(1, 11)]


def test_a_callback_that_raises_stops_nobody_else() -> None:
    network = opened(1)
    network.run(1)
    network[1].node.propose(GROUP, b"a", lambda outcome: 1 // 0, network.now)
    assert network.agree(b"b") == Applied(2)


# -- limits ----------------------------------------------------------------------------------------


def test_a_command_over_its_limit_is_not_proposed() -> None:
    network = opened(1, settings=ConsensusSettings(command_bytes_max=10))
    network.run(1)
    assert kinds(network[1].propose(bytes(11))) == ["NotProposed"]
    assert network[1].propose(bytes(10)) == [Applied(1)]


def test_proposals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "PROPOSALS_MAX", 2)
    network = opened(connect=False)
    outcomes = [network[1].propose(b"x") for _ in range(3)]
    assert [kinds(each) for each in outcomes] == [[], [], ["NotProposed"]]
    network.run(6)
    assert kinds(network[1].propose(b"x")) == [], "the others ended"


def test_inputs_that_wait_for_the_disk_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "INPUTS_MAX", 3)
    network = opened(1)
    network.run(1)
    network[1].hold_disk()
    outcomes = [network[1].propose(b"x") for _ in range(5)]
    assert [kinds(each) for each in outcomes] == [[], [], [], [], ["NotProposed"]]
    before = network[1].node.refused_messages
    network[1].node.receive(2, b"x", network.now)
    assert network[1].node.refused_messages == before + 1
    network[1].free_disk()
    assert [kinds(each) for each in outcomes[:4]] == [["Applied"]] * 4


def test_a_base_too_large_to_be_offered_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosted_group, "BASE_BYTES_MAX", 10)
    network = opened(1)
    network.agree(bytes(20))
    network[1].seal(network.voters())
    assert network[1].status().generation == 1
    assert "too large" in caplog.text


# -- time ------------------------------------------------------------------------------------------


def test_between_its_times_a_tick_does_nothing() -> None:
    network = opened()
    network.leader()
    network.run(5)
    for broker in network.brokers.values():
        due = broker.node.next_tick(network.now)
        assert due > network.now
        sent = network.sent
        broker.node.tick(network.now)
        broker.sync()
        assert network.sent == sent
        assert broker.node.next_tick(network.now) == due


def test_time_that_goes_back_is_no_time() -> None:
    network = opened(1)
    network.agree(b"x")
    network.now -= 100
    network.tick()
    assert network.agree(b"y") == Applied(2)


def test_without_groups_nothing_is_ever_due() -> None:
    assert Network(1)[1].node.next_tick(5.0) == float("inf")


# -- what is told of the journal -------------------------------------------------------------------


def test_envelopes_tell_what_is_durable_of_the_journal_and_no_more() -> None:
    network = Network(3)
    network.open()
    assert network[1].node.heard(9) is None
    leader = network.leader()
    network.agree(b"x")
    network.run(2)
    assert leader.node.heard(leader.id) is None
    followers = [broker for broker in network.brokers.values() if broker is not leader]
    for one, other in [(leader, each) for each in followers] + [
        (each, leader) for each in followers
    ]:
        heard = one.node.heard(other.id)
        assert heard == (other.directory_id, other.journal.boot, other.journal.reported_sequence)
    follower = followers[0]
    follower.hold_disk()
    durable = follower.journal.sequence
    leader.propose(b"y")
    network.deliver_all()
    assert follower.journal.sequence == durable
    follower.free_disk()
    network.deliver_all()
    heard = leader.node.heard(follower.id)
    assert heard is not None
    assert heard.sequence == durable + 1, "the acknowledgement told of the block that it is in"


def test_what_a_peer_has_reported_is_known_after_a_restart_of_all() -> None:
    """Then an older copy of its disk is recognized."""
    network = Network(3)
    network.open()
    network.agree(b"x")
    network.run(5)
    announced = {broker.id: broker.journal.reported_sequence for broker in network.brokers.values()}
    for broker in network.brokers.values():
        broker.restart()
    for broker in network.brokers.values():
        for other, sequence in announced.items():
            if other != broker.id:
                assert broker.journal.peers[other].sequence == sequence


def test_no_power_cut_makes_a_journal_shorter_than_was_told_of_it() -> None:
    network = Network(3)
    network.open()
    for number in range(5):
        network.agree(b"%d" % number)
        other = network[number % 3 + 1]
        announced = [
            heard.sequence
            for broker in network.brokers.values()
            if (heard := broker.node.heard(other.id)) is not None
        ]
        other.restart(power_cut=True)
        assert other.journal.opened_sequence >= max(announced) > 0
        network.connect_all()


# -- node bad input --------------------------------------------------------------------------------
#
# Envelopes that are late, double, of another session, or of no sense at all.


# -- links -----------------------------------------------------------------------------------------


def test_envelopes_of_a_session_that_ended_are_dropped() -> None:
    network = opened()
    leader = network.leader()
    follower = followers(network)[0]
    network.run(1)
    leader.propose(b"x")
    (late,) = network.queues[leader.id, follower.id]
    network.connect(leader.id, follower.id)
    network.run(1)
    before = follower.node.refused_messages
    follower.node.receive(leader.id, late, network.now)
    assert follower.node.refused_messages > before


def test_a_duplicate_envelope_counts_once() -> None:
    network = opened()
    follower = followers(network)[0]
    leader = network.leader()
    follower.propose(b"once")
    (ask,) = network.queues[follower.id, leader.id]
    network.queues[follower.id, leader.id].append(ask)
    network.run(1)
    assert leader.commands() == [b"once"]


def test_a_peer_whose_disk_was_set_back_is_not_listened_to() -> None:
    network = opened()
    network.run(1)
    peer = network[2]
    network.cut(1, 2)
    network[1].node.peer_up(2, peer.directory_id, peer.journal.boot - 1, network.now)
    data = transport.encode(Envelope(peer.journal.boot - 1, 9, 1, peer.directory_id, 0, []))
    network[1].node.receive(2, data, network.now)
    assert not network[1].node._links[2].is_up
    assert network[1].node.refused_messages == 1


def test_a_broker_that_claims_our_own_id_is_no_peer() -> None:
    network = opened(1)
    network[1].node.peer_up(1, "other", 1, network.now)
    assert network[1].node._links == {}


def test_messages_of_groups_that_are_not_open_are_ignored() -> None:
    network = Network()
    network[1].open(GROUP)
    network[2].open(GROUP)
    network.leader()
    network.agree(b"x")
    assert network[3].node.refused_messages == 0
    network[3].open(GROUP)
    network.run(3)
    assert network[3].commands() == [b"x"]


# -- bad input -------------------------------------------------------------------------------------


def still_works(network: Network) -> None:
    """A majority agrees, and after a new link so does the broker that was hurt."""
    for a, b in network.pairs():
        network.cut(a, b)
    network.connect_all()
    network.agree(b"after")
    network.run(3)
    assert network[1].commands()[0] == b"before"
    assert len({tuple(broker.commands()) for broker in network.brokers.values()}) == 1


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_arbitrary_bytes_harm_nothing(parts: list[bytes]) -> None:
    network = opened()
    network.agree(b"before")
    for data in parts:
        for peer in (2, 77, -1):
            network[1].node.receive(peer, data, network.now)
        network[1].sync()
    assert network[1].node.refused_messages == 3 * len(parts)
    still_works(network)


NUMBERS = st.integers(0, 6) | st.sampled_from([1 << 20, 1 << 40, (1 << 62) - 1])
VOTERS = st.dictionaries(st.integers(0, 3), st.sampled_from(["disk-1", "disk-2", ""]), min_size=1)
ENTRIES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([b"\x01", bytes([COMMAND]), b"\x11x"])).map(list),
    max_size=4,
).map(sorted)
FIELDS: dict[int, st.SearchStrategy[list[Any]]] = {
    transport.HELLO: st.tuples(st.booleans()).map(list),
    transport.OFFER: st.tuples(
        VOTERS.map(lambda voters: [[*pair] for pair in voters.items()]),
        st.binary(max_size=5) | st.just(ListMachine().snapshot()),
    ).map(list),
    transport.PRE_VOTE: st.lists(NUMBERS, min_size=3, max_size=3),
    transport.PRE_VOTE_ANSWER: st.tuples(NUMBERS, st.booleans()).map(list),
    transport.VOTE: st.lists(NUMBERS, min_size=2, max_size=2),
    transport.VOTE_ANSWER: st.tuples(st.booleans()).map(list),
    transport.APPEND: st.tuples(NUMBERS, NUMBERS, NUMBERS, ENTRIES).map(list),
    transport.APPEND_ANSWER: st.tuples(st.booleans(), NUMBERS, NUMBERS).map(list),
    transport.PROPOSE: st.tuples(NUMBERS, st.just(bytes([COMMAND]) + b"asked")).map(list),
    transport.PROPOSED: st.lists(NUMBERS, min_size=2, max_size=2),
    transport.REFUSED: st.lists(NUMBERS, min_size=1, max_size=1),
}
MESSAGES = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda kind: st.builds(
        lambda group, generation, term, fields: [group, generation, term, kind, *fields],
        st.sampled_from([GROUP, GROUP, "other"]),
        st.sampled_from([0, 0, 0, 1, 1 << 61]),
        NUMBERS,
        FIELDS[kind],
    )
)


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(MESSAGES, max_size=8)), max_size=10))
def test_whatever_a_peer_says_nothing_is_raised_and_nothing_committed_is_lost(
    parts: list[tuple[int, list[Any]]],
) -> None:
    network = opened()
    network.agree(b"before")
    network.run(2)
    for sequence, messages in parts:
        assert all(transport.is_message(message) for message in messages)
        data = transport.encode(Envelope(1, 1, sequence + 100, "disk-2", 0, messages))
        network[1].node.receive(2, data, network.now)
        network[1].sync()
    if network[1].status().generation == 0:  # an offer of another is adopted, as it should be
        still_works(network)


# -- node roles ------------------------------------------------------------------------------------
#
# Who leads a group, and how soon, in small clusters in virtual time.


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


# -- node turns ------------------------------------------------------------------------------------
#
# Many groups have work at once: each call processes some of them, and one sync serves them all.


GROUPS = [f"topic/{number}" for number in range(40)]
SHORT = ConsensusSettings(groups_per_turn=4)


def node_turns_opened(count: int, settings: ConsensusSettings) -> Network:
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
            done.append(f"{name} {self.raft_id}")
            return real(self, *args)

        monkeypatch.setattr(HostedGroup, name, noted)
    return done


def test_a_call_processes_some_groups_and_the_next_ones_the_others(processed: list[str]) -> None:
    network = node_turns_opened(3, SHORT)
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
    network = node_turns_opened(2, SHORT)
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
    network = node_turns_opened(1, SHORT)
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
    network = node_turns_opened(3, SHORT)
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
    network = node_turns_opened(3, SHORT)
    broker = network[1]
    broker.node.peer_down(2, network.now)
    assert broker.node.is_busy
    sent: list[Envelope] = []
    network.send = lambda _sender, _peer, data: sent.append(decode(data))  # type: ignore[method-assign]
    network.now += SHORT.heartbeat_ms / 1_000
    broker.node.tick(network.now)
    assert broker.node.is_busy
    assert [envelope.messages for envelope in sent] == [[]], "to broker 3"
