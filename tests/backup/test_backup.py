"""Backups of a real broker, restored into another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.backup import BackupSource, Progress, open_store, verify, write_backup, writer
from raftlog.backup.writer import Directory, StillHeld, read_chunk, read_manifest
from raftlog.client.descriptions import TopicDescription
from raftlog.client.fetcher import Fetcher
from raftlog.errors import ChainMismatchError, CorruptBatchError, InvalidRequestError
from raftlog.mirror import Mirror
from raftlog.mirror import Progress as Restored
from raftlog.testing import cluster
from tests.mirror.tombstones import without_tombstones

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        both = [stack.enter_context(cluster(brokers=1)) for _ in range(2)]
        yield both[0].bootstrap, both[1].bootstrap


def produce(bootstrap: str, topic: str, start: int, count: int) -> None:
    with Producer(bootstrap, compression="lz4") as producer:
        for number in range(start, start + count):
            headers = [("h", b"%d" % number)]
            producer.send(topic, b"v%d" % number, b"k", headers, partition=number % 2)


def make(bootstrap: str, topic: str, count: int) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    produce(bootstrap, topic, 0, count)


def back_up(bootstrap: str, path: Path, topics: str = ".*") -> Progress:
    return write_backup(bootstrap, open_store(str(path)), topic_pattern=topics, now_ms=1)


def restore(path: Path, target: str, topics: str, prefix: str = "") -> Restored:
    source = BackupSource(open_store(str(path)))
    return Mirror(source, target, topics=topics, prefix=prefix, groups=".*").run(once=True)


def contents(bootstrap: str, topic: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(2)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [
                (r.partition, r.offset, r.key, r.value, r.headers, r.timestamp_ms)
                for r in consumer.poll(timeout_ms=1_000)
            ]
    return sorted(found)


def test_records_offsets_settings_and_groups_come_back(
    brokers: tuple[str, str], tmp_path: Path
) -> None:
    source, target = brokers
    with Admin(source) as admin, Admin(target) as there:
        admin.create_topics([NewTopic("full", 2, config={"retention.ms": "123456789"})])
        produce(source, "full", 0, 60)
        admin.delete_records({TopicPartition("full", 0): 10})
        admin.alter_group_offsets("readers", {TopicPartition("full", 0): 25})
        first = back_up(source, tmp_path)
        assert (first.topics, first.partitions, first.offsets) == (1, 2, 50)

        produce(source, "full", 60, 20)
        second = back_up(source, tmp_path)
        assert second.offsets == 20
        assert back_up(source, tmp_path).offsets == 0
        assert [problem for _, _, problem in verify(open_store(str(tmp_path)))] == ["", ""]

        assert restore(tmp_path, target, "full").refused == {}
        assert contents(target, "full") == contents(source, "full")
        assert there.offsets("full", "earliest") == {0: 10, 1: 0}
        assert there.describe_topics(["full"])[0].config["retention.ms"] == "123456789"
        assert there.group_offsets("readers")[TopicPartition("full", 0)].offset == 25

        # A restored topic is continued from a later backup, and nothing is stored twice.
        produce(source, "full", 80, 6)
        back_up(source, tmp_path)
        assert restore(tmp_path, target, "full").records == 6
        assert contents(target, "full") == contents(source, "full")
        # The same cluster can have the topic again, under another name.
        assert restore(tmp_path, source, "full", prefix="again-").refused == {}
        assert contents(source, "again-full") == contents(source, "full")


def test_files_are_limited_in_size_and_damage_is_found(
    brokers: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = brokers
    monkeypatch.setattr(writer, "CHUNK_BYTES", 500)
    with Admin(source) as admin:
        admin.create_topics([NewTopic("small", 2)])
    for start in range(0, 60, 20):
        produce(source, "small", start, 20)
    back_up(source, tmp_path, "small")
    files = sorted(tmp_path.rglob("*.batches"))
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)
    problems = {tp.partition: text for tp, _, text in verify(open_store(str(tmp_path)))}
    assert "is corrupt" in problems[0]
    assert problems[1] == ""
    reader = BackupSource(open_store(str(tmp_path))).reader
    with reader() as opened:
        opened.start({TopicPartition("small", 0): 0})
        with pytest.raises(CorruptBatchError, match="is corrupt"):
            opened.poll(0)
    files[0].write_bytes(bytes(data[:-1]))
    assert "bytes instead of" in next(verify(open_store(str(tmp_path))))[2]
    files[0].unlink()
    assert "is missing" in next(verify(open_store(str(tmp_path))))[2]


def test_files_of_other_batches_are_found(brokers: tuple[str, str], tmp_path: Path) -> None:
    source, _ = brokers
    with Admin(source) as admin:
        admin.create_topics([NewTopic("mixed", 2)])
    for start in range(0, 60, 20):
        produce(source, "mixed", start, 20)
        back_up(source, tmp_path, "mixed")
    store = open_store(str(tmp_path))
    made = read_manifest(store)
    first, second, *_ = made.topics["mixed"].partitions[0].chunks
    with pytest.raises(CorruptBatchError, match="it is another file"):
        read_chunk(store, replace(first, chain=first.chain ^ 1))
    twice = store.read(first.file) or b""
    store.write("twice", twice + twice)
    with pytest.raises(CorruptBatchError, match="does not continue the one before it"):
        read_chunk(store, replace(first, file="twice", size_bytes=2 * len(twice)))
    # A log that is not that of the last backup is not added to it.
    last = made.topics["mixed"].partitions[0].chunks
    last[-1] = replace(last[-1], chain=second.chain ^ 1)
    store.write(writer.NAME, writer.encode(made))
    produce(source, "mixed", 60, 4)
    with pytest.raises(ChainMismatchError, match="does not continue the log of the last backup"):
        back_up(source, tmp_path, "mixed")


def test_a_backup_of_something_else_is_not_continued(
    brokers: tuple[str, str], tmp_path: Path
) -> None:
    source, target = brokers
    with Admin(source) as admin:
        admin.create_topics([NewTopic("other", 2)])
        produce(source, "other", 0, 4)
        back_up(source, tmp_path, "other")
        with pytest.raises(InvalidRequestError, match="the backup is of the cluster"):
            back_up(target, tmp_path)
        admin.delete_topics(["other"])
        admin.create_topics([NewTopic("other", 2)])
        with pytest.raises(InvalidRequestError, match="was created again"):
            back_up(source, tmp_path, "other")
    with pytest.raises(InvalidRequestError, match="there is no backup"):
        BackupSource(open_store(str(tmp_path / "empty")))


class Unlocked:
    """A store without locks, in which another run writes before the manifest of the first one."""

    def __init__(self, path: Path, before_manifest: Callable[[], object]) -> None:
        self._store = Directory(path)
        self._before_manifest = before_manifest
        self.read = self._store.read

    def hold(self) -> AbstractContextManager[StillHeld]:
        return nullcontext(lambda: None)

    def write(self, name: str, data: bytes) -> None:
        self._store.write(name, data)
        if name != writer.NAME:
            self._before_manifest()


def test_runs_that_overlap_leave_a_backup_that_is_whole(
    brokers: tuple[str, str], tmp_path: Path
) -> None:
    source, _ = brokers
    make(source, "overlapping", 20)
    runs: list[Progress] = []

    def another() -> None:
        if not runs:
            produce(source, "overlapping", 20, 20)
            runs.append(back_up(source, tmp_path, "overlapping"))

    slow = Unlocked(tmp_path, another)
    with pytest.raises(InvalidRequestError, match="another backup has replaced"):
        write_backup(source, slow, topic_pattern="overlapping", now_ms=1)
    assert [run.offsets for run in runs] == [40]
    produce(source, "overlapping", 40, 20)
    assert back_up(source, tmp_path, "overlapping").offsets == 20
    assert [problem for _, _, problem in verify(Directory(tmp_path))] == ["", ""]


def test_a_second_run_is_refused_while_one_writes(brokers: tuple[str, str], tmp_path: Path) -> None:
    source, _ = brokers
    refused = pytest.raises(InvalidRequestError, match="another backup writes to")
    with Directory(tmp_path).hold(), refused:
        back_up(source, tmp_path)


def test_a_store_that_loses_what_is_written_is_noticed(
    brokers: tuple[str, str], tmp_path: Path
) -> None:
    source, _ = brokers
    make(source, "forgotten", 4)

    def lose() -> None:
        for path in tmp_path.rglob("*.batches"):
            path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(CorruptBatchError, match="was not stored as it was written"):
        write_backup(source, Unlocked(tmp_path, lose), topic_pattern="forgotten", now_ms=1)
    assert not (tmp_path / writer.NAME).exists()


class ForgetfulAdmin(Admin):
    """Its cluster has removed tombstones below an offset."""

    removed_below = 0

    def describe_topics(self, *names: Any, **more: Any) -> list[TopicDescription]:  # type: ignore[override]
        described = super().describe_topics(*names, **more)
        return [without_tombstones(topic, self.removed_below) for topic in described]


def test_a_backup_that_lacks_removed_tombstones_is_made_anew(
    brokers: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = brokers
    make(source, "tombs", 20)
    monkeypatch.setattr(writer, "Admin", ForgetfulAdmin)
    back_up(source, tmp_path, "tombs")
    restore(tmp_path, target, "tombs")
    produce(source, "tombs", 20, 20)
    monkeypatch.setattr(ForgetfulAdmin, "removed_below", 10)  # it has those
    assert back_up(source, tmp_path, "tombs").copied_again == 0
    produce(source, "tombs", 40, 20)
    monkeypatch.setattr(ForgetfulAdmin, "removed_below", 21)
    again = back_up(source, tmp_path, "tombs")
    assert (again.copied_again, again.offsets) == (2, 20 + 60)
    assert [problem for _, _, problem in verify(Directory(tmp_path))] == ["", ""]
    assert restore(tmp_path, target, "tombs").copied_again == ["tombs"]
    assert contents(target, "tombs") == contents(source, "tombs")
    # Another leader served a part of the records, and leads no more.
    monkeypatch.setattr(ForgetfulAdmin, "removed_below", 0)
    answers = [{TopicPartition("tombs", 1): {99: 31}}, {}]
    monkeypatch.setattr(Fetcher, "take_removed_below", lambda _: answers.pop(0))
    assert back_up(source, tmp_path, "tombs").copied_again == 1
    found = read_manifest(Directory(tmp_path)).topics["tombs"].partitions
    assert [part.tombstones_removed_below for part in found] == [21, 31]
