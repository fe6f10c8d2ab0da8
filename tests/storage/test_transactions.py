"""Transactions of a log: what readers of committed records may see, after any restart."""

from __future__ import annotations

from typing import Final

import pytest

from raftlog.client.fetcher import _batches
from raftlog.config import TopicConfig
from raftlog.errors import (
    InvalidTransactionStateError,
    ProducerFencedError,
    StaleTransactionCoordinatorError,
    ThrottledError,
)
from raftlog.protocol.records import AbortedTransaction
from raftlog.record import decode_lists, parse_header
from raftlog.record.kafka_batch import marker_batch, to_kafka
from raftlog.storage import Log
from raftlog.storage.producer_state import PRODUCER_EXPIRY_MS
from raftlog.testing.disk import SimDisk
from raftlog.transactions.values import Marker
from raftlog.types import TopicPartition
from tests.storage.compactions import COMPACT, compact, put, seal
from tests.storage.logs import (
    NOW_MS,
    ONE_SEGMENT,
    after_power_cut,
    append,
    files,
    killed,
    open_log,
    sim_disk,
    stored,
)

ONE: Final = 7  # producers
OTHER: Final = 8
BIG: Final = b"x" * 900  # two batches fill a segment of ``SMALL``


def send(log: Log, producer: int, sequence: int, *, epoch: int = 0, value: bytes = b"x") -> int:
    """Append a transactional batch of one record; return its offset."""
    return append(
        log, value, producer=(producer, epoch, sequence), is_transactional=True
    ).base_offset


def marker(
    producer: int, *, commit: bool, epoch: int = 0, coordinator: int = 3, bumped: bool = False
) -> Marker:
    return Marker(producer, epoch, commit, coordinator, bumped)


def end(log: Log, producer: int, *, commit: bool, epoch: int = 0, bumped: bool = False) -> int:
    batch = marker_batch(marker(producer, commit=commit, epoch=epoch, bumped=bumped), now_ms=NOW_MS)
    return log.append_marker(
        batch, leader_epoch=max(log.leader_epoch, 0), now_ms=NOW_MS
    ).base_offset


def stable(log: Log, high_watermark: int | None = None) -> int:
    mark = log.log_end_offset if high_watermark is None else high_watermark
    return log.producers.transactions.last_stable_offset(mark)


def aborted(log: Log, start: int = 0, upto: int | None = None) -> list[tuple[int, int, int]]:
    found = log.producers.transactions.aborted(start, log.log_end_offset if upto is None else upto)
    return [each[:3] for each in found]


def interleaved(log: Log) -> None:
    """0 and 2 of ONE, which aborts at 4; 1 and 3 of OTHER, which commits at 5; 6 is open."""
    send(log, ONE, 0, value=BIG)
    send(log, OTHER, 0, value=BIG)
    send(log, ONE, 1, value=BIG)
    send(log, OTHER, 1, value=BIG)
    assert end(log, ONE, commit=False) == 4
    assert end(log, OTHER, commit=True) == 5
    send(log, ONE, 2, value=BIG)
    log.sync()


def test_the_stable_offset_waits_for_the_oldest_transaction() -> None:
    log = open_log(sim_disk())
    append(log, b"plain")
    assert stable(log) == 1
    send(log, ONE, 0)
    send(log, OTHER, 0)
    assert stable(log) == 1
    end(log, ONE, commit=True)
    assert stable(log) == 2
    end(log, OTHER, commit=False)
    assert stable(log) == log.log_end_offset == 5


def test_a_marker_counts_once_it_is_committed() -> None:
    """Without this, a reader gets records whose marker the next leader may lack."""
    log = open_log(sim_disk())
    send(log, ONE, 0)
    assert end(log, ONE, commit=True) == 1
    assert stable(log, high_watermark=1) == 0
    assert stable(log, high_watermark=2) == 2


