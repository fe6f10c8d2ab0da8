"""A group that brokers host: generations, and how proposals end."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from raftlog.consensus import Applied, ConsensusSettings, NotProposed, Outcome, Unknown, transport
from raftlog.consensus.hosted_group import NEVER, Proposal, Proposals
from raftlog.consensus.transport import COMMAND, Envelope, Message
from tests.consensus.harness import GROUP, Broker, ListMachine, Network, kinds

# -- generations -----------------------------------------------------------------------------------

# Generations: seals, offers, hellos, recovery by force, and brokers that are no voters.


def opened(count: int = 3, *voters: int, **options: Any) -> Network:
    network = Network(count, **options)
    network.open(GROUP, *voters)
    return network


def said(network: Network, sender: int, receiver: int) -> list[Message]:
    return [each for part in network.peek(sender, receiver) for each in part.messages]


def inject(network: Network, sender: int, receiver: int, *messages: Message) -> None:
    """As if ``sender`` had said it; what it says after that is out of order until the next link."""
    network.sent += 1
    broker = network[sender]
    session = broker.journal.boot, broker.node._links[receiver]._number, 1_000 + network.sent
    data = transport.encode(Envelope(*session, broker.directory_id, 0, [*messages]))
    network[receiver].node.receive(sender, data, network.now)
    network[receiver].sync()


def others(network: Network, broker: Broker) -> list[Broker]:
    return [each for each in network.brokers.values() if each is not broker]


# -- seals -----------------------------------------------------------------------------------------


def test_a_seal_ends_a_generation_and_keeps_the_state() -> None:
    network = opened()
    network.agree(b"a")
    leader = network.leader()
    outcomes = leader.seal(network.voters())
    network.run(1)
    assert outcomes == [Applied(1)]
    for broker in network.brokers.values():
        status = broker.status()
        assert (status.generation, status.entries, status.term) == (1, 2, 1)
    assert network.leader() is leader, "the leader goes on leading"
    assert network.agree(b"b") == Applied(2)
    network.run(2)
    assert all(broker.commands() == [b"a", b"b"] for broker in network.brokers.values())


def test_a_seal_by_a_follower_is_forwarded() -> None:
    network = opened()
    follower = others(network, network.leader())[0]
    outcomes = follower.seal(network.voters())
    network.run(1)
    assert outcomes == [Applied(1)]


def test_a_generation_outlives_its_brokers() -> None:
    network = opened()
    network.agree(b"a")
    network.leader().seal(network.voters())
    network.run(1)
    network.agree(b"b")
    for broker in network.brokers.values():
        broker.restart(power_cut=True)
        assert broker.status().generation == 1
        assert broker.commands() == [b"a"], "the base; what came since is not known committed"
    network.connect_all()
    network.leader()
    network.run(2)
    assert all(broker.commands() == [b"a", b"b"] for broker in network.brokers.values())


def test_a_generation_is_sealed_by_itself_when_its_journal_is_long() -> None:
    network = opened(settings=ConsensusSettings(seal_after_entries=20))
    for number in range(100):
        network.agree(b"%d" % number)
    network.run(2)
    for broker in network.brokers.values():
        assert broker.status().generation >= 4
        assert broker.status().entries <= 21
        assert broker.commands() == [b"%d" % number for number in range(100)]


def test_commands_that_come_during_a_seal_are_for_the_next_generation() -> None:
    network = opened()
    leader = network.leader()
    sealed = leader.seal(network.voters())
    mine = leader.propose(b"mine")
    forwarded = others(network, leader)[0].propose(b"forwarded")
    network.run(2)
    assert kinds(sealed + mine + forwarded) == ["Applied"] * 3
    assert all(
        sorted(broker.commands()) == [b"forwarded", b"mine"] for broker in network.brokers.values()
    )


def test_of_two_seals_one_counts() -> None:
    network = opened()
    leader = network.leader()
    outcomes = leader.seal(network.voters()), leader.seal({1: "disk-1"})
    network.run(2)
    assert leader.status().generation == 1
    assert [kinds(each) for each in outcomes] == [["Applied"], ["NotProposed"]]
    assert len(leader.status().voters) == 3


def test_a_seal_that_was_decided_in_an_ended_generation_does_not_count() -> None:
    """Its voters could have lost their directories, and been replaced, in between."""
    network = opened()
    leader = network.leader()
    leader.seal(network.voters())
    network.run(2)
    outcomes: list[Outcome] = []
    leader.node.seal(GROUP, {1: "lost"}, outcomes.append, network.now, 0)
    network.run(2)
    assert outcomes == [NotProposed("generation 0 was sealed before it")]
    assert (leader.status().generation, len(leader.status().voters)) == (1, 3)


def test_a_follower_that_missed_the_seal_is_offered_the_generation() -> None:
    network = opened()
    leader = network.leader()
    late = others(network, leader)[0]
    network.cut_all(late.id)
    network.agree(b"a")
    leader.seal(network.voters())
    network.run(1)
    network.agree(b"b")
    assert late.status().generation == 0
    network.connect_all()
    network.run(3)
    assert late.status().generation == 1
    assert late.commands() == [b"a", b"b"]


def test_what_was_placed_in_a_generation_that_an_offer_ends_is_unknown() -> None:
    network = opened()
    leader = network.leader()
    network.cut_all(leader.id)
    outcomes = leader.propose(b"maybe")
    network.run(1)
    network.leader().seal(network.voters())
    network.run(1)
    network.connect_all()
    network.run(2)
    assert leader.status().generation == 1
    assert kinds(outcomes) == ["Unknown"]


# -- voters ----------------------------------------------------------------------------------------


def test_voters_change_with_a_seal() -> None:
    network = opened(4, 1, 2, 3)
    assert network[4].status().role == "observer"
    network.agree(b"a")
    network.leader().seal(network.voters(2, 3, 4))
    network.run(3)
    assert network[1].status().role == "observer"
    assert network[4].status().role in {"leader", "follower"}
    network.agree(b"b")
    network.run(2)
    assert [network[each].commands() for each in (2, 3, 4)] == [[b"a", b"b"]] * 3


def test_all_voters_change_with_a_seal() -> None:
    network = opened(6, 1, 2, 3)
    network.agree(b"a")
    network.leader().seal(network.voters(4, 5, 6))
    network.run(5)
    assert network.leader().id in {4, 5, 6}
    network.agree(b"b")
    network.run(2)
    assert [network[each].commands() for each in (4, 5, 6)] == [[b"a", b"b"]] * 3


def test_new_voters_hear_of_it_when_they_come_back() -> None:
    network = opened(6, 1, 2, 3)
    network.agree(b"a")
    for each in (4, 5, 6):
        network.cut_all(each)
    network.leader().seal(network.voters(4, 5, 6))
    network.run(30)
    for broker in network.brokers.values():
        broker.restart()
    network.connect_all()
    network.run(5)
    assert network.leader().id in {4, 5, 6}
    assert network.leader().commands() == [b"a"]


def test_old_voters_stop_asking_once_the_new_ones_know() -> None:
    network = opened(6, 1, 2, 3)
    network.leader().seal(network.voters(4, 5, 6))
    network.run(10)
    assert all(network[each].node._groups[GROUP].due() > network.now + 1e9 for each in (1, 2, 3))


def test_an_observer_asks_those_who_never_answer_ever_more_rarely() -> None:
    network = Network(2)
    network[1].open(GROUP, network.voters(2))
    network.run(200)
    beats = 2 * 200
    assert 6 <= network.sent - beats <= 16


def test_a_broker_that_does_not_vote_proposes_nothing() -> None:
    network = opened(4, 1, 2, 3)
    network.leader()
    (outcome,) = network[4].propose(b"x")
    assert isinstance(outcome, NotProposed)


def test_a_voter_that_lost_its_disk_is_no_voter() -> None:
    network = opened()  # hazard 13
    network.agree(b"a")
    network.cut_all(3)
    voters = network.voters()
    wiped = network.add(3, "another disk")
    wiped.open(GROUP, voters)
    network.connect_all()
    network.run(10)
    assert wiped.status().role == "observer"
    assert wiped.commands() == []
    leader = network.leader()
    network.cut(1, 2)
    network.run(10)
    leaders = [broker.id for broker in network.brokers.values() if broker.is_leader()]
    assert leaders == [], "one of two is no majority"
    assert leader.commands() == [b"a"]


def test_the_vote_of_another_directory_does_not_count_though_it_takes_itself_for_a_voter() -> None:
    network = opened()  # hazard 13
    network.agree(b"a")
    network.cut_all(3)
    wiped = network.add(3, "another disk")
    wiped.open(GROUP, {**network.voters(1, 2), 3: "another disk"})
    assert wiped.status().role != "observer"
    network.cut(1, 2)
    network.run(5)
    network.connect(1, 3)
    network.connect(2, 3)
    network.run(20)
    assert not any(broker.is_leader() for broker in network.brokers.values())


UNNAMED = {1: "", 2: "", 3: ""}


def test_without_named_directories_nobody_votes() -> None:
    network = Network(3)
    for broker in network.brokers.values():
        broker.open(GROUP, UNNAMED)
    network.run(30)
    assert {broker.status().role for broker in network.brokers.values()} == {"observer"}


def test_who_founds_the_group_offers_it_to_those_that_are_there_at_once() -> None:
    network = Network(3)
    for broker in network.brokers.values():
        broker.open(GROUP, UNNAMED)
    network.run(1)
    base = bytes(msgpack.packb([b"founded"]))
    network[1].node.found(GROUP, network.voters(), base, network.now)
    network[1].sync()
    network.run(2)
    assert {broker.status().generation for broker in network.brokers.values()} == {1}
    network.agree(b"a")
    for broker in network.brokers.values():
        assert broker.status().voters == network.voters()
        assert broker.commands() == [b"founded", b"a"]
        broker.restart()
        assert broker.status().generation == 1, "durable before anybody heard of it"


def test_a_directory_that_took_no_part_in_the_founding_has_no_vote() -> None:
    """It hears of the group from those that did, and is a voter from a later generation on."""
    network = Network(3, connect=False)
    for broker in network.brokers.values():
        broker.open(GROUP, UNNAMED)
    voters = network.voters()
    network.connect_all()
    network[1].node.found(GROUP, voters, ListMachine().snapshot(), network.now)
    network[1].sync()
    network.run(2)
    network.agree(b"a")
    network.cut_all(3)
    wiped = network.add(3, "another disk")
    wiped.open(GROUP, UNNAMED)
    network.connect(1, 3)
    network.run(10)
    assert wiped.status().role == "observer"
    assert wiped.status().voters == voters
    leaders = [broker.id for broker in network.brokers.values() if broker.is_leader()]
    assert 3 not in leaders
    network.connect_all()
    network.run(3)
    network.leader().seal({**voters, 3: "another disk"})
    network.run(3)
    assert wiped.status().role != "observer"
    network.agree(b"b")


def test_an_operators_base_takes_the_place_of_what_this_broker_has() -> None:
    network = opened()
    network.agree(b"a")
    network.cut_all(1)
    base = bytes(msgpack.packb([b"newer"]))
    network[1].node.force_generation(GROUP, {1: "disk-1"}, network.now, base=base, above=70)
    network[1].sync()
    network.run(2)
    assert network[1].is_leader()
    assert network[1].status().generation == 1_070
    assert network[1].commands() == [b"newer"]


def test_a_recovery_that_was_planned_before_another_one_reverts_nothing() -> None:
    """The operator's connection was lost, and the second request saw the group before the first."""
    network = opened()
    network.agree(b"a")
    network.cut_all(1)
    base = bytes(msgpack.packb([b"a"]))
    for command in (b"b", b"c"):
        network[1].node.force_generation(GROUP, {1: "disk-1"}, network.now, base=base, above=0)
        network[1].sync()
        network.run(2)
        assert network[1].status().generation == 1_000
        network[1].propose(command)
        network.run(1)
    assert network[1].commands() == [b"a", b"b", b"c"]


