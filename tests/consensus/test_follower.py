"""What a leader sends a follower next, by its answers."""

from __future__ import annotations

from raftlog.consensus.raft_group import Follower
from raftlog.consensus.settings import WINDOW_ENTRIES


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
