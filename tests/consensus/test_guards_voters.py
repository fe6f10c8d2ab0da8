"""What a voter must not believe, where no other test would notice that it does."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.consensus import transport
from raftlog.consensus.raft_group import CANDIDATE, FOLLOWER, LEADER, VOID
from raftlog.consensus.transport import encode_seal
from tests.consensus.harness import GROUP, Network
from tests.consensus.voter import Voter, command


def test_a_refused_vote_is_none() -> None:
    voter = Voter(3)
    voter.step(10)
    voter.hear(2, 0, transport.PRE_VOTE_ANSWER, 1, True)
    assert voter.group.role == CANDIDATE
    voter.hear(2, 1, transport.VOTE_ANSWER, False)
    assert voter.group.role == CANDIDATE
    voter.hear(3, 1, transport.VOTE_ANSWER, True)
    assert voter.group.role == LEADER


def test_a_leader_that_nobody_answers_steps_down_though_its_links_are_up() -> None:
    voter = Voter(3)
    voter.become_leader()
    voter.acknowledge(2, 3)
    for _ in range(8):
        voter.step(0.5)
    assert voter.group.role == FOLLOWER


@pytest.mark.parametrize(
    ("previous", "previous_term", "entries"),
    [
        (1, 0, [[3, command("of a later term than its leader's")]]),
        (2, 1, [[0, command("of an earlier term than the one before it")]]),
        (1, 1, []),
    ],
)
def test_an_append_that_no_leader_sends_changes_nothing(
    previous: int, previous_term: int, entries: list[Any]
) -> None:
    voter = Voter(terms=(1,))
    before = voter.journal[:]
    assert not voter.hear(2, 2, transport.APPEND, previous, previous_term, 1, entries)
    assert voter.journal[:] == before
    assert voter.group.leader is None


def test_a_command_behind_a_seal_is_not_applied() -> None:
    """A follower may hear of both at once, and hear at once that both are committed."""
    voter = Voter(3)
    entries = [[1, command("before")], [1, encode_seal({1: "", 2: ""})], [1, command("after")]]
    results: list[object] = []
    voter.group.watch(4, 1, results.append)
    assert voter.hear(2, 1, transport.APPEND, 1, 0, 4, entries)
    voter.step()
    assert voter.applied == [b"before"]
    assert results == [VOID]
    assert voter.group.seal == {1: "", 2: ""}


def test_the_answer_of_a_broker_that_has_no_vote_counts_for_nothing() -> None:
    """It has a link, and knows the group's name: one of another generation, or one that errs."""
    network = Network(4, connect=False)
    for broker in (1, 2, 3):
        network[broker].open(GROUP, network.voters(1, 2, 3))
    network.connect(1, 4)
    network.connect(1, 2)
    network.tick(10)
    assert network.deliver(1, 2)
    assert network.deliver(2, 1)
    assert network[1].status().role == "candidate"
    node, journal = network[1].node, network[4].journal
    answer = [GROUP, 0, network[1].status().term, transport.VOTE_ANSWER, True]
    forged = transport.Envelope(journal.boot, 1, 1_000, network[4].directory_id, 0, [answer])
    node.receive(4, transport.encode(forged), network.now)
    network[1].sync()
    assert network[1].status().role == "candidate"