def test_a_journal_says_what_is_in_it_committed_or_not() -> None:
    network = opened()
    network.agree(b"a")
    network.run(1)
    leader = network.leader()
    committed = leader.node.journaled(GROUP, network.now)
    assert (committed.unapplied, committed.leader) == ((), leader.id)
    network.cut_all(leader.id)
    leader.propose(b"not committed")
    found = leader.node.journaled(GROUP, network.now)
    assert found.unapplied == (b"not committed",)
    assert (found.generation, found.voters) == (0, network.voters())
    assert found.index == committed.index + 1
    assert found.leader is None, "it has no majority"
    leader.restart()
    found = leader.node.journaled(GROUP, network.now)
    assert found.unapplied == (b"a", b"not committed"), "a journal does not say what is committed"


# -- offers and hellos -----------------------------------------------------------------------------


def test_who_speaks_in_an_older_generation_is_offered_the_newer_once_in_a_while() -> None:
    network = opened()
    network.leader().seal(network.voters())
    network.run(1)
    old = [GROUP, 0, 5, transport.VOTE, 9, 9]
    for _ in range(10):
        inject(network, 1, 2, old)
    offers = [each for each in said(network, 2, 1) if each[3] == transport.OFFER]
    assert offers == [[GROUP, 1, 0, transport.OFFER, [[1, "disk-1"], [2, "disk-2"], [3, "disk-3"]],
                       ListMachine().snapshot()]]  # fmt: skip
    assert network[2].status().term == 1, "the vote counts for nothing"


