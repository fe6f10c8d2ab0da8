"""For how long a log has found no room, and how much longer it takes when giving way is in vain."""

from __future__ import annotations

import pytest

from raftlog.server.room import FULL_SECONDS, FULL_SECONDS_MAX, SLOWER, Room


class Watch:
    """What the time is."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_overdue_when_nothing_was_appended_for_so_long() -> None:
    watch = Watch()
    room = Room(watch)
    assert not room.is_short
    assert not room.is_overdue(leads=True)
    room.refused()
    assert room.is_short
    watch.now += FULL_SECONDS - 0.01
    room.refused()
    assert not room.is_overdue(leads=True)
    watch.now += 0.01
    assert room.is_overdue(leads=True)
    assert room.is_overdue(leads=False)


def test_what_is_appended_ends_it() -> None:
    watch = Watch()
    room = Room(watch)
    room.refused()
    watch.now += FULL_SECONDS - 0.1
    room.found()
    assert not room.is_short
    room.refused()
    watch.now += FULL_SECONDS - 0.1
    assert not room.is_overdue(leads=True), "it counts from the first one since then"


def test_a_new_role_counts_anew() -> None:
    watch = Watch()
    room = Room(watch)
    room.refused()
    watch.now += FULL_SECONDS
    room.begin_role()
    assert not room.is_overdue(leads=True)
    watch.now += FULL_SECONDS
    assert not room.is_overdue(leads=True), "nothing was refused in it"


@pytest.mark.parametrize("leads", [True, False])
def test_each_time_in_vain_is_rarer(leads: bool) -> None:
    watch = Watch()
    room = Room(watch)
    waits = []
    for _ in range(1_000):
        room.refused()
        begun = watch.now
        while not room.is_overdue(leads=leads):
            watch.now += 0.5
        waits.append(watch.now - begun)
        room.gave_way(leads=leads)
        assert not room.is_overdue(leads=leads)
    assert waits[:3] == [FULL_SECONDS, FULL_SECONDS * SLOWER, FULL_SECONDS * SLOWER**2]
    assert set(waits[3:]) == {FULL_SECONDS_MAX}
    room.found()
    room.refused()
    watch.now += FULL_SECONDS
    assert room.is_overdue(leads=leads), "there was room meanwhile"


def test_to_have_led_in_vain_keeps_nobody_in_sync_for_longer() -> None:
    watch = Watch()
    room = Room(watch)
    room.refused()
    room.gave_way(leads=True)
    room.refused()
    watch.now += FULL_SECONDS
    assert room.is_overdue(leads=False)
    assert not room.is_overdue(leads=True)
