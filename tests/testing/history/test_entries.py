"""A history is written as it happens and read back as it was."""

from __future__ import annotations

import itertools
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.testing import history as entries
from raftlog.testing.history import (
    STRANGE,
    Admin,
    AnyEntry,
    Append,
    Commit,
    Committed,
    DamagedHistoryError,
    Delete,
    Dump,
    Ends,
    Fault,
    Member,
    Note,
    Phase,
    Poll,
    Read,
    Recorder,
    Start,
    read,
)
from tests.jepsen_like.arena import unrun

ONE_OF_EACH: tuple[AnyEntry, ...] = (
    Start(time=0, process="runner", type="info", plan={"seed": 1}, facts={"kernel": "6"}),
    Phase(time=0, process="runner", type="info", name="load"),
    Append(time=0, process="p1", type="invoke", partition="a:0", first=1, count=3),
    Append(
        time=0, process="p1", type="ok", partition="a:0", first=1, count=3, offsets=[(1, 3, 40)]
    ),
    Poll(time=0, process="c1", type="invoke", positions={"a:0": 40}, source="replica"),
    Poll(time=0, process="c1", type="ok", records={"a:0": [(40, 3, 1, 2)]}),
    Ends(time=0, process="c1", type="ok", ends={"a:0": 43}),
    Delete(time=0, process="admin", type="invoke", partition="a:0", before=41),
    Admin(time=0, process="admin", type="ok", what="create", topic="b", args={"partitions": 2}),
    Commit(time=0, process="m1", type="ok", group="g", offsets={"a:0": 3}, at=5),
    Committed(time=0, process="c2", type="ok", group="g", offsets={"a:0": -1}),
    Member(time=0, process="m1", type="info", group="g", what="assigned", partitions=["a:0"]),
    Poll(time=0, process="m1#2", type="ok", records={"a:0": [(1, 1, 1, 1)]}, group="g", at=9),
    Fault(time=0, process="nemesis", type="info", id=1, kind="kill", phase="begin", targets=[2]),
    Read(time=0, process="r1", type="ok", partition="a:0", start=0, end=43),
    Dump(time=0, process="dump", type="ok", broker=1, partition="a:0", start=0, end=43),
    Note(time=0, process="runner", type="info", text="it rained", is_trouble=True),
)


def recorder(path: Path) -> Recorder:
    return Recorder(path / "history.jsonl", itertools.count(10, 10).__next__)


def test_every_kind_of_entry_comes_back_as_it_was_with_the_time(tmp_path: Path) -> None:
    history = recorder(tmp_path)
    for entry in ONE_OF_EACH:
        history.record(entry)
    history.close()
    found = list(read(history.path))
    assert found == list(ONE_OF_EACH)
    assert [entry.time for entry in found] == [10 * n for n in range(1, len(found) + 1)]


def test_lines_of_many_threads_are_whole_and_in_the_order_of_time(tmp_path: Path) -> None:
    history = recorder(tmp_path)

    def work(name: str) -> None:
        for first in range(200):
            history.record(
                Append(time=0, process=name, type="invoke", partition="a:0", first=first)
            )

    threads = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history.close()
    times = [entry.time for entry in read(history.path)]
    assert len(times) == 800
    assert times == sorted(times)