@pytest.mark.parametrize("restart", [killed, after_power_cut, open_log])
@pytest.mark.parametrize("lose", ["nothing", "snapshots"])
def test_a_restart_finds_the_transactions_again(restart: object, lose: str) -> None:
    disk = sim_disk()
    log = open_log(disk)
    interleaved(log)
    if lose == "snapshots":
        for path in files(disk, ".producers"):
            disk.remove(path)
        disk.sync_dir("log")
    assert callable(restart)
    again: Log = restart(disk)
    assert (stable(again), aborted(again)) == (6, [(ONE, 0, 4)])
    assert again.producers.transactions.opened() == [(ONE, 6)]
    assert not again.producers.needs(marker(OTHER, commit=True))


def test_a_follower_computes_the_same() -> None:
    leader, follower = open_log(sim_disk(1)), open_log(sim_disk(2))
    interleaved(leader)
    for batch in stored(leader):
        follower.append_replicated(batch)
    assert follower.producers.snapshot() == leader.producers.snapshot()
    assert (stable(follower), aborted(follower)) == (6, [(ONE, 0, 4)])


def test_truncation_opens_a_transaction_again() -> None:
    log = open_log(sim_disk())
    interleaved(log)
    log.truncate_to(5)
    assert (stable(log), aborted(log, upto=1)) == (1, [(ONE, 0, 4)])
    log.truncate_to(4)
    assert log.producers.transactions.opened() == [(ONE, 0), (OTHER, 1)]
    assert (stable(log), aborted(log)) == (0, [])
    send(log, ONE, 2)


def test_aborted_transactions_of_a_range() -> None:
    log = open_log(sim_disk(), ONE_SEGMENT)
    for number in range(10):  # records at 0, 2, 4, ...; markers at 1, 3, 5, ...
        send(log, ONE, number)
        end(log, ONE, commit=number % 2 == 0)
    assert aborted(log, 0, 4) == [(ONE, 2, 3)]
    assert aborted(log, 3, 7) == [(ONE, 2, 3), (ONE, 6, 7)]
    assert aborted(log, 4, 6) == []
    log.advance_log_start(8).run()
    assert log.producers.transactions.aborted_count == 3


def test_a_long_transaction_is_found_behind_shorter_ones() -> None:
    """It began first and was aborted last: a search that stops at the first later start misses
    it."""
    log = open_log(sim_disk(), ONE_SEGMENT)
    send(log, ONE, 0)
    for number in range(5):
        send(log, OTHER, number)
        end(log, OTHER, commit=False)
    assert end(log, ONE, commit=False) == 11
    assert (ONE, 0, 11) in aborted(log, 0, 2)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    ("epoch", "coordinator", "bumped", "outcome"),
    [
        (0, 3, False, "open"),  # of the transaction's epoch: needed while it is open
        (1, 3, False, True),  # a fence
        (1, 3, True, True),
        (0, 3, True, "once"),  # of an epoch that must be bumped (KIP-1228)
        (1, 2, False, StaleTransactionCoordinatorError),
    ],
)
def test_which_markers_a_log_needs(
    is_open: bool, epoch: int, coordinator: int, bumped: bool, outcome: object
) -> None:
    log = open_log(sim_disk())
    send(log, ONE, 0)
    end(log, ONE, commit=True)
    if is_open:
        send(log, ONE, 1)
    wanted = marker(ONE, commit=True, epoch=epoch, coordinator=coordinator, bumped=bumped)
    if outcome == "once":
        outcome = ProducerFencedError if is_open else False
    if outcome == "open":
        outcome = is_open
    if isinstance(outcome, bool):
        assert log.producers.needs(wanted) is outcome
        return
    assert isinstance(outcome, type)
    assert issubclass(outcome, Exception)
    with pytest.raises(outcome):
        log.producers.needs(wanted)


