"""A led partition's consumer groups: heartbeats that wait, and who is told what, and when."""

from __future__ import annotations

import asyncio

import pytest

from raftlog import limits
from raftlog.errors import (
    CommitUnknownError,
    CoordinatorLoadingError,
    DiskFullError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    OutcomeUnknownError,
    UnknownMemberError,
)
from tests.running import runs
from tests.server.cluster.fake import Scene, play
from tests.server.consumer_groups.fake_groups import Shown

ALL = (1, 2, 3)


@runs(play)
async def test_a_heartbeat_with_news_is_answered_at_once(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.groups.epochs["m"] = 2
    shown.beat("m", epoch=1)
    assert shown.noted == [("m", 2)]


@runs(play)
async def test_a_heartbeat_without_waits_its_time(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.beat("m", wait_seconds=3)
    await asyncio.sleep(2.9)
    assert shown.noted == []
    await asyncio.sleep(0.2)
    assert shown.noted == [("m", 1)]
    assert shown.host.log.log_end_offset == 0, "and writes nothing"


@runs(play)
async def test_who_is_woken_is_told_what_is_then_and_when_it_is_committed(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.beat("m")
    shown.beat("n")
    shown.groups.epochs["m"] = 2
    shown.put(b"a", wake=("m",))
    await s.come_to_rest()
    assert shown.noted == []
    shown.commit()
    assert sorted(map(str, shown.noted)) == ["('m', 2)", "1"]


@runs(play)
async def test_who_was_thrown_out_while_waiting_is_told(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.beat("m")
    del shown.groups.epochs["m"]
    shown.put(b"a", wake=("m",))
    await s.come_to_rest()
    assert ("m", UnknownMemberError) in shown.noted


@runs(play)
async def test_a_newer_heartbeat_answers_the_older(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.beat("m")
    shown.beat("m")
    assert shown.noted == [("m", 1)]
    await asyncio.sleep(10)
    assert shown.noted == [("m", 1)] * 2


@runs(play)
async def test_a_connection_that_is_lost_has_no_heartbeats(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.beat("m", owner="a")
    shown.beat("n", owner="b")
    shown.shard.forget("a")
    await asyncio.sleep(10)
    assert shown.noted == [("n", 1)]


@runs(play)
async def test_heartbeats_are_answered_when_the_shard_ends(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.beat("m")
    shown.shard.close(NotCoordinatorError("the broker stops"))
    assert shown.noted == [("m", NotCoordinatorError)]
    with pytest.raises(NotCoordinatorError):
        shown.beat("m")


@runs(play)
async def test_heartbeats_are_answered_when_the_state_is_read_anew(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.beat("m")
    s.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        shown.put(b"a")
    assert shown.noted == [("m", CoordinatorLoadingError)]


@runs(play)
async def test_who_leads_no_more_tells_nothing_even_if_nobody_has_noticed(s: Scene) -> None:
    """What was decided last is not committed, and what will be at its offset is another's."""
    shown = await Shown(s, isr=ALL).ready()
    shown.beat("m", wait_seconds=3)
    shown.put(b"a")
    await s.come_to_rest()
    shown.host.follow(2, 6)
    assert shown.noted == [CommitUnknownError]
    shown.lead(epoch=7)
    await asyncio.sleep(4)
    shown.host.advance_high_watermark(shown.host.log.log_end_offset)
    assert shown.noted == [CommitUnknownError, ("m", NotCoordinatorError)]


@runs(play)
async def test_heartbeats_that_waited_together_cost_one_question(s: Scene) -> None:
    shown = await Shown(s).ready()
    members = [f"m{number}" for number in range(50)]
    for member in members:
        shown.beat(member, wait_seconds=0)
    asked = shown.asks
    for member in members:
        shown.beat(member, wait_seconds=3)
        await asyncio.sleep(0.01)
    await asyncio.sleep(4)
    assert len(shown.noted) == 100
    assert shown.asks - asked == 1


@runs(play)
async def test_no_heartbeat_is_answered_by_who_led_before_it_came(s: Scene) -> None:
    """Each answer is a lease, for which the next coordinator waits if it came before that began."""
    shown = await Shown(s).ready()
    shown.beat("m", wait_seconds=0)
    shown.answers_questions = False
    shown.beat("m", wait_seconds=0)
    shown.beat("n", wait_seconds=1)
    await asyncio.sleep(2)
    assert shown.noted == [("m", 1)]
    while shown.questions:
        shown.questions.pop()(LeaderNotAvailableError("nobody answers"))
    assert shown.noted[1:] == [("m", NotCoordinatorError), ("n", NotCoordinatorError)]


# -- when nothing is committed for long


@runs(play)
async def test_members_hear_in_time_that_all_is_as_it_was_and_of_no_news(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.beat("n", wait_seconds=0.9, session_ms=3_000)
    shown.groups.epochs["m"] = 2
    shown.put(b"a", wake=("m",))
    shown.beat("m", session_ms=3_000)
    await asyncio.sleep(0.95)
    assert shown.noted == []
    await asyncio.sleep(0.1)
    assert sorted(shown.noted) == [("m", 1), ("n", 1)]
    shown.beat("m", session_ms=3_000)
    shown.commit()
    assert shown.noted[2:] == [1, ("m", 2)], "what was told already is not told again"


@runs(play)
async def test_whoever_is_thrown_out_hears_nothing_before_that_is_committed(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    shown.beat("m", wait_seconds=0, session_ms=1_200)
    shown.beat("n", wait_seconds=0, session_ms=1_200)
    del shown.groups.epochs["m"]
    await asyncio.sleep(0.5)
    assert shown.noted == [("n", 1)]


@runs(play)
async def test_who_joins_hears_nothing_before_that_is_committed(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    shown.beat("m", epoch=0, session_ms=1_200)
    shown.beat("p", epoch=0, session_ms=1_200)
    await asyncio.sleep(1)
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [1, ("m", 1), ("p", 1)]


@runs(play)
async def test_who_has_not_heard_for_long_that_it_leads_tells_nothing(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.answers_questions = False
    await asyncio.sleep(11)
    shown.put(b"a")
    shown.beat("m", wait_seconds=0, session_ms=1_200)
    await asyncio.sleep(1)
    assert shown.noted == []


@runs(play)
async def test_what_was_told_counts_no_more_once_the_state_is_read_anew(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    s.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        shown.put(b"a")
    s.disk.capacity_bytes = None
    await asyncio.sleep(1)
    assert len(shown.made) == 2
    shown.put(b"a")
    shown.beat("m", wait_seconds=0, session_ms=1_200)
    await asyncio.sleep(1)
    assert ("m", 1) not in shown.noted


def test_answers_that_were_given_otherwise_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_ANSWERS_WAITING_MAX", 2)

    async def test(s: Scene) -> None:
        shown = await Shown(s, isr=ALL).ready()
        shown.put(b"a")
        for _ in range(5):
            shown.beat("m", wait_seconds=0, session_ms=1_200)
            await asyncio.sleep(0.45)
        assert shown.noted == [("m", 1)] * 5

    play(test)


# -- joining


@runs(play)
async def test_all_that_join_in_one_turn_are_taken_together_and_told_when_that_is_committed(
    s: Scene,
) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.groups.writes_joins = True
    shown.groups.refused = {"q"}
    for member in ("p", "q", "r"):
        shown.beat(member, epoch=0)
    await s.come_to_rest()
    assert shown.groups.joined[-1] == ["p", "q", "r"]
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [("p", 1), ("q", UnknownMemberError), ("r", 1)]
    shown.beat("p", epoch=1)
    assert len(shown.noted) == 3, "there is no more to tell it"


@runs(play)
async def test_who_joins_twice_and_who_leaves_at_once_is_heard_in_order(s: Scene) -> None:
    shown = await Shown(s).ready()
    joined = len(shown.groups.joined)
    shown.beat("p", epoch=0)
    shown.beat("p", epoch=0)
    shown.beat("p", epoch=-1)
    await s.come_to_rest()
    assert shown.groups.joined[joined:] == [["p"], ["p"]]
    assert shown.noted == [("p", 1)] * 3


@pytest.mark.parametrize("how", ["over", "anew"])
@runs(play)
async def test_who_was_about_to_join_is_told_that_the_shard_is_no_more(
    s: Scene, *, how: str
) -> None:
    shown = await Shown(s).ready()
    shown.beat("p", epoch=0)
    if how == "over":
        shown.shard.close(NotCoordinatorError("the broker stops"))
    else:
        s.disk.capacity_bytes = 0
        with pytest.raises(DiskFullError):
            shown.put(b"a")
    await s.come_to_rest()
    wanted = NotCoordinatorError if how == "over" else CoordinatorLoadingError
    assert shown.noted == [("p", wanted)]


@runs(play)
async def test_a_mistake_about_those_that_join_is_told_to_each(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    shown = await Shown(s).ready()
    shown.groups.joined = None  # type: ignore[assignment] - it cannot go on
    for member in ("p", "q"):
        shown.beat(member, epoch=0)
    await s.come_to_rest()
    assert shown.noted == [("p", OutcomeUnknownError), ("q", OutcomeUnknownError)]
    assert "consumer group operation failed" in caplog.text
