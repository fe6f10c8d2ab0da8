"""Elections by what the replicas hold: who is asked, how long that takes, and what is reported."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from raftlog.protocol.peer import CopyDescription, DescribeCopiesResponse, TopicIdPartition
from raftlog.replication.election import Standing
from raftlog.replication.partition_state import Elect, ElectUnclean
from raftlog.server.cluster.elections import (
    FRESH_SECONDS,
    REPORT_SECONDS_MAX,
    HostedPartition,
    Surveys,
    report_of,
)
from raftlog.server.cluster.membership import Incarnation
from raftlog.storage.log_dirs import LogDir
from tests.running import runs
from tests.server.cluster.paper import DISKS, TOPIC_ID, Scene, play, state_of, write
from tests.storage.logs import sim_disk


class Desk:
    """Broker 1, which has a copy with two records of epoch 1; 2 and 3 are there as well."""

    def __init__(self, s: Scene, **facts: Any) -> None:
        self.s = s
        s.register(1, 2, 3)
        s.see(2, 3)
        self.hosted = s.hosted(state_of(1, 2, 3, epoch=2, boot=0, **facts))
        log = s.log()
        write(log, b"a", b"b")
        self.hosted.host = s.host(log)
        self.done: list[HostedPartition] = []
        self.surveys = Surveys(
            1,
            s.me,
            loop=s.loop,
            links=s.links.as_links,
            liveness=s.liveness,
            unclean_recovery_seconds=60,
            find={self.hosted.group_id: self.hosted}.get,
            on_complete=self.done.append,
        )

    def choose(self, **options: Any) -> Any:
        return self.surveys.choose(self.hosted, **options)

    async def answer(self, broker: int, end: int, standing: int = 0, *, version: int = 1) -> None:
        """``broker`` has a copy whose last record, at ``end`` - 1, is of epoch 1."""
        copy = CopyDescription(
            topic_id=TOPIC_ID,
            partition=0,
            end_offset=end,
            last_epoch=1,
            standing=standing,
            version=version,
        )
        await self.give(broker, [copy])

    async def give(self, broker: int, copies: list[CopyDescription]) -> None:
        number = next(n for n, (asked, *_) in enumerate(self.s.links.asked) if asked == broker)
        *_, future = self.s.links.asked.pop(number)
        message = DescribeCopiesResponse(directory_id=DISKS[broker], boot=1, copies=copies)
        future.set_result(SimpleNamespace(message=message))
        await self.s.come_to_rest()


@runs(play)
async def test_the_longest_log_of_all_that_are_there_leads(s: Scene) -> None:
    d = Desk(s)
    assert d.choose(first=1) is None
    await s.come_to_rest()
    assert [broker for broker, *_ in s.links.asked] == [2, 3]
    await d.answer(2, 2)
    assert not d.done
    assert d.choose(first=1) is None
    await d.answer(3, 5)
    assert d.done == [d.hosted]
    assert d.choose(first=1) == Elect(1, 3, DISKS[3], 1)
    assert d.choose(first=1, without=3) == Elect(1, 1, DISKS[1], 1)


@runs(play)
async def test_a_broker_that_does_not_answer_is_waited_for_a_short_time_only(s: Scene) -> None:
    d = Desk(s)
    d.choose()
    await s.come_to_rest()
    await d.answer(2, 4)
    await asyncio.sleep(REPORT_SECONDS_MAX)
    assert d.choose(first=1) == Elect(1, 2, DISKS[2], 1)
    assert all(future.cancelled() for *_, future in s.links.asked)


@runs(play)
async def test_what_was_reported_is_asked_for_again_while_there_is_no_leader(s: Scene) -> None:
    d = Desk(s)
    d.choose()
    await s.come_to_rest()
    await d.answer(2, 2, Standing.DAMAGED)
    await d.answer(3, 2, Standing.DAMAGED)
    assert d.choose(without=1) is None
    await asyncio.sleep(FRESH_SECONDS)
    assert d.choose(without=1) is None
    await s.come_to_rest()
    await d.answer(2, 2)
    await d.answer(3, 2)
    assert d.choose(without=1) == Elect(1, 2, DISKS[2], 1)


@runs(play)
async def test_where_all_are_unsure_the_longest_leads_uncleanly(s: Scene) -> None:
    d = Desk(s)
    assert d.hosted.host is not None
    d.hosted.host.log.doubt = "it did not stop cleanly"
    d.choose()
    await s.come_to_rest()
    await d.answer(2, 7, Standing.UNSURE)
    await d.answer(3, 1, Standing.UNSURE)
    assert d.choose(first=1) == ElectUnclean(1, 2, DISKS[2], 1)


@runs(play)
async def test_a_copy_is_sound_if_its_broker_says_so_in_the_state_that_is_known(s: Scene) -> None:
    d = Desk(s, version=4)
    assert not d.surveys.is_sound(d.hosted, 2)
    await s.come_to_rest()
    await d.answer(2, 7, version=3)
    await d.answer(3, 7, version=4)
    assert not d.surveys.is_sound(d.hosted, 2)
    assert d.surveys.is_sound(d.hosted, 3)


@runs(play)
async def test_what_this_broker_reports_of_its_own_copies(s: Scene) -> None:
    d = Desk(s)
    assert d.hosted.host is not None
    log, me = d.hosted.host.log, Incarnation("here", 7)
    state = replace(d.hosted.state, version=5, leader_epoch=9)
    assert report_of(log, state, me) == (Standing.SOUND, 1, 2, 5, "here", 7)
    log.doubt = "it did not stop cleanly"
    assert report_of(log, state, me).standing is Standing.UNSURE
    log.note_damage("bad", offset=1)
    assert report_of(log, state, me)[:3] == (Standing.DAMAGED, 1, 1)
    log.is_torn = True
    assert report_of(log, state, me).standing is Standing.UNSURE
    key = TopicIdPartition(topic_id=TOPIC_ID, partition=0)
    unknown = TopicIdPartition(topic_id="other", partition=0)
    response = d.surveys.describe([key, unknown])
    assert [copy.end_offset for copy in response.copies] == [1]
    assert (response.directory_id, response.boot) == (DISKS[1], 1)
    log.log_dir = LogDir(sim_disk(), "disk-2", "id", failure="out of order")
    report = report_of(log, state, me)
    assert report.standing is Standing.DAMAGED
    assert report.length > (9, 1 << 60), "it may be the longest, so no other copy is elected"