def test_a_marker_of_an_unknown_producer_fences_late_batches_of_a_bumped_epoch() -> None:
    log = open_log(sim_disk())
    assert log.producers.needs(marker(ONE, commit=False, epoch=5, bumped=True))
    assert not log.producers.needs(marker(ONE, commit=False, epoch=5))
    end(log, ONE, commit=False, epoch=5, bumped=True)
    with pytest.raises(ProducerFencedError):
        send(log, ONE, 0, epoch=4)
    send(log, ONE, 0, epoch=5)  # sequences begin again
    with pytest.raises(ProducerFencedError):
        log.producers.needs(marker(ONE, commit=False, epoch=4))


def test_sequences_go_on_after_a_marker_of_the_same_epoch() -> None:
    log = open_log(sim_disk())
    send(log, ONE, 0)
    end(log, ONE, commit=True)
    send(log, ONE, 1)


def test_batches_outside_of_the_transaction_are_refused() -> None:
    log = open_log(sim_disk())
    send(log, ONE, 0)
    with pytest.raises(InvalidTransactionStateError):
        append(log, b"plain", producer=(ONE, 0, 1))
    with pytest.raises(InvalidTransactionStateError):
        send(log, ONE, 0, epoch=1)


def test_open_transactions_outlive_expiry_and_the_limit_of_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.limits.PRODUCERS_PER_PARTITION_MAX", 2)
    log = open_log(sim_disk())
    send(log, ONE, 0)
    for producer in (20, 21, 22):
        append(log, b"x", producer=(producer, 0, 0))
    log.producers.expire(now_ms=NOW_MS + 2 * PRODUCER_EXPIRY_MS)
    assert log.producers.has_open(ONE, 0)
    assert len(log.producers) == 1


def test_a_marker_counts_as_activity() -> None:
    """KAFKA-9144: a coordinator's marker keeps the producer known."""
    log = open_log(sim_disk())
    send(log, ONE, 0)
    batch = marker_batch(marker(ONE, commit=True), now_ms=NOW_MS + PRODUCER_EXPIRY_MS)
    log.append_marker(batch, leader_epoch=0, now_ms=NOW_MS + PRODUCER_EXPIRY_MS)
    assert not log.producers.expire(now_ms=NOW_MS + PRODUCER_EXPIRY_MS + 1)


