"""``raftlog produce``: lines of standard input, and files that it follows."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from raftlog import RangesFuture, limits
from raftlog.client.delivery import Delivery
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    KeyRequiredError,
    RecordTooLargeError,
)
from raftlog.record import BatchBody, decode_lists, seal
from raftlog.testing import Cluster
from raftlog.types import OffsetRange, RecordMetadata, TopicPartition
from raftlog_cli import follow
from raftlog_cli import produce as produce_module
from raftlog_cli.follow import (
    DRAIN_S,
    SEQUENCES_MAX,
    Agent,
    Chunk,
    FollowedFile,
    Records,
    Routing,
    Sending,
    StateFile,
)
from raftlog_cli.produce import AGAIN_SECONDS, FUTURES_MAX, STALL_SECONDS, Pacer, Receipts, Stall
from tests.cli.conftest import Raftlog

# -- lines -----------------------------------------------------------------------------------------


def values(raftlog: Raftlog, topic: str, *arguments: object) -> bytes:
    ran = raftlog("tail", topic, "-o", "earliest", *arguments)
    assert ran.status == 0, ran.err
    return ran.out


@pytest.mark.integration
@pytest.mark.parametrize(
    "data",
    [b"a\nb\n", b"a\nb", b"", b"\n\n", b"\xff\0\r\n\xc3\xa9\n", b"x" * 100_000 + b"\ny\n"],
    ids=["lines", "no-last-newline", "nothing", "empty-lines", "any-bytes", "a-long-line"],
)
def test_a_files_lines_come_back_byte_for_byte(
    raftlog: Raftlog, topic: str, tmp_path: Path, data: bytes
) -> None:
    file = tmp_path / "input"
    file.write_bytes(data)
    ran = raftlog("produce", topic, "--file", file, "-p", 0, "--json")
    expected = data.removesuffix(b"\n").split(b"\n") if data else []
    assert ran.json["records"] == ran.json["acknowledged"] == len(expected)
    assert values(raftlog, topic) == b"".join(line + b"\n" for line in expected)


@pytest.mark.integration
def test_many_chunks_keep_their_order(raftlog: Raftlog, topic: str) -> None:
    data = b"".join(b"%d %s\n" % (number, b"x" * 100) for number in range(40_000))
    ran = raftlog("produce", topic, "-p", 1, "--compression", "lz4", stdin=data)
    assert ran.out.decode().splitlines() == [
        f"40000 records to {topic}",
        "partition 1: 40000 records, offsets 0 to 39999",
    ]
    assert values(raftlog, topic) == data


@pytest.mark.integration
def test_lines_without_keys_are_spread_over_the_partitions(raftlog: Raftlog, topic: str) -> None:
    data = b"".join(b"%d\n" % number for number in range(100))
    ran = raftlog("produce", topic, "--json", stdin=data)
    records = [row["records"] for row in ran.json["partitions"]]
    assert len(records) > 1
    assert sum(records) == 100
    assert max(records) <= 100 // len(records) + 26
    assert sorted(values(raftlog, topic).split()) == sorted(data.split())


@pytest.mark.integration
def test_keys_choose_partitions_and_come_back(raftlog: Raftlog, topic: str) -> None:
    data = b"".join(b"user-%d\tview %d\n" % (number % 7, number) for number in range(70))
    assert raftlog("produce", topic, "--key-separator", "\t", stdin=data).status == 0
    lines = values(raftlog, topic, "--format", r"%p %k %v").splitlines()
    by_key: dict[bytes, list[tuple[bytes, int]]] = {}
    for partition, key, _, number in (line.split(b" ") for line in lines):
        by_key.setdefault(key, []).append((partition, int(number)))
    assert len(by_key) == 7
    for found in by_key.values():
        assert len({partition for partition, _ in found}) == 1
        assert [number for _, number in found] == sorted(number for _, number in found)


@pytest.mark.integration
def test_one_key_is_that_of_every_record_without_one(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("produce", topic, "-k", "one", stdin=b"1\n2\n").status == 0
    lines = b'{"value": "3"}\n{"value": "4", "key": "own"}\n'
    assert raftlog("produce", topic, "--key", "one", "--jsonl", stdin=lines).status == 0
    printed = values(raftlog, topic, "--format", "%k %v").splitlines()
    assert sorted(printed) == [b"one 1", b"one 2", b"one 3", b"own 4"]
    ran = raftlog("produce", topic, "-k", "one", "--key-separator", " ")
    assert (ran.status, "--key-separator" in ran.err) == (2, True)


@pytest.mark.integration
def test_bytes_of_arguments_are_sent_as_they_are(raftlog: Raftlog, topic: str) -> None:
    arguments = ["-k", os.fsdecode(b"\xff"), "--header", os.fsdecode(b"h=\xfe")]
    assert raftlog("produce", topic, *arguments, stdin=b"v\n").status == 0
    assert values(raftlog, topic, "--format", "%k %h") == b"\xff h=\xfe\n"


@pytest.mark.integration
def test_headers_are_on_every_record(raftlog: Raftlog, topic: str) -> None:
    arguments = ["--partition", "0", "--header", "from=a=b", "--header", "empty="]
    assert raftlog("produce", topic, *arguments, stdin=b"1\n2\n").status == 0
    assert values(raftlog, topic, "--format", "%v %h") == b"1 from=a=b,empty=\n2 from=a=b,empty=\n"


@pytest.mark.integration
def test_json_lines_say_everything_about_a_record(raftlog: Raftlog, topic: str) -> None:
    records = [
        {"value": "v", "key": "k", "partition": 1, "timestamp_ms": 5, "headers": {"a": "1"}},
        {"value": {"base64": "/w=="}, "partition": 1},
        {"value": None, "key": "k", "partition": 1},
    ]
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    assert raftlog("produce", topic, "--jsonl", stdin=data).status == 0
    found = raftlog("tail", topic, "-o", "earliest", "--json").json_lines
    assert found[0] | {"offset": 0, "leader_epoch": 0} == {
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "key": "k",
        "value": "v",
        "headers": [["a", "1"]],
        "timestamp_ms": 5,
        "leader_epoch": 0,
    }
    assert [record["value"] for record in found] == ["v", {"base64": "/w=="}, None]


@pytest.mark.integration
def test_what_tail_prints_as_json_can_be_sent_again(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("produce", topic, "--key-separator", ":", stdin=b"k:v\n\xff:\xfe\n").status == 0
    printed = raftlog("tail", topic, "-o", "earliest", "--json").out
    copy = f"{topic}-copy"
    assert raftlog("topic", "create", copy, "--partitions", 2).status == 0
    assert raftlog("produce", copy, "--jsonl", stdin=printed).status == 0
    assert raftlog("tail", copy, "-o", "earliest", "--json").out == printed.replace(
        topic.encode(), copy.encode()
    )


@pytest.mark.integration
def test_a_bad_line_of_json_is_named(raftlog: Raftlog, topic: str) -> None:
    ran = raftlog("produce", topic, "--jsonl", stdin=b'{"value": "v"}\n{"valeu": "v"}\n')
    assert ran.status == 1
    assert "line 2: unknown field 'valeu'" in ran.err


@pytest.mark.integration
def test_without_acknowledgements_there_are_no_offsets(raftlog: Raftlog, topic: str) -> None:
    ran = raftlog("produce", topic, "--acks", 0, "--json", stdin=b"1\n2\n")
    assert (ran.json["records"], ran.json["partitions"]) == (2, [])


@pytest.mark.integration
def test_a_rate_is_kept(raftlog: Raftlog, topic: str) -> None:
    ran = raftlog("produce", topic, "--rate", 100, "--json", stdin=b"x\n" * 50)
    assert ran.json["acknowledged"] == 50
    assert ran.json["seconds"] > 0.4


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["no-such-topic"], "no-such-topic"),
        (["a/b"], "not a topic name"),
        (["--partition", "7"], "no partition 7"),
    ],
)
def test_refusals_say_what_to_change(
    raftlog: Raftlog, topic: str, arguments: list[str], reason: str
) -> None:
    words = arguments if not arguments[0].startswith("-") else [topic, *arguments]
    ran = raftlog("produce", *words, stdin=b"v\n")
    assert ran.status == 1
    assert reason in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.integration
def test_input_without_records_needs_the_topic_too(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("produce", topic).status == 0
    ran = raftlog("produce", f"{topic}-missing")
    assert (ran.status, ran.out) == (1, b"")
    assert "does not exist" in ran.err


@pytest.mark.integration
def test_a_record_that_is_too_large_is_refused(raftlog: Raftlog, topic: str) -> None:
    ran = raftlog("produce", topic, stdin=b"x" * 2_000_000)
    assert ran.status == 1
    assert "max.message.bytes" in ran.err


@pytest.mark.integration
def test_a_broker_that_is_not_there_is_named(raftlog: Raftlog) -> None:
    ran = raftlog("produce", "t", "--bootstrap", "127.0.0.1:1", stdin=b"v\n")
    assert ran.status == 1
    assert "127.0.0.1:1" in ran.err


# -- feed ------------------------------------------------------------------------------------------


LINES = [b"x"] * 100


def test_without_a_rate_all_goes_at_once() -> None:
    assert list(Pacer(None).slices(LINES)) == [LINES]


@pytest.mark.parametrize(("rate", "size"), [(10_000.0, 100), (1_000.0, 50), (200.0, 10)])
def test_slices_are_a_twentieth_of_a_second(rate: float, size: int) -> None:
    parts = list(Pacer(rate).slices(LINES))
    assert [line for part in parts for line in part] == LINES
    assert {len(part) for part in parts} == {min(size, len(LINES))}


def test_the_rate_holds_over_calls() -> None:
    pacer, began = Pacer(500.0), time.monotonic()
    for _ in range(10):
        assert list(pacer.slices([b"x"] * 10))
    assert time.monotonic() - began >= 90 / 500


def test_slow_rates_send_one_by_one() -> None:
    assert [len(part) for part in Pacer(100.0).slices([b"x"] * 3)] == [3]
    assert [len(part) for part in Pacer(15.0).slices([b"x"] * 3)] == [1, 1, 1]


# -- receipts --------------------------------------------------------------------------------------


class Outcome:
    """A future that is done, pending (until it is waited for), or failed."""

    def __init__(
        self,
        value: RecordMetadata | Sequence[OffsetRange] = (),
        *,
        pending: bool = False,
        error: Exception | None = None,
    ) -> None:
        self._value, self._pending, self._error = value, pending, error
        self.waited_for = False

    def done(self) -> bool:
        return not self._pending

    def result(self, timeout: float | None = None) -> RecordMetadata | Sequence[OffsetRange]:
        self.waited_for = True
        if self._error is not None:
            raise self._error
        return self._value


def many(partition: int, first: int, last: int) -> Outcome:
    return Outcome([OffsetRange("t", partition, first, last)])


def test_ranges_and_single_records_add_up_by_partition() -> None:
    receipts = Receipts()
    receipts.expect(many(1, 10, 19))
    receipts.expect(many(0, 0, 4))
    receipts.expect(Outcome(RecordMetadata("t", 1, 20, 0)))
    receipts.await_all()
    assert receipts.acknowledged == 16
    assert receipts.rows() == [
        {"partition": 0, "records": 5, "first_offset": 0, "last_offset": 4},
        {"partition": 1, "records": 11, "first_offset": 10, "last_offset": 20},
    ]


def test_nothing_is_waited_for_while_few_are_pending() -> None:
    receipts, pending = Receipts(), Outcome([OffsetRange("t", 0, 0, 9)], pending=True)
    receipts.expect(pending)
    receipts.expect(many(0, 10, 19))
    assert not pending.waited_for
    assert receipts.acknowledged == 0
    receipts.await_all()
    assert receipts.acknowledged == 20


def test_the_oldest_is_waited_for_when_there_are_many() -> None:
    receipts, oldest = Receipts(), Outcome(pending=True)
    receipts.expect(oldest)
    for _ in range(FUTURES_MAX):
        receipts.expect(Outcome(pending=True))
    assert oldest.waited_for


def test_a_failure_is_raised_after_what_came_before_it() -> None:
    receipts = Receipts()
    receipts.expect(many(0, 0, 9))
    with pytest.raises(RecordTooLargeError):
        receipts.expect(Outcome(error=RecordTooLargeError("too large")))
    assert receipts.acknowledged == 10


def test_after_a_failure_all_acknowledged_records_are_counted() -> None:
    stored, keyless = Delivery("t", 0, 0), Delivery.failed("t", -1, KeyRequiredError("no key"))
    stored.succeed(10, 0)
    receipts = Receipts()
    with pytest.raises(KeyRequiredError):
        receipts.expect(RangesFuture([(keyless, 0, 1), (stored, 0, 5)]))
    receipts.expect(many(0, 15, 19))
    receipts.count_all()
    assert receipts.acknowledged == 10


def test_records_without_acknowledgement_have_no_offsets() -> None:
    receipts = Receipts()
    receipts.expect(Outcome(RecordMetadata("t", 0, -1, 0)))
    assert receipts.acknowledged == 0
    assert receipts.rows() == []


# -- stalls ----------------------------------------------------------------------------------------


def test_a_notice_is_due_after_some_seconds_without_progress_and_then_rarely() -> None:
    stall = Stall(now=100.0)
    assert not stall.is_due(100.0, delivered=0, waiting=5)
    assert not stall.is_due(100.0 + STALL_SECONDS - 0.1, delivered=0, waiting=5)
    assert stall.is_due(100.0 + STALL_SECONDS, delivered=0, waiting=5)
    assert not stall.is_due(100.0 + STALL_SECONDS + 1, delivered=0, waiting=5)
    assert stall.is_due(100.0 + STALL_SECONDS + AGAIN_SECONDS, delivered=0, waiting=5)


def test_progress_and_rest_begin_the_time_again() -> None:
    stall = Stall(now=0.0)
    assert not stall.is_due(0.0, delivered=0, waiting=5)
    assert not stall.is_due(10.0, delivered=1, waiting=4), "something was acknowledged"
    assert not stall.is_due(12.0, delivered=1, waiting=0), "nothing waits"
    assert not stall.is_due(14.0, delivered=1, waiting=2)
    assert stall.is_due(12.0 + STALL_SECONDS, delivered=1, waiting=2)


@pytest.mark.integration
def test_the_reason_names_what_is_wrong(raftlog: Raftlog, topic: str, broker: Cluster) -> None:
    assert "slowly" in produce_module.stall_reason(broker.bootstrap, topic)
    assert "does not exist" in produce_module.stall_reason(broker.bootstrap, f"{topic}-missing")


# -- files that are followed -----------------------------------------------------------------------

# ``raftlog produce --follow``: rotated, truncated and vanishing files, crashes at any point.


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


class Reader:
    """A followed file whose lines are taken as sent at once."""

    def __init__(self, path: Path, before: FollowedFile | None = None) -> None:
        self.notes: list[str] = []
        self.now_s = 0.0
        kept: dict[str, Any] = {}
        if before is not None:
            before.close()
            kept = {"places": before.places, "finished": before.finished}
        self.file = FollowedFile(str(path), note=self.notes.append, **kept)

    def lines(self, *, after_s: float = 0.0, is_last: bool = False) -> list[bytes]:
        self.now_s += after_s
        found: list[bytes] = []
        while chunk := self.file.read(self.now_s, is_last=is_last):
            assert chunk.data is not None
            found += chunk.data.removesuffix(b"\n").split(b"\n")
            self.file.complete(chunk)
        return found


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


# -- one file --------------------------------------------------------------------------------------


def test_only_complete_lines_are_read_each_once(log: Path) -> None:
    log.write_bytes(b"1\n\n2")
    reader = Reader(log)
    assert reader.lines() == [b"1", b""]
    append(log, b"2\n3\n")
    assert reader.lines() == [b"22", b"3"]
    assert reader.lines(after_s=DRAIN_S) == []


def test_a_renamed_file_is_read_to_its_end_before_it_is_closed(log: Path) -> None:
    log.write_bytes(b"1\n")
    reader = Reader(log)
    assert reader.lines() == [b"1"]
    old = log.rename(log.with_name("access.log.1"))
    append(old, b"2\n")
    log.write_bytes(b"4\n")
    assert reader.lines() == [b"2", b"4"]
    append(old, b"3")  # its writer has not opened the new file yet
    assert reader.lines(after_s=DRAIN_S / 2) == []
    assert reader.lines(after_s=DRAIN_S) == [b"3"]
    assert len(reader.file.places) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_rotations_between_two_looks_lose_nothing(log: Path, restarts: bool) -> None:
    log.write_bytes(b"1\n")
    reader = Reader(log)
    assert reader.lines() == [b"1"]
    append(log, b"2\n")
    for number in (3, 4):
        for old in (2, 1):
            if (at := log.with_name(f"access.log.{old}")).exists():
                at.rename(log.with_name(f"access.log.{old + 1}"))
        log.rename(log.with_name("access.log.1"))
        log.write_bytes(b"%d\n" % number)
    if restarts:
        reader = Reader(log, reader.file)
    assert reader.lines(is_last=True) == [b"2", b"3", b"4"]
    assert reader.notes == []


@pytest.mark.parametrize("restarts", [False, True])
def test_copytruncate_loses_nothing(log: Path, restarts: bool) -> None:
    log.write_bytes(b"first line\n")
    reader = Reader(log)
    assert reader.lines() == [b"first line"]
    append(log, b"not read before the copy\n")
    shutil.copy(log, log.with_name("access.log.1"))
    os.truncate(log, 0)
    append(log, b"a line after it, longer than the position\n")
    if restarts:
        reader = Reader(log, reader.file)
    assert reader.lines(is_last=True) == [
        b"not read before the copy",
        b"a line after it, longer than the position",
    ]


def test_truncation_without_a_copy_says_what_is_lost(log: Path) -> None:
    log.write_bytes(b"1\n")
    reader = Reader(log)
    assert reader.lines() == [b"1"]
    append(log, b"half")
    assert reader.lines() == []
    log.write_bytes(b"")
    assert reader.lines() == []
    assert "4 bytes after byte 2 are lost" in reader.notes[0]
    append(log, b"2\n")
    assert reader.lines() == [b"2"]


def test_a_new_file_with_the_inode_of_the_old_one_is_read_from_its_start(log: Path) -> None:
    log.write_bytes(b"old line\n")
    reader = Reader(log)
    assert reader.lines() == [b"old line"]
    log.write_bytes(b"new line, and longer\n")
    assert Reader(log, reader.file).lines() == [b"new line, and longer"]


def test_a_vanished_file_is_noted_once_and_followed_again(log: Path) -> None:
    reader = Reader(log)
    assert reader.lines() == []
    log.write_bytes(b"1\n")
    assert reader.lines() == [b"1"]
    append(log, b"2\n")
    log.unlink()
    assert reader.lines() == [b"2"]  # it is still open
    assert reader.lines() == []
    log.write_bytes(b"3\n")
    assert reader.lines() == [b"3"]
    assert [note.removeprefix(f"{log} ").split(".")[0] for note in reader.notes] == [
        "does not exist",
        "is read",
        "does not exist any more",
        "is read",
    ]


def test_a_file_that_vanished_between_two_runs_is_named(log: Path) -> None:
    log.write_bytes(b"1\n")
    reader = Reader(log)
    assert reader.lines() == [b"1"]
    log.unlink()
    log.with_name("access.log.1.gz").write_bytes(b"")
    log.write_bytes(b"2\n")
    again = Reader(log, reader.file)
    assert again.lines() == [b"2"]
    assert "read until byte 2 is gone" in again.notes[0]
    assert "access.log.1.gz was rotated and compressed" in again.notes[1]


def test_a_finished_file_that_grows_is_not_read_twice(log: Path) -> None:
    log.write_bytes(b"1\n")
    reader = Reader(log)
    reader.lines()
    old = log.rename(log.with_name("access.log.1"))
    log.write_bytes(b"2\n")
    reader.lines(is_last=True)
    append(old, b"late\n")
    os.utime(old, ns=(2**62, 2**62))
    log.rename(log.with_name("access.log-20260501"))
    log.write_bytes(b"3\n")
    assert sorted(reader.lines(is_last=True)) == [b"3", b"late"]


def test_what_is_no_file_and_a_line_without_end_are_refused(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(log)
    with pytest.raises(InvalidRequestError, match="not a regular file"):
        Reader(log).lines()
    log.unlink()
    monkeypatch.setattr(follow, "CHUNK_BYTES", 10)
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 50)
    log.write_bytes(b"1234\n" + b"x" * 100 + b"\n")
    reader = Reader(log)
    with pytest.raises(InvalidRequestError, match="the line at byte 5 is longer than 50 bytes"):
        reader.lines()
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 500)
    assert reader.lines() == [b"x" * 100]


# -- records ---------------------------------------------------------------------------------------


def chunk_of(data: bytes, **fields: Any) -> Chunk:
    return Chunk("f", 1, 2, 0, len(data), "", follow.NO_MARK, data=data, **fields)


def test_lines_with_keys_get_the_partitions_of_their_keys() -> None:
    data = b"a 1\nno-key\nb 2\na 3\n"
    routed = Routing(separator=" ").route(chunk_of(data, partition=1), 2)
    pairs = {n: list(zip(r.keys, r.values, strict=True)) for n, r in routed.items()}
    assert sorted(chain(*pairs.values()), key=lambda pair: pair[1]) == [
        (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (None, b"no-key")
    ]  # fmt: skip
    assert (None, b"no-key") in pairs[1]
    assert Routing(partition=0, separator=" ").route(chunk_of(data), 2).keys() == {0}
    assert Routing(key="k").route(chunk_of(b"1\n\n"), 1)[0] == Records([b"1", b""], [b"k", b"k"])


def test_batches_have_no_more_bytes_than_allowed() -> None:
    records = Records([b"x" * 10] * 5, [None] * 5)
    sizes = [len(part.values) for part in records.batches(30, skip=1, extra=4)]
    assert sizes == [2, 2]
    assert [len(part.values) for part in records.batches(5, skip=4, extra=0)] == [1]


# -- the agent -------------------------------------------------------------------------------------


class Crash(BaseException):
    """The end of the process."""


class Brokers:
    """Two partitions, and the producers that have written to them. ``faults``: for each append."""

    def __init__(self) -> None:
        self.partitions: list[list[bytes]] = [[], []]
        self.counts: dict[tuple[str, int, int], int] = {}
        self.faults: Iterator[str] = iter(())

    @property
    def lines(self) -> list[bytes]:
        return list(chain(*self.partitions))

    def connect(self, name: str, epoch: int) -> Any:
        return FakeProducer(self, name, epoch)


class FakeProducer:
    """What the agent uses of ``ResumableProducer``."""

    def __init__(self, brokers: Brokers, name: str, epoch: int) -> None:
        self._brokers, self._name, self.epoch = brokers, name, epoch
        self._next: dict[int, int] = {}

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def flush(self) -> None:
        pass

    def partition_count(self, _topic: str) -> int:
        return len(self._brokers.partitions)

    def max_message_bytes(self, _topic: str) -> int:
        return 100

    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        counts = self._brokers.counts
        found = {tp: counts.get((self._name, self.epoch, tp.partition), 0) for tp in partitions}
        for tp, count in found.items():
            self._next.setdefault(tp.partition, count)
        return found

    def append(self, tp: TopicPartition, body: BatchBody) -> Future[RecordMetadata]:
        fault = next(self._brokers.faults, "")
        future: Future[RecordMetadata] = Future()
        if fault == "crash before":
            raise Crash
        key = (self._name, self.epoch, tp.partition)
        sequence = self._next[tp.partition]
        self._next[tp.partition] += body.record_count
        if fault == "lost" or sequence != self._brokers.counts.get(key, 0):
            future.set_exception(BrokerUnavailableError("this batch or an earlier one was lost"))
            return future
        stored = self._brokers.partitions[tp.partition]
        future.set_result(RecordMetadata(tp.topic, tp.partition, len(stored), 0))
        stored += [value or b"" for value in decode_lists(seal(body) + body.payload).values]
        self._brokers.counts[key] = self._next[tp.partition]
        if fault == "crash after":
            raise Crash
        return future


@pytest.fixture
def run(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """``run(brokers)``: one run of the agent until it has no more lines, or crashes."""
    monkeypatch.setattr("raftlog.disk.sync_all", lambda _fd: None)

    def call(brokers: Brokers, *paths: Path, **sending: Any) -> list[str]:
        notes: list[str] = []
        with StateFile(tmp_path / "state" / "follow.json") as file:
            state = file.load("t", "id-1")
            agent = Agent(
                file,
                state,
                [str(path) for path in paths or (log,)],
                Sending(**sending),
                sent=lambda *_range: None,
                note=notes.append,
                sleep=lambda _seconds: None,
            )
            try:
                agent.run(brokers.connect, once=True)
            except Crash:
                notes.append("crash")
            finally:
                agent.close()
        return notes

    return call


FAULTS = ["", "", "crash before", "crash after", "lost"]


def rotate(rng: random.Random, path: Path, target: Path, now_ns: int) -> None:
    """Rename the file, or copy and truncate it. The new content is a second younger."""
    if rng.random() < 0.5:
        path.rename(target)
        path.touch()
    else:
        shutil.copy2(path, target)
        os.truncate(path, 0)
    os.utime(path, ns=(now_ns, now_ns + 10**9))


@pytest.mark.parametrize("seed", range(10))
def test_each_line_is_stored_once_whatever_crashes_and_rotates(
    seed: int, tmp_path: Path, run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(follow, "CHUNK_BYTES", 64)
    paths = [tmp_path / "a.log", tmp_path / "b.log"]
    brokers, written = Brokers(), []
    arguments: dict[str, Any] = {"routing": Routing(separator=":" if seed % 2 else "")}
    for path in paths:
        path.touch()
        os.utime(path, ns=(0, 0))
    run(brokers, *paths, **arguments)
    for step in range(1, 12):
        for path in paths:
            lines = [b"%s-%d-%d" % (path.name.encode(), step, n) for n in range(rng.randrange(8))]
            written += lines
            append(path, b"".join(b"%d:%s\n" % (rng.randrange(9), line) for line in lines))
            now_ns = step * 10**10
            os.utime(path, ns=(now_ns, now_ns))
            if rng.random() < 0.4:
                rotate(rng, path, path.with_name(f"{path.name}.{step:02}"), now_ns)
        for faults in (rng.choices(FAULTS, k=rng.randrange(6)), ()):
            brokers.faults = iter(faults)
            run(brokers, *paths, **arguments)
    stored = [value.rpartition(b":")[2] for value in brokers.lines]
    assert sorted(stored) == sorted(written)


def test_brokers_that_are_unavailable_are_noted_once(
    log: Path, run: Callable[..., list[str]]
) -> None:
    log.write_bytes(b"1\n")
    brokers = Brokers()
    brokers.faults = iter(["lost"] * 3)
    assert run(brokers) == ["this batch or an earlier one was lost (trying again; no line is lost)"]
    assert brokers.lines == [b"1"]


def test_lines_that_vanish_before_they_are_stored_are_named_and_fence_late_requests(
    log: Path, run: Callable[..., list[str]]
) -> None:
    log.write_bytes(b"1\n2\n")
    brokers = Brokers()
    brokers.faults = iter(["crash before"])
    assert run(brokers) == ["crash"]
    log.write_bytes(b"other\n")
    notes = run(brokers)
    assert any("bytes 0 to 3 were read, but not stored" in note for note in notes)
    assert brokers.lines == [b"other"]
    assert {epoch for _, epoch, _ in brokers.counts} == {1}


def test_an_epoch_ends_before_its_sequences_do(log: Path, run: Callable[..., list[str]]) -> None:
    log.write_bytes(b"1\n")
    brokers = Brokers()
    run(brokers)
    ((name, _, _),) = brokers.counts
    brokers.counts[name, 0, 0] = brokers.counts[name, 0, 1] = SEQUENCES_MAX + 1
    append(log, b"2\n")
    run(brokers)
    assert brokers.lines == [b"1", b"2"]
    assert {epoch for _, epoch, _ in brokers.counts} == {0, 1}


def test_no_line_counts_as_lost_when_an_epoch_ends_between_two_rounds(
    log: Path, run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CHUNK_BYTES", 3)
    monkeypatch.setattr(follow, "SEQUENCES_MAX", 0)
    log.write_bytes(b"1\n2\n3\n")
    brokers = Brokers()
    assert run(brokers, routing=Routing(partition=0)) == []
    assert sorted(brokers.lines) == [b"1", b"2", b"3"]
    assert {epoch for _, epoch, _ in brokers.counts} == {0, 1, 2}


def test_a_state_belongs_to_one_topic_and_one_process(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    with file:
        file.save(file.load("t", "id-1"))
        with pytest.raises(InvalidRequestError, match="has the ID id-2"):
            file.load("t", "id-2")
        with pytest.raises(InvalidRequestError, match="is in use"), StateFile(file.path):
            pass
        file.path.write_bytes(b"{}")
        with pytest.raises(InvalidRequestError, match="is not a state"):
            file.load("t", "id-1")


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.integration
def test_the_next_run_sends_what_was_appended(
    raftlog: Raftlog, topic: str, log: Path, tmp_path: Path
) -> None:
    arguments = ["produce", topic, "--follow", log, "--once", "--state", tmp_path / "state"]
    arguments += ["--header", "from=agent", "--compression", "lz4", "--json"]
    log.write_bytes(b"".join(b"%d\n" % number for number in range(50_000)))
    assert raftlog(*arguments).json["records"] == 50_000
    log.rename(log.with_name("access.log.1"))
    log.write_bytes(b"50000\n")
    assert raftlog(*arguments).json["acknowledged"] == 1
    assert raftlog(*arguments).json["records"] == 0
    found = raftlog("tail", topic, "-o", "earliest", "--format", "%v %h").out.splitlines()
    assert sorted(found) == sorted(b"%d from=agent" % number for number in range(50_001))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--follow"], "at least one FILE"),
        (["file"], "need --follow"),
        (["--once"], "need --follow"),
        (["--follow", "file", "--jsonl"], "--jsonl"),
        (["--follow", "file", "--acks", "1"], "--acks"),
        (["--follow", "file", "--rate", "1"], "--rate"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    raftlog: Raftlog, arguments: list[str], problem: str
) -> None:
    ran = raftlog("produce", "t", *arguments)
    assert ran.status == 2
    assert problem in ran.err