def test_a_large_base_is_not_offered_again_before_it_can_have_arrived() -> None:
    network = opened(2)
    network.agree(bytes(50_000))
    for _ in range(30):
        network.agree(bytes(50_000))
    network.leader().seal(network.voters())
    network.run(1)
    for _ in range(2):
        inject(network, 1, 2, [GROUP, 0, 5, transport.VOTE, 9, 9])
        network.now += 0.3
    offers = [each for each in said(network, 2, 1) if each[3] == transport.OFFER]
    assert len(offers) == 1


def test_who_hears_a_newer_generation_says_which_one_it_knows() -> None:
    network = opened()
    network.run(1)
    inject(network, 1, 2, [GROUP, 9, 5, transport.APPEND, 1, 0, 5, [[5, bytes([COMMAND])]]])
    hello = [each for each in said(network, 2, 1) if each[3] == transport.HELLO]
    assert hello == [[GROUP, 0, 0, transport.HELLO, False]]
    assert network[2].status().generation == 0


def test_a_hello_in_the_same_generation_is_answered_once() -> None:
    network = opened(4, 1, 2, 3)
    network.run(1)
    inject(network, 4, 1, [GROUP, 0, 0, transport.HELLO, False])
    assert said(network, 1, 4) == [[GROUP, 0, 0, transport.HELLO, True]]
    network.queues[1, 4].clear()
    inject(network, 4, 1, [GROUP, 0, 0, transport.HELLO, True])
    assert said(network, 1, 4) == []


