"""A host whose log is being compacted: what it does meanwhile, and what ends it."""

from __future__ import annotations

import errno
import logging

import pytest

from raftlog.config import BrokerConfig
from raftlog.errors import BrokerUnavailableError
from raftlog.record import decode_lists, split, validate
from raftlog.server.maintenance import LogCleaner, LogVerifier
from raftlog.server.metrics import Counters
from raftlog.server.partition import Partition
from raftlog.storage import Log
from raftlog.testing.disk import Fault
from tests.record.batches import batch_of
from tests.running import runs
from tests.server.cluster.fake import Scene, play, state_of

GONE = BrokerUnavailableError("gone")


def log_of(s: Scene, *keys: str, policy: str = "compact") -> Log:
    """A record for each key, each in a segment of its own; the last one is active."""
    log = s.log(cleanup_policy=policy, min_cleanable_dirty_ratio=0.0, segment_bytes=1)
    for key in keys:
        add(log, key, s)
    log.sync()
    return log


def add(log: Log, key: str, s: Scene) -> None:
    batch = batch_of([b"%d" % log.log_end_offset], keys=[key.encode()])
    now_ms = s.services.clock.wall_ms()
    log.append(batch, validate(batch), leader_epoch=max(log.leader_epoch, 0), now_ms=now_ms)


def keys_of(log: Log) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    parts = log.read(
        start_offset=log.log_start_offset, end_offset=log.log_end_offset, bytes_max=1 << 20
    )
    for part in parts:
        for batch in split(part):
            lists = decode_lists(batch)
            keys = [(key or b"").decode() for key in lists.keys]
            found += zip(lists.offsets, keys, strict=True)
    return found


def leader(s: Scene, log: Log) -> Partition:
    host = s.host(log)
    host.lead(state_of(1, isr=[1]), 1, lag_max_seconds=10)
    assert host.high_watermark == log.log_end_offset
    return host


def follower(s: Scene, log: Log, *, committed: int) -> Partition:
    host = s.host(log)
    host.follow(2, 5)
    host.advance_high_watermark(committed)
    return host


def compactor(s: Scene, *hosts: Partition) -> LogCleaner:
    return LogCleaner(
        BrokerConfig(),
        lambda: hosts,
        s.workers,
        clock=s.services.clock,
        entropy=bytes,
        verifier=LogVerifier(Counters(), on_damage=lambda _host: None),
        on_failed=s.failures.append,
    )


@runs(play)
async def test_the_last_record_of_each_key_stays_at_its_offset(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "b", "a", "a", "b", "c"))
    await compactor(s, host).step()
    assert keys_of(host.log) == [(3, "a"), (4, "b"), (5, "c")]
    assert host.high_watermark == host.log.log_end_offset == 6
    assert host.read(start_offset=0, bytes_max=1 << 20)
    assert s.failures == []


@runs(play)
async def test_only_what_is_committed_is_compacted(s: Scene) -> None:
    """What is not may be cut again, and then what it superseded is the last one."""
    host = follower(s, log_of(s, "a", "b", "a", "b", "a", "c"), committed=3)
    await compactor(s, host).step()
    assert keys_of(host.log)[0] == (1, "b")
    assert [key for _, key in keys_of(host.log)] == ["b", "a", "b", "a", "c"]
    host.advance_high_watermark(5)
    await compactor(s, host).step()
    assert keys_of(host.log) == [(3, "b"), (4, "a"), (5, "c")]


@runs(play)
async def test_a_topic_that_becomes_compacted_is_compacted_from_then_on(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "a", "a", policy="delete"))
    c = compactor(s, host)
    await c.step()
    assert len(keys_of(host.log)) == 3
    host.log.config = log_of(s).config  # as `topic alter` has it done
    host.reconsider()
    await c.step()
    assert keys_of(host.log) == [(1, "a"), (2, "a")], "the last segment is never touched"


@runs(play)
async def test_a_cut_waits_for_the_end_of_a_compaction_which_counts_for_nothing(s: Scene) -> None:
    host = follower(s, log_of(s, "a", "b", "a", "a", "b", "c"), committed=6)
    s.workers.hold()
    step = s.loop.create_task(compactor(s, host).step())
    await s.come_to_rest()
    assert host.compaction.is_given_up is False
    done: list[int] = []
    host.truncate(2, lambda: done.append(host.log.log_end_offset))
    assert host.compaction.is_given_up
    assert done == []
    s.workers.release()
    await step
    assert done == [2]
    assert keys_of(host.log) == [(0, "a"), (1, "b")]
    assert not host.log.compaction.is_under_way
    assert s.failures == []


