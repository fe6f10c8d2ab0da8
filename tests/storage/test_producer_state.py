"""Producers of a log: idempotence, and transactions."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.client.fetcher import _batches
from raftlog.config import TopicConfig
from raftlog.errors import (
    DamagedLogError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StaleTransactionCoordinatorError,
    ThrottledError,
)
from raftlog.protocol.records import AbortedTransaction
from raftlog.record import KAFKA_ROWS, BatchHeader, decode_lists, parse_header
from raftlog.record.batch import COMPACTED, CONTROL, HEADER_BYTES, TRANSACTIONAL
from raftlog.record.kafka_batch import marker_batch, to_kafka
from raftlog.storage import Log, state_files
from raftlog.storage.producer_state import (
    PRODUCER_EXPIRY_MS,
    SEQUENCES,
    Aborted,
    LastWritten,
    ProducerTable,
    WrittenBatch,
    last_sequence,
)
from raftlog.testing.disk import Fault, SimDisk
from raftlog.transactions import Marker
from raftlog.types import TopicPartition
from tests.storage.compactions import COMPACT, begin, compact, put, seal
from tests.storage.logs import (
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    batch_of,
    files,
    fill,
    killed,
    open_log,
    searched,
    sim_disk,
    stored,
    values,
)
from tests.storage.model import as_model

# -- idempotence -----------------------------------------------------------------------------------

# Idempotence: duplicates answered, gaps refused, sequences that wrap, memory that is bounded.


ID = 7


def header_of(
    sequence: int,
    *,
    count: int = 1,
    epoch: int = 0,
    offset: int = 0,
    producer_id: int = ID,
    value: bytes = b"x",
) -> BatchHeader:
    header = parse_header(batch_of([value] * count, producer=(producer_id, epoch, sequence)))
    return header._replace(base_offset=offset, append_timestamp=NOW_MS + offset)


def table_of(*headers: BatchHeader) -> ProducerTable:
    table = ProducerTable()
    for header in headers:
        assert table.check(header) is None
        table.note(header)
    return table


def test_sequences_follow_on_each_other() -> None:
    table = table_of(header_of(0, count=3), header_of(3, count=2), header_of(5))
    assert table.check(header_of(6)) is None


@pytest.mark.parametrize("sequence", [0, 1, 5, SEQUENCES - 1])
def test_an_unknown_producer_starts_at_0(sequence: int) -> None:
    if sequence == 0:
        assert ProducerTable().check(header_of(sequence)) is None
        return
    with pytest.raises(OutOfOrderSequenceError, match=f"sequence {sequence}, expected 0"):
        ProducerTable().check(header_of(sequence))


def test_an_unknown_producer_of_kafka_starts_anywhere() -> None:
    def kafka(sequence: int, epoch: int = 0) -> BatchHeader:
        return header_of(sequence, epoch=epoch)._replace(layout=KAFKA_ROWS)

    table = table_of(kafka(5), kafka(6))
    for gap in (kafka(8), kafka(4), kafka(7, epoch=1)):
        with pytest.raises(OutOfOrderSequenceError):
            table.check(gap)
    table.expire(now_ms=NOW_MS + PRODUCER_EXPIRY_MS + 7)
    assert table.check(kafka(7)) is None


@pytest.mark.parametrize("sequence", [4, 6, 100, SEQUENCES - 1])
def test_a_gap_is_refused_in_either_direction(sequence: int) -> None:
    table = table_of(header_of(0, count=5))
    with pytest.raises(OutOfOrderSequenceError, match=f"{sequence}, expected 5"):
        table.check(header_of(sequence))


def test_a_duplicate_of_the_last_few_is_answered_with_where_it_is() -> None:
    count = limits.PRODUCER_BATCHES_REMEMBERED
    table = table_of(*(header_of(2 * n, count=2, offset=100 + 2 * n) for n in range(count + 2)))
    for n in range(2, count + 2):
        offset, again = 100 + 2 * n, header_of(2 * n, count=2)
        assert table.check(again) == WrittenBatch(
            2 * n, 2 * n + 1, offset, offset + 1, NOW_MS + offset, again.crc32c
        )
    with pytest.raises(OutOfOrderSequenceError, match="older than the last 5"):
        table.check(header_of(2, count=2))


def test_the_same_sequence_with_another_count_is_no_duplicate() -> None:
    table = table_of(header_of(0, count=2))
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(0, count=3))


def test_other_records_in_the_place_of_a_stored_batch_are_no_duplicate() -> None:
    """They would be acknowledged, and not stored."""
    table = table_of(header_of(0, count=2), header_of(2, count=2))
    for sequence in (0, 2):
        assert table.check(header_of(sequence, count=2)) is not None
        with pytest.raises(OutOfOrderSequenceError, match=f"sequence {sequence}, expected 4"):
            table.check(header_of(sequence, count=2, value=b"y"))
    copy = ProducerTable.from_snapshot(table.snapshot())
    with pytest.raises(OutOfOrderSequenceError):
        copy.check(header_of(2, count=2, value=b"y"))


def test_the_sequences_of_a_kafka_batch_tell_a_duplicate() -> None:
    """kafkajs repeats a batch with new timestamps, and so with another checksum."""
    stored = header_of(0, count=2)._replace(layout=KAFKA_ROWS)
    table = table_of(stored)
    assert table.check(stored._replace(crc32c=stored.crc32c ^ 1)) is not None
    with pytest.raises(OutOfOrderSequenceError):
        table.check(stored._replace(crc32c=stored.crc32c ^ 1, last_offset_delta=2))


def test_where_the_checksum_is_not_known_the_sequences_tell_a_duplicate() -> None:
    """Of a compacted batch, and in a snapshot of an older release."""
    header = header_of(0, count=2, offset=5)
    compacted = ProducerTable()
    compacted.note(header._replace(leader_flags=COMPACTED, crc32c=1))
    rows = table_of(header).snapshot()["producers"]
    older = {"producers": [[*row[:2], [batch[:5] for batch in row[2]]] for row in rows]}
    for table in (compacted, ProducerTable.from_snapshot(older)):
        assert table.check(header) is not None
        assert table.last_written(ID) == LastWritten(0, 1, 6, 5)


def test_sequences_wrap_from_the_largest_to_0() -> None:
    table = ProducerTable()
    table.note(header_of(SEQUENCES - 2, count=2, offset=10))
    assert table.check(header_of(0)) is None
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(1))
    assert table.check(header_of(SEQUENCES - 2, count=2)) is not None


def test_a_batch_may_span_the_wrap() -> None:
    table = ProducerTable()
    table.note(header_of(SEQUENCES - 2, count=5, offset=10))
    assert last_sequence(SEQUENCES - 2, 5) == 2
    assert table.check(header_of(3)) is None
    duplicate = table.check(header_of(SEQUENCES - 2, count=5))
    assert duplicate is not None
    assert (duplicate.base_offset, duplicate.last_offset) == (10, 14)


def test_a_new_epoch_starts_at_0_and_fences_the_old_one() -> None:
    table = table_of(header_of(0, count=3), header_of(0, epoch=2))
    with pytest.raises(ProducerFencedError, match="epoch 1 is fenced by epoch 2"):
        table.check(header_of(3, epoch=1))
    with pytest.raises(ProducerFencedError, match="Stop this instance"):
        table.check(header_of(0, count=3))
    with pytest.raises(ProducerFencedError, match="the transaction was aborted"):
        table.check(header_of(3, epoch=1)._replace(attributes=TRANSACTIONAL))
    assert table.check(header_of(1, epoch=2)) is None


def test_a_new_epoch_may_not_start_in_the_middle() -> None:
    with pytest.raises(OutOfOrderSequenceError, match="1, expected 0"):
        table_of(header_of(0)).check(header_of(1, epoch=1))


def test_producers_are_listed_by_their_last_write() -> None:
    table = table_of(
        *(header_of(0, producer_id=each, offset=each) for each in range(5)),
        header_of(1, count=2, producer_id=1, offset=5),
        header_of(0, producer_id=3, epoch=2, offset=7),
    )
    listed = table.active(0, 10)
    assert [one.producer_id for one in listed] == [3, 1, 4, 2, 0]
    assert [one.producer_id for one in table.active(1, 2)] == [1, 4]
    assert (table.active(5, 10), table.active(0, 0)) == ([], [])
    assert [
        (one.epoch, one.newest.last_sequence, one.newest.last_offset) for one in listed[:2]
    ] == [
        (2, 0, 7),
        (0, 2, 6),
    ]
    assert listed[1].newest.append_timestamp_ms == NOW_MS + 5


def test_producers_do_not_mix() -> None:
    table = table_of(header_of(0, count=3), header_of(0, producer_id=8))
    assert table.check(header_of(3)) is None
    assert table.check(header_of(1, producer_id=8)) is None
    assert len(table) == 2


def test_beyond_the_limit_the_one_that_wrote_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 3)
    table = ProducerTable()
    for producer_id in (1, 2, 3):
        table.note(header_of(0, producer_id=producer_id))
    table.note(header_of(1, producer_id=1))
    table.note(header_of(0, producer_id=4))
    assert len(table) == 3
    assert table.check(header_of(2, producer_id=1)) is None
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(1, producer_id=2))


def test_who_has_not_written_for_long_is_forgotten() -> None:
    table = table_of(header_of(0, offset=0), header_of(0, offset=50, producer_id=8))
    assert table.expire(now_ms=NOW_MS + PRODUCER_EXPIRY_MS) == 0
    assert table.expire(now_ms=NOW_MS + PRODUCER_EXPIRY_MS + 1) == 1
    assert len(table) == 1
    assert table.check(header_of(1, producer_id=8)) is None


def test_a_snapshot_is_the_table() -> None:
    table = table_of(
        *(header_of(n, offset=n) for n in range(8)), header_of(0, producer_id=8, offset=9)
    )
    copy = ProducerTable.from_snapshot(table.snapshot())
    assert copy.snapshot() == table.snapshot()
    assert copy.check(header_of(7)) == table.check(header_of(7))
    with pytest.raises(OutOfOrderSequenceError):
        copy.check(header_of(1))


def test_a_snapshot_keeps_who_wrote_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 2)
    table = table_of(header_of(0, producer_id=1), header_of(0, producer_id=2))
    table.note(header_of(1, producer_id=1))
    copy = ProducerTable.from_snapshot(table.snapshot())
    copy.note(header_of(0, producer_id=3))
    assert copy.check(header_of(2, producer_id=1)) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=14), st.data())
def test_cutting_gives_the_table_of_the_shorter_log(
    batches: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Also when the log itself has lost its first part to retention."""
    headers, offset, epoch, sequence = [], 0, 0, 0
    for count, is_new_epoch in batches:
        if is_new_epoch:
            epoch, sequence = epoch + 1, 0
        headers.append(header_of(sequence, count=count, epoch=epoch, offset=offset))
        offset, sequence = offset + count, sequence + count
    cut = data.draw(st.integers(0, len(headers)))
    first_left = data.draw(st.integers(0, cut))
    end = headers[cut].base_offset if cut < len(headers) else offset
    table, expected, rebuilt = ProducerTable(), ProducerTable(), ProducerTable()
    for number, header in enumerate(headers):
        table.note(header)
        if number < cut:
            expected.note(header)
            if number >= first_left:
                rebuilt.note(header)
    table.cut(end, rebuilt)
    if len(headers) - cut < limits.PRODUCER_BATCHES_REMEMBERED and (
        cut == len(headers) or not any(new for _, new in batches[cut:])
    ):
        assert table.snapshot() == expected.snapshot() or first_left > 0
        known = table.snapshot()["producers"]
        assert [row[:2] for row in known] == [row[:2] for row in expected.snapshot()["producers"]]
        if known:
            assert known[0][2][-1] == expected.snapshot()["producers"][0][2][-1]
    elif first_left == 0:
        assert table.snapshot() == expected.snapshot()
    if (written := table.last_written(ID)) is not None:
        left = headers[first_left:cut]
        of_epoch = [one.base_offset for one in left if one.producer_epoch == written.epoch]
        assert not of_epoch or written.first_offset <= of_epoch[0]


