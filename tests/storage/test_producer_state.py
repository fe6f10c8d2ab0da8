"""Idempotence: duplicates answered, gaps refused, sequences that wrap, memory that is bounded."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import OutOfOrderSequenceError, ProducerFencedError
from raftlog.record import BatchHeader, parse_header
from raftlog.storage.producer_state import (
    PRODUCER_EXPIRY_MS,
    SEQUENCES,
    LastWritten,
    ProducerTable,
    WrittenBatch,
    last_sequence,
)
from tests.storage.logs import NOW_MS, batch_of

ID = 7


def header_of(
    sequence: int, *, count: int = 1, epoch: int = 0, offset: int = 0, producer_id: int = ID
) -> BatchHeader:
    header = parse_header(batch_of([b"x"] * count, producer=(producer_id, epoch, sequence)))
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
    with pytest.raises(OutOfOrderSequenceError, match=f"sequence {sequence} where 0 comes next"):
        ProducerTable().check(header_of(sequence))


@pytest.mark.parametrize("sequence", [4, 6, 100, SEQUENCES - 1])
def test_a_gap_is_refused_in_either_direction(sequence: int) -> None:
    table = table_of(header_of(0, count=5))
    with pytest.raises(OutOfOrderSequenceError, match=f"{sequence} where 5 comes next"):
        table.check(header_of(sequence))


def test_a_duplicate_of_the_last_few_is_answered_with_where_it_is() -> None:
    count = limits.PRODUCER_BATCHES_REMEMBERED
    table = table_of(*(header_of(2 * n, count=2, offset=100 + 2 * n) for n in range(count + 2)))
    for n in range(2, count + 2):
        offset = 100 + 2 * n
        assert table.check(header_of(2 * n, count=2)) == WrittenBatch(
            2 * n, 2 * n + 1, offset, offset + 1, NOW_MS + offset
        )
    with pytest.raises(OutOfOrderSequenceError, match="older than the last 5"):
        table.check(header_of(2, count=2))


def test_the_same_sequence_with_another_count_is_no_duplicate() -> None:
    table = table_of(header_of(0, count=2))
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(0, count=3))


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
    with pytest.raises(ProducerFencedError):
        table.check(header_of(0, count=3))
    assert table.check(header_of(1, epoch=2)) is None


def test_a_new_epoch_may_not_start_in_the_middle() -> None:
    with pytest.raises(OutOfOrderSequenceError, match="1 where 0 comes next"):
        table_of(header_of(0)).check(header_of(1, epoch=1))


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


def test_what_a_producer_wrote_last() -> None:
    table = table_of(
        header_of(0, count=3, offset=10),
        header_of(3, count=2, offset=20),
        header_of(0, epoch=4, offset=30, producer_id=8),
    )
    assert table.last_written(ID) == LastWritten(0, 4, 21)
    assert table.last_written(8) == LastWritten(4, 0, 30)
    assert table.last_written(9) is None
    table.note(header_of(0, epoch=1, offset=40))
    assert table.last_written(ID) == LastWritten(1, 0, 40)


RECORDS = 12  # that each run of the model appends
numbered = cache(header_of)  # making one takes longer than all that is done with it


class Run:
    """A run of a producer with a name: it asks how many records are stored, and sends the rest."""

    def __init__(self) -> None:
        self.next: int | None = None  # the number of its next record; None before it asked


class Model:
    """A partition's log, its producers, and a network that keeps, repeats and reorders batches."""

    def __init__(self) -> None:
        self.table = ProducerTable()
        self.log: list[BatchHeader] = []
        self.committed = 0  # batches of the log
        self.sent: list[BatchHeader] = []  # ever, by anybody: each may arrive at any time, again
        self.told_max = 0  # records that some run was told are stored

    @property
    def numbers(self) -> list[int]:
        """Which records are in the log, in its order."""
        return [
            header.base_sequence + number
            for header in self.log
            for number in range(header.record_count)
        ]

    def ask(self, run: Run) -> None:
        """As the leader answers: what it speaks of is committed by then."""
        written = self.table.last_written(ID)
        self.committed = len(self.log)
        run.next = 0 if written is None else written.last_sequence + 1
        self.told_max = max(self.told_max, run.next)

    def send(self, run: Run, count: int) -> None:
        if run.next is not None and run.next < RECORDS:
            count = min(count, RECORDS - run.next)
            self.sent.append(numbered(run.next, count=count))
            run.next += count

    def arrive(self, header: BatchHeader) -> bool:
        """Whether it is stored now, or was."""
        try:
            if self.table.check(header) is None:
                header = header._replace(base_offset=len(self.numbers))
                self.log.append(header)
                self.table.note(header)
        except OutOfOrderSequenceError:
            return False
        return True

    def elect(self, kept: int) -> None:
        """Another leader, whose log may lack what is not committed."""
        del self.log[max(kept, self.committed) :]
        self.table.cut(len(self.numbers), table_from(self.log))

    def check(self) -> None:
        assert self.numbers == list(range(len(self.numbers))), "each once, in order"
        assert self.told_max <= len(self.numbers), "what a run leaves out stays"


def table_from(log: list[BatchHeader]) -> ProducerTable:
    table = ProducerTable()
    for header in log:
        table.note(header)
    return table


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "repeat", "ask", "crash", "commit", "elect"]),
        st.integers(0, 7),  # which run, batch or place in the log
        st.integers(1, 4),  # how many records
    ),
    min_size=20,
    max_size=60,
)


@given(STEPS)
def test_two_runs_of_one_name_store_each_record_once(steps: list[tuple[str, int, int]]) -> None:
    """Whatever they append at the same time, in whatever batches, and whatever becomes of those."""
    model = Model()
    runs = [Run(), Run()]
    for run in runs:
        model.ask(run)
    for what, which, count in steps:
        if what == "ask":
            model.ask(runs[which % 2])
        elif what == "send":
            before = len(model.sent)
            model.send(runs[which % 2], count)
            if which < 6:  # the others may arrive later, or never
                for header in model.sent[before:]:
                    model.arrive(header)
        elif what == "repeat" and model.sent:
            model.arrive(model.sent[-1 - which % len(model.sent)])
        elif what == "crash":
            runs[which % 2] = Run()
        elif what == "commit":
            model.committed = max(model.committed, min(which, len(model.log)))
        elif what == "elect":
            model.elect(which)
        model.check()
    last = Run()
    model.ask(last)
    while last.next is not None and last.next < RECORDS:
        model.send(last, 5)
        assert model.arrive(model.sent[-1]), "with nobody else there, a run gets to the end"
    assert model.numbers == list(range(RECORDS))
