"""A history is written as it happens and read back as it was."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from raftlog.testing.history.entries import (
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