def test_cutting_keeps_the_checksum_of_a_batch_that_was_compacted() -> None:
    """Else other records of the same sequences count as a duplicate of it."""
    headers = [header_of(number, offset=number) for number in range(3)]
    table, rebuilt = table_of(*headers), ProducerTable()
    rebuilt.note(headers[1]._replace(leader_flags=COMPACTED))
    table.cut(2, rebuilt)
    assert table.snapshot() == table_of(*headers[:2]).snapshot()
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(1, value=b"other"))


def marked(header: BatchHeader, attributes: int) -> BatchHeader:
    return header._replace(attributes=header.attributes | attributes)


@pytest.mark.parametrize(
    ("removed", "is_known"),
    [
        pytest.param([], True, id="nothing"),
        pytest.param([header_of(3, offset=3), header_of(4, offset=4)], True, id="the newest"),
        pytest.param([header_of(0, offset=3, producer_id=99)], True, id="of an expired producer"),
        pytest.param([header_of(0, epoch=1, offset=4)], False, id="a newer epoch"),
        pytest.param([header_of(n, offset=n) for n in range(5)], False, id="all of a producer"),
        pytest.param([marked(header_of(4, offset=4), TRANSACTIONAL)], False, id="transactional"),
        pytest.param([marked(header_of(4, offset=4), CONTROL)], False, id="a marker"),
    ],
)
def test_a_cut_needs_no_replay_if_each_producer_is_known_without_one(
    removed: list[BatchHeader], is_known: bool
) -> None:
    table = table_of(*(header_of(n, offset=n) for n in range(5)))
    end = min((header.base_offset for header in removed), default=5)
    assert table.needs_no_replay(iter(removed), end) is is_known
    if is_known:
        table.cut(end, None)
        replayed = table_of(*(header_of(n, offset=n) for n in range(end)))
        assert table.snapshot() == replayed.snapshot()


