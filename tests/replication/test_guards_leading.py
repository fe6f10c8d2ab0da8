"""What a leader must not count, where no other test would notice that it does."""

from __future__ import annotations

from tests.replication.samples import Leader, state_of


def test_a_lower_min_isr_that_is_only_proposed_commits_nothing() -> None:
    """Not even what is appended after it was proposed."""
    leader = Leader(state_of(isr=(1,), elr=(2,), former=(3,)))
    leader.proposed(min_isr=1)
    leader.append(5)
    assert leader.high_watermark == 4
    assert not leader.leadership.has_quorum


def test_a_fetch_that_comes_late_takes_nothing_back() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(2, 6)
    assert leader.leadership.followers(0.0)[2][:2] == (10, 10)
    leader.fetch(3, 9)
    assert leader.high_watermark == 9


def test_a_member_that_restarts_with_less_takes_no_committed_record_back() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.high_watermark == 10
    assert not leader.fetch(3, 6, boot=1)
    assert leader.high_watermark == 10
