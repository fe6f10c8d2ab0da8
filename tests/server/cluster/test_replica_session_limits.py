"""A follower that is slow, gone, or wants too much; and disks that are bad."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from raftlog.errors import (
    DamagedLogError,
    InvalidRequestError,
)
from raftlog.record import split
from raftlog.server.partition import Partition
from raftlog.storage import Log
from raftlog.testing.disk import Fault
from tests.running import runs
from tests.server.cluster.leading import Leading, at, only, values
from tests.server.cluster.paper import (
    TOPIC_ID,
    Scene,
    append,
    play,
    write,
)
from tests.server.harness import error_of


@runs(play)
async def test_an_answer_is_bounded_and_the_rest_comes_next(s: Scene) -> None:
    lead = Leading(s)
    for partition in range(3):
        append(lead.leader(partition=partition), b"x" * 1_000)
    reply = lead.fetch(*(at(0, partition=n) for n in range(3)), full=True, bytes_max=1_500)
    assert [part.partition for part in reply.parts] == [0, 1]
    rest = lead.fetch(bytes_max=1_500)
    assert [part.partition for part in rest.parts] == [2]


@runs(play)
async def test_batches_are_whole_and_each_partition_has_its_own_bound(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a" * 100)
    append(host, b"b" * 100)
    reply = lead.fetch(at(0, bytes_max=10), full=True)
    assert len(list(split(b"".join(reply.answers[0][1])))) == 1


@runs(play)
async def test_what_is_forgotten_is_not_watched_any_more(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    lead.fetch(at(0), full=True)
    waiting = lead.fetch(forgotten=(0,))
    append(host, b"a")
    assert not waiting.answers
    lead.durable(1)
    assert host.high_watermark == 0
    assert not host._append_watchers


@runs(play)
async def test_a_full_request_is_all_there_is(s: Scene) -> None:
    lead = Leading(s)
    one, other = lead.leader(partition=0), lead.leader(partition=1)
    lead.fetch(at(0), at(0, partition=1), full=True)
    waiting = lead.fetch(at(0, partition=1), full=True)
    append(one, b"a")
    assert not waiting.answers
    append(other, b"b")
    assert values(waiting) == [b"b"]


@runs(play)
async def test_the_first_request_has_to_be_full(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    with pytest.raises(InvalidRequestError):
        lead.fetch(at(0))


@runs(play)
async def test_the_end_leaves_nothing_behind(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    lead.session.close()
    append(host, b"a")
    await asyncio.sleep(10)
    assert not waiting.answers
    assert not host._append_watchers


@runs(play)
async def test_a_follower_that_is_gone_is_not_answered(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    waiting.connection.is_closed = True
    append(host, b"a")
    assert not waiting.answers
    assert not host._append_watchers


@runs(play)
async def test_a_follower_that_does_not_read_is_answered_when_it_does(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    waiting.connection.may_answer_at_length = False
    for value in (b"a", b"b", b"c"):
        append(host, value)
    assert not waiting.answers
    assert len(waiting.connection.ready) == 1, "told once, however many appends there are"
    waiting.connection.drain()
    assert values(waiting) == [b"a", b"b", b"c"]


@runs(play)
async def test_a_disk_that_cannot_be_read_harms_no_producer(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    s.disk.faults.append(Fault({"read"}))
    assert append(host, b"a") == 1
    assert isinstance(error_of(only(waiting)), DamagedLogError)
    assert not host.log.damage, "an error of the moment, maybe: the disk is asked again"
    assert values(lead.fetch(at(0, durable=0))) == [b"a"]


def corrupt(s: Scene, log: Log) -> None:
    path = f"{log.directory}/{0:020d}.log"
    s.disk.flip_bit(path, 8 * 100)


def damaged_leader(check: Callable[[Scene, Leading, Partition], None]) -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        log = s.log()
        write(log, b"a" * 100, b"b" * 100, epoch=5)
        host = lead.leader(log)
        corrupt(s, log)
        lead.fetch(at(0), full=True)
        check(s, lead, host)

    play(test)


def test_who_asks_for_the_same_again_has_the_leader_look_at_its_disk() -> None:
    def check(_s: Scene, lead: Leading, host: Partition) -> None:
        assert not host.log.damage, "bytes are sent as they are"
        lead.fetch(forgotten=(0,))
        reply = lead.fetch(at(0))
        assert "is corrupt at offset 0" in host.log.damage
        assert isinstance(error_of(only(reply)), DamagedLogError)

    damaged_leader(check)


@runs(play)
async def test_a_leader_that_cannot_read_its_own_log_notes_it(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a" * 100, b"b" * 100, epoch=5)
    host = lead.leader(log)
    s.disk.flip_bit(f"{log.directory}/{0:020d}.log", 8 * 3)
    reply = lead.fetch(at(0), full=True)
    assert isinstance(error_of(only(reply)), DamagedLogError)
    assert host.log.damage
    assert host.log.readable_end_offset == 0
    assert lead.progress == [lead.partitions[TOPIC_ID, 0]], "it is to stop leading at once"


def test_who_goes_on_does_not() -> None:
    def check(_s: Scene, lead: Leading, host: Partition) -> None:
        lead.fetch(at(1, last_epoch=5))
        assert not host.log.damage

    damaged_leader(check)


@runs(play)
async def test_a_sound_disk_is_found_so(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    for _ in range(3):
        reply = lead.fetch(at(0), full=True)
        assert values(reply) == [b"a"]
    assert not host.log.damage


@runs(play)
async def test_who_is_not_in_sync_and_moves_is_looked_at(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader(isr=[1])
    lead.fetch(at(0), full=True)
    assert lead.progress == [lead.partitions[TOPIC_ID, 0]]
    append(host, b"a")
    lead.durable(0)
    assert len(lead.progress) == 2


@runs(play)
async def test_who_is_in_sync_is_not(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    lead.fetch(at(0), full=True)
    assert lead.progress == []


@runs(play)
async def test_progress_of_what_nobody_knows_is_nothing(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    lead.durable(5)
    lead.durable(5, partition=9)
    lead.fetch(at(0, partition=9), full=True)
    lead.durable(5, partition=9)


@runs(play)
async def test_a_copy_that_was_made_anew_is_found_with_the_next_position(s: Scene) -> None:
    lead = Leading(s)
    old = lead.leader()
    lead.fetch(at(0), full=True)
    new = lead.leader()
    reply = lead.fetch(at(0))
    append(new, b"new")
    assert values(reply) == [b"new"]
    assert not old._append_watchers