def test_what_a_producer_wrote_last() -> None:
    table = table_of(
        header_of(0, count=3, offset=10),
        header_of(3, count=2, offset=20),
        header_of(0, epoch=4, offset=30, producer_id=8),
    )
    assert table.last_written(ID) == LastWritten(0, 4, 21, 10)
    assert table.last_written(8) == LastWritten(4, 0, 30, 30)
    assert table.last_written(9) is None
    table.note(header_of(0, epoch=1, offset=40))
    assert table.last_written(ID) == LastWritten(1, 0, 40, 40)


RECORDS = 12  # of the work, which each run of the model has in an order of its own
numbered = cache(header_of)  # making one takes longer than all that is done with it


class Sent(NamedTuple):
    """A batch of a run, and the records in it."""

    header: BatchHeader
    records: tuple[int, ...]


class Run:
    """A run of a producer with a name: it reads what is stored, and appends the rest in its order.

    It sends a batch when the one before is acknowledged, and ends at the first that is refused.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self.order = order
        self.left: list[int] | None = None  # the records that it has to append; None: not running
        self.next = 0  # the number of the next record
        self.in_flight: Sent | None = None

    def begin(self, stored: Sequence[int]) -> None:
        self.left = [record for record in self.order if record not in stored]
        self.next, self.in_flight = len(stored), None

    def send(self, count: int) -> Sent | None:
        """The next batch; None when there is none, or one is in flight."""
        if not self.left or self.in_flight is not None:
            return None
        records = tuple(self.left[:count])
        header = numbered(self.next, count=len(records))
        self.in_flight = Sent(header._replace(crc32c=hash(records)), records)
        return self.in_flight

    def hear(self, sent: Sent, *, is_stored: bool) -> None:
        """What became of a batch, if the run still waits for that."""
        if sent is not self.in_flight or self.left is None:
            return
        self.in_flight = None
        self.left = self.left[len(sent.records) :] if is_stored else None
        self.next += len(sent.records)


class Model:
    """A partition's log, its producers, and a network that keeps, repeats and reorders batches."""

    def __init__(self) -> None:
        self.table = ProducerTable()
        self.log: list[Sent] = []
        self.committed = 0  # batches of the log
        self.sent: list[tuple[Run, Sent]] = []  # ever: each may arrive at any time, and again
        self.noted: set[int] = set()  # records that some run knows to be stored

    @property
    def records(self) -> list[int]:
        """Which records are in the log, in its order."""
        return [record for sent in self.log for record in sent.records]

    def begin(self, run: Run) -> None:
        """As the leader answers: what it speaks of is committed by then, and can be read."""
        written = self.table.last_written(ID)
        assert len(self.records) == (0 if written is None else written.last_sequence + 1)
        self.committed = len(self.log)
        self.noted.update(self.records)
        run.begin(self.records)

    def send(self, run: Run, count: int) -> None:
        sent = run.send(count)
        if sent is not None:
            self.sent.append((run, sent))

    def arrive(self, run: Run, sent: Sent, *, is_answered: bool) -> None:
        is_stored = True
        try:
            if self.table.check(sent.header) is None:
                header = sent.header._replace(base_offset=len(self.records))
                self.log.append(Sent(header, sent.records))
                self.table.note(header)
        except OutOfOrderSequenceError:
            is_stored = False
        if is_answered:
            if is_stored:
                self.committed = len(self.log)
                self.noted.update(sent.records)
            run.hear(sent, is_stored=is_stored)

    def elect(self, kept: int) -> None:
        """Another leader, whose log may lack what is not committed."""
        del self.log[max(kept, self.committed) :]
        self.table.cut(len(self.records), table_of(*(sent.header for sent in self.log)))

    def check(self) -> None:
        assert len(set(self.records)) == len(self.records), "each once"
        assert self.noted <= set(self.records), "what a run leaves out stays"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "repeat", "begin", "crash", "elect"]),
        st.integers(0, 7),  # which run, batch or place in the log
        st.integers(1, 4),  # how many records
        st.booleans(),  # whether the answer arrives
    ),
    min_size=20,
    max_size=60,
)


