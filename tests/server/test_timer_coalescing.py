"""When long waits end: late by little, and together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.server.scheduling import LONG_S, SLACK_S, coalesced_deadline

nows = st.floats(0, 1e9)


@given(now=nows, wait_s=st.floats(0, LONG_S, exclude_max=True))
def test_a_short_wait_ends_when_it_was_said_to(now: float, wait_s: float) -> None:
    assert coalesced_deadline(now, wait_s) == now + wait_s


@given(now=nows, wait_s=st.floats(LONG_S, 60.0))
def test_a_long_wait_is_never_cut_short_and_ends_soon(now: float, wait_s: float) -> None:
    late_s = coalesced_deadline(now, wait_s) - (now + wait_s)
    assert -1e-6 < late_s < SLACK_S + 1e-6


def test_long_waits_end_together() -> None:
    ends = {coalesced_deadline(1_000.0 + number / 1_000, 5.0) for number in range(1_000)}
    assert len(ends) == 1_000 / 1_000 / SLACK_S + 1
