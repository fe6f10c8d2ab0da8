"""Tests of ``raftlog produce``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from raftlog import RangesFuture
from raftlog.client.delivery import Delivery
from raftlog.errors import KeyRequiredError, RecordTooLargeError
from raftlog.testing import Cluster
from raftlog.types import OffsetRange, RecordMetadata
from raftlog_cli import produce as produce_module
from raftlog_cli.produce import AGAIN_SECONDS, FUTURES_MAX, STALL_SECONDS, Pacer, Receipts, Stall
from tests.cli.conftest import Raftlog


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


def test_the_reason_names_what_is_wrong(raftlog: Raftlog, topic: str, broker: Cluster) -> None:
    assert "slowly" in produce_module.stall_reason(broker.bootstrap, topic)
    assert "does not exist" in produce_module.stall_reason(broker.bootstrap, f"{topic}-missing")