@given(STEPS, st.permutations(range(RECORDS)))
def test_runs_of_one_name_store_each_record_once_in_whatever_order(
    steps: list[tuple[str, int, int, bool]], order: list[int]
) -> None:
    """Whatever they append at the same time, in whatever batches, and whatever becomes of those."""
    model = Model()
    runs = [Run(range(RECORDS)), Run(order)]
    for run in runs:
        model.begin(run)
    for what, which, count, is_answered in steps:
        run = runs[which % 2]
        if what == "begin":
            model.begin(run)
        elif what == "send":
            before = len(model.sent)
            model.send(run, count)
            if which < 6:  # the others may arrive later, or never
                for sender, sent in model.sent[before:]:
                    model.arrive(sender, sent, is_answered=is_answered)
        elif what == "repeat" and model.sent:
            sender, sent = model.sent[-1 - which % len(model.sent)]
            model.arrive(sender, sent, is_answered=is_answered)
        elif what == "crash":
            runs[which % 2] = Run(run.order)
        elif what == "elect":
            model.elect(which)
        model.check()
    last = Run(order)
    model.begin(last)
    while last.left:
        model.send(last, 5)
        model.arrive(*model.sent[-1], is_answered=True)
    assert sorted(model.records) == list(range(RECORDS)), "with no other run, one gets to the end"