def test_records_of_appends_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    history = recorder(tmp_path)
    for type_, count, offsets in (
        ("invoke", 9, []),
        ("ok", 3, [(1, 3, 0)]),
        ("info", 5, [(4, 2, 3)]),
        ("fail", 7, []),
    ):
        history.record(
            Append(
                time=0,
                process="p",
                type=type_,  # type: ignore[arg-type]
                partition="a:0",
                first=1,
                count=count,
                offsets=offsets,  # type: ignore[arg-type]
            )
        )
    history.close()
    assert (history.acknowledged, history.unknown) == (5, 3)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"f":"append","time":1', "truncated"),
        (b'{"f":"append","time":1,"process":"p","type":"ok"}', "missing required field"),
        (b'{"f":"explode","time":1,"process":"p","type":"ok"}', "explode"),
        (b'{"f":"phase","time":"noon","process":"p","type":"ok","name":"load"}', "Expected `int`"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(
    tmp_path: Path, line: bytes, complaint: str
) -> None:
    path = tmp_path / "history.jsonl"
    good = b'{"f":"phase","time":1,"process":"runner","type":"info","name":"load"}\n'
    path.write_bytes(good + line + b"\n" + good)
    with pytest.raises(DamagedHistoryError, match=f"line 2: .*{complaint}"):
        list(read(path))


# -- keys ------------------------------------------------------------------------------------------
#
# Keys and tombstones follow from values, and a record that is not as it was sent is strange.


VALUES = st.integers(1, 10**15)
COUNTS = st.integers(1, 5_000)


@given(VALUES, COUNTS, st.integers(0, 300))
def test_a_record_comes_back(value: int, count: int, padding: int) -> None:
    key, record, headers = entries.encode(value, padding, count)
    assert (record is None) == entries.is_tombstone(value)
    assert entries.decode(key, record, tuple(headers)) == value


@given(VALUES, COUNTS, VALUES)
def test_a_record_with_anothers_key_or_value_is_strange(value: int, count: int, other: int) -> None:
    key, record, headers = entries.encode(value, 9, count)
    other_key, other_record, other_headers = entries.encode(other, 9, count)
    if other_key != key:
        assert entries.decode(other_key, record, tuple(headers)) == STRANGE
        assert entries.decode(key, other_record, tuple(other_headers)) == STRANGE


@pytest.mark.parametrize("key", [b"", b"1", b"/", b"x/7", b"1/0", b"1/9999999999", b"-1/7"])
def test_any_key_has_an_answer(key: bytes) -> None:
    assert entries.decode(key, entries.encode_value(3, 0), ()) == STRANGE


def test_a_value_that_was_deleted_and_a_tombstone_with_a_value_are_strange() -> None:
    live = next(value for value in range(1, 100) if not entries.is_tombstone(value))
    dead = next(value for value in range(1, 100) if entries.is_tombstone(value))
    key, _, _ = entries.encode(live, 0, 10)
    assert entries.decode(key, None, ((entries.HEADER, b"%d" % live),)) == STRANGE
    key, _, headers = entries.encode(dead, 0, 10)
    assert entries.decode(key, entries.encode_value(dead, 0), tuple(headers)) == STRANGE
    assert entries.decode(key, None, ()) == STRANGE


def test_a_record_without_a_key_is_one_of_values() -> None:
    assert entries.decode(None, entries.encode_value(12, 5), ()) == 12
    assert entries.decode(None, b"nonsense", ()) == STRANGE


@given(st.lists(VALUES, max_size=50), COUNTS)
def test_columns_are_what_single_values_are(some: list[int], count: int) -> None:
    column = np.array(some, np.int64)
    assert entries.keys_of(column, count).tolist() == [
        entries.key_of(value, count) for value in some
    ]
    assert entries.are_tombstones(column).tolist() == [
        entries.is_tombstone(value) for value in some
    ]


def test_most_records_have_few_keys_and_one_of_eight_deletes() -> None:
    column = np.arange(1, 20_001)
    found = entries.keys_of(column, 1_000)
    assert 0.7 < (found < entries.HOT).mean() < 0.8
    assert len(np.unique(found)) > 900
    assert 0.11 < entries.are_tombstones(column).mean() < 0.14


# -- values ----------------------------------------------------------------------------------------
#
# What records hold comes back, or is told to be strange; runs are what they were made of.


# Few different numbers, so that some go on from others.
ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.just(STRANGE), st.integers(1, 6)), st.integers(0, 1)),
    max_size=30,
)


@given(VALUES, st.integers(0, 5_000))
def test_a_value_comes_back(value: int, padding: int) -> None:
    record = entries.encode_value(value, padding)
    assert len(record) == len(f"{value} ") + padding
    assert entries.decode_value(record) == value


@given(VALUES, st.integers(1, 200), st.data())
def test_a_record_that_was_changed_is_strange_or_another_value(
    value: int, padding: int, data: st.DataObject
) -> None:
    record = bytearray(entries.encode_value(value, padding))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert entries.decode_value(bytes(record)) != value


@given(st.binary(max_size=50))
def test_any_bytes_at_all_have_an_answer(data: bytes) -> None:
    assert entries.decode_value(data) >= STRANGE


@pytest.mark.parametrize(
    "data",
    [None, b"", b"7", b" 7", b"07 ", b"+7 ", b"1_0 ", b"-1 ", b"x ", b"9" * 10_000 + b" ", b"7 x"],
)
def test_what_no_send_makes_is_strange(data: bytes | None) -> None:
    assert entries.decode_value(data) == STRANGE


def test_the_largest_padding_can_be_had_for_any_value() -> None:
    for value in (1, 4_092, 4_093, 10**12):
        assert len(entries.encode_value(value, entries.PADDING_MAX)) > entries.PADDING_MAX
        assert entries.decode_value(entries.encode_value(value, entries.PADDING_MAX)) == value


@given(ROWS)
def test_runs_are_what_they_were_made_of(rows: list[tuple[int, int, int]]) -> None:
    found = list(entries.runs(rows))
    assert list(unrun(found)) == rows
    assert all(count == 1 for _, count, value, _ in found if value == STRANGE)


@given(ROWS, st.lists(st.integers(0, 30), max_size=4))
def test_runs_are_as_few_as_can_be_however_they_came(
    rows: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    whole = list(entries.runs(rows))
    for one, other in pairwise(whole):
        assert one[2] == STRANGE or (
            other[0] != one[0] + one[1] or other[2] != one[2] + one[1] or other[3] != one[3]
        )
    places = sorted({0, *cuts, len(rows)})
    parts = [run for start, end in pairwise(places) for run in entries.runs(rows[start:end])]
    assert list(entries.joined(parts)) == whole


def test_a_run_of_many_records_is_one() -> None:
    assert list(entries.runs((o, o + 5, 2) for o in range(100, 200))) == [(100, 100, 105, 2)]


def test_parts_of_an_append_are_joined_where_they_go_on() -> None:
    parts = [(1, 2, 10), (3, 1, 12), (4, 1, 20), (6, 1, 21), (7, 3, 22)]
    assert entries.places(parts) == [(1, 3, 10), (4, 1, 20), (6, 4, 21)]
    assert entries.places([]) == []
