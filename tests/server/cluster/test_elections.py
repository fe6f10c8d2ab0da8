"""Items that wait to be processed, some in each turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.protocol.peer import (
    CopyDescription,
    DescribeCopiesResponse,
    EncodedPartitionState,
    TopicIdPartition,
)
from raftlog.replication.election import Standing
from raftlog.replication.partition_state import (
    Elect,
    ElectUnclean,
    PartitionMachine,
    PartitionState,
)
from raftlog.server.cluster.elections import (
    FRESH_SECONDS,
    REPORT_SECONDS_MAX,
    TRANSITIONS,
    Backlog,
    Event,
    HostedPartition,
    Stage,
    StateBroadcast,
    Surveys,
    raft_id,
    report_of,
)
from raftlog.server.cluster.membership import Incarnation
from raftlog.storage.log_dirs import LogDir
from tests.running import runs
from tests.server.cluster.fake import DISKS, TOPIC_ID, Scene, play, state_of, write
from tests.storage.logs import sim_disk


class BacklogScene:
    """``calls``: what was processed in each turn."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.then: Callable[[], None] = lambda: None
        self.backlog = Backlog(asyncio.get_running_loop(), self._process, at_once=3)

    def _process(self, items: list[int]) -> None:
        self.calls.append(items)
        self.then()


def backlog_play(test: Callable[[BacklogScene], Coroutine[Any, Any, None]]) -> None:
    async def scene() -> None:
        await test(BacklogScene())

    asyncio.run(scene())


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@runs(backlog_play)
async def test_some_items_are_processed_in_each_turn(s: BacklogScene) -> None:
    s.backlog.add(range(7))
    assert s.calls == []
    await turns(1)
    assert s.calls == [[0, 1, 2]]
    await turns(1)
    assert s.calls == [[0, 1, 2], [3, 4, 5]]
    await turns(5)
    assert s.calls == [[0, 1, 2], [3, 4, 5], [6]]


@runs(backlog_play)
async def test_an_item_waits_once_and_keeps_its_place(s: BacklogScene) -> None:
    s.backlog.add([1, 2, 3, 4])
    s.backlog.add([4, 1, 5])
    await turns(1)
    s.backlog.add([1])
    await turns(5)
    assert s.calls == [[1, 2, 3], [4, 5, 1]]


@runs(backlog_play)
async def test_items_that_are_added_during_the_work_are_processed_in_the_next_turn(
    s: BacklogScene,
) -> None:
    s.then = lambda: s.backlog.add([2]) if len(s.calls) == 1 else None
    s.backlog.add([1])
    await turns(1)
    assert s.calls == [[1]]
    await turns(5)
    assert s.calls == [[1], [2]]


@runs(backlog_play)
async def test_an_error_does_not_stop_the_others(s: BacklogScene) -> None:
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))

    def fails() -> None:
        if len(s.calls) == 1:
            raise ValueError("of the first three")

    s.then = fails
    s.backlog.add(range(4))
    await turns(5)
    assert s.calls == [[0, 1, 2], [3]]
    assert [str(error) for error in errors] == ["of the first three"]


@runs(backlog_play)
async def test_nothing_to_do_takes_no_turn(s: BacklogScene) -> None:
    s.backlog.add([])
    await turns(3)
    assert s.calls == []


# -- hosted partition ------------------------------------------------------------------------------
#
# A partition as this broker takes part in it.


def test_its_group_and_its_name() -> None:
    hosted = HostedPartition("t", "T1", 3, 2, PartitionMachine(state_of(1, 2).encode()))
    assert hosted.raft_id == raft_id("T1", 3) == "T1/3"
    assert str(hosted) == "t:3"


def test_its_state_is_what_the_machine_has_now() -> None:
    hosted = HostedPartition("t", "T1", 0, 2, PartitionMachine(state_of(1, 2).encode()))
    hosted.machine.apply(Elect(1, 2, DISKS[2], 5).encode())
    assert (hosted.state.leader, hosted.state.leader_boot) == (2, 5)