# -- idempotence -----------------------------------------------------------------------------------
#
# P4: a retried send is appended once, through restarts, retention, truncation and full replays.


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


def test_a_snapshot_is_that_of_its_moment() -> None:
    """A thread writes it while the log goes on."""
    log = open_log(sim_disk())
    send(log, 0)
    transactions_send(log, OTHER, 0)
    end(log, OTHER, commit=False)
    state = log.producers.snapshot()
    before = state_files.text_of(state)
    send(log, 1)
    transactions_send(log, OTHER, 1)
    end(log, OTHER, commit=False)
    assert state_files.text_of(state) == before != state_files.text_of(log.producers.snapshot())
    assert state_files.text_in_parts(state) == before


def test_sequences_wrap_at_2_31_through_a_restart() -> None:
    disk = sim_disk()
    log = open_log(disk)
    # As if it had written 2^31 - 2 records before: its table says so.
    send(log, 0)
    state = log.producers.snapshot()
    (producer_id, epoch, _batches, *rest), *_ = state["producers"]
    batches = [[SEQUENCES - 4, SEQUENCES - 3, 0, 0, NOW_MS]]
    state["producers"] = [[producer_id, epoch, batches, *rest]]
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


def test_an_unknown_producer_starts_at_0_in_idempotence() -> None:
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


# -- transactions ----------------------------------------------------------------------------------

# Transactions of a log: what readers of committed records may see, after any restart.


ONE: Final = 7  # producers
OTHER: Final = 8
BIG: Final = b"x" * 900  # two batches fill a segment of ``SMALL``


