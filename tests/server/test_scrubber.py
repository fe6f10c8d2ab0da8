"""What a broker finds on its disk: on a doubt, and by going over all of it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftlog.errors import DamagedLogError, NotLeaderError, UnknownTopicError
from raftlog.server.maintenance import (
    HOSTS_PER_TURN,
    MEASURE_EVERY_STEPS,
    STEP_BYTES_MAX,
    STEP_BYTES_MIN,
    SUSPECT_BYTES_MAX,
    VERIFY_BYTES_PER_TURN,
    LogVerifier,
    Scrubber,
)
from raftlog.server.metrics import Counters
from raftlog.server.partition import Partition
from raftlog.storage import Log
from raftlog.testing.disk import Fault
from raftlog.types import Offset
from tests.running import runs
from tests.server.cluster.paper import Scene, append, play, write

VALUE = b"x" * 1_000
INTERVAL_MS = 604_800_000


class Parts:
    """A verifier, a scrub, and hosts; what was verified is noted."""

    def __init__(self, s: Scene, *hosts: Partition, interval_ms: int = INTERVAL_MS) -> None:
        self.s = s
        self.hosts = list(hosts)
        self.counters = Counters()
        self.told: list[Partition] = []
        self.verifier = LogVerifier(self.counters, on_damage=self.told.append)
        self.looked: list[tuple[Partition, Offset, int]] = []
        original = self.verifier.verify

        def verify(host: Partition, offset: Offset, *, bytes_max: int) -> Offset:
            self.looked.append((host, offset, bytes_max))
            return original(host, offset, bytes_max=bytes_max)

        self.verifier.verify = verify  # type: ignore[method-assign]
        self.scrub = Scrubber(lambda: self.hosts, self.verifier, interval_ms=interval_ms)

    def add(self, count: int, *, partition: int | None = None) -> Partition:
        """A host with so many records of a kilobyte."""
        log = self.s.log()
        write(log, *[VALUE] * count)
        number = len(self.hosts) if partition is None else partition
        self.hosts.append(self.s.host(log, partition=number))
        return self.hosts[-1]

    def harm(self, log: Log, offset: Offset) -> None:
        size = log.size_bytes // log.log_end_offset
        path = f"{log.directory}/{0:020d}.log"
        self.s.disk.flip_bit(path, 8 * (offset * size + 200))

    async def steps(self, count: int) -> list[list[tuple[int, Offset]]]:
        """The partitions, and the offsets in them, that steps have looked at."""
        found = []
        for _ in range(count):
            del self.looked[:]
            await self.scrub.step()
            found.append([(h.topic_partition.partition, offset) for h, offset, _ in self.looked])
        return found


def scene(test: Callable[[Parts], Coroutine[Any, Any, None]], **options: Any) -> None:
    play(lambda s: test(Parts(s, **options)))


# -- on a doubt ------------------------------------------------------------------------------------


@runs(scene)
async def test_damage_is_noted_told_and_counted_once(
    p: Parts, *, caplog: pytest.LogCaptureFixture
) -> None:
    host = p.add(10)
    p.verifier.verify_suspect(host, 0, bytes_max=1 << 20)
    p.harm(host.log, 4)
    p.verifier.verify_suspect(host, 0, bytes_max=2_000)
    assert not p.told, "that far it is good"
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            p.verifier.verify_suspect(host, 4, bytes_max=1)
            p.verifier.verify_suspect(host, 3, bytes_max=1)
    assert p.told == [host]
    assert p.counters.damage_found == 1
    assert len(caplog.records) == 1
    assert "log corrupt: partition=t:0" in caplog.text
    assert "offset 4" in host.log.damage


@runs(scene)
async def test_a_doubt_costs_a_bounded_amount_of_work_in_turns(p: Parts) -> None:
    host = p.add(3 * SUSPECT_BYTES_MAX // len(VALUE))
    p.verifier.verify_suspect(host, 0, bytes_max=1 << 30)
    assert [bytes_max for _, _, bytes_max in p.looked] == [VERIFY_BYTES_PER_TURN]
    turns = SUSPECT_BYTES_MAX // VERIFY_BYTES_PER_TURN
    for _ in range(2 * turns):
        await asyncio.sleep(0)
    assert [bytes_max for _, _, bytes_max in p.looked] == [VERIFY_BYTES_PER_TURN] * turns
    offsets = [offset for _, offset, _ in p.looked]
    assert offsets == sorted(set(offsets))
    p.verifier.verify_suspect(host, 0, bytes_max=5)
    assert p.looked[-1][2] == 5


@runs(scene)
async def test_a_doubt_ends_with_the_log_and_with_its_replica(p: Parts) -> None:
    small = p.add(1)
    p.verifier.verify_suspect(small, 0, bytes_max=1 << 30)
    large = p.add(2 * VERIFY_BYTES_PER_TURN // len(VALUE))
    p.verifier.verify_suspect(large, 0, bytes_max=1 << 30)
    large.close(NotLeaderError("no replica any more"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [host for host, _, _ in p.looked] == [small, large]


@runs(scene)
async def test_a_later_turn_of_a_doubt_finds_corruption(p: Parts) -> None:
    host = p.add(2 * VERIFY_BYTES_PER_TURN // len(VALUE))
    p.harm(host.log, host.log.log_end_offset - 1)
    p.verifier.verify_suspect(host, 0, bytes_max=1 << 30)
    assert not p.told
    for _ in range(3):
        await asyncio.sleep(0)
    assert p.told == [host]


@runs(scene)
async def test_what_is_out_of_range_is_not_damaged(p: Parts) -> None:
    host = p.add(1)
    p.verifier.verify_suspect(host, 9, bytes_max=5)
    assert not host.log.damage


# -- all over --------------------------------------------------------------------------------------


@runs(scene)
async def test_every_log_has_its_turn_and_then_again(p: Parts) -> None:
    for _ in range(3):
        p.add(2)
    p.add(0)
    assert await p.steps(2) == [[(0, 0), (1, 0), (2, 0)]] * 2
    assert all(bytes_max <= VERIFY_BYTES_PER_TURN for _, _, bytes_max in p.looked)


@runs(scene)
async def test_a_large_log_is_verified_in_steps(p: Parts) -> None:
    count = 3 * STEP_BYTES_MIN // len(VALUE)
    p.add(count)
    p.add(1)
    found = await p.steps(5)
    assert [partition for step in found for partition, _ in step] == [0, 0, 0, 0, 1, 0]
    offsets = [offset for step in found for partition, offset in step if partition == 0]
    assert offsets[0] == 0
    assert offsets[:4] == sorted(set(offsets[:4]))
    assert offsets[4] == 0, "the next round"
    assert max(b - a for a, b in itertools.pairwise(offsets)) < count / 2


@runs(scene)
async def test_the_pace_is_that_of_the_interval_within_limits(p: Parts) -> None:
    p.add(100)  # more than 100 kB
    for interval_ms, least, most in [
        (INTERVAL_MS, STEP_BYTES_MIN, STEP_BYTES_MIN),
        (1_000, 100_000, 120_000),
        (1, STEP_BYTES_MAX, STEP_BYTES_MAX),
    ]:
        scrub = Scrubber(lambda: p.hosts, p.verifier, interval_ms=interval_ms)
        del p.looked[:]
        await scrub.step()
        assert least <= scrub._step_bytes <= most
        assert sum(bytes_max for _, _, bytes_max in p.looked) <= most
        assert len(p.looked) == 1


@runs(scene, interval_ms=5_000)
async def test_what_has_grown_is_measured_again(p: Parts) -> None:
    p.add(1)
    await p.steps(1)
    host = p.add(500)
    await p.steps(MEASURE_EVERY_STEPS - 1)
    assert p.scrub._step_bytes == STEP_BYTES_MIN
    await p.steps(1)
    assert p.scrub._step_bytes == (p.hosts[0].log.size_bytes + host.log.size_bytes) // 5


@runs(scene)
async def test_what_is_found_is_noted_told_and_not_looked_at_again(
    p: Parts, *, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = p.add(10), p.add(10)
    p.harm(bad.log, 7)
    with caplog.at_level(logging.ERROR):
        assert await p.steps(1) == [[(0, 0)]]
        assert await p.steps(2) == [[(1, 0)]] * 2
    assert p.told == [bad]
    assert p.counters.damage_found == 1
    assert len(caplog.records) == 1
    assert bad.log.readable_end_offset == 7
    with pytest.raises(DamagedLogError):
        bad.log.read(start_offset=7, end_offset=10, bytes_max=1)
    assert not good.log.damage


@runs(scene)
async def test_closed_hosts_are_passed_over(p: Parts) -> None:
    p.add(1).close(NotLeaderError("no replica any more"))
    p.add(1)
    assert await p.steps(2) == [[(1, 0)]] * 2


@runs(scene)
async def test_a_host_that_closes_in_the_middle_of_it_ends_it(p: Parts) -> None:
    first = p.add(3 * STEP_BYTES_MIN // len(VALUE))
    p.add(1)
    await p.steps(1)
    first.close(UnknownTopicError("deleted"))
    assert await p.steps(1) == [[(1, 0)]]


@runs(scene)
async def test_partitions_come_and_go_meanwhile(p: Parts) -> None:
    large = 3 * STEP_BYTES_MIN // len(VALUE)
    p.add(0)
    p.add(large)
    p.add(1)
    assert await p.steps(1) == [[(1, 0)]]
    del p.hosts[0]
    (step,) = await p.steps(1)
    assert step[0][0] == 1, "it goes on where it was"
    assert step[0][1] > 0
    del p.hosts[0]
    assert await p.steps(1) == [[(2, 0)]]
    del p.hosts[0]
    assert await p.steps(2) == [[], []]


@runs(scene)
async def test_a_log_may_be_cut_or_begin_anew_meanwhile(p: Parts) -> None:
    count = 3 * STEP_BYTES_MIN // len(VALUE)
    host = p.add(count)
    await p.steps(1)
    host.log.truncate_to(3)
    assert await p.steps(2) == [[], [(0, 0)]], "what is there was verified; the next round"
    host.log.restart_at(9_000)
    write(host.log, VALUE)
    assert await p.steps(1) == [[(0, 9_000)]]
    assert not p.told


@runs(scene)
async def test_records_that_are_dropped_meanwhile_are_passed_over(p: Parts) -> None:
    host = p.add(3 * STEP_BYTES_MIN // len(VALUE))
    await p.steps(1)
    host.log.advance_log_start(150).run()
    (step,) = await p.steps(1)
    assert step == [(0, 150)]


@runs(scene)
async def test_a_log_that_grows_all_the_time_does_not_keep_the_others_waiting(p: Parts) -> None:
    host = p.add(2 * STEP_BYTES_MIN // len(VALUE))
    p.add(1)
    seen = set()
    for _ in range(4):
        (step,) = await p.steps(1)
        seen |= {partition for partition, _ in step}
        write(host.log, *[VALUE] * 100)
    assert seen == {0, 1}


@runs(scene)
async def test_records_that_are_not_durable_yet_are_no_damage(p: Parts) -> None:
    host = p.add(1)
    host.lead_alone(1, "disk-1")
    p.s.workers.hold()
    append(host, b"on its way")
    assert host.log.durable_end_offset == 1
    assert await p.steps(1) == [[(0, 0)]]
    assert not host.log.damage
    p.s.workers.release()


@runs(scene)
async def test_a_file_that_cannot_be_opened_is_looked_at_next_time(
    p: Parts, *, caplog: pytest.LogCaptureFixture
) -> None:
    host = p.add(1)
    p.add(1)
    host.log._segments[0].close()
    p.s.disk.faults.append(Fault({"open"}, error=errno.EMFILE, path="*.log"))
    await p.steps(2)
    assert not host.log.damage
    assert "verification skipped: partition=t:0" in caplog.text
    assert (await p.steps(1))[0][0] == (0, 0)


@runs(scene)
async def test_a_round_leaves_no_file_open_that_was_not(p: Parts) -> None:
    host = p.add(1)
    segment = host.log._segments[0]
    for is_open in (True, False):
        if not is_open:
            segment.close()
        assert await p.steps(1) == [[(0, 0)]]
        assert segment.is_open == is_open


@runs(scene, interval_ms=1)
async def test_the_loop_goes_on_between_two_looks(p: Parts) -> None:
    for _ in range(2 * HOSTS_PER_TURN):
        p.add(0)
    p.add(2 * VERIFY_BYTES_PER_TURN // len(VALUE))
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(p.looked))
        p.s.loop.call_soon(turn)

    turn()
    await p.scrub.step()
    assert turns.count(0) >= 4, "while measuring, and while finding something to read"
    assert {1, 2} <= set(turns)
