"""All of the log is read, once it is committed, and never much of it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from raftlog.errors import (
    CommitUnknownError,
    DamagedLogError,
    InvalidRequestError,
    OffsetOutOfRangeError,
)
from raftlog.record import BatchHeader, encode, seal, validate
from raftlog.server.groups import shard as loading
from raftlog.server.groups.shard import RECORDS_PER_TURN, load
from raftlog.server.partition import Partition
from raftlog.types import Buffer, Offset
from tests.running import runs
from tests.server.cluster.paper import Scene, append, play, state_of


class Replayed:
    """Keys and values as they came; refuses ``b"bad"``."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []

    def replay(self, key: bytes, value: bytes | None) -> None:
        if value == b"bad":
            raise InvalidRequestError("bad bytes")
        self.records.append((key, value))


class Loading:
    def __init__(self, s: Scene, *isr: int) -> None:
        self.host = s.host()
        self.host.lead(state_of(*(isr or (1,)), epoch=5), 1, lag_max_seconds=10)
        self.doubts: list[tuple[Partition, Offset]] = []
        self.replayed = Replayed()
        self.turn = asyncio.Lock()

    def write(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        body = encode(values, keys=keys, timestamps_ms=1_700_000_000_000)
        batch = seal(body) + body.payload
        self.host.append(batch, validate(batch))

    async def load(self) -> None:
        await load(
            self.replayed,
            self.host,
            turn=self.turn,
            on_unreadable=lambda *where: self.doubts.append(where),
        )


@runs(play)
async def test_all_records_in_their_order(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a", b"b"], [b"1", None])
    x.write([b"a"], [b"2"])
    await x.load()
    assert x.replayed.records == [(b"a", b"1"), (b"b", None), (b"a", b"2")]


@runs(play)
async def test_an_empty_log(s: Scene) -> None:
    x = Loading(s)
    await x.load()
    assert x.replayed.records == []


@runs(play)
async def test_it_begins_where_the_log_begins(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a", b"b"], [b"1", b"2"])
    x.write([b"c"], [b"3"])
    await s.come_to_rest()
    x.host.delete_records(2, lambda _error: None)
    await s.come_to_rest()
    await x.load()
    assert x.replayed.records == [(b"c", b"3")]


@runs(play)
async def test_it_waits_for_what_is_not_committed_yet(s: Scene) -> None:
    x = Loading(s, 1, 2)
    end = append(x.host, b"later")
    loading = asyncio.ensure_future(x.load())
    await asyncio.sleep(100)
    assert not loading.done()
    assert x.replayed.records == []
    x.host.on_follower(2, "disk-2", fetch_offset=end, durable_offset=end)
    await loading
    assert len(x.replayed.records) == 1


@runs(play)
async def test_it_ends_when_leadership_does(s: Scene) -> None:
    x = Loading(s, 1, 2)
    append(x.host, b"later")
    given_up = asyncio.ensure_future(x.load())
    told = asyncio.ensure_future(x.load())
    await s.come_to_rest()
    given_up.cancel()
    await s.come_to_rest()
    x.host.follow(2, 6)
    with pytest.raises(CommitUnknownError):
        await told


@runs(play)
async def test_others_have_their_turn_in_between(s: Scene) -> None:
    x = Loading(s)
    count = 10 * RECORDS_PER_TURN
    x.write([b"k"] * count, [b"v"] * count)
    await s.come_to_rest()
    loading = asyncio.ensure_future(x.load())
    seen = [0]
    while not loading.done():
        await asyncio.sleep(0)
        seen.append(len(x.replayed.records))
    assert seen[-1] == count
    steps = [b - a for a, b in pairwise(seen)]
    assert max(steps) <= RECORDS_PER_TURN


@runs(play)
async def test_of_two_one_reads_at_a_time(s: Scene) -> None:
    x, y = Loading(s), Loading(s)
    y.turn = x.turn
    for each in (x, y):
        each.write([b"k"] * 1_000, [b"v"] * 1_000)
    await s.come_to_rest()
    both = [asyncio.ensure_future(x.load()), asyncio.ensure_future(y.load())]
    while not all(each.done() for each in both):
        await asyncio.sleep(0)
        counts = sorted((len(x.replayed.records), len(y.replayed.records)))
        assert counts[0] == 0 or counts[1] == 1_000


@runs(play)
async def test_what_is_not_to_be_understood_is_named(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a", b"b"], [b"1", b"bad"])
    with pytest.raises(DamagedLogError, match="the record at offset 1 is not a consumer"):
        await x.load()
    assert x.doubts == [(x.host, 0)]


@runs(play)
async def test_damage_is_told_to_who_looks_after_it(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a"], [b"1"])
    await s.come_to_rest()
    x.host.log.note_damage("a bad sector", offset=0)
    with pytest.raises(DamagedLogError, match=r"t:0.*offset 0, .*a bad sector"):
        await x.load()
    assert x.doubts == [(x.host, 0)]


@runs(play)
async def test_a_log_that_has_a_hole_is_no_end(
    s: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Loading(s)
    x.write([b"a"], [b"1"])
    monkeypatch.setattr(Partition, "read", lambda *_a, **_k: [])
    with pytest.raises(DamagedLogError, match="no batch is stored"):
        await x.load()


@runs(play)
async def test_a_log_whose_start_has_moved_meanwhile(s: Scene) -> None:
    """It is read again from there."""
    x = Loading(s)
    for _ in range(3):
        x.write([b"k"], [bytes(loading.SLICE_BYTES)])
    await s.come_to_rest()

    def replay(_key: bytes, _value: bytes | None) -> None:
        x.host.delete_records(3, lambda _error: None)

    x.replayed.replay = replay  # type: ignore[method-assign]
    with pytest.raises(OffsetOutOfRangeError):
        await x.load()


@runs(play)
async def test_a_batch_of_which_compaction_has_left_nothing(
    s: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Loading(s)
    x.write([b"a"], [b"1"])
    x.write([b"b"], [b"2"])
    await s.come_to_rest()
    split = loading.split_checked

    def split_as_compacted(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
        for header, batch in split(data):
            count = header.record_count if header.base_offset else 0
            yield header._replace(record_count=count), batch

    monkeypatch.setattr(loading, "split_checked", split_as_compacted)
    await x.load()
    assert x.replayed.records == [(b"b", b"2")]
