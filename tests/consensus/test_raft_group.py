"""Roles and elections of one generation, by the messages of one voter.

Appends, journaling, envelopes and generations have their own tests, and so have the hazards of the
library.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pysyncobj import FAIL_REASON, syncobj
from pysyncobj.journal import MemoryJournal

from raftlog.consensus import raft_group, transport
from raftlog.consensus.raft_group import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    NEVER,
    VOID,
    Ballot,
    Follower,
    PeerNode,
    Timing,
)
from raftlog.consensus.settings import (
    NUMBER_MAX,
    TERM_JUMP_MAX,
    WINDOW_ENTRIES,
    CommandFailed,
    ConsensusSettings,
)
from raftlog.consensus.transport import APPEND, PRE_VOTE, SEAL, decode
from tests.consensus.harness import GROUP, Broker, Network
from tests.consensus.voter import US, Voter, command

# -- elections -------------------------------------------------------------------------------------


def test_silence_leads_to_a_pre_vote_and_only_a_majority_to_a_term() -> None:
    voter = Voter(5)
    voter.step(10)
    assert set(voter.said()) == {2, 3, 4, 5}
    voter.hear(2, 0, transport.PRE_VOTE_ANSWER, 1, True)
    voter.hear(2, 0, transport.PRE_VOTE_ANSWER, 1, True)
    voter.hear(3, 0, transport.PRE_VOTE_ANSWER, 1, False)
    assert (voter.group.term, voter.group.role) == (0, FOLLOWER)
    voter.hear(4, 0, transport.PRE_VOTE_ANSWER, 1, True)
    assert (voter.group.term, voter.group.role) == (1, CANDIDATE)
    assert voter.said() == {peer: [[1, transport.VOTE, 0, 1]] for peer in (2, 3, 4, 5)}


def test_a_pre_vote_is_tried_again_with_longer_waits() -> None:
    voter = Voter()
    waits = []
    for _ in range(6):
        before = voter.now
        voter.step(voter.group.due() - voter.now)
        waits.append(round(voter.group.due() - before, 3))
        assert voter.said()
    assert waits[1:] == [1.2, 2.4, 4.6, 6.0, 6.0]
    assert voter.group.term == 0, "no term was spent"


def test_an_alone_voter_elects_itself_at_once_but_counts_only_what_is_durable() -> None:
    voter = Voter(1)
    assert voter.group.due() == voter.now
    voter.step()
    assert (voter.group.role, voter.group.commit_index) == (LEADER, 1)
    assert voter.group.wants_step
    voter.step()  # the owner has synced the journal
    assert voter.group.commit_index == 2
    voter.group.append(command("x"), voter.now)
    assert voter.group.commit_index == 2
    voter.step()
    assert voter.applied == [b"x"]
    assert voter.group.due() == NEVER


@pytest.mark.parametrize(
    ("last_term", "last_index", "is_granted"),
    [(2, 3, True), (2, 2, False), (1, 99, False), (3, 1, True), (2, 4, True)],
)
def test_only_a_log_as_good_as_ours_gets_a_vote(
    last_term: int, last_index: int, is_granted: bool
) -> None:
    voter = Voter(terms=(1, 2))
    answer = voter.answer_to(2, 2, transport.PRE_VOTE, 7, last_term, last_index)
    assert answer == [2, transport.PRE_VOTE_ANSWER, 7, is_granted]
    assert voter.group.term == 2, "a pre-vote changes nothing"
    answer = voter.answer_to(2, 3, transport.VOTE, last_term, last_index)
    assert answer == [3, transport.VOTE_ANSWER, is_granted]


def test_a_voter_with_a_live_leader_refuses_a_pre_vote() -> None:
    voter = Voter()  # hazard 15
    voter.follow(2)
    ask = (3, 1, transport.PRE_VOTE, 1, 9, 9)
    assert voter.answer_to(*ask)[-1] is False
    voter.now += 2.9
    assert voter.answer_to(*ask)[-1] is False
    voter.now += 0.2
    assert voter.answer_to(*ask)[-1] is True, "it was not heard for an election timeout"


def test_a_leader_without_a_link_is_not_alive() -> None:
    voter = Voter()
    voter.follow(2)
    voter.unlink(2)
    assert voter.answer_to(3, 1, transport.PRE_VOTE, 1, 9, 9)[-1] is True
    assert voter.group.due() <= voter.now + 0.4, "and this voter campaigns soon"


def test_a_leader_refuses_a_pre_vote() -> None:
    voter = Voter()
    voter.become_leader()
    assert voter.answer_to(2, 1, transport.PRE_VOTE, 1, 9, 9)[-1] is False


def test_a_pre_vote_of_an_older_term_is_refused_and_told_the_newer() -> None:
    voter = Voter(terms=(4,))
    assert voter.answer_to(2, 3, transport.PRE_VOTE, 1, 9, 9) == [
        4, transport.PRE_VOTE_ANSWER, 1, False,
    ]  # fmt: skip


def test_one_vote_in_a_term_granted_again_to_the_same_candidate() -> None:
    voter = Voter()  # hazard 23
    assert voter.answer_to(2, 1, transport.VOTE, 0, 1)[-1] is True
    assert voter.answer_to(3, 1, transport.VOTE, 0, 1)[-1] is False
    assert voter.answer_to(2, 1, transport.VOTE, 0, 1)[-1] is True
    assert voter.answer_to(3, 2, transport.VOTE, 0, 1)[-1] is True


def test_a_vote_outlives_the_process() -> None:
    voter = Voter()
    voter.hear(2, 5, transport.VOTE, 0, 1)
    voter.start()
    for peer in voter.links:
        voter.link(peer)
    assert voter.answer_to(3, 5, transport.VOTE, 0, 1)[-1] is False
    assert voter.answer_to(2, 5, transport.VOTE, 0, 1)[-1] is True


def test_a_candidate_asks_again_over_a_new_link() -> None:
    voter = Voter()
    voter.step(10)
    voter.hear(2, 0, transport.PRE_VOTE_ANSWER, 1, True)
    voter.said()
    voter.unlink(3)
    voter.link(3)
    assert voter.said() == {3: [[1, transport.VOTE, 0, 1]]}


def test_votes_of_another_term_do_not_count() -> None:
    voter = Voter()
    voter.step(10)
    voter.hear(2, 0, transport.PRE_VOTE_ANSWER, 1, True)
    voter.step(10)
    voter.hear(2, 1, transport.PRE_VOTE_ANSWER, 2, True)
    assert (voter.group.term, voter.group.role) == (2, CANDIDATE)
    voter.hear(2, 1, transport.VOTE_ANSWER, True)
    assert voter.group.role == CANDIDATE
    voter.hear(2, 2, transport.VOTE_ANSWER, True)
    assert voter.group.role == LEADER


# -- roles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (transport.PRE_VOTE, (1, 0, 1)),
        (transport.PRE_VOTE_ANSWER, (1, True)),
        (transport.VOTE, (0, 1)),
        (transport.VOTE_ANSWER, (True,)),
        (transport.APPEND, (1, 0, 1, [])),
        (transport.APPEND_ANSWER, (True, 1, 1)),
    ],
)
def test_any_message_of_a_higher_term_ends_a_leadership(kind: int, fields: tuple[Any]) -> None:
    voter = Voter()  # hazard 14
    voter.become_leader()
    voter.hear(2, 7, kind, *fields)
    assert (voter.group.role, voter.group.term) == (FOLLOWER, 7)
    assert voter.group.leader != US


def test_a_term_that_no_election_can_have_led_to_is_no_term() -> None:
    voter = Voter()
    assert not voter.hear(2, TERM_JUMP_MAX + 1, transport.VOTE, 0, 1)
    assert not voter.hear(2, NUMBER_MAX, transport.APPEND, 1, 0, 1, [])
    assert voter.group.term == 0


def test_a_leader_whom_no_majority_answers_steps_down() -> None:
    voter = Voter(5)  # hazard 14: check-quorum
    voter.become_leader()
    for _ in range(4):
        voter.step(1)
        assert voter.group.role == LEADER
        voter.acknowledge(2, 3)
    for _ in range(3):
        voter.step(1)
        voter.acknowledge(2)
    voter.step(0.1)
    assert (voter.group.role, voter.group.leader) == (FOLLOWER, None)
    assert voter.group.term == 1


def test_a_leader_without_links_to_a_majority_steps_down_soon() -> None:
    voter = Voter(5)
    voter.become_leader()
    voter.unlink(2)
    voter.unlink(3)
    voter.step(0.5)
    assert voter.group.role == LEADER, "two links are a majority with itself"
    voter.unlink(4)
    assert voter.group.due() == pytest.approx(voter.now + 0.1)
    voter.step(0.05)
    assert voter.group.role == LEADER
    voter.step(0.06)
    assert voter.group.role == FOLLOWER


def test_a_link_that_comes_back_in_time_keeps_the_leadership() -> None:
    voter = Voter()
    voter.become_leader()
    for peer in (2, 3):
        voter.unlink(peer)
    voter.now += 0.05
    voter.link(2)
    voter.step(0.2)
    assert voter.group.role == LEADER


def test_a_leader_of_our_own_term_is_not_followed() -> None:
    voter = Voter()
    voter.become_leader()
    assert not voter.hear(2, 1, transport.APPEND, 1, 0, 1, [])
    assert voter.group.role == LEADER


# -- whatever comes --------------------------------------------------------------------------------

NUMBERS = st.integers(0, 8) | st.sampled_from([NUMBER_MAX, TERM_JUMP_MAX])
ENTRIES = st.lists(st.integers(0, 3), max_size=4).map(
    lambda terms: [[term, command("x")] for term in sorted(terms)]
)
MESSAGES = st.one_of(
    st.tuples(st.just(transport.PRE_VOTE), NUMBERS, NUMBERS, NUMBERS),
    st.tuples(st.just(transport.PRE_VOTE_ANSWER), NUMBERS, st.booleans()),
    st.tuples(st.just(transport.VOTE), NUMBERS, NUMBERS),
    st.tuples(st.just(transport.VOTE_ANSWER), st.booleans()),
    st.tuples(st.just(transport.APPEND), NUMBERS, NUMBERS, NUMBERS, ENTRIES),
    st.tuples(st.just(transport.APPEND_ANSWER), st.booleans(), NUMBERS, NUMBERS),
)


@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from([2, 3]), st.integers(0, 4), MESSAGES), max_size=30),
)
def test_no_message_breaks_the_order_of_things(leads: bool, messages: list[Any]) -> None:
    voter = Voter(terms=(1, 1))
    if leads:
        voter.become_leader()
    committed: list[Any] = []
    term = voter.group.term
    for peer, at_term, (kind, *fields) in messages:
        voter.hear(peer, at_term, kind, *fields)
        voter.step(0.3)
        log = voter.journal[:]
        assert [index for _entry, index, _term in log] == list(range(1, len(log) + 1))
        assert voter.group.applied_index == voter.group.commit_index <= len(log)
        assert log[: len(committed)] == committed, "what is committed stays"
        committed = log[: voter.group.commit_index]
        assert term <= voter.group.term
        term = voter.group.term


# -- ballot ----------------------------------------------------------------------------------------
#
# Counting votes and pre-votes, and how long to wait between elections.


def ballot(voters: int = 5, *, chance: float = 0.0) -> Ballot:
    return Ballot(1, voters, Timing(ConsensusSettings()), lambda: chance)


def test_the_same_vote_twice_is_one_vote() -> None:
    one = ballot(5)  # hazard 4
    assert not one.stand()
    assert not one.vote(2)
    assert not one.vote(2)
    assert one.vote(3)


def test_the_same_pre_vote_twice_is_one() -> None:
    one = ballot(5)
    number = one.ask()
    assert not one.would_vote(2, number)
    assert not one.would_vote(2, number)
    assert one.would_vote(3, number)


def test_answers_to_an_older_round_do_not_count() -> None:
    one = ballot(3)
    old = one.ask()
    one.ask()
    assert not one.would_vote(2, old)


def test_nothing_counts_before_it_is_asked_for_or_after_it_is_moot() -> None:
    one = ballot(3)
    assert not one.vote(2)
    assert not one.would_vote(2, 0)
    number = one.ask()
    one.stand()
    assert not one.would_vote(2, number), "the election has begun"
    one.close()
    assert not one.vote(2)


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_a_quorum_is_more_than_half(voters: int, quorum: int) -> None:
    one = ballot(voters)
    assert one.is_quorum(quorum)
    assert not one.is_quorum(quorum - 1)
    assert one.stand() is (voters == 1)


def test_waits_double_up_to_the_election_timeout_and_start_again_with_a_leader() -> None:
    one = ballot()
    assert [one.next_wait() for _ in range(5)] == [0.4, 0.8, 1.6, 3.0, 3.0]
    for _ in range(100):
        one.next_wait()
    assert one.next_wait() == 3.0
    one.leader_found()
    assert one.next_wait() == 0.4


@pytest.mark.parametrize(("chance", "patience", "short"), [(0.0, 3.0, 0.1), (0.5, 4.5, 0.25)])
def test_chance_spreads_the_waits(chance: float, patience: float, short: float) -> None:
    one = ballot(chance=chance)
    assert one.patience() == patience
    assert one.short_wait() == short


# -- follower --------------------------------------------------------------------------------------
#
# What a leader sends a follower next, by its answers.


def follower(*, last_index: int = 10) -> Follower:
    return Follower(last_index)


def test_a_new_leader_sends_ahead_without_asking() -> None:
    one = follower(last_index=10)
    assert not one.may_send(10)
    assert one.may_send(11)
    one.sent(1, 5)
    assert (one.next_index, one.commit_sent) == (12, 5)
    assert one.may_send(12)


def test_what_is_sent_ahead_is_bounded() -> None:
    one = follower(last_index=10)
    one.sent(WINDOW_ENTRIES, 5)
    assert not one.may_send(100_000)
    assert one.appended(10 + WINDOW_ENTRIES)
    assert one.may_send(100_000)


def test_after_a_refusal_it_goes_back_to_the_guess_one_append_at_a_time() -> None:
    one = follower(last_index=10)
    one.sent(2, 5)
    assert one.refused(10, 4)
    assert (one.next_index, one.is_probing) == (4, True)
    assert one.may_send(12)
    one.sent(9, 5)
    assert not one.may_send(12), "until the answer"
    assert one.appended(12)
    assert (one.match_index, one.next_index, one.is_probing) == (12, 13, False)


def test_a_guess_goes_back_by_one_at_least_and_never_below_what_matched() -> None:
    one = follower(last_index=10)
    assert one.refused(10, 99)
    assert one.next_index == 10
    assert one.appended(9)
    assert one.refused(10, 2)
    assert one.next_index == 10


def test_an_old_refusal_changes_nothing() -> None:
    one = follower(last_index=10)
    assert one.appended(10)
    assert not one.refused(10, 3), "it holds that entry: it says so itself"
    assert one.refused(15, 14)
    assert not one.refused(20, 3), "of an append before this probe"
    assert one.next_index == 14


def test_an_old_answer_takes_nothing_back() -> None:
    one = follower(last_index=10)
    assert one.appended(8)
    assert not one.appended(6)
    assert one.match_index == 8


def test_a_new_link_means_asking_first() -> None:
    one = follower(last_index=10)
    one.sent(5, 7)
    one.restart()
    assert (one.is_probing, one.is_waiting, one.commit_sent) == (True, False, 0)
    assert one.next_index == 16, "nothing is known: this is where to ask"
    assert one.appended(12)
    one.restart()
    assert one.next_index == 13


# -- library ---------------------------------------------------------------------------------------
#
# PySyncObj's surroundings: clock, journal, poller, nodes.


def test_the_library_sees_the_time_it_is_given_in_this_thread_only() -> None:
    raft_group.set_now(1234.5)
    assert raft_group.now() == syncobj.monotonicTime() == 1234.5
    elsewhere: list[float] = []
    thread = threading.Thread(target=lambda: elsewhere.append(syncobj.monotonicTime()))
    thread.start()
    thread.join()
    assert elsewhere != [1234.5]


def test_others_in_this_process_get_the_librarys_own_journal_and_poller() -> None:
    assert isinstance(syncobj.createJournal(None), MemoryJournal)
    assert hasattr(syncobj.createPoller("poll"), "subscribe")
    groups_own = syncobj.createPoller(Timing(ConsensusSettings()).library_settings.pollerType)
    assert not hasattr(groups_own, "subscribe")
    assert groups_own.poll(10.0) is None, "it does not wait"


def test_a_node_is_its_broker_id() -> None:
    assert {PeerNode(3)} == {PeerNode(3)}
    assert hash(PeerNode(3)) == hash(3)
    assert str(PeerNode(3)) == "3"


def test_an_entry_that_another_took_the_place_of_is_void() -> None:
    results: list[object] = []
    called = raft_group.subscriber(results.append)
    called("result", FAIL_REASON.SUCCESS)
    called(None, FAIL_REASON.DISCARDED)
    assert results == ["result", VOID]


def test_heartbeats_of_many_groups_coincide_and_never_stand_still() -> None:
    timing = Timing(ConsensusSettings())
    assert {round(timing.next_heartbeat(now), 6) for now in (10.01, 10.03, 10.049)} == {11.0}
    quick = Timing(ConsensusSettings(heartbeat_ms=50))
    now = 0.0
    for _ in range(1_000):
        due = quick.next_heartbeat(now)
        assert now < due <= now + 0.051
        now = due


# -- idle groups -----------------------------------------------------------------------------------
#
# Groups without news: few heartbeats, and still a new leader soon when one is needed.


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


def test_the_heartbeats_of_many_idle_groups_share_envelopes() -> None:
    network = Network()
    for number in range(200):
        network.open(f"t/{number}")
    network.run(IDLE_S)
    sent = network.sent
    network.run(60)
    beats = 60 * 3 * 2
    # Each second, a broker sends the heartbeats of its groups to two peers, and these answer.
    assert beats - 6 <= network.sent - sent <= beats + 60 * 3 * 2 * 2


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


# -- raft group appends ----------------------------------------------------------------------------
#
# Appends and what is applied, by the messages of one voter.


# -- appends: the follower -------------------------------------------------------------------------


def test_a_follower_takes_entries_and_applies_what_is_committed() -> None:
    voter = Voter()
    answer = voter.answer_to(
        2, 1, transport.APPEND, 1, 0, 2, [[1, b"\x01"], [1, command("a")], [1, command("b")]]
    )
    assert answer == [1, transport.APPEND_ANSWER, True, 1, 4]
    assert voter.group.commit_index == 2
    assert voter.hear(2, 1, transport.APPEND, 4, 1, 3, [])
    voter.step()
    assert voter.applied == [b"a"]


def test_no_more_is_committed_than_this_append_has_matched() -> None:
    voter = Voter(terms=(1, 1, 1))  # hazard 1
    voter.hear(2, 2, transport.APPEND, 2, 1, 99, [])
    assert voter.group.commit_index == 2


def test_a_follower_says_where_to_try_next() -> None:
    voter = Voter(terms=(1, 2, 2))
    assert voter.answer_to(2, 3, transport.APPEND, 9, 3, 1, [])[2:] == [False, 9, 5]
    assert voter.answer_to(2, 3, transport.APPEND, 4, 3, 1, [])[2:] == [False, 4, 3]
    assert voter.answer_to(2, 3, transport.APPEND, 2, 1, 1, [])[2:] == [True, 2, 2]


def test_an_append_of_an_older_term_is_told_the_newer_and_changes_nothing() -> None:
    voter = Voter(terms=(4,))
    answer = voter.answer_to(2, 3, transport.APPEND, 1, 0, 2, [[3, command("x")]])
    assert answer[:3] == [4, transport.APPEND_ANSWER, False]
    assert (voter.group.leader, voter.group.entries) == (None, 2)


def test_an_append_that_contradicts_what_is_committed_is_refused() -> None:
    voter = Voter()
    voter.hear(2, 1, transport.APPEND, 1, 0, 2, [[1, command("a")]])
    assert not voter.hear(3, 2, transport.APPEND, 1, 0, 2, [[2, command("b")]])
    voter.step()
    assert voter.applied == [b"a"]


# -- appends: the leader ---------------------------------------------------------------------------


def test_an_entry_is_committed_once_a_majority_has_it() -> None:
    voter = Voter(5)
    voter.become_leader()
    results: list[object] = []
    index = voter.group.append(command("x"), voter.now, results.append)
    assert set(voter.said()) == {2, 3, 4, 5}, "at once, to all"
    voter.acknowledge(2, 2)
    voter.step()
    assert voter.group.commit_index == 1
    voter.acknowledge(3)
    voter.step()
    assert voter.group.commit_index == index
    assert (voter.applied, results) == ([b"x"], [None])
    assert voter.said()[4] == [[1, transport.APPEND, index, 1, index, []]], "followers are told"


def test_an_answer_of_another_term_counts_for_nothing() -> None:
    voter = Voter(terms=(1, 1))  # hazard 3
    voter.become_leader()
    assert voter.group.term == 2
    voter.hear(2, 1, transport.APPEND_ANSWER, True, 3, 4)
    voter.hear(3, 1, transport.APPEND_ANSWER, True, 3, 4)
    voter.step()
    assert voter.group.commit_index == 1


def test_entries_of_older_terms_are_committed_only_by_one_of_this_term() -> None:
    voter = Voter(terms=(1, 1))  # Raft, figure 8
    voter.become_leader()
    voter.acknowledge(2, index=3)
    voter.step()
    assert voter.group.commit_index == 1
    voter.acknowledge(2)
    voter.step()
    assert voter.group.commit_index == 4


@pytest.mark.parametrize(
    "fields", [(True, 1, 3), (True, 3, 2), (True, 1, NUMBER_MAX), (False, 9, 1)]
)
def test_an_answer_about_entries_that_there_are_not_is_refused(fields: tuple[Any]) -> None:
    voter = Voter()
    voter.become_leader()
    assert not voter.hear(2, 1, transport.APPEND_ANSWER, *fields)
    voter.step()
    assert voter.group.commit_index == 1


def test_a_lagging_follower_is_found_in_one_step_for_each_term() -> None:
    voter = Voter(terms=(1, 1, 1, 5, 5))
    voter.become_leader()
    assert voter.hear(2, 6, transport.APPEND_ANSWER, False, 6, 3)
    assert voter.said()[2] == [
        [6, transport.APPEND, 2, 1, 1, [
            [1, command("old 3")], [1, command("old 4")], [5, command("old 5")],
            [5, command("old 6")], [6, b"\x01"],
        ]]
    ]  # fmt: skip


def test_a_heartbeat_is_one_append_and_comes_when_it_is_due() -> None:
    voter = Voter()
    voter.become_leader()
    voter.acknowledge(2, 3)
    voter.step()
    voter.said()
    due = voter.group.due()
    assert 0.9 <= due - voter.now <= 1.0
    voter.step(due - voter.now)
    expected = [[1, transport.APPEND, 2, 1, 2, []]]
    assert voter.said() == {2: expected, 3: expected}


def test_a_new_link_starts_with_what_the_follower_is_known_to_have() -> None:
    voter = Voter()
    voter.become_leader()
    voter.acknowledge(2, 3)
    voter.group.append(command("x"), voter.now)
    voter.said()
    voter.unlink(2)
    voter.link(2)
    assert voter.said() == {2: [[1, transport.APPEND, 2, 1, 1, [[1, command("x")]]]]}
    voter.step(1)
    assert voter.said()[2] == [[1, transport.APPEND, 2, 1, 2, [[1, command("x")]]]], "once more"


# -- applying --------------------------------------------------------------------------------------


def test_nothing_after_a_seal_counts() -> None:
    voter = Voter(1)
    voter.step()
    results: list[object] = []
    voter.group.append(command("a"), voter.now, results.append)
    voter.group.append(transport.encode_seal({7: "new"}), voter.now, results.append)
    assert not voter.group.accepts
    voter.group.append(command("b"), voter.now, results.append)
    voter.group.append(transport.encode_seal({8: "other"}), voter.now, results.append)
    voter.step()
    assert voter.applied == [b"a"]
    assert results == [None, None, VOID, VOID]
    assert voter.group.seal == {7: "new"}


@pytest.mark.parametrize("entry", [b"\x03what", bytes([SEAL]) + b"\xc1", b"\x00"])
def test_an_entry_of_no_known_kind_is_void(entry: bytes) -> None:
    voter = Voter(1)
    voter.step()
    results: list[object] = []
    voter.group.append(entry, voter.now, results.append)
    voter.step()
    assert results == [VOID]
    assert voter.group.seal is None


def test_a_machine_that_raises_gives_a_result() -> None:
    voter = Voter(1)
    voter.group._apply = lambda command: 1 // 0
    voter.step()
    results: list[object] = []
    voter.group.append(command("x"), voter.now, results.append)
    voter.step()
    assert isinstance(results[0], CommandFailed)
    assert voter.group.applied_index == 3


def test_an_entry_in_whose_place_another_was_committed_is_void() -> None:
    voter = Voter()
    voter.become_leader()
    results: list[object] = []
    index = voter.group.append(command("lost"), voter.now, results.append)
    voter.hear(2, 2, transport.APPEND, index - 1, 1, index, [[2, command("other")]])
    voter.step()
    assert (results, voter.applied) == ([VOID], [b"other"])


def test_the_log_can_be_applied_whole_when_its_majority_is_gone() -> None:
    voter = Voter(terms=(1, 1))
    voter.group.apply_all(voter.now)
    assert voter.applied == [b"old 2", b"old 3"]


def test_a_term_or_a_vote_is_never_taken_back() -> None:
    voter = Voter()
    voter.hear(2, 5, transport.VOTE, 0, 1)
    with pytest.raises(AssertionError):
        voter.group._SyncObj__setCurrentTerm(5, 3)
    with pytest.raises(AssertionError):
        voter.group._SyncObj__setCurrentTerm(4, None)
