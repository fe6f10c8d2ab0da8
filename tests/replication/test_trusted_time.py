"""Which time a broker deletes by: what clocks may do to it, and what they may not."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.limits import (
    CLOCK_ROUND_TRIP_S_MAX,
    CLOCK_SAMPLE_S_MAX,
    CLOCK_SETTLE_S,
    CLOCK_SLEW,
    CLOCK_STEP_MS,
)
from raftlog.replication.trusted_time import TrustedTime, trusted_clocks

T0: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
ME: Final = 1
VOTERS: Final = (1, 2, 3)
TICK_S: Final = 1.0


class Broker:
    """One broker's clocks, and what it hears of the others'; each is off by its step."""

    def __init__(
        self,
        *,
        voters: tuple[int, ...] = (),
        own_step_ms: int = 0,
        saved_ms: int | None = None,
        broker_id: int = ME,
    ) -> None:
        self.now = 1_000.0
        self.truth_ms = T0
        self.steps = dict.fromkeys((*voters, broker_id), 0)
        self.steps[broker_id] = own_step_ms
        self.heard = set(voters) - {broker_id}
        self.me = broker_id
        self.time = TrustedTime(
            broker_id=broker_id,
            voters=voters,
            saved_ms=saved_ms,
            now=self.now,
            wall_ms=self.wall_ms,
        )

    @property
    def wall_ms(self) -> int:
        return self.truth_ms + self.steps[self.me]

    def run(self, seconds: float = 3.0) -> None:
        left = seconds
        while left > 0:
            passed = min(TICK_S, left)
            left -= passed
            self.now += passed
            self.truth_ms += round(passed * 1_000)
            for peer in self.heard:
                wall_ms = self.truth_ms + self.steps[peer]
                self.time.on_peer(peer, wall_ms, round_trip_s=0.0, now=self.now)
            self.time.update(now=self.now, wall_ms=self.wall_ms)

    @property
    def deletion_error_ms(self) -> int | None:
        """By how much the time for deletions is ahead of the truth."""
        deletion_ms = self.time.deletion_ms(self.now)
        return None if deletion_ms is None else deletion_ms - self.truth_ms

    @property
    def record_error_ms(self) -> int:
        return self.time.record_ms(self.now, self.wall_ms) - self.truth_ms


# -- a broker alone --------------------------------------------------------------------------------


def test_alone_with_a_steady_clock_it_is_the_clock() -> None:
    broker = Broker()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)
    broker.run(100_000)
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, CLOCK_STEP_MS + 1_000, -10 * DAY_MS])
def test_alone_no_step_is_followed_however_long_it_lasts(step_ms: int) -> None:
    broker = Broker()
    broker.run()
    broker.steps[ME] = step_ms
    broker.run(10 * CLOCK_SETTLE_S)
    assert broker.deletion_error_ms == 0
    assert broker.record_error_ms == max(step_ms, 0), "kept for longer, and never for less"
    assert broker.time.error_ms(broker.now, broker.wall_ms) == step_ms
    broker.steps[ME] = 0
    broker.run()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)
    assert broker.time.error_ms(broker.now, broker.wall_ms) == 0


def test_small_differences_are_followed_slowly() -> None:
    broker = Broker()
    broker.steps[ME] = 10_000
    broker.run(20)
    assert broker.deletion_error_ms == pytest.approx(20_000 * CLOCK_SLEW)
    broker.run(1_000)
    assert broker.deletion_error_ms == 10_000


@pytest.mark.parametrize("saved_ms", [T0, T0 - CLOCK_STEP_MS, T0 + DAY_MS])
def test_a_start_soon_after_the_last_run_is_no_step(saved_ms: int) -> None:
    assert Broker(saved_ms=saved_ms).deletion_error_ms == 0


def test_alone_a_start_with_a_clock_that_is_far_ahead_waits_before_anything_expires() -> None:
    broker = Broker(saved_ms=T0 - 8 * DAY_MS)
    broker.run(CLOCK_SETTLE_S - 2)
    assert broker.deletion_error_ms is None
    broker.run(5)
    assert broker.deletion_error_ms == 0


def test_alone_a_clock_that_is_corrected_soon_after_the_start_does_no_harm() -> None:
    broker = Broker(saved_ms=T0, own_step_ms=8 * DAY_MS)
    broker.run(100)
    assert broker.deletion_error_ms is None
    broker.steps[ME] = 0
    broker.run(1)
    assert broker.deletion_error_ms == 0


def test_alone_a_start_with_a_clock_that_is_behind_stamps_no_record_as_old() -> None:
    """It would expire as soon as the clock is right."""
    broker = Broker(saved_ms=T0, own_step_ms=-10 * DAY_MS)
    broker.run()
    assert broker.record_error_ms == 0
    assert broker.deletion_error_ms == -10 * DAY_MS


# -- a cluster -------------------------------------------------------------------------------------


def test_in_a_cluster_nothing_expires_until_a_majority_of_the_clocks_agrees() -> None:
    broker = Broker(voters=VOTERS, own_step_ms=8 * DAY_MS, saved_ms=T0)
    broker.heard = {2}
    broker.run()
    assert broker.deletion_error_ms is None
    assert broker.record_error_ms == 8 * DAY_MS
    broker.heard = {2, 3}
    broker.run()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)


def test_a_start_waits_when_all_clocks_of_a_cluster_are_far_ahead() -> None:
    broker = Broker(voters=VOTERS, saved_ms=T0 - 8 * DAY_MS)
    broker.run(CLOCK_SETTLE_S - 2)
    assert broker.deletion_error_ms is None
    broker.run(5)
    assert broker.deletion_error_ms == 0


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, -10 * DAY_MS])
@pytest.mark.parametrize("who", VOTERS)
@pytest.mark.parametrize("heard", [{2, 3}, {2}, set()])
def test_one_clock_of_three_decides_nothing(who: int, step_ms: int, heard: set[int]) -> None:
    broker = Broker(voters=VOTERS)
    broker.run()
    broker.heard, broker.steps[who] = heard, step_ms
    broker.run(3 * CLOCK_SETTLE_S)
    assert broker.deletion_error_ms == 0
    assert broker.record_error_ms >= 0
    if len(heard) == 2:
        assert broker.record_error_ms == 0


def test_a_majority_that_steps_for_a_moment_decides_nothing() -> None:
    broker = Broker(voters=VOTERS)
    broker.run()
    broker.steps[1] = broker.steps[2] = 8 * DAY_MS
    broker.run(CLOCK_SETTLE_S / 2)
    broker.steps[1] = broker.steps[2] = 0
    broker.run()
    broker.steps[1] = broker.steps[2] = 8 * DAY_MS
    broker.run(CLOCK_SETTLE_S - 5)
    assert broker.deletion_error_ms == 0


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, -10 * DAY_MS])
def test_a_majority_that_agrees_for_long_is_followed(step_ms: int) -> None:
    broker = Broker(voters=VOTERS)
    broker.run()
    broker.steps[1] = broker.steps[2] = step_ms
    broker.run(CLOCK_SETTLE_S + 5)
    assert broker.deletion_error_ms == step_ms


def test_two_that_differ_are_no_majority_and_of_two_voters_both_have_to_agree() -> None:
    broker = Broker(voters=(1, 2))
    broker.run()
    broker.steps[1] = 8 * DAY_MS
    broker.run(3 * CLOCK_SETTLE_S)
    assert broker.deletion_error_ms == 0
    broker.steps[2] = 8 * DAY_MS
    broker.run(CLOCK_SETTLE_S + 5)
    assert broker.deletion_error_ms == 8 * DAY_MS


def test_before_the_clocks_agree_no_record_is_stamped_as_older_than_a_clock_that_is_known() -> None:
    broker = Broker(voters=(1, 2, 3, 4, 5), own_step_ms=-10 * DAY_MS)
    broker.heard = {2}
    broker.run()
    assert broker.deletion_error_ms is None
    assert broker.record_error_ms >= 0


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, -10 * DAY_MS])
def test_a_start_with_two_clocks_that_differ_goes_by_the_one_that_is_behind(step_ms: int) -> None:
    broker = Broker(voters=(1, 2), own_step_ms=step_ms)
    broker.run()
    assert broker.deletion_error_ms == min(0, step_ms)
    broker.steps[1] = 0
    broker.run(CLOCK_SETTLE_S + 5)
    assert broker.deletion_error_ms == 0


def test_one_voter_alone_does_not_decide_for_another_broker() -> None:
    assert set(trusted_clocks({1}, {1, 2})) == {1, 2}
    assert set(trusted_clocks({1, 2, 3}, {1, 2, 3, 4, 5})) == {1, 2, 3}
    assert set(trusted_clocks({1}, {1})) == {1}


def test_a_broker_without_a_vote_goes_by_those_of_the_voters() -> None:
    broker = Broker(voters=VOTERS, broker_id=9, own_step_ms=8 * DAY_MS)
    broker.heard = {1, 2}
    broker.run()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)
    broker = Broker(voters=VOTERS, broker_id=9)
    broker.heard = {1}
    broker.run()
    assert broker.deletion_error_ms is None


def test_old_and_slow_answers_do_not_count() -> None:
    broker = Broker(voters=VOTERS, own_step_ms=8 * DAY_MS)
    broker.heard = set()
    for peer in (2, 3):
        broker.time.on_peer(
            peer, T0 - DAY_MS, round_trip_s=CLOCK_ROUND_TRIP_S_MAX + 1, now=broker.now
        )
    broker.run(1)
    assert broker.deletion_error_ms is None
    for peer in (2, 3):
        broker.time.on_peer(peer, T0, round_trip_s=0, now=broker.now)
    broker.now += CLOCK_SAMPLE_S_MAX + 1
    broker.run(1)
    assert broker.deletion_error_ms is None


def test_half_a_round_trip_has_passed_since_the_peer_looked() -> None:
    broker = Broker(voters=VOTERS)
    broker.heard = set()
    for peer in (2, 3):
        broker.time.on_peer(peer, T0 + 100_000, round_trip_s=4.0, now=broker.now)
    broker.time.update(now=broker.now, wall_ms=broker.wall_ms)
    assert broker.deletion_error_ms == 102_000


# -- any clocks ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(VOTERS),
            st.sampled_from((0, 900, -20_000, 8 * DAY_MS, -10 * DAY_MS, 3_600_000)),
            st.floats(0.5, 400),
            st.sets(st.sampled_from((2, 3))),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_while_a_majority_is_right_nothing_is_deleted_too_early(
    events: list[tuple[int, int, float, set[int]]], is_alone: bool
) -> None:
    """One clock at a time does anything; the others are right, heard or not."""
    broker = Broker(voters=() if is_alone else VOTERS)
    broker.run()
    for who, step_ms, seconds, heard in events:
        for voter in broker.steps:
            broker.steps[voter] = 0
        broker.heard = set() if is_alone else heard
        broker.steps[ME if is_alone else who] = step_ms
        broker.run(seconds)
        error_ms = broker.deletion_error_ms
        assert error_ms is not None
        assert error_ms <= CLOCK_STEP_MS
        assert broker.record_error_ms >= -CLOCK_STEP_MS, "a record would expire too early"