def test_two_of_the_same_partition_are_not_the_same() -> None:
    machine = PartitionMachine(state_of(1).encode())
    one, other = (HostedPartition("t", "T1", 0, 1, machine) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize(
    ("events", "stage"),
    [
        ((), Stage.REPLAYED),
        ((Event.FOUNDED,), Stage.CURRENT),
        ((Event.NO_OP_PROPOSED, Event.NO_OP_APPLIED), Stage.CURRENT),
        ((Event.NO_OP_PROPOSED, Event.NO_OP_FAILED), Stage.REPLAYED),
        ((Event.NO_OP_PROPOSED, Event.ELECTED, Event.NO_OP_FAILED), Stage.CURRENT),
        ((Event.ELECTED, Event.YIELD_PROPOSED, Event.NO_OP_APPLIED), Stage.YIELDING),
        ((Event.ELECTED, Event.YIELD_PROPOSED, Event.ELECTED), Stage.YIELDING),
        ((Event.ELECTED, Event.YIELD_PROPOSED, Event.YIELD_ENDED), Stage.CURRENT),
    ],
)
def test_its_stage_follows_the_table(events: tuple[Event, ...], stage: Stage) -> None:
    hosted = HostedPartition("t", "T1", 0, 2, PartitionMachine(state_of(1, 2).encode()))
    for event in events:
        hosted.on(event)
    assert hosted.stage is stage
    assert hosted.is_current == (stage in {Stage.CURRENT, Stage.YIELDING})


def test_what_is_current_stays_current() -> None:
    """Only a restart brings an older state back."""
    current = {Stage.CURRENT, Stage.YIELDING}
    for stage in current:
        assert set(TRANSITIONS[stage].values()) <= current


# -- state broadcast -------------------------------------------------------------------------------
#
# States that brokers without a vote receive, and which of them they apply.


def state_broadcast(s: Scene, *brokers: int) -> StateBroadcast:
    loop = asyncio.get_running_loop()
    return StateBroadcast(1, loop, s.plane.as_plane, s.links.as_links, brokers=lambda: brokers)


def encoded(state: PartitionState, *, version: int | None = None) -> EncodedPartitionState:
    return EncodedPartitionState(
        topic_id=TOPIC_ID,
        partition=0,
        version=state.version if version is None else version,
        state=state.encode(),
    )


@runs(play)
async def test_only_those_without_a_vote_are_told_and_only_by_the_groups_leader(s: Scene) -> None:
    broadcast = state_broadcast(s, 1, 2, 3, 4, 5)
    s.links.up = {2, 3, 4}
    hosted = s.hosted(state_of(1, 2, witnesses=[3], version=9))
    hosted.is_known = False
    broadcast.send([hosted])
    assert s.links.noted == [], "another broker leads the group"
    s.plane.leading = {hosted.raft_id}
    broadcast.send([hosted])
    assert [broker for broker, _ in s.links.noted] == [4], "5 is down, the others vote"
    (state,) = s.links.noted[0][1].states
    assert (state.topic_id, state.partition, state.version) == (TOPIC_ID, 0, 9)
    assert state.state == hosted.state.encode()


@runs(play)
async def test_states_of_another_history_are_ignored(s: Scene) -> None:
    """A recovery that the cluster does not accept has higher versions, for as long as it lasts."""
    loop, mine = asyncio.get_running_loop(), [""]
    broadcast = StateBroadcast(
        1, loop, s.plane.as_plane, s.links.as_links, brokers=lambda: [2], recovery=lambda: mine[0]
    )
    broadcast.receive([encoded(state_of(2, version=1_000))], "forced")
    assert broadcast.received == {}
    mine[0] = "forced"
    broadcast.receive([encoded(state_of(3, version=1_001))], "")
    broadcast.receive([encoded(state_of(2, version=1_000))], "forced")
    assert broadcast.received == {(TOPIC_ID, 0): state_of(2, version=1_000)}
    hosted = s.hosted(state_of(1, 2, leader=1))
    hosted.is_known = True
    s.links.up = {2}
    broadcast = StateBroadcast(
        1, loop, s.plane.as_plane, s.links.as_links, brokers=lambda: [4], recovery=lambda: mine[0]
    )
    s.links.up = {4}
    broadcast.send([hosted])
    assert s.links.noted[0][1].recovery == "forced"


@runs(play)
async def test_the_first_leader_sends_its_state_before_its_group_has_a_leader(s: Scene) -> None:
    broadcast = state_broadcast(s, 1, 2, 4)
    s.links.up = {2, 4}
    hosted = s.hosted(state_of(1, 2, leader=1))
    hosted.is_known = True
    broadcast.send([hosted])
    assert [broker for broker, _ in s.links.noted] == [4]
    hosted.is_known = False
    broadcast.send([hosted])
    assert len(s.links.noted) == 1, "the state is from before this start"


@runs(play)
async def test_only_what_is_newer_is_believed(s: Scene) -> None:
    broadcast = state_broadcast(s)
    new, old = state_of(2, 3, version=7), state_of(3, 2, version=6)
    broadcast.receive([encoded(new)])
    broadcast.receive([encoded(old), encoded(replace(old, version=7))])
    assert broadcast.received == {(TOPIC_ID, 0): new}
    newer = replace(old, version=8)
    broadcast.receive([encoded(newer)])
    assert broadcast.received == {(TOPIC_ID, 0): newer}


@runs(play)
async def test_the_version_that_counts_is_the_states_own(s: Scene) -> None:
    broadcast = state_broadcast(s)
    new = state_of(2, version=7)
    broadcast.receive([encoded(new)])
    broadcast.receive([encoded(state_of(3, version=6), version=100)])
    assert broadcast.received == {(TOPIC_ID, 0): new}


@runs(play)
async def test_bytes_that_are_no_state_change_nothing_and_stop_nothing(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    broadcast = state_broadcast(s)
    state = state_of(2, version=3)
    bad = EncodedPartitionState(topic_id=TOPIC_ID, partition=0, version=9, state=b"\xff")
    with caplog.at_level(logging.WARNING):
        broadcast.receive([bad, encoded(state)])
    assert broadcast.received == {(TOPIC_ID, 0): state}
    assert "state broadcast rejected: topic_id=T1 partition=0" in caplog.text


@runs(play)
async def test_a_deleted_topic_is_forgotten(s: Scene) -> None:
    broadcast = state_broadcast(s)
    state = state_of(2)
    other = EncodedPartitionState(topic_id="T2", partition=0, version=1, state=state.encode())
    broadcast.receive([encoded(state), other])
    broadcast.forget(TOPIC_ID)
    assert list(broadcast.received) == [("T2", 0)]


# -- surveys ---------------------------------------------------------------------------------------
#
# Elections by what the replicas hold: who is asked, how long that takes, and what is reported.


class Rig:
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
            find={self.hosted.raft_id: self.hosted}.get,
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
    d = Rig(s)
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
    d = Rig(s)
    d.choose()
    await s.come_to_rest()
    await d.answer(2, 4)
    await asyncio.sleep(REPORT_SECONDS_MAX)
    assert d.choose(first=1) == Elect(1, 2, DISKS[2], 1)
    assert all(future.cancelled() for *_, future in s.links.asked)


@runs(play)
async def test_what_was_reported_is_asked_for_again_while_there_is_no_leader(s: Scene) -> None:
    d = Rig(s)
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
    d = Rig(s)
    assert d.hosted.host is not None
    d.hosted.host.log.doubt = "it did not stop cleanly"
    d.choose()
    await s.come_to_rest()
    await d.answer(2, 7, Standing.UNSURE)
    await d.answer(3, 1, Standing.UNSURE)
    assert d.choose(first=1) == ElectUnclean(1, 2, DISKS[2], 1)


@runs(play)
async def test_a_copy_is_sound_if_its_broker_says_so_in_the_state_that_is_known(s: Scene) -> None:
    d = Rig(s, version=4)
    assert not d.surveys.is_sound(d.hosted, 2)
    await s.come_to_rest()
    await d.answer(2, 7, version=3)
    await d.answer(3, 7, version=4)
    assert not d.surveys.is_sound(d.hosted, 2)
    assert d.surveys.is_sound(d.hosted, 3)


@runs(play)
async def test_what_this_broker_reports_of_its_own_copies(s: Scene) -> None:
    d = Rig(s)
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
