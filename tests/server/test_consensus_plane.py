"""The plane against a fake node: time, one task at a time, full and failed disks, the end."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any, cast

import pytest

from raftlog.consensus import Applied, NotProposed, Outcome, Unknown
from raftlog.errors import (
    ClusterNotReadyError,
    CommitUnknownError,
    StorageFailedError,
)
from tests.running import runs
from tests.server.fake_consensus import Scene, play

# -- inputs, syncs and sends ---------------------------------------------------------------------


@runs(play)
async def test_what_one_turn_brings_goes_into_one_sync_and_is_sent_after_it(s: Scene) -> None:
    s.plane.receive(2, b"a")
    s.plane.receive(3, b"b")
    s.plane.peer_up(4, "disk-4", 7)
    assert s.workers.out == []
    await s.turn()
    assert s.workers.begun == 1
    assert s.node.sent == []
    s.workers.finish()
    assert s.node.sent == ["receive", "receive", "peer_up"]
    assert s.node.calls[:3] == [
        ("receive", 2, b"a", 1_000.0),
        ("receive", 3, b"b", 1_000.0),
        ("peer_up", 4, "disk-4", 7, 1_000.0),
    ]


@runs(play)
async def test_what_comes_during_a_sync_goes_into_the_next_at_once(s: Scene) -> None:
    s.plane.receive(2, b"a")
    await s.turn()
    s.plane.receive(2, b"b")
    await s.turn()
    assert s.workers.begun == 1
    s.workers.finish()
    assert s.workers.begun == 2
    s.workers.finish()
    assert s.workers.begun == 2


@runs(play)
async def test_every_input_reaches_the_node_with_the_loops_time(s: Scene) -> None:
    s.loop.now = 2_000.0
    s.plane.peer_down(2)
    s.plane.open_group("g", cast(Any, None), voters={1: "d"}, base=b"b")
    s.plane.force_generation("g", {2: "e"}, base=b"s", above=7)
    s.plane.seal("g", {3: "f"}, s.outcomes.append)
    s.plane.propose_bytes("g", b"c", s.outcomes.append)
    s.plane.close_group("g", forget=True)
    assert s.node.calls == [
        ("peer_down", 2, 2_000.0),
        ("open_group", "g", {1: "d"}, b"b", 2_000.0),
        ("force_generation", "g", {2: "e"}, 2_000.0, b"s", 7),
        ("seal", "g", {3: "f"}, 2_000.0, 4),
        ("propose", "g", b"c", 2_000.0),
        ("close_group", "g", True),
    ]
    await s.come_to_rest()


@runs(play)
async def test_what_comes_back_from_within_the_node_waits_until_it_is_done(s: Scene) -> None:
    order: list[str] = []

    def from_within() -> None:
        s.node.on_receive = lambda: None
        s.plane.peer_down(2)
        order.append("after the call")
        assert s.node.inputs() == ["receive"]

    s.node.on_receive = from_within
    s.plane.receive(2, b"a")
    assert s.node.inputs() == ["receive", "peer_down"]
    assert order == ["after the call"]
    s.node.on_complete = lambda: s.plane.peer_up(2, "d", 1)
    await s.turn()
    s.workers.finish()
    s.node.on_complete = lambda: None
    await s.turn()
    assert s.workers.begun == 2  # what came from within is synced too
    s.workers.finish()
    assert s.node.sent == ["receive", "peer_down", "peer_up"]


# -- time ----------------------------------------------------------------------------------------


@runs(play)
async def test_the_node_is_ticked_when_it_asked_to_be(s: Scene) -> None:
    s.plane.receive(2, b"a")
    await s.come_to_rest()
    ticks = len(s.node.ticks())
    s.node.next_tick_at = 1_000.25
    s.plane.receive(2, b"b")
    await s.come_to_rest()
    ticks = len(s.node.ticks())
    await asyncio.sleep(10)
    assert s.node.ticks()[ticks:] == [pytest.approx(1_000.25)]


@runs(play)
async def test_a_node_that_is_never_due_has_no_timer(
    s: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    later = s.loop.call_later

    def call_later(delay: float, *rest: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return later(delay, *rest)

    monkeypatch.setattr(s.loop, "call_later", call_later)
    s.plane.receive(2, b"a")
    await s.come_to_rest()
    assert delays == []  # uvloop takes no infinite one


@runs(play)
async def test_a_node_that_is_always_due_leaves_time_to_others(s: Scene) -> None:
    s.node.next_tick = lambda now: now  # type: ignore[method-assign]
    s.plane.receive(2, b"a")
    await s.come_to_rest()
    before = len(s.node.ticks())
    await asyncio.sleep(0.1)
    assert 90 <= len(s.node.ticks()) - before <= 101
    await s.plane.stop()


@runs(play)
async def test_no_tick_while_the_disk_is_at_work(s: Scene) -> None:
    s.node.next_tick_at = 1_001.0
    s.plane.receive(2, b"a")
    await s.turn()
    ticks = len(s.node.ticks())
    await asyncio.sleep(5)
    assert len(s.node.ticks()) == ticks  # FakeNode refuses it as well
    s.workers.finish()
    assert s.node.ticks()[ticks:] == [1_005.0]


# -- proposals -----------------------------------------------------------------------------------


@runs(play)
async def test_a_proposal_gives_what_applying_it_gave(s: Scene) -> None:
    waiting = asyncio.ensure_future(s.plane.propose("g", b"c"))
    await s.come_to_rest()
    s.node.done.popleft()(Applied("result"))
    assert await waiting == "result"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (NotProposed("no leader"), ClusterNotReadyError),
        (Unknown("the leader is gone"), CommitUnknownError),
    ],
)
@runs(play)
async def test_other_outcomes_are_errors_that_say_whether_it_may_be_repeated(
    s: Scene, *, outcome: Outcome, error: type[Exception]
) -> None:
    waiting = asyncio.ensure_future(s.plane.propose("g", b"c"))
    await s.come_to_rest()
    s.node.done.popleft()(outcome)
    with pytest.raises(error, match=cast(Any, outcome).reason):
        await waiting


@runs(play)
async def test_a_proposal_that_a_disk_holds_up_has_an_outcome_in_time(s: Scene) -> None:
    waiting = asyncio.ensure_future(s.plane.propose("g", b"c"))
    await s.turn()
    began = s.loop.time()
    with pytest.raises(CommitUnknownError):
        await waiting
    assert s.loop.time() - began == pytest.approx(15.0)
    s.workers.finish()
    s.node.done.popleft()(Applied("late"))  # nobody waits for it


@runs(play)
async def test_who_hears_an_outcome_may_propose_again(s: Scene) -> None:
    def again(outcome: Outcome) -> None:
        s.outcomes.append(outcome)
        if len(s.outcomes) < 3:
            s.plane.propose_bytes("g", b"c", again)
            s.node.done.popleft()(Applied(len(s.outcomes)))

    s.plane.propose_bytes("g", b"c", again)
    s.node.done.popleft()(Applied(0))
    assert s.outcomes == []  # not from within the node
    await s.come_to_rest()
    await s.come_to_rest()
    assert s.outcomes == [Applied(0), Applied(1), Applied(2)]


@runs(play)
async def test_it_leads_what_is_open_and_led(s: Scene) -> None:
    s.node.role = "leader"
    assert not s.plane.leads("g")
    s.plane.open_group("g", cast(Any, None), voters={1: "d"}, base=b"")
    assert s.plane.leads("g")
    assert s.plane.status("g").role == "leader"
    s.node.role = "candidate"
    assert not s.plane.leads("g")
    s.node.role = "leader"
    s.plane.close_group("g", forget=False)
    assert not s.plane.leads("g")
    await s.come_to_rest()


# -- the disk ------------------------------------------------------------------------------------


def test_a_full_disk_is_tried_again_and_nothing_is_sent_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        s.plane.receive(2, b"a")
        await s.turn()
        full = OSError(errno.ENOSPC, "No space left on device")
        s.workers.finish(full)
        for attempt in range(2, 5):
            assert "consensus resumed" not in caplog.text
            s.plane.receive(2, b"b")  # more input does not make it try sooner
            await asyncio.sleep(0.49)
            assert s.workers.begun == attempt - 1
            await asyncio.sleep(0.02)
            assert s.workers.begun == attempt
            if attempt < 4:
                s.workers.finish(full)
        assert s.node.sent == []
        s.workers.finish()
        assert "consensus resumed" in caplog.text
        assert s.node.sent == ["receive"] * 4
        assert s.failed == []

    with caplog.at_level(logging.INFO, "raftlog.server.consensus_plane"):
        play(test)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), RuntimeError("a mistake")])
@runs(play)
async def test_a_failed_sync_is_the_end(s: Scene, *, error: Exception) -> None:
    s.plane.open_group("g", cast(Any, None), voters={1: "d"}, base=b"")
    s.node.role = "leader"
    s.plane.propose_bytes("g", b"c", s.outcomes.append)
    await s.turn()
    assert s.plane.leads("g")
    s.workers.finish(error)
    assert len(s.failed) == 1
    assert s.plane.failure is s.failed[0]
    assert [type(outcome) for outcome in s.outcomes] == [Unknown]
    calls = len(s.node.calls)
    s.plane.receive(2, b"b")
    s.plane.propose_bytes("g", b"d", s.outcomes.append)
    await asyncio.sleep(10)
    assert isinstance(s.outcomes[1], NotProposed)
    assert len(s.node.calls) == calls
    assert s.node.sent == []
    assert s.workers.begun == 1
    assert not s.plane.leads("g")
    with pytest.raises(ClusterNotReadyError):
        await s.plane.propose("g", b"e")
    await s.plane.stop()
    assert len(s.failed) == 1


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), StorageFailedError("unusable")])
@runs(play)
async def test_a_mistake_in_consensus_is_the_end_too(
    s: Scene, *, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    s.plane.peer_up(2, "d", 1)
    await s.turn()

    def raises() -> None:
        raise error

    s.node.on_receive = raises
    s.plane.receive(2, b"poison")
    (failure,) = s.failed
    assert str(error) in str(failure)
    s.workers.finish()
    await s.turn()
    assert s.node.sent == []  # what it has in memory is not to be trusted
    assert s.workers.begun == 1


# -- the end -------------------------------------------------------------------------------------


@runs(play)
async def test_stopping_waits_for_the_last_ticket_and_begins_none(s: Scene) -> None:
    s.plane.propose_bytes("g", b"c", s.outcomes.append)
    await s.turn()
    s.plane.receive(2, b"a")
    stopping = asyncio.ensure_future(s.plane.stop())
    await s.turn()
    assert not stopping.done()
    assert [type(outcome) for outcome in s.outcomes] == [Unknown]
    s.workers.finish()
    await stopping
    calls = len(s.node.calls)
    await asyncio.sleep(10)
    assert len(s.node.calls) == calls
    assert s.workers.begun == 1
    s.plane.receive(2, b"b")
    assert len(s.node.calls) == calls
    s.node.done.popleft()(Applied("late"))
    await s.turn()
    assert len(s.outcomes) == 1


@runs(play)
async def test_stopping_when_nothing_is_out_is_done_at_once(s: Scene) -> None:
    s.plane.receive(2, b"a")
    await s.come_to_rest()
    await s.plane.stop()
    s.node.next_tick_at = 0.0
    ticks = len(s.node.ticks())
    await asyncio.sleep(10)
    assert len(s.node.ticks()) == ticks


@pytest.mark.parametrize("is_retried", [False, True])
@runs(play)
async def test_stopping_does_not_wait_for_room_on_a_full_disk(
    s: Scene, *, is_retried: bool
) -> None:
    s.plane.receive(2, b"a")
    await s.turn()
    full = OSError(errno.ENOSPC, "No space left on device")
    s.workers.finish(full)
    if is_retried:
        await asyncio.sleep(0.6)
        stopping = asyncio.ensure_future(s.plane.stop())
        await s.turn()
        s.workers.finish(full)
        await stopping
    else:
        await s.plane.stop()
    begun = s.workers.begun
    await asyncio.sleep(10)
    assert s.workers.begun == begun


@runs(play)
async def test_a_sync_that_fails_while_stopping_is_still_told(s: Scene) -> None:
    s.plane.receive(2, b"a")
    await s.turn()
    stopping = asyncio.ensure_future(s.plane.stop())
    await s.turn()
    s.workers.finish(OSError(errno.EIO, "I/O error"))
    await stopping
    assert len(s.failed) == 1
