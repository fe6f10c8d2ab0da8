"""One broker's groups together: turns, syncs, links, limits; and small clusters in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftlog.consensus import (
    Applied,
    ConsensusSettings,
    NotProposed,
    Outcome,
    hosted_group,
    node,
)
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
    leader.finish_one_sync()
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
    outcomes = [leader.propose(b"x", group_id) for group_id in mine]
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
    assert network[1].journal.group_ids() == [GROUP]


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
    assert network[1].journal.group_ids() == [GROUP]


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
    assert network[1].journal.group_ids() == []


def test_a_group_whose_base_cannot_be_read_is_not_opened() -> None:
    network = Network(1)
    with pytest.raises(ValueError):
        network[1].open(GROUP, base=b"\xc1")
    with pytest.raises(KeyError):
        network[1].node.status(GROUP)
    assert network[1].journal.group_ids() == []


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
    told = {broker.id: broker.journal.reported_sequence for broker in network.brokers.values()}
    for broker in network.brokers.values():
        broker.restart()
    for broker in network.brokers.values():
        for other, sequence in told.items():
            if other != broker.id:
                assert broker.journal.peers[other].sequence == sequence


def test_no_power_cut_makes_a_journal_shorter_than_was_told_of_it() -> None:
    network = Network(3)
    network.open()
    for number in range(5):
        network.agree(b"%d" % number)
        other = network[number % 3 + 1]
        told = [
            heard.sequence
            for broker in network.brokers.values()
            if (heard := broker.node.heard(other.id)) is not None
        ]
        other.restart(power_cut=True)
        assert other.journal.opened_sequence >= max(told) > 0
        network.connect_all()
