"""Watermarks of free disk space: what is refused below them, and when that ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config.address import Watermark
from raftlog.errors import DiskFullError
from raftlog.server.disks import FAILURE_CHECKS, INODES_KEPT, DiskSpace, SpaceLevel
from raftlog.storage.log_dirs import DiskMeasure
from raftlog.types import TopicPartition

T = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
SIZE = 10_000


def space() -> DiskSpace:
    return DiskSpace(producers=Watermark(10), replication=Watermark(5, 100))


def at(found: DiskSpace, free: int) -> SpaceLevel:
    found.measured(DiskMeasure(free, SIZE))
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


def test_the_watermarks_apply_to_inodes() -> None:
    found = space()

    def at_inodes(free: int) -> SpaceLevel:
        found.measured(DiskMeasure(SIZE, SIZE, free, 1_000))
        return found.level

    assert at_inodes(-1) is SpaceLevel.NORMAL, "a file system without a limit"
    assert at_inodes(100) is SpaceLevel.NORMAL
    assert at_inodes(99) is SpaceLevel.NO_PRODUCERS
    assert "99 of 1,000 inodes" in found.reason
    assert at_inodes(119) is SpaceLevel.NO_PRODUCERS
    assert at_inodes(49) is SpaceLevel.READ_ONLY
    found.measured(DiskMeasure(SIZE, SIZE, INODES_KEPT * 2, 1_000_000))
    assert found.level is SpaceLevel.NORMAL, "of many inodes, a fixed number is kept"
    off = DiskSpace(producers=Watermark(None, 0), replication=Watermark(0))
    off.measured(DiskMeasure(SIZE, SIZE, 0, 1_000))
    assert off.level is SpaceLevel.NORMAL


def test_failing_writes_are_a_problem_until_one_succeeds_or_the_disk_takes_writes_again() -> None:
    found = DiskSpace()
    works = DiskMeasure(SIZE, SIZE)
    found.write_failed(DiskFullError("writing x: no space"))
    assert found.reason == "writes to the disk fail: writing x: no space"
    assert found.state == "failing"
    assert refused(found) == [], "an append may succeed"
    found.write_succeeded()
    assert (found.reason, found.state) == ("", "normal")

    found.write_failed(DiskFullError("writing x: no space"))
    for _ in range(FAILURE_CHECKS - 1):
        assert not found.measured(works)
    assert not found.measured(works._replace(failure="no inode left"))
    assert found.failure == "no inode left"
    for _ in range(FAILURE_CHECKS - 1):
        assert not found.measured(works)
    assert found.failure
    assert found.measured(works), "it is over, which is reported"
    assert not found.reason


@pytest.mark.parametrize(
    ("lacks", "text"),
    [
        (DiskMeasure(SIZE, SIZE, 0, 100), "no inode is left"),
        (DiskMeasure(SIZE, SIZE, open_files=193, open_files_max=200), "193 of 200 file desc"),
    ],
)
def test_a_limit_of_files_that_is_reached_is_a_problem_without_watermarks(
    lacks: DiskMeasure, text: str
) -> None:
    found = DiskSpace()
    assert found.measured(lacks), "it is reported"
    assert text in found.reason
    assert not found.measured(lacks), "once"
    found.measured(DiskMeasure(SIZE, SIZE, 1, 100, open_files=192, open_files_max=200))
    found.write_succeeded()
    assert found.reason == ""
