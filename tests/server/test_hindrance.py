"""For how long a disk has held a log up, and how much later giving way comes when it is in vain."""

from __future__ import annotations

import pytest

from raftlog.server.partition import FULL_SECONDS, FULL_SECONDS_MAX, SLOWER, Hindrance


class Watch:
    """What the time is."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_overdue_when_nothing_was_appended_for_so_long() -> None:
    watch = Watch()
    hindrance = Hindrance(watch)
    assert not hindrance.is_short
    assert not hindrance.is_overdue(leads=True)
    hindrance.refused()
    assert hindrance.is_short
    watch.now += FULL_SECONDS - 0.01
    hindrance.refused()
    assert not hindrance.is_overdue(leads=True)
    watch.now += 0.01
    assert hindrance.is_overdue(leads=True)
    assert hindrance.is_overdue(leads=False)


def test_what_is_appended_ends_it() -> None:
    watch = Watch()
    hindrance = Hindrance(watch)
    hindrance.refused()
    watch.now += FULL_SECONDS - 0.1
    hindrance.found()
    assert not hindrance.is_short
    hindrance.refused()
    watch.now += FULL_SECONDS - 0.1
    assert not hindrance.is_overdue(leads=True), "it counts from the first one since then"


def test_how_long_it_lasts_is_counted_over_all_roles() -> None:
    watch = Watch()
    hindrance = Hindrance(watch)
    assert hindrance.seconds == 0
    hindrance.refused()
    watch.now += 5
    hindrance.yielded(leads=True)
    hindrance.begin_role()
    hindrance.refused()
    watch.now += 5
    assert hindrance.seconds == 10
    hindrance.found()
    assert hindrance.seconds == 0


def test_a_new_role_counts_anew() -> None:
    watch = Watch()
    hindrance = Hindrance(watch)
    hindrance.refused()
    watch.now += FULL_SECONDS
    hindrance.begin_role()
    assert not hindrance.is_overdue(leads=True)
    watch.now += FULL_SECONDS
    assert not hindrance.is_overdue(leads=True), "nothing was refused in it"


@pytest.mark.parametrize("leads", [True, False])
def test_each_time_in_vain_is_rarer(leads: bool) -> None:
    watch = Watch()
    hindrance = Hindrance(watch)
    waits = []
    for _ in range(1_000):
        hindrance.refused()
        begun = watch.now
        while not hindrance.is_overdue(leads=leads):
            watch.now += 0.5
        waits.append(watch.now - begun)
        hindrance.yielded(leads=leads)
        assert not hindrance.is_overdue(leads=leads)
    assert waits[:3] == [FULL_SECONDS, FULL_SECONDS * SLOWER, FULL_SECONDS * SLOWER**2]
    assert set(waits[3:]) == {FULL_SECONDS_MAX}
    hindrance.found()
    hindrance.refused()
    watch.now += FULL_SECONDS
    assert hindrance.is_overdue(leads=leads), "there was hindrance meanwhile"


def test_to_have_led_in_vain_keeps_nobody_in_sync_for_longer() -> None:
    watch = Watch()
    hindrance = Hindrance(watch)
    hindrance.refused()
    hindrance.yielded(leads=True)
    hindrance.refused()
    watch.now += FULL_SECONDS
    assert hindrance.is_overdue(leads=False)
    assert not hindrance.is_overdue(leads=True)