def transactions_send(
    log: Log, producer: int, sequence: int, *, epoch: int = 0, value: bytes = b"x", **options: int
) -> int:
    """Append a transactional batch of one record; return its offset."""
    return append(
        log, value, producer=(producer, epoch, sequence), is_transactional=True, **options
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
    transactions_send(log, ONE, 0, value=BIG)
    transactions_send(log, OTHER, 0, value=BIG)
    transactions_send(log, ONE, 1, value=BIG)
    transactions_send(log, OTHER, 1, value=BIG)
    assert end(log, ONE, commit=False) == 4
    assert end(log, OTHER, commit=True) == 5
    transactions_send(log, ONE, 2, value=BIG)
    log.sync()


def test_the_stable_offset_waits_for_the_oldest_transaction() -> None:
    log = open_log(sim_disk())
    append(log, b"plain")
    assert stable(log) == 1
    transactions_send(log, ONE, 0)
    transactions_send(log, OTHER, 0)
    assert stable(log) == 1
    end(log, ONE, commit=True)
    assert stable(log) == 2
    end(log, OTHER, commit=False)
    assert stable(log) == log.log_end_offset == 5


@pytest.mark.parametrize("restart", [lambda disk: None, killed])
def test_a_time_is_not_that_of_a_marker(restart: Callable[[SimDisk], Log | None]) -> None:
    """A marker has the time of its commit, and records may be older than those before them."""
    disk = sim_disk()
    log = open_log(disk)
    for number in range(4):
        value = {"producer": (ONE, 0, number), "is_transactional": True}
        append(log, BIG, timestamps_ms=NOW_MS - 90 + number, **value)
        end(log, ONE, commit=True)
    log.sync()
    log = restart(disk) or log
    for number in range(5):
        found = searched(log.offset_for_timestamp(NOW_MS - 90 + number, end_offset=8))
        assert found == (None if number == 4 else (2 * number, NOW_MS - 90 + number))
    assert log.newest_timestamp_ms == NOW_MS - 87


def test_a_time_is_that_of_an_aborted_record_only_for_those_who_read_it() -> None:
    """Of a transaction that is repeated, the records of both attempts have the same times."""
    log = open_log(sim_disk())
    for attempt, is_commit in enumerate((False, True)):
        for number in range(4):
            value = {"producer": (ONE, 0, 4 * attempt + number), "is_transactional": True}
            append(log, BIG, timestamps_ms=NOW_MS - 90 + number, **value)
            append(log, b"plain", timestamps_ms=NOW_MS - 95)
        end(log, ONE, commit=is_commit)
    transactions_send(log, ONE, 8, timestamps_ms=NOW_MS - 80)
    for number in range(4):
        at_ms = NOW_MS - 90 + number
        found = searched(log.offset_for_timestamp(at_ms, end_offset=19, skip_aborted=True))
        assert found == (9 + 2 * number, at_ms)
        assert searched(log.offset_for_timestamp(at_ms, end_offset=19)) == (2 * number, at_ms)
    last = log.offset_for_timestamp(NOW_MS - 85, end_offset=stable(log), skip_aborted=True)
    assert searched(last) is None
    assert searched(log.offset_for_timestamp(NOW_MS - 85, end_offset=19)) == (18, NOW_MS - 80)


def test_a_search_by_time_passes_over_an_aborted_transaction_in_steps() -> None:
    log = open_log(sim_disk())
    for number in range(3):
        transactions_send(log, ONE, number, timestamps_ms=NOW_MS - 90)
    end(log, ONE, commit=False)
    search = log.offset_for_timestamp(NOW_MS - 90, end_offset=4, skip_aborted=True)
    assert list(search) == [None] * 3


def test_a_search_by_time_takes_no_corrupt_batch_for_an_aborted_one() -> None:
    disk = sim_disk()
    log = open_log(disk)
    transactions_send(log, ONE, 0, timestamps_ms=NOW_MS - 90)
    end(log, ONE, commit=False)
    log.sync()
    (path,) = files(disk, ".log")
    disk.flip_bit(path, 8 * HEADER_BYTES)
    with pytest.raises(DamagedLogError, match="their CRC disagree"):
        searched(log.offset_for_timestamp(NOW_MS - 90, end_offset=2, skip_aborted=True))


def test_a_marker_counts_once_it_is_committed() -> None:
    """Without this, a reader gets records whose marker the next leader may lack."""
    log = open_log(sim_disk())
    transactions_send(log, ONE, 0)
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
    transactions_send(log, ONE, 2)


ATTRIBUTES_AT = 44  # of a batch; the CRC of its bytes covers them, the one of the leader does not
PRODUCER_AT = 72
LIES = pytest.mark.parametrize(
    "bit",
    [
        pytest.param(8 * ATTRIBUTES_AT + 6, id="a commit"),
        pytest.param(8 * ATTRIBUTES_AT + 5, id="a record"),
        pytest.param(8 * PRODUCER_AT, id="of another producer"),
    ],
)


def aborted_and_corrupt(disk: SimDisk, config: TopicConfig, bit: int) -> Log:
    """The marker at 1 aborts what is at 0; then a bit of it flips."""
    log = open_log(disk, config)
    transactions_send(log, ONE, 0)
    position = log._segments[-1].size_bytes
    assert end(log, ONE, commit=False) == 1
    append(log, BIG)
    append(log, BIG)
    log.sync()
    disk.flip_bit(files(disk, ".log")[0], 8 * position + bit)
    return log


@LIES
@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT], ids=["segments", "one segment"])
def test_a_truncation_believes_no_corrupt_marker(bit: int, config: TopicConfig) -> None:
    """An aborted transaction would be a committed one, or end never."""
    disk = sim_disk()
    log = aborted_and_corrupt(disk, config, bit)
    transactions_send(log, ONE, 1)  # is truncated, so that the log is replayed
    for path in files(disk, ".producers"):
        disk.remove(path)
    with pytest.raises(DamagedLogError, match="their CRC disagree"):
        log.truncate_to(3)
    assert (log.log_end_offset, log.readable_end_offset, aborted(log)) == (5, 0, [(ONE, 0, 1)])
    assert killed(disk, config).damage


def test_a_truncation_reads_no_segment_that_it_removes() -> None:
    disk = sim_disk()
    log = open_log(disk, SMALL)
    transactions_send(log, ONE, 0)
    end(log, ONE, commit=True)
    while log.segment_count == 1:
        append(log, BIG)
    disk.flip_bit(files(disk, ".log")[-1], 8)
    log.truncate_to(1)
    assert (log.log_end_offset, log.damage) == (1, "")
    assert log.producers.transactions.opened() == [(ONE, 0)]


def test_a_truncation_believes_no_corrupt_batch_that_it_removes() -> None:
    """It belonged to a transaction, so that the log is replayed."""
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    transactions_send(log, ONE, 0)
    end(log, ONE, commit=True)
    position = log._segments[-1].size_bytes
    transactions_send(log, ONE, 1)
    log.sync()
    disk.flip_bit(files(disk, ".log")[0], 8 * (position + ATTRIBUTES_AT) + 4)
    log.truncate_to(2)
    assert log.producers.transactions.opened() == []


@LIES
def test_a_start_believes_no_corrupt_marker(bit: int) -> None:
    disk = sim_disk()
    log = aborted_and_corrupt(disk, ONE_SEGMENT, bit)
    log.close()
    for path in files(disk, ".producers"):
        disk.remove(path)
    log = killed(disk, ONE_SEGMENT)
    assert "their CRC disagree" in log.damage
    assert (log.log_end_offset, log.readable_end_offset) == (4, 1)
    assert log.producers.transactions.opened() == [(ONE, 0)]


