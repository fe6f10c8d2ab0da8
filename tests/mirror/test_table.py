"""Tables of an embedded log: always what a dict would be, and built again when they must be."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raftlog
from raftlog import TopicPartition
from raftlog.client.descriptions import PartitionDescription, TopicDescription
from raftlog.client.fetcher import Fetcher
from raftlog.errors import (
    ClosedError,
    InvalidRequestError,
    RequestTimedOutError,
    UnknownTopicError,
)
from raftlog.mirror.compacted import Known
from raftlog.mirror.table import Table, _Content, _Place
from tests.mirror.tombstones import without_tombstones

COMPACT = {"cleanup.policy": "compact"}
NAMES = (f"t{number}" for number in itertools.count())

Change = tuple[bytes, bytes | None, bytes | None]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raftlog.EmbeddedLog]:
    with raftlog.open(tmp_path_factory.mktemp("log")) as opened:
        yield opened


@pytest.fixture(scope="module")
def producer(log: raftlog.EmbeddedLog) -> raftlog.Producer:
    return log.producer(linger_ms=0)


@pytest.fixture
def topic(log: raftlog.EmbeddedLog) -> str:
    name = next(NAMES)
    log.create_topic(name, 2, config=COMPACT)
    return name


def put(producer: raftlog.Producer, topic: str, **items: bytes | None) -> None:
    futures = [producer.send(topic, value, key.encode()) for key, value in items.items()]
    for future in futures:
        future.result(20)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([b"1", b"2", None])),
        st.sampled_from(["refresh", "reload", "parquet"]),
    ),
    max_size=25,
)


@given(OPERATIONS)
def test_a_table_is_what_a_dict_would_be(
    log: raftlog.EmbeddedLog,
    producer: raftlog.Producer,
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[Any],
) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path_factory.getbasetemp()
    topic = next(NAMES)
    log.create_topic(topic, 2, config=COMPACT)
    expected: dict[bytes, bytes] = {}
    replayed: dict[bytes, bytes] = {}

    def replay(key: bytes, old: bytes | None, new: bytes | None) -> None:
        assert replayed.get(key) == old != new
        if new is None:
            del replayed[key]
        else:
            replayed[key] = new

    table = log.table(topic, on_change=replay)
    for operation in [*operations, "refresh"]:
        if isinstance(operation, tuple):
            name, value = operation
            put(producer, topic, **{name: value})
            if value is None:
                expected.pop(name.encode(), None)
            else:
                expected[name.encode()] = value
        elif operation == "refresh":
            table.refresh()
            assert dict(table.items()) == expected == replayed
        else:
            snapshot = path / f"{topic}.{operation}"
            table.save(snapshot)
            table.close()
            table = log.table(topic, snapshot=snapshot, on_change=replay)
            assert dict(table.items()) == expected
            replayed = dict(expected)
    assert (len(table), {*table}, sorted(table.values())) == (
        len(expected),
        {*expected},
        sorted(expected.values()),
    )
    assert all(table.get(key) == expected.get(key) for key in (b"a", b"b", b"nope"))
    table.close()


def test_a_following_table_gets_changes_and_stops_with_close(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str
) -> None:
    changes: list[Change] = []
    with log.table(topic, follow=True, on_change=lambda *change: changes.append(change)) as table:
        put(producer, topic, a=b"1")
        table.refresh()
        put(producer, topic, a=b"1")
        put(producer, topic, a=None)
        table.refresh()
        assert table.get(b"a") is None
    assert changes == [(b"a", None, b"1"), (b"a", b"1", None)]
    with pytest.raises(ClosedError):
        table.refresh()


def test_a_following_table_waits_for_brokers_and_reports_what_ends_it(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    from raftlog.mirror import table as module

    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    plain, failures = Table._described, [RequestTimedOutError("late")]

    def failing(self: Table) -> TopicDescription:
        if failures:
            raise failures.pop()
        return plain(self)

    with log.table(topic, follow=True) as table:
        monkeypatch.setattr(Table, "_described", failing)
        put(producer, topic, a=b"1")
        table.refresh()
        assert (table[b"a"], failures) == (b"1", [])
        assert "table waits" in caplog.text
        with log.admin() as admin:
            admin.delete_topics([topic])
        with pytest.raises(UnknownTopicError):
            table.refresh()
        assert table[b"a"] == b"1"


def test_an_internal_error_of_a_following_table_is_raised(
    log: raftlog.EmbeddedLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the thread ended, and the table was out of date without a word."""
    with log.table(topic, follow=True) as table:
        monkeypatch.setattr(Table, "_described", lambda _self: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            table.refresh()


def test_a_failing_callback_is_logged_and_does_not_stop_the_table(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail(*_change: object) -> None:
        raise ValueError("mine")

    with log.table(topic, on_change=fail) as table:
        put(producer, topic, a=b"1", b=b"2")
        table.refresh()
        assert dict(table.items()) == {b"a": b"1", b"b": b"2"}
    assert "on_change failed" in caplog.text


def test_an_interrupted_refresh_loses_no_record(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str
) -> None:
    """The reader does not return a batch again, and the table has not applied it."""
    interrupts = [KeyboardInterrupt()]
    changes: list[Change] = []

    def on_change(key: bytes, old: bytes | None, new: bytes | None) -> None:
        changes.append((key, old, new))
        if key == b"b" and interrupts:
            raise interrupts.pop()

    with log.table(topic, on_change=on_change, timeout_ms=2_000) as table:
        producer.send_many(topic, [b"1", b"2", b"3"], keys=[b"a", b"b", b"c"], partition=0).result()
        with pytest.raises(KeyboardInterrupt):
            table.refresh()
        put(producer, topic, d=b"4")
        table.refresh()
        assert dict(table.items()) == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}
    assert sorted(changes) == [(key, None, value) for key, value in sorted(table.items())]


def test_added_partitions_are_read(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str
) -> None:
    with log.table(topic) as table, log.admin() as admin:
        admin.add_partitions(topic, 3)
        producer.send(topic, b"1", b"k", partition=2).result(20)
        table.refresh()
        assert (table[b"k"], table.offsets()[2]) == (b"1", 1)


# -- built again -----------------------------------------------------------------------------------


@pytest.fixture
def saved(log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str, tmp_path: Path) -> Path:
    """A snapshot with three keys."""
    pytest.importorskip("pyarrow")
    put(producer, topic, a=b"1", b=b"2", gone=b"3")
    with log.table(topic) as table:
        table.save(tmp_path / "saved.arrow")
    return tmp_path / "saved.arrow"


def reloaded(log: raftlog.EmbeddedLog, topic: str, saved: Path) -> dict[bytes, bytes]:
    with log.table(topic, snapshot=saved) as table:
        return dict(table.items())


def test_a_snapshot_of_a_recreated_topic_is_dropped(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str, saved: Path
) -> None:
    with log.admin() as admin:
        admin.delete_topics([topic])
    log.create_topic(topic, 2, config=COMPACT)
    put(producer, topic, new=b"4")
    assert reloaded(log, topic, saved) == {b"new": b"4"}


def test_a_topic_that_is_created_again_with_fewer_partitions_in_between_is_read_again(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plain = Table._described

    def replaced(self: Table) -> TopicDescription:
        monkeypatch.undo()
        found = plain(self)
        with log.admin() as admin:
            admin.delete_topics([topic])
        log.create_topic(topic, 1, config=COMPACT)
        with log.producer(linger_ms=0) as another:  # the first one may know two partitions
            put(another, topic, new=b"4")
        return found

    put(producer, topic, a=b"1", b=b"2")
    with log.table(topic) as table:
        monkeypatch.setattr(Table, "_described", replaced)
        table.refresh()
        assert dict(table.items()) == {b"new": b"4"}


def test_a_snapshot_below_the_start_of_the_log_is_dropped(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str, saved: Path
) -> None:
    with log.admin() as admin:
        for tp in (TopicPartition(topic, number) for number in range(2)):
            producer.send(topic, b"5", b"k%d" % tp.partition, partition=tp.partition).result(20)
        ends = admin.offsets(topic)
        admin.delete_records({TopicPartition(topic, n): end or 0 for n, end in ends.items()})
    put(producer, topic, new=b"4")
    assert reloaded(log, topic, saved) == {b"new": b"4"}


def test_keys_of_deleted_records_leave_a_table(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str
) -> None:
    put(producer, topic, a=b"1", b=b"2")
    with log.table(topic) as table, log.admin() as admin:
        ends = admin.offsets(topic)
        admin.delete_records({TopicPartition(topic, n): end or 0 for n, end in ends.items()})
        put(producer, topic, c=b"3")
        table.refresh()
        assert dict(table.items()) == {b"c": b"3"}


def described(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[TopicDescription], TopicDescription]
) -> None:
    plain = Table._described
    monkeypatch.setattr(Table, "_described", lambda self: change(plain(self)))


def test_a_snapshot_that_lacks_tombstones_is_dropped(
    log: raftlog.EmbeddedLog, topic: str, saved: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.WARNING)
    described(monkeypatch, lambda found: without_tombstones(found, 0))
    assert len(reloaded(log, topic, saved)) == 3
    assert "built again" not in caplog.text
    described(monkeypatch, lambda found: without_tombstones(found, 100))
    reloaded(log, topic, saved)
    assert "compaction has removed tombstones below offset 100" in caplog.text


def test_a_table_compares_with_each_leader_that_it_has_read_from(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    put(producer, topic, a=b"1")
    with log.table(topic) as table:
        answers = [{TopicPartition(topic, 0): {99: 50}}]
        monkeypatch.setattr(
            Fetcher, "take_removed_below", lambda _: answers.pop() if answers else {}
        )
        table.refresh()
        assert dict(table.items()) == {b"a": b"1"}
    assert "built again" in caplog.text


def test_a_snapshot_beyond_the_end_or_of_other_records_is_dropped(
    log: raftlog.EmbeddedLog, topic: str, saved: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    from raftlog.mirror import table as module

    plain = module.load

    def changed(position: int, epoch: int) -> None:
        def load(path: Path, name: str) -> Any:
            content = plain(path, name)
            content.values[b"ghost"] = b"!"
            for place in content.places.values():
                place.position += position
                place.epoch += epoch
            return content

        monkeypatch.setattr(module, "load", load)

    whole = {b"a": b"1", b"b": b"2", b"gone": b"3"}
    changed(1, 0)
    assert reloaded(log, topic, saved) == whole
    assert "before" in caplog.text
    changed(0, -1)
    assert reloaded(log, topic, saved) == whole
    assert "was truncated" in caplog.text


def test_callbacks_get_the_difference_of_a_table_that_is_built_again(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str
) -> None:
    changes: list[Change] = []
    put(producer, topic, a=b"1", b=b"2")
    with log.table(topic, on_change=lambda *change: changes.append(change)) as table:
        with log.admin() as admin:
            admin.delete_topics([topic])
        log.create_topic(topic, 2, config=COMPACT)
        put(producer, topic, b=b"2", c=b"3")
        table.refresh()
        assert dict(table.items()) == {b"b": b"2", b"c": b"3"}
    assert changes == [(b"a", b"1", None), (b"c", None, b"3")]


def test_a_following_table_that_is_built_again_survives_a_failure(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from raftlog.mirror import table as module

    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    plain, failures = Table._read, [RequestTimedOutError("late")]

    def failing(self: Table, content: Any, ends: dict[int, int], on_change: Any) -> str:
        if content is not self._content and failures:
            plain(self, content, dict.fromkeys(ends, 0), None)  # starts to read, and no more
            raise failures.pop()
        return plain(self, content, ends, on_change)

    with log.table(topic, follow=True, timeout_ms=3_000) as table:
        monkeypatch.setattr(Table, "_read", failing)
        with table._changed, log.admin() as admin:  # the thread waits
            admin.add_partitions(topic, 3)
            producer.send(topic, b"2", b"b", partition=2).result(20)
            table._drop("tombstones were removed")
        table.refresh()
        assert (dict(table.items()), failures) == ({b"b": b"2"}, [])


def topic_at(start: int, *, epoch: int = 3, policy: str = "compact") -> TopicDescription:
    part = PartitionDescription(0, 1, epoch, (1,), (1,), (), start, 90, 90, 1, "")
    return TopicDescription("t", "id", {"cleanup.policy": policy}, (), (part,))


@pytest.mark.parametrize(
    ("topic_id", "topic", "end", "reason", "is_unsure"),
    [
        ("id", topic_at(10), 50, "", False),
        ("id", topic_at(10, epoch=4), 50, "", True),  # compared with the log
        ("other", topic_at(10), 50, "the topic was created again", False),
        ("id", topic_at(51), 60, "records from offset 50 on are deleted", False),
        ("id", topic_at(51, policy="compact,delete"), 60, "from offset 50 on", False),
        ("id", topic_at(11), 60, "records below offset 11 were deleted", False),
        ("id", topic_at(11, policy="compact,delete"), 60, "", False),
        ("id", topic_at(10), 49, "ends at offset 49, before 50", False),
    ],
)
def test_the_log_decides_whether_a_table_continues(
    topic_id: str, topic: TopicDescription, end: int, reason: str, is_unsure: bool
) -> None:
    content = _Content(topic_id, places={0: _Place(50, 10, Known(3, 50), epoch=2)})
    found = content.continues(topic, {0: end})
    assert found == reason if not reason else reason in found
    assert content.is_unsure == is_unsure


# -- what is refused -------------------------------------------------------------------------------


def test_other_files_and_topics_are_refused(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str, saved: Path
) -> None:
    plain = next(NAMES)
    log.create_topic(plain)
    with pytest.raises(InvalidRequestError, match=r"is not compacted: .*Set cleanup\.policy"):
        log.table(plain)
    other = next(NAMES)
    log.create_topic(other, config=COMPACT)
    with pytest.raises(InvalidRequestError, match=f"snapshot of the topic '{topic}'"):
        log.table(other, snapshot=saved)
    for content in (b"", b"x" * 100, saved.read_bytes()[:-50]):
        saved.write_bytes(content)
        with pytest.raises(InvalidRequestError, match="Delete it: the table is then built"):
            log.table(topic, snapshot=saved)


def test_a_table_gives_up_after_its_timeout(
    log: raftlog.EmbeddedLog, producer: raftlog.Producer, topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Table, "_ends", lambda _self: {0: 1, 1: 1})
    with pytest.raises(RequestTimedOutError, match=r"received no records for 0\.01 s"):
        log.table(topic, timeout_ms=10)