def test_limits_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(sim_disk())
    monkeypatch.setattr("raftlog.limits.TRANSACTIONS_OPEN_PER_PARTITION_MAX", 1)
    send(log, ONE, 0)
    with pytest.raises(ThrottledError, match="TRANSACTIONS_OPEN_PER_PARTITION_MAX"):
        send(log, OTHER, 0)
    end(log, ONE, commit=False)
    monkeypatch.setattr("raftlog.limits.TRANSACTIONS_ABORTED_PER_PARTITION_MAX", 1)
    with pytest.raises(ThrottledError, match="TRANSACTIONS_ABORTED_PER_PARTITION_MAX"):
        send(log, OTHER, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_kafkas_control_batch(commit: bool) -> None:
    """As of ``EndTransactionMarker``: attributes 0x30, no sequence, and a row of two versions."""
    log = open_log(sim_disk(), TopicConfig())
    end(log, 1_000, commit=commit, epoch=2)
    batch = stored(log)[0]
    header = parse_header(batch)
    assert (header.is_control, header.is_commit, header.base_sequence) == (True, commit, 3)
    sent = b"".join(bytes(part) for part in to_kafka(batch))
    body = sent[21:]
    assert sent[8:17].hex() == f"{len(sent) - 12:08x}" + "00000000" + "02"
    row = f"0000000800000{1 if commit else 0:03x}0c00000000000300"
    assert body.hex() == (
        "0030" + "00000000" + f"{NOW_MS:016x}" * 2 + f"{1_000:016x}" + "0002" + "ffffffff"
        "00000001" + f"{len(row):02x}" + row
    )


# -- compaction ------------------------------------------------------------------------------------


def keyed(log: Log, producer: int, sequence: int, key: bytes, value: bytes) -> None:
    append(log, value, keys=[key], producer=(producer, 0, sequence), is_transactional=True)


def readable(log: Log, upto: int | None = None) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values that a reader of committed records gets."""
    end_offset = stable(log) if upto is None else upto
    listed = [
        AbortedTransaction(producer_id=each[0], first_offset=each[1])
        for each in aborted(log, 0, end_offset)
    ]
    data = b"".join(log.read(start_offset=0, end_offset=end_offset, bytes_max=1 << 20))
    batches, error = _batches(memoryview(data), TopicPartition("t", 0), listed)
    assert error is None
    lists = [decode_lists(batch.data) for batch in batches]
    return [pair for each in lists for pair in zip(each.keys, each.values, strict=True)]


def compacted_log(disk: SimDisk) -> Log:
    """ONE aborts k=2 and m=6 and commits k=3 and j=4 later; plain k=1 and m=0 lie before."""
    log = open_log(disk, COMPACT)
    put(log, (b"k", b"1"), (b"m", b"0"))
    keyed(log, ONE, 0, b"k", b"2")
    keyed(log, ONE, 1, b"m", b"6")
    end(log, ONE, commit=False)
    keyed(log, OTHER, 0, b"l", b"5")
    keyed(log, ONE, 2, b"k", b"3")
    keyed(log, ONE, 3, b"j", b"4")
    end(log, ONE, commit=True)
    end(log, OTHER, commit=False)
    seal(log)
    return log


def test_compaction_removes_aborted_records_and_keeps_what_readers_get() -> None:
    """An aborted record must not replace a committed one of its key."""
    disk = sim_disk()
    log = compacted_log(disk)
    assert readable(log) == [(b"k", b"1"), (b"m", b"0"), (b"k", b"3"), (b"j", b"4")]
    assert compact(log)
    assert readable(log) == [(b"m", b"0"), (b"k", b"3"), (b"j", b"4")]
    assert sum(parse_header(each).record_count for each in stored(log)) == 3 + 3  # and markers
    assert readable(killed(disk, COMPACT)) == [(b"m", b"0"), (b"k", b"3"), (b"j", b"4")]


def test_markers_go_when_no_replica_needs_them() -> None:
    disk = sim_disk()
    log = compacted_log(disk)
    compact(log)
    assert sum(parse_header(each).is_control for each in stored(log)) == 3
    later = NOW_MS + 2 * COMPACT.delete_retention_ms
    compact(log, now_ms=later, tombstones_kept_from=0)
    assert sum(parse_header(each).is_control for each in stored(log)) == 3
    compact(log, now_ms=later)
    assert sum(parse_header(each).is_control for each in stored(log)) == 0
    assert aborted(log) == []
    keyed(log, ONE, 4, b"n", b"7")
    end(log, ONE, commit=True)
    for each in (lambda: log, lambda: killed(disk, COMPACT)):
        assert readable(each())[-2:] == [(b"j", b"4"), (b"n", b"7")]


def test_nothing_above_the_stable_offset_is_compacted() -> None:
    log = open_log(sim_disk(), COMPACT)
    put(log, (b"k", b"1"))
    keyed(log, ONE, 0, b"x", BIG)
    put(log, (b"k", BIG))
    put(log, (b"k", BIG))
    seal(log)
    compact(log)
    assert readable(log, upto=log.log_end_offset)[0] == (b"k", b"1")


def test_a_corrupt_marker_does_not_keep_a_log_from_opening() -> None:
    disk = sim_disk()
    log = compacted_log(disk)
    batches = [parse_header(each) for each in stored(log)]
    number = next(n for n, header in enumerate(batches) if header.is_control)
    position = sum(header.length for header in batches[:number])
    log.close()
    disk.flip_bit(files(disk, ".log")[0], 8 * (position + 20))
    assert aborted(open_log(disk, COMPACT))[0][2] == batches[number].base_offset
