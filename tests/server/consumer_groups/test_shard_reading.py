"""A led partition's consumer groups: how their state is read, and what is told meanwhile."""

from __future__ import annotations

import asyncio
import logging

import pytest

from raftlog.consumer_groups import TopicInfo
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    CoordinatorLoadingError,
    DamagedLogError,
    NotCoordinatorError,
    StorageError,
    UnknownTopicError,
)
from raftlog.server import log_shard
from tests.running import runs
from tests.server.cluster.fake import Scene, play, write
from tests.server.consumer_groups.fake_groups import BAD, FakeGroups, Shown

ALL = (1, 2, 3)


@runs(play)
async def test_who_asks_while_the_state_is_read_is_told_to_wait(s: Scene) -> None:
    shown = Shown(s)
    with pytest.raises(CoordinatorLoadingError, match="t:0 are loading"):
        shown.count()
    with pytest.raises(CoordinatorLoadingError):
        shown.beat("m")
    await shown.ready()
    shown.count()
    assert shown.noted == [0]


@runs(play)
async def test_a_new_leader_reads_all_once_that_is_committed(s: Scene) -> None:
    """What an earlier leader has appended, and acknowledged to somebody maybe, is in its log."""
    log = s.log()
    write(log, b"a", b"b", epoch=4)
    shown = Shown(s, isr=ALL, host=s.host(log))
    await asyncio.sleep(10)
    assert shown.shard.is_loading
    with pytest.raises(CoordinatorLoadingError):
        shown.count()
    shown.commit()
    await s.come_to_rest()
    shown.count()
    assert shown.noted == [2]
    assert len(shown.groups.started) == 1


@runs(play)
async def test_what_the_start_decides_is_written_before_anything_is_told(s: Scene) -> None:
    shown = Shown(s, isr=ALL)
    shown.prepare = lambda groups: setattr(groups, "on_start", (b"start",))
    await s.come_to_rest()
    shown.count()
    await s.come_to_rest()
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [0]
    assert shown.host.high_watermark == 1


@runs(play)
async def test_a_start_that_the_log_does_not_take_is_tried_again(s: Scene) -> None:
    host = s.host()
    shown = Shown(s, host=host)
    shown.prepare = lambda groups: setattr(groups, "on_start", (b"start",))
    host.obstacle = "broker 2 is gone"
    await asyncio.sleep(3)
    with pytest.raises(CoordinatorLoadingError, match="broker 2 is gone"):
        shown.count()
    assert 3 < len(shown.made) < 20, "again and again, and not all the time"
    host.obstacle = ""
    await asyncio.sleep(1)
    shown.count()
    await s.come_to_rest()
    assert shown.noted == [0]


@runs(play)
async def test_a_state_that_is_newer_than_the_topics_counts_as_loading(s: Scene) -> None:
    shown = Shown(s)
    shown.prepare = lambda groups: setattr(groups, "is_started", False)
    await s.come_to_rest()
    assert shown.shard.is_loading
    shown.shard.set_topics(Topics({"later": TopicInfo("2", 1)}, 2))
    assert not shown.shard.is_loading


@runs(play)
async def test_what_cannot_be_understood_is_told_and_logged(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    log = s.log()
    write(log, b"good", BAD, epoch=4)
    with caplog.at_level(logging.ERROR):
        shown = Shown(s, host=s.host(log))
        await s.come_to_rest()
        with pytest.raises(DamagedLogError, match=r"t:0.*offset 1"):
            shown.count()
        with pytest.raises(StorageError):
            shown.beat("m")
        await asyncio.sleep(3 * log_shard.PAUSE_SECONDS_DAMAGED)
    assert len(caplog.records) == 1, "once"
    assert set(shown.doubts) == {0}
    shown.shard.close(NotCoordinatorError("x"))


@runs(play)
async def test_a_mistake_while_reading_is_told_and_tried_again(s: Scene) -> None:
    shown = Shown(s)

    def fail(_groups: FakeGroups) -> None:
        if len(shown.made) == 0:
            shown.made.append(FakeGroups())
            raise KeyError("a bug")

    shown.prepare = fail
    await s.come_to_rest()
    with pytest.raises(StorageError, match="cannot read"):
        shown.count()
    await asyncio.sleep(2 * log_shard.PAUSE_SECONDS_DAMAGED)
    shown.count()
    assert shown.noted == [0]


@runs(play)
async def test_a_shard_that_ends_while_it_reads(s: Scene) -> None:
    shown = Shown(s, isr=ALL)
    ending = shown.shard.close(NotCoordinatorError("x"))
    await asyncio.gather(ending, return_exceptions=True)
    assert ending.cancelled()
    shown = Shown(s, isr=ALL)
    await s.come_to_rest()
    shown.host.close(UnknownTopicError("deleted"))
    await asyncio.sleep(3)
    assert shown.shard.close(NotCoordinatorError("x")).done(), "it has seen that itself"
