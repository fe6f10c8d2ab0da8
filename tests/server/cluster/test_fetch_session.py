"""The leader's side of copying: what a follower gets, and what counts as its word."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from raftlog.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    UnknownLeaderEpochError,
    UnknownTopicError,
)
from raftlog.server.cluster import fetch_session
from tests.running import runs
from tests.server.cluster.leading import WAIT_MS, Leading, at, only, values
from tests.server.cluster.paper import (
    TOPIC_ID,
    Scene,
    append,
    play,
    write,
)
from tests.server.harness import error_of


@runs(play)
async def test_what_is_there_is_answered_at_once_durable_or_not(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    s.workers.hold()
    append(host, b"a", b"b")
    await s.come_to_rest()
    reply = lead.fetch(at(0), full=True)
    part = only(reply)
    assert values(reply) == [b"a", b"b"]
    assert part.length == sum(map(len, reply.answers[0][1]))
    assert (part.leader_epoch, part.high_watermark, part.log_start_offset) == (5, 0, 0)
    assert part.failure is part.diverged is part.restart_at is None


@runs(play)
async def test_a_fetch_waits_for_an_append_and_no_longer_than_it_said(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    first = lead.fetch(at(0), full=True)
    assert not first.answers
    append(host, b"a")
    assert values(first) == [b"a"]
    second = lead.fetch(at(1, last_epoch=5))
    await asyncio.sleep(WAIT_MS / 1_000 * 0.9)
    assert not second.answers
    await asyncio.sleep(WAIT_MS / 1_000 * 0.2)
    assert second.answers


@runs(play)
async def test_one_position_is_answered_once(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    assert values(lead.fetch(at(0), full=True)) == [b"a"]
    again = lead.fetch()
    append(host, b"b")
    assert not again.answers, "until the follower says that it has moved"
    moved = lead.fetch(at(1, last_epoch=5))
    assert again.parts == []
    assert values(moved) == [b"b"]


@runs(play)
async def test_a_newer_request_is_the_end_of_the_one_that_waits(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    first = lead.fetch(at(0), full=True)
    second = lead.fetch()
    assert len(first.answers) == 1
    assert not second.answers


@runs(play)
async def test_what_is_committed_takes_the_followers_disk(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a", b"b")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(2, last_epoch=5, durable=0))
    assert host.high_watermark == 0, "it has the bytes, and its disk has not"
    lead.durable(2)
    assert host.high_watermark == 2


@runs(play)
async def test_progress_of_another_epoch_counts_for_nothing(s: Scene) -> None:
    """S04, both ways: in the message, and in the session."""
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(1, last_epoch=5, durable=0))
    lead.durable(1, epoch=4)
    lead.durable(1, epoch=6)
    assert host.high_watermark == 0
    # The same broker leads again, in a new epoch: what was said in the old one is void.
    hosted = lead.partitions[TOPIC_ID, 0]
    newer = replace(hosted.state, leader_epoch=6, version=2)
    host.lead(newer, 1, lag_max_seconds=10)
    lead.durable(1, epoch=5)
    assert host.high_watermark == 0


@runs(play)
async def test_a_log_that_is_no_prefix_counts_for_nothing_until_it_is_cut(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", b"b", epoch=3)
    host = lead.leader(log)
    end = append(host, b"c")
    await s.come_to_rest()
    reply = lead.fetch(at(end, last_epoch=4), full=True)
    divergence = only(reply).diverged
    assert divergence is not None
    assert (divergence.epoch, divergence.end_offset) == (3, 2)
    lead.durable(end)
    assert host.high_watermark == 0
    lead.fetch(at(2, last_epoch=3))
    assert host.high_watermark == 2
    lead.fetch(at(3, last_epoch=5))
    assert host.high_watermark == 3


@runs(play)
async def test_each_position_is_compared_with_the_log(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", b"b", epoch=3)
    host = lead.leader(log)
    end = append(host, b"c")
    await s.come_to_rest()
    lead.fetch(at(2, last_epoch=3, durable=0), full=True)
    assert host.high_watermark == 0
    reply = lead.fetch(at(end, last_epoch=4))
    assert only(reply).diverged is not None
    assert host.high_watermark == 0


@pytest.mark.parametrize(
    ("position", "is_lacking"),
    [
        ({"offset": 3, "last_epoch": 3, "high_watermark": 3}, True),
        ({"offset": 3, "last_epoch": 3, "high_watermark": 2}, False),
        ({"offset": 3, "last_epoch": 4, "high_watermark": 3}, True),  # of an epoch not known here
        ({"offset": 9, "high_watermark": 9}, True),  # empty, and begins above this log's end
        ({"offset": 2, "last_epoch": 3, "high_watermark": 9}, False),  # claims more than it has
    ],
)
@pytest.mark.parametrize("unclean_epoch", [-1, 4, 5])
@runs(play)
async def test_a_leader_that_lacks_committed_records_gives_its_copy_up(
    s: Scene, *, position: dict[str, int], is_lacking: bool, unclean_epoch: int
) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", b"b", epoch=3)
    host = lead.leader(log, unclean_epoch=unclean_epoch)
    lead.fetch(at(**position), full=True)
    is_accepted = position.get("last_epoch", -1) < unclean_epoch
    if not is_lacking or is_accepted:
        assert lead.damage == []
        return
    ((found, reason),) = lead.damage
    assert found is host
    assert "lacks committed records: broker 2 has them up to offset" in reason
    host.log.note_damage(reason, offset=0)
    lead.fetch(at(**position), full=True)
    assert len(lead.damage) == 1


@runs(play)
async def test_what_is_known_in_another_epoch_is_no_reason_to_give_up(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    for epoch in (4, 6):
        lead.fetch(at(9, epoch=epoch, last_epoch=3, high_watermark=9), full=True)
    assert lead.damage == []


@runs(play)
async def test_a_follower_that_is_behind_the_logs_start_begins_anew(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    log.restart_at(10)
    lead.leader(log)
    part = only(lead.fetch(at(3, last_epoch=4), full=True))
    assert part.restart_at == 10
    assert part.log_start_offset == 10


@pytest.mark.parametrize(
    ("epoch", "error"), [(4, FencedLeaderEpochError), (6, UnknownLeaderEpochError)]
)
@runs(play)
async def test_other_epochs_are_refused(s: Scene, *, epoch: int, error: type[Exception]) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    reply = lead.fetch(at(0, epoch=epoch), full=True)
    assert isinstance(error_of(only(reply)), error)
    assert only(reply).leader_epoch == epoch, "that of the position which is answered"
    lead.fetch(at(1, epoch=epoch, last_epoch=5))
    assert host.high_watermark == 0


@runs(play)
async def test_who_does_not_lead_says_so_and_so_does_who_has_nothing(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), at(0, partition=1), full=True)
    assert [part.partition for part in waiting.parts] == [1]
    assert isinstance(error_of(only(waiting)), UnknownTopicError)
    waiting = lead.fetch()
    host.follow(2, 5)
    assert isinstance(error_of(only(waiting)), NotLeaderError)


@runs(play)
async def test_waiting_followers_hear_at_once_that_the_leader_is_gone(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    host.follow(2, 6)
    assert only(waiting).failure is not None


@runs(play)
async def test_the_watermark_is_told_when_there_is_nothing_else_to_say(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    waiting = lead.fetch(at(1, last_epoch=5))
    assert host.high_watermark == 1
    assert not waiting.answers, "it can wait for the next answer"
    lead.fetch()
    part = only(waiting)
    assert (part.length, part.high_watermark) == (0, 1)
    quiet = lead.fetch()
    lead.fetch()
    assert quiet.parts == [], "told once"


@runs(play)
async def test_what_an_idle_partition_costs_does_not_grow_with_each_turn(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(1, last_epoch=5))
    lead.fetch()
    looked_at: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_session, "_limits", looked_at.append)
        for _ in range(3):
            lead.fetch()
    assert looked_at == []


@pytest.mark.parametrize("epoch", [4, 6])
@runs(play)
async def test_who_was_refused_is_told_the_watermark_once_it_may_copy(
    s: Scene, *, epoch: int
) -> None:
    """A refusal names it, too, and nobody takes it from there; then nothing is appended."""
    lead = Leading(s)
    log = s.log()
    write(log, b"a", epoch=3)
    host = lead.leader(log, isr=[1])
    await s.come_to_rest()
    assert host.high_watermark == 1
    refused = lead.fetch(at(1, last_epoch=3, epoch=epoch), full=True)
    assert only(refused).failure is not None
    waiting = lead.fetch(at(1, last_epoch=3))
    lead.fetch()
    assert only(waiting).high_watermark == 1


@runs(play)
async def test_who_asks_anew_is_told_the_watermark_anew(s: Scene) -> None:
    """What it was told it may have let be, because its log was being cut."""
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(1, last_epoch=5))
    first = lead.fetch(at(1, last_epoch=5))
    second = lead.fetch(at(1, last_epoch=5))
    lead.fetch()
    assert [only(reply).high_watermark for reply in (first, second)] == [1, 1]


@runs(play)
async def test_no_watermark_is_told_to_who_has_to_cut_first(s: Scene) -> None:
    """Its log reaches beyond what both have: it would take foreign records for committed ones."""
    lead = Leading(s)
    log = s.log()
    write(log, b"a", epoch=3)
    host = lead.leader(log, isr=[1])
    lead.fetch(at(5, last_epoch=4), full=True)
    append(host, b"b")
    await s.come_to_rest()
    assert host.high_watermark == 2
    waiting = lead.fetch()
    lead.fetch()
    assert waiting.parts == []


@runs(play)
async def test_no_watermark_of_a_new_epoch_is_told_to_who_is_in_the_old_one(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", epoch=3)
    host = lead.leader(log, isr=[1])
    lead.fetch(at(1, last_epoch=3), full=True)
    lead.fetch()
    newer = replace(lead.partitions[TOPIC_ID, 0].state, leader_epoch=6, version=2)
    waiting = lead.fetch()
    host.lead(newer, 1, lag_max_seconds=10)
    assert isinstance(error_of(only(waiting)), NotLeaderError)
    append(host, b"b")
    await s.come_to_rest()
    assert host.high_watermark == 2
    waiting = lead.fetch()
    lead.fetch()
    assert waiting.parts == []


@runs(play)
async def test_where_the_log_begins_is_told_too(s: Scene) -> None:
    """Else records that were deleted would be there again under the next leader."""
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    append(host, b"b")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(2, last_epoch=5))
    waiting = lead.fetch()
    host.delete_records(1, lambda _error: None)
    await s.come_to_rest()
    lead.fetch()
    assert only(waiting).log_start_offset == 1, "once it is durable here"
    quiet = lead.fetch()
    lead.fetch()
    assert quiet.parts == []
