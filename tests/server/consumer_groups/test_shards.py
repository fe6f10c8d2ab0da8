"""A led partition's consumer groups: heartbeats, classic groups, and reading their state."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from raftlog import limits
from raftlog.consumer_groups import (
    BUILT_IN,
    GroupSettings,
    GroupShard,
    Join,
    JoinResult,
    Sync,
    SyncResult,
    TopicInfo,
)
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    CommitUnknownError,
    CoordinatorLoadingError,
    DamagedLogError,
    DiskFullError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    OutcomeUnknownError,
    RaftlogError,
    RebalanceInProgressError,
    StorageError,
    UnknownMemberError,
    UnknownTopicError,
)
from raftlog.server import log_shard
from tests.running import runs
from tests.server.cluster.fake import Scene, play, write
from tests.server.consumer_groups.fake_groups import BAD, FakeGroups, Shown

# -- heartbeats ------------------------------------------------------------------------------------

# A led partition's consumer groups: heartbeats that wait, and who is told what, and when.


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


# -- classic groups --------------------------------------------------------------------------------

# A led partition's classic groups: joins and syncs that wait, and what ends the waiting.
#
# The groups are the product's own, the log is real; the loop's time is virtual.


DELAY_MS = 1_000


class Classic(Shown):
    """Members join under their names. ``told``: (name, generation, assignment, or error)."""

    def __init__(self, s: Scene, **fields: Any) -> None:
        super().__init__(s, **fields)
        self.topics = Topics({"t": TopicInfo("id-t", 4)}, 1)

    def _new_groups(self) -> GroupShard:
        settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS)
        return GroupShard(settings, BUILT_IN)

    async def ready(self) -> Classic:
        await self.s.come_to_rest()
        assert not self.shard.is_loading
        return self

    def join(self, name: str, *, again: bool = False, owner: str = "connection") -> None:
        def done(result: JoinResult) -> None:
            self.noted.append((name, result.generation))

        join = Join(
            group="g",
            member_id=name if again else "",
            new_member_id=name,
            protocol_type="consumer",
            protocols=(("range", b""),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=5_000,
        )
        self.shard.join(join, done, self.failed(name), owner=owner)

    def sync(self, name: str, generation: int, **given: bytes) -> None:
        def done(result: SyncResult) -> None:
            self.noted.append((name, result.assignment))

        sync = Sync(
            group="g", member_id=name, generation=generation, assignments=tuple(given.items())
        )
        self.shard.sync(sync, done, self.failed(name), owner="connection")

    def pulse(self, name: str, generation: int) -> None:
        self.shard.classic_heartbeat(
            lambda groups, now, _now_ms: groups.classic_heartbeat(
                "g", name, None, generation, now=now
            ),
            lambda _: self.noted.append((name, "alive")),
            self.failed(name),
        )

    def failed(self, name: str) -> Any:
        def failed(error: RaftlogError) -> None:
            self.noted.append((name, type(error)))

        return failed


async def formed(s: Scene, **fields: Any) -> Classic:
    """Members a, which leads, and b wait for their assignments in generation 1."""
    shown = await Classic(s, **fields).ready()
    shown.join("a")
    shown.join("b")
    shown.commit()
    await asyncio.sleep(2 * DELAY_MS / 1_000 + 0.1)
    shown.commit()
    assert sorted(shown.noted) == [("a", 1), ("b", 1)]
    shown.noted.clear()
    return shown


@runs(play)
async def test_a_generation_is_told_when_it_is_committed(s: Scene) -> None:
    shown = await Classic(s, isr=ALL).ready()
    shown.join("a")
    await asyncio.sleep(DELAY_MS / 1_000 + 0.1)
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [("a", 1)]


@runs(play)
async def test_assignments_are_told_when_they_are_committed(s: Scene) -> None:
    shown = await formed(s, isr=ALL)
    shown.sync("b", 1)
    shown.sync("a", 1, a=b"0", b=b"1")
    await s.come_to_rest()
    assert shown.noted == []
    shown.commit()
    assert sorted(shown.noted) == [("a", b"0"), ("b", b"1")]


@runs(play)
async def test_who_waits_when_leadership_ends_is_sent_elsewhere(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    shown.host.follow(2, 6)
    shown.shard.close(NotCoordinatorError("it moved"))
    assert shown.noted == [("b", NotCoordinatorError)]


@runs(play)
async def test_who_waits_when_the_log_is_full_is_told_to_try_again(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    s.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        shown.sync("a", 1, a=b"0", b=b"1")
    assert shown.noted == [("b", CoordinatorLoadingError)]


@runs(play)
async def test_a_newer_request_of_a_member_ends_the_older_wait(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    shown.sync("b", 1)
    await s.come_to_rest()
    assert shown.noted == [("b", RebalanceInProgressError)]
    shown.sync("a", 1, b=b"1")
    await s.come_to_rest()
    assert ("b", b"1") in shown.noted


@runs(play)
async def test_a_closed_connection_ends_the_wait_and_not_the_member(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("a", 1, a=b"0", b=b"1")
    await s.come_to_rest()
    shown.noted.clear()
    shown.join("b", again=True, owner="gone")  # it has what it needs: the same generation
    shown.join("a", again=True, owner="gone")  # the leader's begins a rebalance
    shown.noted.clear()
    shown.shard.forget("gone")
    shown.join("b", again=True)
    await s.come_to_rest()
    assert shown.noted == [("b", 2)], "a has joined, though no response can be sent to it"


@runs(play)
async def test_a_session_ends_by_the_clock(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    shown.sync("a", 1, a=b"0", b=b"1")
    await asyncio.sleep(6)
    shown.pulse("a", 1)
    await asyncio.sleep(6)
    shown.noted.clear()
    shown.pulse("b", 1)
    shown.pulse("a", 1)
    await s.come_to_rest()
    assert shown.noted == [("b", UnknownMemberError), ("a", RebalanceInProgressError)]


@runs(play)
async def test_a_heartbeat_is_answered_by_a_leader_only(s: Scene) -> None:
    shown = await formed(s)
    shown.answers_questions = False
    shown.pulse("a", 1)
    await s.come_to_rest()
    assert shown.noted == []
    shown.questions.pop()(None)
    assert shown.noted == [("a", "alive")]


# -- reading ---------------------------------------------------------------------------------------

# A led partition's consumer groups: how their state is read, and what is told meanwhile.


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
    host.commit_problem = "broker 2 is gone"
    await asyncio.sleep(3)
    with pytest.raises(CoordinatorLoadingError, match="broker 2 is gone"):
        shown.count()
    assert 3 < len(shown.made) < 20, "again and again, and not all the time"
    host.commit_problem = ""
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
