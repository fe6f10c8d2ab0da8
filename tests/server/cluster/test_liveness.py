"""Who is there: links, fences, and how long a short break is forgiven."""

from __future__ import annotations

import pytest

from raftlog.server.cluster.membership import (
    GRACE_SECONDS,
    START_GRACE_SECONDS,
    Incarnation,
    Liveness,
)

ME = Incarnation("disk-1", 4)
TWO = Incarnation("disk-2", 7)


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.fenced: set[int] = set()
        self.heard: set[int] = set()
        self.liveness = Liveness(
            1,
            ME,
            now=lambda: self.now,
            is_fenced=lambda broker: broker in self.fenced,
            is_heard=lambda broker: broker in self.heard,
        )


@pytest.fixture
def s() -> Scene:
    return Scene()


def test_this_broker_is_there(s: Scene) -> None:
    assert s.liveness.is_linked(1)
    assert s.liveness.is_live(1)
    assert s.liveness.silent_seconds(1) == 0
    assert (s.liveness.directory_of(1), s.liveness.boot_of(1)) == ("disk-1", 4)


def test_who_is_heard_is_the_links_word_but_for_itself(s: Scene) -> None:
    s.heard = {3}
    assert [s.liveness.is_heard(broker) for broker in (1, 2, 3)] == [True, False, True]


def test_a_fenced_broker_is_not_live_however_near_it_is(s: Scene) -> None:
    s.liveness.link_up(2, TWO)
    s.fenced = {1, 2}
    assert not s.liveness.is_live(1)
    assert not s.liveness.is_live(2)
    assert s.liveness.is_linked(2)


def test_a_broker_never_seen_has_a_while_from_the_start(s: Scene) -> None:
    assert s.liveness.is_live(2)
    assert not s.liveness.is_linked(2)
    assert s.liveness.incarnation_of(2) is None
    assert s.liveness.directory_of(2) is None
    assert s.liveness.boot_of(2) is None
    s.now += START_GRACE_SECONDS
    assert not s.liveness.is_live(2)
    assert s.liveness.silent_seconds(2) == START_GRACE_SECONDS


def test_a_short_break_is_forgiven_and_a_long_one_is_not(s: Scene) -> None:
    s.liveness.link_up(2, TWO)
    s.now += 50
    s.liveness.link_down(2)
    s.now += GRACE_SECONDS * 0.9
    assert s.liveness.is_live(2)
    s.now += GRACE_SECONDS
    assert not s.liveness.is_live(2)
    assert s.liveness.silent_seconds(2) == pytest.approx(GRACE_SECONDS * 1.9)
    assert s.liveness.incarnation_of(2) == TWO, "it is remembered who it was"


def test_silence_begins_with_the_first_of_two_downs(s: Scene) -> None:
    s.liveness.link_up(2, TWO)
    s.liveness.link_down(2)
    s.now += 5
    s.liveness.link_down(2)
    assert s.liveness.silent_seconds(2) == 5
    s.liveness.link_up(2, Incarnation("disk-2", 8))
    assert s.liveness.silent_seconds(2) == 0
    assert s.liveness.boot_of(2) == 8
    s.now += 1
    s.liveness.link_down(2)
    assert s.liveness.silent_seconds(2) == 0


def test_a_broker_that_is_expected_has_time_to_connect(s: Scene) -> None:
    s.now += 5
    s.liveness.expect([2, 4])
    assert (s.liveness.silent_seconds(4), s.liveness.silent_seconds(3)) == (0, 5)
    s.now += 2
    s.liveness.expect([4])
    assert s.liveness.silent_seconds(4) == 2
