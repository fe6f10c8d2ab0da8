"""Watermarks of free disk space: what is refused below them, and when that ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config.watermark import Watermark
from raftlog.errors import DiskFullError
from raftlog.server.disk_space import DiskSpace, SpaceLevel
from raftlog.types import TopicPartition

T = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
SIZE = 10_000


def space() -> DiskSpace:
    return DiskSpace(producers=Watermark(10), replication=Watermark(5, 100))


def at(found: DiskSpace, free: int) -> SpaceLevel:
    found.measured(free_bytes=free, size_bytes=SIZE)
    return found.level


def refused(found: DiskSpace, where: TopicPartition = T) -> list[str]:
    who = []
    for name, check in (
        ("producers", found.check_producer),
        ("replication", found.check_replication),
    ):
        try:
            check(where)
        except DiskFullError:
            who.append(name)
    return who


def test_producers_are_refused_first_and_internal_topics_never() -> None:
    found = space()
    assert refused(found) == [], "nothing is known yet"
    assert at(found, 1_000) is SpaceLevel.NORMAL
    assert refused(found) == []
    assert at(found, 999) is SpaceLevel.NO_PRODUCERS
    assert refused(found) == ["producers"]
    assert at(found, 99) is SpaceLevel.READ_ONLY
    assert refused(found) == ["producers", "replication"]
    assert refused(found, OFFSETS) == []


def test_a_level_ends_a_fifth_above_its_watermark() -> None:
    found = space()
    at(found, 99)
    assert at(found, 119) is SpaceLevel.READ_ONLY
    assert at(found, 120) is SpaceLevel.NO_PRODUCERS
    assert at(found, 100) is SpaceLevel.NO_PRODUCERS, "it began below 100"
    assert at(found, 1_199) is SpaceLevel.NO_PRODUCERS
    assert at(found, 1_200) is SpaceLevel.NORMAL
    assert at(found, 1_000) is SpaceLevel.NORMAL


def test_a_refusal_says_which_setting_and_what_to_do() -> None:
    found = space()
    at(found, 700)
    with pytest.raises(DiskFullError) as caught:
        found.check_producer(T)
    text = str(caught.value)
    for part in (
        "t:0: producers are refused: 700 of 10,000 bytes",
        "disk.watermark.producers=10%",
        "until 1,200 bytes are free",
        "lower retention.ms",
    ):
        assert part in text
    at(found, 0)
    assert "disk.watermark.replication=5%,100" in found.reason


def test_without_watermarks_nothing_is_refused() -> None:
    found = DiskSpace()
    assert at(found, 0) is SpaceLevel.NORMAL
    assert (refused(found), found.reason) == ([], "")


@given(st.lists(st.integers(0, SIZE), max_size=20), st.integers(0, SIZE))
def test_the_level_is_never_lower_than_that_of_the_free_space(
    history: list[int], free: int
) -> None:
    """Whatever was measured before: hysteresis only prolongs a level."""
    found, fresh = space(), space()
    for each in history:
        at(found, each)
    assert at(found, free) >= at(fresh, free)
    if free >= SIZE * 12 // 100:
        assert found.level is SpaceLevel.NORMAL
