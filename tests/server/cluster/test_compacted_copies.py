"""Copying between replicas that have compacted their logs, each in its own way."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record import decode_lists, parse_header, split
from raftlog.replication.leadership import Diverged, divergence, truncation_point
from raftlog.storage import Log
from tests.replication.samples import View
from tests.running import runs
from tests.server.cluster.compacted import EPOCH, Pair, history, joined, log_of
from tests.server.cluster.leading import at, only
from tests.server.cluster.paper import Scene, play


def stored(log: Log) -> list[bytes]:
    parts = log.read(
        start_offset=log.log_start_offset, end_offset=log.log_end_offset, bytes_max=1 << 24
    )
    return [bytes(batch) for part in parts for batch in split(part)]


def bounds(log: Log) -> list[tuple[int, int]]:
    """What each batch covers."""
    headers = map(parse_header, stored(log))
    return [(header.base_offset, header.next_offset) for header in headers]


def records(log: Log) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for batch in stored(log):
        lists = decode_lists(batch)
        found |= dict(zip(lists.offsets, lists.values, strict=True))
    return found


def test_a_log_that_ends_inside_a_compacted_batch_goes_on_with_the_rest_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        batches = history(s, (EPOCH, [2, 2, 2, 2, 2]))
        leader = log_of(s, joined(batches, [1, 3]))  # 0-2, 2-8, 8-10
        pair = Pair(s, leader, log_of(s, batches[:2]), committed=4)
        await pair.run()
        follower = pair.follower.log
        assert pair.cuts == []
        assert bounds(follower) == [(0, 2), (2, 4), (4, 8), (8, 10)]
        assert records(follower) == {n: b"%d" % n for n in (0, 1, 2, 3, 7, 8, 9)}
        assert follower.chain == leader.chain
        assert follower.verify(0, bytes_max=1 << 20) == 10
        assert pair.copying.damaged == []

    with caplog.at_level(logging.WARNING):
        play(test)
    assert caplog.messages == []


@runs(play)
async def test_the_rest_may_hold_no_record_and_still_covers_its_offsets(s: Scene) -> None:
    batches = history(s, (EPOCH, [1] * 6))
    leader = log_of(s, joined(batches, [5], keep=1))  # the first one of five is left
    follower = log_of(s, batches[:3])
    pair = Pair(s, leader, follower, committed=3)
    await pair.run()
    assert bounds(follower) == [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6)]
    assert records(follower).keys() == {0, 1, 2, 5}


@runs(play)
async def test_batches_that_overlap_like_bricks_are_no_trouble(s: Scene) -> None:
    batches = history(s, (EPOCH, [1] * 9))
    leader = log_of(s, joined(batches, [2, 2, 2, 2]))  # 0-2, 2-4, 4-6, 6-8, 8-9
    follower = log_of(s, joined(batches[:7], [1, 2, 2, 2]))  # 0-1, 1-3, 3-5, 5-7
    pair = Pair(s, leader, follower, committed=7)
    await pair.run()
    assert pair.cuts == []
    assert bounds(follower)[-2:] == [(7, 8), (8, 9)]


@runs(play)
async def test_logs_that_begin_inside_the_leaders_batch_go_on_too(s: Scene) -> None:
    """Whose records below 5 were deleted; the leader still has them in a batch with later ones."""
    batches = history(s, (EPOCH, [1] * 10))
    leader = log_of(s, joined(batches, [1, 8]))  # 0-1, 1-9, 9-10
    leader.advance_log_start(5).run()
    empty = log_of(s, batches[:5], segment_bytes=1)
    empty.advance_log_start(5).run()
    assert empty.chain_at(5) is not None, "it knows what it follows from"
    for follower in (log_of(s, batches[5:7], start=5), log_of(s, batches[:7]), empty):
        pair = Pair(s, leader, follower, committed=follower.log_end_offset)
        await pair.run()
        pair.leading.session.close()
        assert follower.log_end_offset == 10
        assert records(follower).keys() >= {8, 9}
        assert follower.chain == leader.chain


@runs(play)
async def test_a_new_copy_takes_compacted_batches_as_they_are(s: Scene) -> None:
    batches = history(s, (EPOCH, [1] * 10))
    leader = log_of(s, joined(batches, [1, 8]))
    pair = Pair(s, leader, s.log(), committed=0)
    await pair.run()
    assert stored(pair.follower.log) == stored(leader)


@pytest.mark.parametrize("change", ["not compacted", "another epoch"])
def test_batches_that_do_not_fit_for_another_reason_are_damage(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(s: Scene) -> None:
        batches = history(s, (EPOCH, [4, 2]))
        if change == "another epoch":
            batches = joined(batches, [2])
        own = history(s, (EPOCH if change == "not compacted" else 4, [2, 2, 2]))
        pair = Pair(s, log_of(s, batches), log_of(s, own[:1]), committed=2)
        if change == "another epoch":  # which the leader's answer would be, did it look
            pair.leading.session._differs = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="does not get on"):
            await pair.run()
        assert pair.follower.log.log_end_offset == 2

    with caplog.at_level(logging.ERROR):
        play(test)
    assert "fetched batch corrupt: partition=t:0 leader=2" in caplog.text


# -- tombstones ------------------------------------------------------------------------------------


def behind(s: Scene, *, removed_below: int) -> tuple[Log, Log]:
    """A leader that has compacted up to offset 6, and a follower that ends at 4."""
    batches = history(s, (EPOCH, [1] * 8))
    leader = log_of(s, joined(batches, [2, 4]))
    leader.note_missing_tombstones(removed_below)
    return leader, log_of(s, batches[:4])


def test_a_copy_restarts_that_never_received_tombstones_which_its_leader_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        leader, follower = behind(s, removed_below=5)
        pair = Pair(s, leader, follower, committed=4)
        await pair.run()
        assert pair.cuts == [(4, 0)]
        assert stored(follower) == stored(leader)
        assert follower.tombstones_removed_below == 5, "it has not received them, either"

    with caplog.at_level(logging.WARNING):
        play(test)
    assert "end_offset=4 leader=2 tombstones_removed_below=5" in caplog.text


def test_a_copy_continues_that_has_received_every_tombstone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        leader, follower = behind(s, removed_below=4)
        pair = Pair(s, leader, follower, committed=4)
        await pair.run()
        assert pair.cuts == []
        assert follower.tombstones_removed_below == 0

    with caplog.at_level(logging.WARNING):
        play(test)
    assert caplog.messages == []


@runs(play)
async def test_a_copy_restarts_once_and_not_again_while_it_copies(s: Scene) -> None:
    """However long that takes: a copy that begins anew for ever would never be one."""
    leader, follower = behind(s, removed_below=8)
    pair = Pair(s, leader, follower, committed=4)
    pair.copying.fetcher._bytes_max = 1  # a batch at a time
    await pair.run()
    assert pair.cuts == [(4, 0)]
    assert stored(follower) == stored(leader)


@runs(play)
async def test_a_new_copy_notes_durably_what_its_leader_lacks(s: Scene) -> None:
    """Else it would lead one day, and followers would think that they have all tombstones."""
    leader, _ = behind(s, removed_below=5)
    follower = s.log(cleanup_policy="compact")
    s.disk.sync_dir("/logs")
    s.disk.sync_dir("/")
    pair = Pair(s, leader, follower, committed=0)
    await pair.run()
    follower.sync()
    s.disk.power_cut()
    again = Log.open(s.disk, follower.directory, follower.config)
    assert (again.log_end_offset, again.tombstones_removed_below) == (8, 5)


@runs(play)
async def test_a_copy_in_progress_restarts_when_another_broker_leads(s: Scene) -> None:
    """The next leader may still have what the former one had removed."""
    leader, follower = behind(s, removed_below=5)
    follower.restart_at(0)
    follower.note_missing_tombstones(8)
    follower.append_replicated(stored(leader)[0])
    pair = Pair(s, leader, follower, committed=0)
    await pair.run()
    assert pair.cuts == [(2, 0)]


@runs(play)
async def test_tombstones_stay_while_a_follower_that_copies_now_has_not_received_them(
    s: Scene,
) -> None:
    batches = history(s, (EPOCH, [1] * 8))
    pair = Pair(s, log_of(s, batches), log_of(s, batches[:4]), committed=4)
    assert pair.host.tombstones_kept_from > 8
    pair.leading.fetch(at(4, last_epoch=EPOCH), full=True)
    assert pair.host.tombstones_kept_from == 4
    pair.leading.fetch(at(7, last_epoch=EPOCH))
    assert pair.host.tombstones_kept_from == 7


@runs(play)
async def test_who_began_anew_counts_again_when_it_has_everything_that_is_committed(
    s: Scene,
) -> None:
    batches = history(s, (EPOCH, [2, 2, 2, 2, 2]))
    leader = log_of(s, joined(batches, [1, 3]))
    pair = Pair(s, leader, log_of(s, batches[:2]), committed=4)
    leadership = pair.host.leadership
    assert leadership is not None
    assert pair.host.high_watermark == 10

    def may_join() -> bool:
        change = leadership.isr_change(
            s.loop.time(),
            View(),
            min_isr=1,
            may_propose=lambda: True,
        )
        if change is not None:
            leadership.proposal_done(change, False)
        return change is not None and 2 in dict(change.isr)

    session = pair.leading
    session.fetch(at(4, last_epoch=EPOCH), full=True)
    assert leadership.followers(0)[2][:2] == (4, 4)
    assert not may_join()
    session.fetch(at(0))
    assert leadership.followers(0)[2][:2] == (0, 0), "it is not told as it was before"
    assert not may_join()
    session.fetch(at(8, last_epoch=EPOCH))
    assert not may_join()
    session.fetch(at(10, last_epoch=EPOCH, durable=8))
    assert not may_join()
    session.durable(10)
    assert may_join()
    assert pair.host.high_watermark == 10


# -- epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaders", [[], [3], [1, 2]])
@pytest.mark.parametrize("own", [[], [2, 1], [3]])
@runs(play)
async def test_where_logs_part_is_told_alike_however_they_are_compacted(
    s: Scene, *, leaders: list[int], own: list[int]
) -> None:
    """KIP-279: by epochs, which compaction leaves as they are."""
    common = history(s, (1, [2, 2, 2]), (2, [2]))
    leader = log_of(s, joined([*common, *history(s, (4, [3]), after=common)], leaders))
    follower = log_of(s, joined([*common, *history(s, (3, [1, 1]), after=common)], own))
    differs = divergence(
        leader.epochs,
        log_end=leader.log_end_offset,
        log_start=leader.log_start_offset,
        last_epoch=follower.last_epoch,
        fetch_offset=follower.log_end_offset,
    )
    assert differs == Diverged(2, 8)
    point = truncation_point(
        follower.epochs,
        log_end=follower.log_end_offset,
        log_start=follower.log_start_offset,
        diverged=differs,
    )
    assert point == 8
    follower.truncate_to(point)
    assert (follower.log_end_offset, follower.last_epoch) == (8, 2)
    assert follower.chain == leader.chain_at(8)


@runs(play)
async def test_a_new_leader_answers_a_follower_at_its_end_by_its_last_epoch(s: Scene) -> None:
    """Both have compacted the end of the old epoch away, each to another batch."""
    batches = history(s, (1, [1] * 4), (3, [1] * 4))
    leader = log_of(s, joined(batches, [4, 4]))
    follower = log_of(s, joined(batches[:6], [2, 2, 2]))
    assert follower.last_epoch == 3
    pair = Pair(s, leader, follower, committed=6)
    answer = pair.leading.fetch(at(6, last_epoch=3), full=True)
    assert only(answer).diverged is None
    assert only(answer).restart_at is None
    answer = pair.leading.fetch(at(6, last_epoch=2))
    diverged = only(answer).diverged
    assert diverged is not None
    assert (diverged.epoch, diverged.end_offset) == (1, 4)
    await pair.run()
    assert bounds(follower) == [(0, 2), (2, 4), (4, 6), (6, 8)]


# -- any two logs ----------------------------------------------------------------------------------

sizes = st.lists(st.integers(1, 4), max_size=12)


@given(
    lengths=st.lists(st.integers(1, 3), min_size=2, max_size=14),
    epoch_starts=st.sets(st.integers(1, 13), max_size=2),
    leaders=sizes,
    own=sizes,
    shorter_by=st.integers(1, 13),
    leader_start=st.integers(0, 20),
    own_start=st.integers(0, 20),
    keep=st.integers(0, 3),
    removed_below=st.integers(0, 20),
)
@runs(play)
async def test_two_logs_compacted_in_any_way_become_one(
    s: Scene,
    *,
    lengths: list[int],
    epoch_starts: set[int],
    leaders: list[int],
    own: list[int],
    shorter_by: int,
    leader_start: int,
    own_start: int,
    keep: int,
    removed_below: int,
) -> None:
    """The follower gets on, and holds all that the leader has above what it had.

    ``removed_below``: of tombstones. If that is above the follower's end, it restarts; then it
    holds what the leader has, and nothing else.
    """
    cuts = [0, *sorted(start for start in epoch_starts if start < len(lengths)), len(lengths)]
    spans = list(pairwise(cuts))
    runs = [(number + 1, lengths[a:b]) for number, (a, b) in enumerate(spans)]
    batches = history(s, *runs)
    leader = log_of(s, joined(batches, within(leaders, spans), keep=keep))
    part = batches[: max(len(batches) - shorter_by, 1)]
    follower = log_of(s, joined(part, within(own, spans)))
    leader.note_missing_tombstones(min(removed_below, leader.log_end_offset))
    if leader_start < leader.log_end_offset:
        leader.advance_log_start(leader_start).run()
    follower.advance_log_start(min(own_start, follower.log_end_offset)).run()
    had, end = records(follower), follower.log_end_offset
    pair = Pair(s, leader, follower, committed=end)
    await pair.run()
    assert follower.chain == leader.chain
    assert follower.last_epoch == leader.last_epoch
    assert follower.verify(follower.log_start_offset, bytes_max=1 << 20)
    assert all(one[1] == two[0] for one, two in pairwise(bounds(follower)))
    above = {offset: value for offset, value in records(leader).items() if offset >= end}
    start = follower.log_start_offset
    below = {offset: value for offset, value in had.items() if offset >= start}
    if pair.cuts:
        assert removed_below > end
        below = {o: value for o, value in records(leader).items() if start <= o < end}
    assert records(follower).items() >= (above | below).items()
    pair.leading.session.close()


def within(wanted: list[int], spans: list[tuple[int, int]]) -> list[int]:
    """Sizes of groups of batches, none of which spans two epochs."""
    found: list[int] = []
    for first, end in spans:
        left = end - first
        while left:
            size = min(wanted[len(found)] if len(found) < len(wanted) else 1, left)
            found.append(size)
            left -= size
    return found