def test_aborted_transactions_of_a_range() -> None:
    log = open_log(sim_disk(), ONE_SEGMENT)
    for number in range(10):  # records at 0, 2, 4, ...; markers at 1, 3, 5, ...
        transactions_send(log, ONE, number)
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
    transactions_send(log, ONE, 0)
    for number in range(5):
        transactions_send(log, OTHER, number)
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
    transactions_send(log, ONE, 0)
    end(log, ONE, commit=True)
    if is_open:
        transactions_send(log, ONE, 1)
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
        transactions_send(log, ONE, 0, epoch=4)
    transactions_send(log, ONE, 0, epoch=5)  # sequences begin again
    with pytest.raises(ProducerFencedError):
        log.producers.needs(marker(ONE, commit=False, epoch=4))


def test_sequences_go_on_after_a_marker_of_the_same_epoch() -> None:
    log = open_log(sim_disk())
    transactions_send(log, ONE, 0)
    end(log, ONE, commit=True)
    transactions_send(log, ONE, 1)


def test_batches_outside_of_the_transaction_are_refused() -> None:
    log = open_log(sim_disk())
    transactions_send(log, ONE, 0)
    with pytest.raises(InvalidTransactionStateError):
        append(log, b"plain", producer=(ONE, 0, 1))
    with pytest.raises(InvalidTransactionStateError):
        transactions_send(log, ONE, 0, epoch=1)


def test_open_transactions_outlive_expiry_and_the_limit_of_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.limits.PRODUCERS_PER_PARTITION_MAX", 2)
    log = open_log(sim_disk())
    transactions_send(log, ONE, 0)
    for producer in (20, 21, 22):
        append(log, b"x", producer=(producer, 0, 0))
    log.producers.expire(now_ms=NOW_MS + 2 * PRODUCER_EXPIRY_MS)
    assert log.producers.has_open(ONE, 0)
    assert len(log.producers) == 1


def test_a_marker_counts_as_activity() -> None:
    """KAFKA-9144: a coordinator's marker keeps the producer known."""
    log = open_log(sim_disk())
    transactions_send(log, ONE, 0)
    batch = marker_batch(marker(ONE, commit=True), now_ms=NOW_MS + PRODUCER_EXPIRY_MS)
    log.append_marker(batch, leader_epoch=0, now_ms=NOW_MS + PRODUCER_EXPIRY_MS)
    assert not log.producers.expire(now_ms=NOW_MS + PRODUCER_EXPIRY_MS + 1)


def test_limits_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(sim_disk())
    monkeypatch.setattr("raftlog.limits.TRANSACTIONS_OPEN_PER_PARTITION_MAX", 1)
    transactions_send(log, ONE, 0)
    with pytest.raises(ThrottledError, match="TRANSACTIONS_OPEN_PER_PARTITION_MAX"):
        transactions_send(log, OTHER, 0)
    end(log, ONE, commit=False)
    monkeypatch.setattr("raftlog.limits.TRANSACTIONS_ABORTED_PER_PARTITION_MAX", 1)
    with pytest.raises(ThrottledError, match="TRANSACTIONS_ABORTED_PER_PARTITION_MAX"):
        transactions_send(log, OTHER, 0)


def test_committed_markers_are_not_kept_where_no_reader_asks() -> None:
    """Memory and snapshots of a follower would grow with each transaction."""
    log = open_log(sim_disk())
    for number in range(3):
        transactions_send(log, ONE, number)
        end(log, ONE, commit=True)
    assert len(log.producers.snapshot()["transactions"]["ending"]) == 3
    log.note_high_watermark(log.log_end_offset - 1)
    assert len(log.producers.snapshot()["transactions"]["ending"]) == 1


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


def test_a_marker_that_stays_as_the_last_batch_of_its_producer_makes_no_pass_due() -> None:
    """Without a delete.retention.ms, compactions would never end."""
    log = open_log(sim_disk(), replace(COMPACT, delete_retention_ms=0))
    keyed(log, ONE, 0, b"k", b"1")
    end(log, ONE, commit=True, epoch=1, bumped=True)
    seal(log)
    assert compact(log) == compact(log) == 1
    assert parse_header(stored(log)[-1]).is_control
    assert not compact(log)
    append(log, b"2", keys=[b"k"], producer=(ONE, 1, 0), is_transactional=True)
    end(log, ONE, commit=True, epoch=2, bumped=True)
    seal(log)
    assert compact(log) == compact(log) == 1
    assert [parse_header(each).is_control for each in stored(log)] == [False, True]
    assert log.tombstones_removed_below > 1  # the first marker was there
    assert not compact(log)


