"""A led partition's consumer groups: nothing is told that is not committed, and all that is.

The groups are on paper, the log is real; the loop's time is virtual.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import cast

import pytest

from raftlog import limits
from raftlog.consumer_groups import StateChange, TopicInfo
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    CommitUnknownError,
    CoordinatorLoadingError,
    DiskFullError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    ThrottledError,
    UnknownMemberError,
)
from raftlog.server.groups import shard
from tests.running import runs
from tests.server.cluster.paper import Scene, play
from tests.server.consumer_groups.paper_groups import PaperGroups, Shown

ALL = (1, 2, 3)


# -- what is told, and when


@runs(play)
async def test_what_is_alone_in_sync_is_told_when_it_is_on_the_disk(s: Scene) -> None:
    shown = await Shown(s).ready()
    s.workers.hold()
    shown.put(b"a")
    await s.come_to_rest()
    assert shown.told == []
    s.workers.release()
    await s.come_to_rest()
    assert shown.told == [1]


@runs(play)
async def test_a_change_is_told_when_all_in_sync_have_it(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    await s.come_to_rest()
    shown.commit(2)
    assert shown.told == []
    shown.commit(3)
    assert shown.told == [1]


@runs(play)
async def test_a_read_waits_for_what_was_decided_before_it(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    await s.come_to_rest()
    shown.count()
    assert shown.told == []
    shown.commit()
    assert shown.told == [1, 1]


@runs(play)
async def test_a_refusal_waits_too(s: Scene) -> None:
    """It may tell of what was decided and is not committed: a member that has left, say."""
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")

    def refuse(_groups: object, _now: float, _now_ms: int) -> StateChange[None]:
        raise UnknownMemberError("it left")

    shown.shard.change(refuse, shown.told.append, lambda e: shown.told.append(type(e)))
    await s.come_to_rest()
    assert shown.told == []
    shown.commit()
    assert shown.told == [1, UnknownMemberError]


@runs(play)
async def test_one_step_is_one_batch(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.put(*(b"%d" % number for number in range(1_000)))
    await s.come_to_rest()
    assert len(shown.host.read(start_offset=0, bytes_max=1 << 20)) == 1
    assert shown.host.high_watermark == 1_000


@runs(play)
async def test_a_read_is_told_when_it_is_certain_who_leads(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.answers_questions = False
    shown.count()
    shown.count()
    await s.come_to_rest()
    assert (shown.told, len(shown.questions)) == ([], 1)
    shown.questions.pop()(None)
    assert shown.told == [0]
    assert len(shown.questions) == 1, "the second came after the first question was asked"
    shown.questions.pop()(LeaderNotAvailableError("nobody answers"))
    assert shown.told == [0, NotCoordinatorError]


# -- a log that does not take it, leadership that ends


@runs(play)
async def test_what_was_appended_and_is_not_committed_when_leadership_ends_is_unknown(
    s: Scene,
) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    shown.count()
    await s.come_to_rest()
    shown.host.follow(2, 6)
    assert shown.told == [CommitUnknownError, NotCoordinatorError]
    with pytest.raises(NotCoordinatorError):
        shown.count()
    with pytest.raises(NotCoordinatorError):
        shown.put(b"b")


@runs(play)
async def test_a_new_epoch_is_another_shards(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.lead(epoch=6)
    assert shown.shard.is_over
    with pytest.raises(NotCoordinatorError):
        shown.count()


@runs(play)
async def test_what_the_log_does_not_take_is_forgotten(s: Scene) -> None:
    """The state had it already. What is committed is read again, and so is what will be."""
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    s.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        shown.put(b"b")
    with pytest.raises(CoordinatorLoadingError, match=r"are loading: .* no space"):
        shown.count()
    s.disk.capacity_bytes = None
    await asyncio.sleep(1)
    assert shown.shard.is_loading, "the first is not committed yet: it would be missing"
    shown.commit()
    assert shown.told == [1], "and it is still told"
    await s.come_to_rest()
    assert [groups.values for groups in shown.made] == [[b"a", b"b"], [b"a"]]
    shown.put(b"c")
    await s.come_to_rest()
    shown.commit()
    assert shown.told == [1, 2]


@runs(play)
async def test_a_mistake_of_ours_is_forgotten_too(s: Scene) -> None:
    shown = await Shown(s).ready()

    def fail(groups: object, _now: float, _now_ms: int) -> StateChange[None]:
        cast(PaperGroups, groups).values.append(b"half")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        shown.shard.change(fail, shown.told.append, shown.told.append)
    await asyncio.sleep(1)
    shown.count()
    assert shown.told == [0]


@runs(play)
async def test_what_was_written_in_part_is_unknown(s: Scene) -> None:
    """A step of two batches, of which the disk takes one."""
    shown = await Shown(s, host=s.host(s.log(max_message_bytes=100_000))).ready()
    random = Random(1)
    s.disk.capacity_bytes = 150_000
    with pytest.raises(CommitUnknownError, match="the change was written partially"):
        shown.put(random.randbytes(90_000), random.randbytes(90_000))
    await asyncio.sleep(1)
    shown.count()
    assert shown.told == [1], "the part that is there"


@runs(play)
async def test_nothing_is_decided_that_nobody_could_commit(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.host.obstacle = "broker 2 is gone"
    with pytest.raises(NotEnoughReplicasError, match="broker 2 is gone"):
        shown.put(b"a")
    with pytest.raises(NotEnoughReplicasError):
        shown.beat("new", epoch=0)
    assert shown.groups.values == []
    assert "new" not in shown.groups.epochs
    shown.beat("m", wait_seconds=0)
    shown.count()
    await s.come_to_rest()
    assert shown.told == [("m", 1), 0], "what needs no record goes on"


def test_too_many_answers_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_ANSWERS_WAITING_MAX", 2)

    async def test(s: Scene) -> None:
        shown = await Shown(s, isr=ALL).ready()
        shown.put(b"a")
        shown.put(b"b")
        with pytest.raises(ThrottledError, match="GROUP_ANSWERS_WAITING_MAX"):
            shown.put(b"c")
        await s.come_to_rest()
        shown.commit()
        shown.count()
        assert shown.told == [1, 2, 2]

    play(test)


# -- time and topics


@runs(play)
async def test_the_state_is_told_when_its_time_has_come(s: Scene) -> None:
    shown = await Shown(s).ready()
    began = s.loop.time()
    shown.groups.deadline_at = began + 5
    shown.put(b"a")
    shown.groups.deadline_at = began + 7  # as heartbeats put it off
    shown.put(b"b")
    await asyncio.sleep(6)
    shown.groups.deadline_at = began + 8
    shown.put(b"c")
    await asyncio.sleep(60)
    assert [round(at - began) for at in shown.groups.ticks] == [5, 8] or [
        round(at - began) for at in shown.groups.ticks
    ] == [5]
    assert shown.host.high_watermark >= 4, "what it decided then is written"


@runs(play)
async def test_an_earlier_deadline_counts(s: Scene) -> None:
    shown = await Shown(s).ready()
    began = s.loop.time()
    shown.groups.deadline_at = began + 50
    shown.put(b"a")
    shown.groups.deadline_at = began + 2
    shown.put(b"b")
    await asyncio.sleep(10)
    assert [round(at - began) for at in shown.groups.ticks] == [2]


@runs(play)
async def test_a_tick_that_the_log_does_not_take_reads_the_state_anew(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.groups.deadline_at = s.loop.time() + 1
    shown.put(b"a")
    await s.come_to_rest()
    shown.host.obstacle = "broker 2 is gone"
    await asyncio.sleep(3)
    assert len(shown.made) == 2
    shown.count()
    assert shown.told == [1, 1]


@runs(play)
async def test_topics_are_told_and_heartbeats_answered(s: Scene) -> None:
    """A member that subscribes to a pattern looks at the topics' names then."""
    shown = await Shown(s).ready()
    shown.beat("m")
    topics = Topics({"t": TopicInfo("1", 2)}, 2)
    shown.shard.set_topics(topics)
    assert shown.groups.told == [topics]
    assert shown.told == [("m", 1)]
    shown.beat("n")
    assert shown.told == [("m", 1), ("n", 1)], "who did not wait then has not heard of it"
    shown.beat("m")
    shown.beat("n")
    assert len(shown.told) == 2


def test_not_all_are_remembered_who_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MEMBERS_NOTIFIED_MAX", 2)

    async def test(s: Scene) -> None:
        shown = await Shown(s).ready()
        shown.beat("o")
        assert shown.told == [("o", 1)]
        shown.beat("m")
        shown.beat("n")
        assert shown.told == [("o", 1), ("m", 1), ("n", 1)]

    play(test)


@runs(play)
async def test_topics_are_not_told_to_a_state_that_is_being_read(s: Scene) -> None:
    shown = Shown(s)
    shown.topics = Topics({"t": TopicInfo("1", 2)}, 2)
    shown.shard.set_topics(shown.topics)
    await shown.ready()
    assert shown.groups.told == []
    assert shown.groups.started == [shown.topics]


@runs(play)
async def test_a_mistake_about_topics_is_logged(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    shown = await Shown(s).ready()
    shown.groups.told = None  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR):
        shown.shard.set_topics(Topics({}, 2))
    assert "consumer group operation failed" in caplog.text
    await asyncio.sleep(1)
    shown.count()
    assert shown.told == [0]
