"""Appends and what is applied, by the messages of one voter."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.consensus import transport
from raftlog.consensus.raft_group import VOID
from raftlog.consensus.settings import NUMBER_MAX, CommandFailed
from raftlog.consensus.transport import SEAL
from tests.consensus.voter import Voter, command

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