@pytest.mark.parametrize(
    ("generation", "voters", "adopted"),
    [
        (0, [[1, "disk-1"]], False),  # not newer
        (5, [[1, "disk-1"], [2, "disk-2"]], True),
        (5, [[2, "disk-2"], [3, "disk-3"]], True),  # by a voter of before
        (5, [[1, "other"], [2, "disk-2"]], False),  # by a broker that is not the voter it names
    ],
)
def test_an_offer_is_adopted_only_if_it_is_newer_and_a_voters(
    generation: int, voters: list[Any], adopted: bool
) -> None:
    network = opened()
    network.run(1)
    base = ListMachine()
    base.apply(b"offered")
    inject(network, 1, 2, [GROUP, generation, 0, transport.OFFER, voters, base.snapshot()])
    assert (network[2].status().generation == 5) is adopted
    assert (network[2].commands() == [b"offered"]) is adopted
    network[2].restart(power_cut=True)
    assert (network[2].status().generation == 5) is adopted, "durably"


def test_an_offer_that_the_machine_cannot_read_changes_nothing() -> None:
    network = opened()
    network.agree(b"a")
    network.run(1)
    offer = [GROUP, 5, 0, transport.OFFER, [[1, "disk-1"], [2, "disk-2"]], b"\xc1"]
    before = network[2].node.refused_messages
    inject(network, 1, 2, offer)
    assert network[2].node.refused_messages == before + 1
    assert network[2].status().generation == 0
    assert network[2].commands() == [b"a"]


# -- recovery by force -----------------------------------------------------------------------------


def test_force_goes_on_without_the_majority_with_all_that_this_broker_has() -> None:
    network = opened()
    network.agree(b"a")
    network.run(1)
    network.cut_all(1)
    survivor = network[1]
    network.run(0.05)
    if survivor.is_leader():
        survivor.propose(b"maybe committed")
    survivor.node.force_generation(GROUP, network.voters(1), network.now)
    survivor.sync()
    network.run(1)
    assert survivor.status().generation == 1_000
    assert survivor.is_leader()
    assert survivor.commands()[0] == b"a"
    outcomes = survivor.propose(b"b")
    network.run(1)
    assert kinds(outcomes) == ["Applied"]


def test_force_applies_entries_that_are_not_known_to_be_committed() -> None:
    network = opened()
    leader = network.leader()
    network.cut_all(leader.id)
    outcomes = leader.propose(b"maybe")
    assert leader.commands() == []
    leader.node.force_generation(GROUP, network.voters(leader.id), network.now)
    leader.sync()
    network.run(1)
    assert leader.commands() == [b"maybe"]
    assert kinds(outcomes) in (["Unknown"], ["Applied"])


