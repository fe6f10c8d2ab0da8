"""What a log tells of itself: chain values, epochs, the saved high watermark. Reading: test_log."""

from __future__ import annotations

import pytest

from raftlog.errors import DamagedLogError, OffsetOutOfRangeError
from raftlog.record import parse_header
from raftlog.storage import Log
from tests.storage.logs import (
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
)
from tests.storage.replicas import SEGMENTED, follow, leader_of, lives


@pytest.mark.parametrize("config", [SEGMENTED, ONE_SEGMENT], ids=["segments", "one segment"])
def test_the_chain_at_an_offset_is_that_of_the_last_batch_below(config: object) -> None:
    log = open_log(sim_disk(), config)  # type: ignore[arg-type]
    for count in (1, 3, 2, 1, 5, 1, 1, 2):
        append(log, *[b"v" * 90] * count)
    headers = [parse_header(batch) for batch in stored(log)]
    for offset in range(log.log_end_offset + 1):
        chains = [header.chain for header in headers if header.next_offset <= offset]
        assert log.chain_at(offset) == (chains[-1] if chains else 0)
    assert log.chain == headers[-1].chain
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(OffsetOutOfRangeError):
            log.chain_at(offset)


def test_two_replicas_have_the_same_chain_up_to_where_they_differ() -> None:
    leader = leader_of((0, 6))
    other = leader.fork(4)
    other.fill(3, epoch=1)
    logs = []
    for seed, source in enumerate((leader, other)):
        logs.append(open_log(sim_disk(seed), SEGMENTED))
        follow(logs[-1], source)
    same = [logs[0].chain_at(offset) == logs[1].chain_at(offset) for offset in range(7)]
    assert same == [True] * 5 + [False] * 2


def test_the_chain_below_deleted_records_is_known_where_a_segment_was_dropped() -> None:
    disk = sim_disk()
    first = open_log(disk, SEGMENTED)
    leader = leader_of((0, 9))
    follow(first, leader)
    first.sync()
    first.advance_log_start(6).run()
    for log in lives(first, disk, SEGMENTED):
        assert log.chain_at(6) == leader.fork(6).chain
        assert log.chain_at(7) == leader.fork(7).chain
    log = killed(disk, SEGMENTED)
    log.advance_log_start(7).run()
    assert log.chain_at(7) == leader.fork(7).chain


def test_the_chain_of_a_log_begun_anew_is_unknown_until_it_has_a_batch() -> None:
    log = open_log(sim_disk())
    log.restart_at(7)
    assert (log.chain_at(7), log.chain) == (None, 0)
    append(log, b"x", leader_epoch=2)
    assert (log.chain_at(7), log.chain_at(8)) == (None, log.chain)
    log.restart_at(0)
    assert log.chain_at(0) == 0


def test_the_last_epoch_is_that_of_the_last_batch() -> None:
    """S16: neither an epoch without a batch, nor a restart, nor a deletion changes it."""
    disk = sim_disk()
    log = open_log(disk)
    assert log.last_epoch == -1
    fill(log, 9, leader_epoch=2)
    log._begin_epoch(5)
    assert (log.last_epoch, log.leader_epoch) == (2, 5)
    log.advance_log_start(9).run()
    assert log.size_bytes == 0
    assert (log.last_epoch, log.leader_epoch) == (2, 5)
    log = after_power_cut(disk)
    assert (log.last_epoch, log.leader_epoch) == (2, 5)


def high_watermark_of(log: Log) -> tuple[int, int, int]:
    return (log.log_start_offset, log.high_watermark, log.log_end_offset)


def test_the_high_watermark_is_saved_with_a_sync_and_never_leaves_the_log() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 6)
    assert high_watermark_of(log) == (0, 0, 6)
    log.note_high_watermark(99)
    assert high_watermark_of(log) == (0, 6, 6)
    log.note_high_watermark(4)
    assert high_watermark_of(log) == (0, 6, 6)
    fill(log, 3)
    assert high_watermark_of(killed(disk)) == (0, 6, 9)
    log = killed(disk)
    log.advance_log_start(8).run()
    assert high_watermark_of(log) == (8, 8, 9)


def test_the_high_watermark_alone_is_saved_by_a_snapshot_or_a_close() -> None:
    disk = sim_disk()
    log = open_log(disk, SMALL)
    fill(log, 6)
    log.close()
    log = killed(disk)
    log.note_high_watermark(5)
    assert log.begin_sync() is None
    ticket = log.begin_sync(snapshot=True)
    assert ticket is not None
    ticket.run()
    log.complete_sync(ticket)
    assert log.begin_sync(snapshot=True) is None
    log = killed(disk)
    assert log.high_watermark == 5
    log.note_high_watermark(6)
    log.close()
    assert killed(disk).high_watermark == 6


def test_reads_end_where_damage_begins() -> None:
    log = open_log(sim_disk(), ONE_SEGMENT)
    fill(log, 6)
    assert log.readable_end_offset == 6
    log.note_damage("bad", offset=3)
    assert (log.readable_end_offset, log.log_end_offset) == (3, 6)
    assert len(stored(log, 0)) == 3
    with pytest.raises(DamagedLogError, match="bad"):
        stored(log, 3)