@runs(play)
async def test_a_host_that_closes_is_quiet_when_the_compaction_is_over(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "a", "a", "b"))
    files = s.disk.list_dir(host.log.directory)
    s.workers.hold()
    step = s.loop.create_task(compactor(s, host).step())
    await s.come_to_rest()
    quiet: list[bool] = []
    host.close(GONE)
    host.when_quiet(lambda: quiet.append(True))
    await s.come_to_rest()
    assert quiet == []
    s.workers.release()
    await s.come_to_rest()
    assert quiet == [True]
    assert step.done()
    assert not [n for n in s.disk.list_dir(host.log.directory) if n not in files]


@runs(play)
async def test_records_that_are_deleted_meanwhile_stay_deleted(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "b", "a", "c", "a", "b"))
    s.workers.hold()
    step = s.loop.create_task(compactor(s, host).step())
    await s.come_to_rest()
    host.delete_records(3, lambda _error: None)
    s.workers.release()
    await step
    assert host.log.log_start_offset == 3
    assert [offset for offset, _ in keys_of(host.log)] == [3, 4, 5]
    await compactor(s, host).step()
    assert host.log.log_start_offset == 3
    assert [offset for offset, _ in keys_of(host.log) if offset >= 3] == [3, 4, 5]


@runs(play)
async def test_records_that_come_meanwhile_are_there_afterwards(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "a", "b"))
    s.workers.hold()
    step = s.loop.create_task(compactor(s, host).step())
    await s.come_to_rest()
    batch = batch_of([b"new"], keys=[b"a"])
    host.append(batch, validate(batch))
    s.workers.release()
    await step
    await s.come_to_rest()
    assert keys_of(host.log) == [(1, "a"), (2, "b"), (3, "a")]
    assert host.high_watermark == 4


def test_a_full_disk_puts_it_off(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene) -> None:
        host = leader(s, log_of(s, "a", "a", "b", "b", "c"))
        c = compactor(s, host)
        full = Fault({"write"}, errno.ENOSPC, path="*.cleaned*", times=2)
        s.disk.faults.append(full)
        before = keys_of(host.log)
        await c.step()
        await c.step()
        assert keys_of(host.log) == before
        assert s.failures == []
        add(host.log, "d", s)
        s.disk.faults.clear()
        await c.step()
        assert [offset for offset, _ in keys_of(host.log)] == [1, 3, 4, 5]

    with caplog.at_level(logging.WARNING):
        play(test)
    assert caplog.text.count("compaction postponed") == 1


@runs(play)
async def test_retention_does_not_apply_to_what_is_only_compacted(s: Scene) -> None:
    for policy, left in (("compact", 4), ("compact,delete", 1), ("delete", 1)):
        log = log_of(s, "a", "b", "c", "d", policy=policy)
        log.config = type(log.config)(cleanup_policy=policy, retention_bytes=1, segment_bytes=1)
        host = leader(s, log)
        host.apply_retention()
        await s.come_to_rest()
        assert log.log_end_offset - log.log_start_offset == left, policy


@runs(play)
async def test_tombstones_stay_that_a_follower_still_needs(s: Scene) -> None:
    """One that copies now, and has not received them: it would have to restart its copy."""
    config = {"cleanup_policy": "compact", "delete_retention_ms": 0}
    log = s.log(min_cleanable_dirty_ratio=0.0, segment_bytes=1, **config)
    add(log, "a", s)
    put_tombstone(log, "a", s)
    for key in "bc":
        add(log, key, s)
    log.sync()
    host = s.host(log)
    host.lead(state_of(1, 2, isr=[1]), 1, lag_max_seconds=10)
    compacting = compactor(s, host)

    def fetch(offset: int) -> None:
        host.on_follower(2, "disk-2", fetch_offset=offset, durable_offset=offset)

    fetch(1)
    await compacting.step()
    for key in "de":
        add(log, key, s)
    host.save_snapshot()
    await s.come_to_rest()
    await compacting.step()
    assert keys_of(log) == [(offset, "aabcde"[offset]) for offset in range(1, 6)]
    assert log.tombstones_removed_below == 0
    fetch(5)
    await compacting.step()
    assert (1, "a") not in keys_of(log)
    assert log.tombstones_removed_below > 1


def put_tombstone(log: Log, key: str, s: Scene) -> None:
    batch = batch_of([None], keys=[key.encode()])
    now_ms = s.services.clock.wall_ms()
    log.append(batch, validate(batch), leader_epoch=max(log.leader_epoch, 0), now_ms=now_ms)