def test_the_others_adopt_what_was_forced_when_they_come_back() -> None:
    network = opened()
    network.agree(b"a")
    network.run(1)
    network.split((1,), (2, 3))
    network[1].node.force_generation(GROUP, network.voters(1, 2), network.now)
    network[1].sync()
    network.connect_all()
    network.run(5)
    assert network[2].status().generation == 1_000
    assert network[2].commands() == [b"a"]
    assert network[3].status().role == "observer"


def test_what_waits_while_a_generation_is_forced_is_for_the_new_one() -> None:
    network = opened()
    network.run(1)
    network.cut_all(1)
    network.run(1)
    outcomes = network[1].propose(b"waits")
    network[1].node.force_generation(GROUP, network.voters(1), network.now)
    network[1].sync()
    network.run(1)
    assert outcomes == [Applied(1)]


# -- proposals -------------------------------------------------------------------------------------


def test_a_refused_proposal_finds_the_leader_later() -> None:
    network = opened()
    leader = network.leader()
    follower = others(network, leader)[0]
    outcomes = follower.propose(b"x")
    (ask,) = [
        each for each in said(network, follower.id, leader.id) if each[3] == transport.PROPOSE
    ]
    network.queues[follower.id, leader.id].clear()
    inject(network, leader.id, follower.id, [GROUP, 0, 1, transport.REFUSED, ask[4]])
    assert outcomes == []
    network.cut(follower.id, leader.id)
    network.connect(follower.id, leader.id)  # with new sessions, after the one that was injected
    network.run(0.2)
    assert kinds(outcomes) == ["Applied"]


def test_an_answer_about_what_was_applied_before_is_unknown() -> None:
    network = opened()
    leader = network.leader()
    follower = others(network, leader)[0]
    network.run(1)
    outcomes = follower.propose(b"x")
    (ask,) = [
        each for each in said(network, follower.id, leader.id) if each[3] == transport.PROPOSE
    ]
    inject(network, leader.id, follower.id, [GROUP, 0, 1, transport.PROPOSED, ask[4], 2])
    assert kinds(outcomes) == ["Unknown"]


def test_a_forwarded_command_is_unknown_when_the_link_is_lost() -> None:
    network = opened()
    leader = network.leader()
    follower = others(network, leader)[0]
    outcomes = follower.propose(b"x")
    network.cut(leader.id, follower.id)
    assert kinds(outcomes) == ["Unknown"]


def test_without_a_leader_a_command_waits_and_has_no_effect_in_the_end() -> None:
    network = opened(connect=False)
    outcomes = network[1].propose(b"x")
    network.run(4.9)
    assert outcomes == []
    network.run(0.2)
    assert kinds(outcomes) == ["NotProposed"]
    network.connect_all()
    network.leader()
    network.run(5)
    assert network[2].commands() == []


def test_a_command_that_waited_for_a_leader_is_agreed() -> None:
    network = opened(connect=False)
    outcomes = network[1].propose(b"x")
    network.run(2)
    network.connect_all()
    network.run(4)
    assert outcomes == [Applied(1)]


def test_a_placed_command_of_an_isolated_leader_is_unknown() -> None:
    network = opened()
    leader = network.leader()
    network.cut_all(leader.id)
    outcomes = leader.propose(b"x")
    network.run(6)
    assert kinds(outcomes) == ["Unknown"]


def test_the_outcome_of_a_command_that_was_overwritten_is_known() -> None:
    network = opened()
    leader = network.leader()
    network.run(1)
    network.cut_all(leader.id)
    outcomes = leader.propose(b"lost")
    network.run(1)
    network.agree(b"other")
    network.connect_all()
    network.run(2)
    assert kinds(outcomes) == ["NotProposed"]
    assert leader.commands() == [b"other"]


def test_unknown_and_not_proposed_say_why() -> None:
    network = opened(connect=False)
    outcomes = network[1].propose(b"x")
    network[1].node.close_group(GROUP, forget=False)
    assert outcomes == [NotProposed("the group was closed")]
    assert Unknown("why").reason == "why"


# -- proposals -------------------------------------------------------------------------------------

# How a proposal ends: once, and saying no more than is known.


LEADER, TERM = 2, 5