def test_a_truncation_does_not_bring_back_what_compaction_has_removed() -> None:
    """The snapshot of producers below its end is older than the compaction."""
    disk = sim_disk()
    log = compacted_log(disk)
    compact(log)
    committed = log.log_end_offset
    keyed(log, ONE, 4, b"n", b"6")
    compact(log, now_ms=NOW_MS + 2 * COMPACT.delete_retention_ms, high_watermark=committed)
    log.truncate_to(committed)
    assert aborted(log) == []
    keyed(log, ONE, 4, b"n", b"7")
    end(log, ONE, commit=True)
    assert readable(log)[-2:] == [(b"j", b"4"), (b"n", b"7")]


def test_what_compaction_has_removed_stays_so_when_the_topic_is_not_compacted_any_longer() -> None:
    disk = sim_disk()
    log = compacted_log(disk)
    compact(log)
    task = begin(log, now_ms=NOW_MS + 2 * COMPACT.delete_retention_ms)
    assert task is not None
    task.run()
    log.complete_compaction(task)
    assert aborted(killed(disk, SMALL)) == []


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_whose_marker_was_removed_is_not_open(commit: bool, goes_on: bool) -> None:
    """The newest snapshot of producers is corrupt, and in the one before it the transaction is
    open. The next transaction of its producer stays open.
    """
    disk = sim_disk()
    log = open_log(disk, COMPACT)
    put(log, (b"k", b"1"))
    keyed(log, ONE, 0, b"k", b"2")
    task = log.begin_sync(snapshot=True)
    assert task is not None
    task.run()
    log.complete_sync(task)
    keyed(log, ONE, 1, b"m", b"6")
    end(log, ONE, commit=commit)
    seal(log)
    compact(log)
    compact(log, now_ms=NOW_MS + 2 * COMPACT.delete_retention_ms)
    expected = readable(log)
    if goes_on:
        keyed(log, ONE, 2, b"n", b"7")
        log.sync()
    disk.flip_bit(files(disk, ".producers")[-1], 100)
    log = killed(disk, COMPACT)
    if goes_on:
        assert log.producers.has_open(ONE, 0)
        end(log, ONE, commit=commit)
        expected += [(b"n", b"7")] * commit
    assert stable(log) == log.log_end_offset
    assert readable(log) == expected


def test_what_compaction_has_removed_is_forgotten_without_a_read() -> None:
    """The thread of the log would read a marker of each aborted transaction, of which there can be
    100,000, or find no descriptor.
    """
    disk = sim_disk()
    log = compacted_log(disk)
    compact(log)
    task = begin(log, now_ms=NOW_MS + 2 * COMPACT.delete_retention_ms)
    assert task is not None
    task.run()
    fault = Fault({"open", "pread"}, errno.EMFILE, path="*.log")
    disk.faults.append(fault)
    log.complete_compaction(task)
    assert aborted(log) == []
    assert fault.times


def test_a_compaction_finds_the_transaction_of_a_batch_among_many() -> None:
    """A search of all of them for each batch would take hours."""

    class Counted(list[Aborted]):
        looked_at = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.looked_at += 1
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[Aborted]:
            raise AssertionError("it looks at all of them")

    log = open_log(sim_disk(), COMPACT)
    for number in range(100):
        keyed(log, ONE, number, b"k", b"%d" % number)
        end(log, ONE, commit=number % 10 == 9)
    seal(log)
    expected = readable(log)
    task = begin(log)
    assert task is not None
    task.work.aborted = {ONE: Counted(task.work.aborted[ONE])}
    task.run()
    log.complete_compaction(task)
    assert readable(log) == expected[-1:]
    assert Counted.looked_at < 100 * 3 * 10


def test_nothing_above_the_stable_offset_is_compacted() -> None:
    log = open_log(sim_disk(), COMPACT)
    put(log, (b"k", b"1"))
    keyed(log, ONE, 0, b"x", BIG)
    put(log, (b"k", BIG))
    put(log, (b"k", BIG))
    seal(log)
    compact(log)
    assert readable(log, upto=log.log_end_offset)[0] == (b"k", b"1")


@pytest.mark.parametrize("bit", [8 * 20, 8 * ATTRIBUTES_AT + 5], ids=["no header", "a record"])
def test_a_corrupt_marker_is_no_missing_one(bit: int) -> None:
    """Without its transaction, readers get the records that it aborts."""
    disk = sim_disk()
    log = compacted_log(disk)
    batches = [parse_header(each) for each in stored(log)]
    number = next(n for n, header in enumerate(batches) if header.is_control)
    position = sum(header.length for header in batches[:number])
    log.note_missing_tombstones(log.log_end_offset)  # else no marker is read
    log.close()
    disk.flip_bit(files(disk, ".log")[0], 8 * position + bit)
    assert aborted(open_log(disk, COMPACT))[0][2] == batches[number].base_offset
