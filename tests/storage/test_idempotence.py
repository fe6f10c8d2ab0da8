"""P4: a retried send is appended once, through restarts, retention, truncation and full replays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import OutOfOrderSequenceError, ProducerFencedError
from raftlog.storage import Log
from raftlog.storage.producer_state import PRODUCER_EXPIRY_MS, SEQUENCES
from raftlog.testing.disk import SimDisk
from tests.storage.logs import (
    NOW_MS,
    after_power_cut,
    append,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    values,
)
from tests.storage.model import as_model

ID = 7


def send(log: Log, sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = ID):
    records = [b"%d" % (sequence + number) for number in range(count)]
    return append(log, *records, producer=(producer_id, epoch, sequence))


def restart_and_lose_snapshots(disk: SimDisk) -> Log:
    for path in files(disk, ".producers"):
        disk.remove(path)
    return killed(disk)


def close_and_open(disk: SimDisk) -> Log:
    open_log(disk).close()
    return killed(disk)


RESTARTS = [killed, after_power_cut, close_and_open, restart_and_lose_snapshots]


def test_a_duplicate_is_answered_with_where_the_first_is() -> None:
    log = open_log(sim_disk())
    fill(log, 3)
    first = send(log, 0, 2)
    send(log, 2)
    end = log.log_end_offset
    again = send(log, 0, 2)
    assert again == first._replace(duplicate=True)
    assert (again.base_offset, again.last_offset) == (3, 4)
    assert log.log_end_offset == end


def test_a_duplicate_of_what_is_not_synced_yet_is_known() -> None:
    log = open_log(sim_disk())
    assert not send(log, 0).duplicate
    assert send(log, 0).duplicate
    assert log.durable_end_offset == 0


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("segments", [1, 4])
def test_a_restart_forgets_no_producer(restart: Callable[[SimDisk], Log], segments: int) -> None:
    disk = sim_disk()
    log = open_log(disk)
    for number in range(6 * segments):
        send(log, number)
        append(log, b"x" * 150)
    log.sync()
    expected = as_model(log.producers)
    log = restart(disk)
    assert as_model(log.producers) == expected
    last = 6 * segments - 1
    assert send(log, last).duplicate
    with pytest.raises(OutOfOrderSequenceError):
        send(log, last + 2)
    assert not send(log, last + 1).duplicate


@pytest.mark.parametrize("start", [0.4, 1.0])
@pytest.mark.parametrize("restart", [killed, after_power_cut, close_and_open])
def test_retention_forgets_no_producer(restart: Callable[[SimDisk], Log], start: float) -> None:
    disk = sim_disk()
    log = open_log(disk)
    for number in range(5):
        send(log, number)
    for _ in range(20):
        append(log, b"x" * 200)
    log.sync()
    log.advance_log_start(int(log.log_end_offset * start)).run()
    expected = as_model(log.producers)
    assert len(files(disk, ".log")) <= 3
    log = restart(disk)
    assert as_model(log.producers) == expected
    assert send(log, 4).duplicate
    with pytest.raises(OutOfOrderSequenceError):
        send(log, 6)
    assert not send(log, 5).duplicate


def test_a_segment_whose_producers_are_not_saved_waits_for_the_next_round() -> None:
    disk = sim_disk()
    log = open_log(disk)
    send(log, 0)
    fill(log, 6)
    log.sync()
    fill(log, 8, sync=False)
    saved = log._files.snapshot_offset
    log.advance_log_start(7).run()
    kept = int(files(disk, ".log")[0].rpartition("/")[2].removesuffix(".log"))
    assert kept <= saved
    log.sync()
    log.advance_log_start(7).run()
    assert int(files(disk, ".log")[0].rpartition("/")[2].removesuffix(".log")) > 0
    assert send(after_power_cut(disk), 0).duplicate


def test_truncation_takes_back_what_a_producer_wrote_there_and_no_more() -> None:
    for restart in (None, killed, after_power_cut):
        disk = sim_disk()
        log = open_log(disk)
        for number in range(10):
            send(log, number)
            append(log, b"x" * 200)
        log.sync()
        log.advance_log_start(9).run()
        log.truncate_to(16)  # sequences 8 and 9 go; those below 4 are deleted
        if restart is not None:
            log = restart(disk)
        assert send(log, 7).duplicate
        with pytest.raises(OutOfOrderSequenceError):
            send(log, 9)
        assert not send(log, 8).duplicate


def test_sequences_wrap_at_2_31_through_a_restart() -> None:
    disk = sim_disk()
    log = open_log(disk)
    # As if it had written 2^31 - 2 records before: its table says so.
    send(log, 0)
    state = log.producers.snapshot()
    state["producers"][0][2] = [[SEQUENCES - 4, SEQUENCES - 3, 0, 0, NOW_MS]]
    log.producers = type(log.producers).from_snapshot(state)
    assert not send(log, SEQUENCES - 2, 4).duplicate  # 2147483646, 2147483647, 0, 1
    assert not send(log, 2).duplicate
    log.sync()
    log = killed(disk)
    assert send(log, SEQUENCES - 2, 4).duplicate
    assert send(log, 2).duplicate
    assert not send(log, 3).duplicate


def test_a_new_epoch_fences_the_old_one_through_a_restart() -> None:
    disk = sim_disk()
    log = open_log(disk)
    send(log, 0, 3)
    send(log, 0, epoch=1)
    log.sync()
    log = killed(disk)
    with pytest.raises(ProducerFencedError):
        send(log, 3)
    with pytest.raises(ProducerFencedError):
        send(log, 0, 3)
    assert send(log, 0, epoch=1).duplicate
    assert not send(log, 1, epoch=1).duplicate


def test_an_unknown_producer_starts_at_0() -> None:
    log = open_log(sim_disk())
    with pytest.raises(OutOfOrderSequenceError, match="5, expected 0"):
        send(log, 5)
    assert log.log_end_offset == 0
    send(log, 0)


def test_a_refused_batch_changes_nothing() -> None:
    disk = sim_disk()
    log = open_log(disk)
    send(log, 0, 3)
    before, table = stored(log), as_model(log.producers)
    for sequence, epoch in ((5, 0), (1, 1)):
        with pytest.raises(OutOfOrderSequenceError):
            send(log, sequence, epoch=epoch)
    assert (stored(log), as_model(log.producers)) == (before, table)


def test_who_has_not_written_for_a_week_is_forgotten_by_retention() -> None:
    config = TopicConfig(retention_ms=-1)
    log = open_log(sim_disk(), config)
    send(log, 0)
    log.apply_retention(now_ms=NOW_MS + PRODUCER_EXPIRY_MS, high_watermark=1)
    assert send(log, 0).duplicate
    log.apply_retention(now_ms=NOW_MS + PRODUCER_EXPIRY_MS + 1, high_watermark=1)
    with pytest.raises(OutOfOrderSequenceError):
        send(log, 1)
    assert values(log) == [b"0"]


def test_batches_of_many_producers_keep_their_own_sequences() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for number in range(8):
        for producer_id in range(20):
            send(log, number, producer_id=producer_id)
    log.sync()
    log = killed(disk)
    assert all(send(log, 7, producer_id=producer_id).duplicate for producer_id in range(20))
    assert not any(send(log, 8, producer_id=producer_id).duplicate for producer_id in range(20))