class Rig:
    """Proposals 1, 2, ... with deadlines 11, 12, ..., and what they ended with."""

    def __init__(self, count: int = 3) -> None:
        self.ended: dict[int, list[Outcome]] = {number: [] for number in range(1, count + 1)}
        self.proposals = Proposals(lambda done, outcome: done(outcome))
        self.all = {
            number: Proposal(number, b"", self.ended[number].append, 10.0 + number)
            for number in self.ended
        }
        for proposal in self.all.values():
            self.proposals.add(proposal)

    def kinds(self) -> list[str]:
        assert all(len(outcomes) <= 1 for outcomes in self.ended.values()), "once"
        return ["".join(type(each).__name__ for each in ends) for ends in self.ended.values()]

    def waiting(self, now: float = 0.0) -> list[int]:
        return [proposal.number for proposal in self.proposals.waiting(now)]


def test_proposals_wait_in_order_of_arrival() -> None:
    rig = Rig()
    assert rig.waiting() == [1, 2, 3]
    rig.proposals.placed(rig.all[2])
    assert rig.waiting() == [1, 3]
    assert len(rig.proposals) == 3


def test_the_end_comes_once() -> None:
    rig = Rig()
    rig.proposals.finish(rig.all[1], Applied(1))
    rig.proposals.finish(rig.all[1], Unknown(""))
    rig.proposals.close("")
    assert rig.kinds() == ["Applied", "NotProposed", "NotProposed"]


def test_what_waited_too_long_had_no_effect_and_what_was_sent_may_have() -> None:
    rig = Rig()
    rig.proposals.placed(rig.all[2])
    rig.proposals.expire(11.5)
    assert rig.kinds() == ["NotProposed", "", ""]
    rig.proposals.expire(20.0)
    assert rig.kinds() == ["NotProposed", "Unknown", "NotProposed"]


def test_it_is_due_at_the_first_deadline() -> None:
    rig = Rig()
    assert rig.proposals.due() == 11.0
    rig.proposals.placed(rig.all[1])
    assert rig.proposals.due() == 11.0
    rig.proposals.close("")
    assert rig.proposals.due() == NEVER


def test_a_refused_proposal_waits_again_in_its_place_but_not_at_once() -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    rig.proposals.refused(1, LEADER, not_before=5.0)
    assert rig.proposals.due() == 5.0
    assert rig.waiting(4.0) == [2, 3]
    assert rig.waiting(5.0) == [1, 2, 3]
    assert rig.proposals.due() == 11.0, "it is asked for once, then it waits for something else"


def test_only_the_leader_that_was_asked_answers_once() -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    assert rig.proposals.answered(1, LEADER + 1) is None
    assert rig.proposals.answered(99, LEADER) is None
    assert rig.proposals.answered(2, LEADER) is None, "it was never sent"
    assert rig.proposals.answered(1, LEADER) is rig.all[1]
    assert rig.proposals.answered(1, LEADER) is None
    rig.proposals.refused(1, LEADER, not_before=0.0)
    assert rig.waiting() == [2, 3], "a refusal after that changes nothing"


@pytest.mark.parametrize(
    ("leader", "term", "kind"),
    [(LEADER, TERM, ""), (LEADER + 1, TERM, "Unknown"), (LEADER, TERM + 1, "Unknown"),
     (None, TERM, "Unknown")],
)  # fmt: skip
def test_what_was_forwarded_to_another_leader_is_unknown(
    leader: int | None, term: int, kind: str
) -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    rig.proposals.placed(rig.all[2])
    rig.proposals.leader_is(leader, term)
    assert rig.kinds() == [kind, "", ""]


def test_what_was_forwarded_over_a_lost_link_is_unknown() -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    rig.proposals.forwarded(rig.all[2], LEADER + 1, TERM)
    rig.proposals.link_lost(LEADER)
    assert rig.kinds() == ["Unknown", "", ""]


@pytest.mark.parametrize(("is_applied", "placed"), [(True, NotProposed), (False, Unknown)])
def test_the_end_of_a_generation(is_applied: bool, placed: type[Outcome]) -> None:
    rig = Rig(4)
    rig.proposals.placed(rig.all[1])
    rig.proposals.forwarded(rig.all[2], LEADER, TERM)
    rig.all[3].generation = 7
    rig.proposals.generation_ended(7, is_applied=is_applied)
    assert rig.kinds() == [placed.__name__, "Unknown", "NotProposed", ""]
    assert rig.waiting() == [4], "that one waits for the next"


def test_closing_ends_all() -> None:
    rig = Rig()
    rig.proposals.placed(rig.all[1])
    rig.proposals.close("closed")
    assert rig.kinds() == ["Unknown", "NotProposed", "NotProposed"]
    assert not rig.proposals
