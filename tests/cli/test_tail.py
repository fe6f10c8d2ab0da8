"""Tests of ``raftlog tail``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer
from raftlog.errors import BrokerUnavailableError, InvalidRequestError
from raftlog.testing.cluster import wait_until
from raftlog.types import ConsumerRecord, TopicPartition
from raftlog_cli import output
from raftlog_cli import tail as tail_module
from raftlog_cli.options import EARLIEST, Extent, Offsets
from raftlog_cli.output import format_values
from raftlog_cli.tail import RecordFiles, Span
from tests.cli.conftest import Raftlog

Spawn = Callable[..., "subprocess.Popen[bytes]"]

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def numbers(bootstrap: str, topic: str) -> str:
    """A topic with the numbers 0 to 19 in partition 0, a second apart, and 100 to 102 in 1."""
    with Producer(bootstrap) as producer:
        for number in range(20):
            at = FIRST_MS + number * 1_000
            producer.send(topic, b"%d" % number, timestamp_ms=at, partition=0)
        for number in range(100, 103):
            producer.send(topic, b"%d" % number, timestamp_ms=FIRST_MS, partition=1)
        producer.flush(timeout=20)
    return topic


def found(raftlog: Raftlog, *arguments: object) -> list[int]:
    ran = raftlog("tail", *arguments)
    assert ran.status == 0, ran.err
    return [int(line) for line in ran.out.split()]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-o", "earliest"], range(20)),
        (["-o", "earliest", "-n", 3], range(3)),
        (["-o", "latest"], []),
        (["-o", 15], range(15, 20)),
        (["-o", 20], []),
        (["-o", -2], range(18, 20)),
        (["-o", -100], range(20)),
        (["-o", "+18"], range(18, 20)),
        (["-o", "3:6"], range(3, 6)),
        (["-o", "18:99"], range(18, 20)),
        (["-o", "5:5"], []),
        (["-o", f"@{FIRST_MS + 17_000}"], range(17, 20)),
        (["-o", f"@{FIRST_MS + 16_001}"], range(17, 20)),
        (["-o", f"@{FIRST_MS + 99_000}"], []),
        (["-o", "@2023-11-14T22:13:22:2023-11-14T22:13:25"], range(2, 5)),
        (["-o", "@-1m"], []),
        ([], range(10, 20)),
        (["-n", 3], range(17, 20)),
        (["-n", 0], []),
        (["-o", "earliest", "--grep", "^1[0-2]$"], range(10, 13)),
        (["-o", "earliest", "--grep", "1", "-n", 2], [1, 10]),
    ],
    ids=str,
)
def test_offsets_choose_records(
    raftlog: Raftlog, numbers: str, arguments: list[object], expected: list[int]
) -> None:
    assert found(raftlog, numbers, "-p", 0, *arguments) == list(expected)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-o", "earliest"], {*range(20), 100, 101, 102}),
        (["-n", 2], {18, 19}),
        (["-n", 2, "-o", "earliest"], {0, 1}),
        (["-n", 22], {*range(20), 101, 102}),
        (["-n", 2, "--grep", "^10."], {101, 102}),
        (["-o", 10], set(range(10, 20))),
        (["-o", "1:2"], {1, 101}),
    ],
    ids=str,
)
def test_without_a_partition_all_are_read(
    raftlog: Raftlog, numbers: str, arguments: list[object], expected: set[int]
) -> None:
    assert set(found(raftlog, numbers, *arguments)) == expected


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["-o", "yesterday"], 2, "earliest, latest, N"),
        (["--format", "%q"], 2, "grammar"),
        (["--grep", "("], 2, "--grep"),
        (["-f", "-o", "1:2"], 2, "range"),
        (["--json", "--format", "%v"], 2, "--json"),
        (["--rotate-size", "1MB"], 2, "--rotate-size needs --to"),
        (["--rotate-seconds", "9"], 2, "--rotate-seconds needs --to"),
        (["-o", "1000"], 1, "out of range"),
        (["-p", "9"], 1, "no partition 9: it has 0 to 1"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(
    raftlog: Raftlog, numbers: str, arguments: list[str], status: int, reason: str
) -> None:
    ran = raftlog("tail", numbers, *arguments)
    assert ran.status == status
    assert reason in ran.err
    assert ran.out == b""


@pytest.mark.integration
def test_an_unknown_topic_is_refused(raftlog: Raftlog, bootstrap: str) -> None:
    ran = raftlog("tail", "no-such-topic", "--bootstrap", bootstrap)
    assert ran.status == 1
    assert "topic 'no-such-topic' does not exist. `raftlog topic list` lists" in ran.err
    assert "create" not in ran.err


@pytest.mark.integration
def test_following_prints_records_as_they_come(spawn: Spawn, bootstrap: str, numbers: str) -> None:
    process = spawn("tail", numbers, "-p", 0, "-o", 19, "-f")
    assert process.stdout is not None
    assert process.stdout.readline() == b"19\n"
    with Producer(bootstrap) as producer:
        producer.send(numbers, b"20", partition=0).result(timeout=20)
    assert process.stdout.readline() == b"20\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.integration
def test_following_reads_partitions_that_are_added(
    bootstrap: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = time.monotonic() + 20

    class Impatient(Consumer):
        def poll(self, *arguments: Any, **settings: Any) -> list[ConsumerRecord]:
            assert time.monotonic() < deadline, "no record of the new partition"
            return super().poll(*arguments, **settings)

    monkeypatch.setattr(tail_module, "Consumer", partial(Impatient, metadata_max_age_ms=100))
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics([NewTopic("growing", 1)])
        producer.send("growing", b"0").result(20)

        def add_and_format(record: ConsumerRecord) -> bytes:
            if record.value == b"0":
                admin.add_partitions("growing", 2)
                producer.send_many("growing", [b"1", b"2"], partition=1).result(20)
            return format_values(record)

        printing = {"write": add_and_format, "pattern": None, "count": 3}
        reading: dict[str, Any] = {"group": None, "any_replica": False, "isolation": "committed"}
        tail_module.copy_records(
            bootstrap, "growing", None, Offsets(EARLIEST), None, printing, follow=True, **reading
        )
    assert capfdbinary.readouterr().out.split() == [b"0", b"1", b"2"]


@pytest.mark.integration
def test_following_stops_after_the_count(spawn: Spawn, numbers: str) -> None:
    process = spawn("tail", numbers, "-p", 0, "-o", 18, "-f", "-n", 2)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"18\n19\n")


@pytest.mark.integration
def test_a_reader_that_has_had_enough_ends_it_quietly(
    spawn: Spawn, bootstrap: str, topic: str
) -> None:
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"x" * 100] * 50_000, partition=0).result(timeout=20)
    process = spawn("tail", topic, "-o", "earliest")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == b""


# -- reading ---------------------------------------------------------------------------------------


FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


class Reader:
    """What `copy` needs of a consumer: partitions as lists of values, two records a poll."""

    def __init__(self, partitions: dict[TopicPartition, Sequence[bytes]]) -> None:
        self._partitions = partitions
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(partitions)

    def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        for tp, position in self._positions.items():
            values = self._partitions[tp][position : position + 2]
            if tp not in self._paused and values:
                self._positions[tp] += len(values)
                return [
                    ConsumerRecord(*tp, position + index, None, value, (), 0, 0)
                    for index, value in enumerate(values)
                ]
        return []


class Sparse(Reader):
    """The same, with holes: no record but those at ``offsets``."""

    def __init__(self, offsets: Sequence[int], end: int) -> None:
        super().__init__({FIRST: [b"%d" % offset for offset in range(end)]})
        self._offsets = set(offsets)
        self.sought: list[int] = []

    def beginning_offsets(self, _partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {FIRST: 0}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append(offset)
        super().seek(partition, offset)

    def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        records = super().poll(timeout_ms, max_records)
        return [record for record in records if record.offset in self._offsets]


@pytest.mark.parametrize(
    ("offsets", "count", "start"),
    [
        (range(1_000), 10, 990),
        ([*range(0, 1_000, 5), 999], 10, 955),
        ([3, 500, 999], 2, 500),
        ([3, 500, 999], 3, 3),
        ([3, 500, 999], 10, 3),
        ([], 10, 1_000),
    ],
)
def test_the_last_records_may_lie_far_back(offsets: Sequence[int], count: int, start: int) -> None:
    """As compaction leaves them."""
    reader = Sparse(offsets, 1_000)
    spans = {FIRST: Span(1_000 - count, 1_000)}
    assert tail_module.with_last(reader, spans, count) == {FIRST: Span(start, 1_000)}


@pytest.mark.parametrize(("start", "end", "count"), [(0, 10, 10), (50_000, 100_000, 50_000)])
def test_what_cannot_be_longer_and_very_many_are_not_looked_for(
    start: int, end: int, count: int
) -> None:
    reader = Sparse([], end)
    spans = {FIRST: Span(start, end)}
    assert tail_module.with_last(reader, spans, count) == spans
    assert reader.sought == []


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, {}), (1, {SECOND: 1}), (3, {FIRST: 2, SECOND: 0}), (9, {FIRST: 0, SECOND: 0})],
)
def test_the_last_records_are_the_newest_of_all_partitions(
    count: int, expected: dict[TopicPartition, int]
) -> None:
    found = {FIRST: [(1, 0), (9, 1), (5, 2)], SECOND: [(6, 0), (7, 1)], TopicPartition("t", 2): []}
    assert tail_module.newest(found, count) == expected


def copied(
    capfdbinary: pytest.CaptureFixture[bytes],
    spans: dict[TopicPartition, Span],
    count: int | None = None,
) -> list[bytes]:
    reader = Reader({FIRST: [b"a", b"b", b"c", b"d", b"e"], SECOND: [b"v", b"w", b"x"]})
    tail_module.copy_spans(reader, spans, write=format_values, pattern=None, count=count)
    return capfdbinary.readouterr().out.split()


@pytest.mark.parametrize(
    ("spans", "count", "expected"),
    [
        ({FIRST: Span(0, 5)}, None, [b"a", b"b", b"c", b"d", b"e"]),
        ({FIRST: Span(1, 4)}, None, [b"b", b"c", b"d"]),
        ({FIRST: Span(1, 2)}, None, [b"b"]),
        ({FIRST: Span(2, 2)}, None, []),
        ({FIRST: Span(0, 5)}, 3, [b"a", b"b", b"c"]),
        ({FIRST: Span(0, None)}, 3, [b"a", b"b", b"c"]),
        ({FIRST: Span(3, 5), SECOND: Span(1, 3)}, None, [b"d", b"e", b"w", b"x"]),
        ({FIRST: Span(5, 5), SECOND: Span(2, 3)}, None, [b"x"]),
        ({}, None, []),
    ],
)
def test_spans_are_read_from_start_to_stop(
    capfdbinary: pytest.CaptureFixture[bytes],
    spans: dict[TopicPartition, Span],
    count: int | None,
    expected: list[bytes],
) -> None:
    assert copied(capfdbinary, spans, count) == expected


def test_silence_where_there_should_be_records_is_a_fault(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "SILENCE_S_MAX", 0.01)
    with pytest.raises(BrokerUnavailableError, match="t:0 returned no record"):
        copied(capfdbinary, {FIRST: Span(0, 99)})


# -- group tail ------------------------------------------------------------------------------------


A, B, C = (TopicPartition("t", number) for number in range(3))


class FakeConsumer:
    """A member that is given some of the partitions, each with so many records."""

    def __init__(self, counts: dict[TopicPartition, int], given: Iterable[TopicPartition]) -> None:
        self.counts = counts
        self.given = list(given)
        self.positions = dict.fromkeys(counts, 0)
        self.called: list[str] = []
        self.taken = 0
        self.silent: set[TopicPartition] = set()

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.counts[tp] for tp in partitions}

    def subscribe(self, topics: list[str]) -> None:
        self.called.append(f"subscribe {topics}")

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.called.append(f"assign {[str(tp) for tp in partitions]}")

    def assignment(self) -> set[TopicPartition]:
        return set(self.given)

    def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]

    def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        for tp in self.given:
            while self.positions[tp] < self.counts[tp] and len(records) < max_records:
                if tp in self.silent:
                    break
                offset = self.positions[tp]
                self.positions[tp] += 1
                value = b"%d-%d" % (tp.partition, offset)
                records.append(ConsumerRecord(*tp, offset, None, value, (), 0, 0))
        self.taken += len(records)
        return records


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each look at the clock is a second later."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(tail_module.time, "monotonic", monotonic)
    return now


def copy(
    consumer: FakeConsumer,
    *,
    is_member: bool = True,
    pattern: re.Pattern[bytes] | None = None,
    count: int | None = None,
    follow: bool = False,
) -> KeyboardInterrupt | None:
    return tail_module.copy_as_member(
        cast("Consumer", consumer),
        "t",
        sorted(consumer.counts),
        is_member=is_member,
        write=format_values,
        pattern=pattern,
        count=count,
        follow=follow,
    )


def test_a_member_prints_what_it_is_given_and_ends(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    consumer = FakeConsumer({A: 2, B: 9, C: 1}, [A, C])
    assert copy(consumer) is None
    assert capfdbinary.readouterr().out.split() == [b"0-0", b"0-1", b"2-0"]
    assert consumer.called == ["subscribe ['t']"]


def test_what_was_printed_is_committed_when_the_next_poll_is_interrupted(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    class Interrupted(FakeConsumer):
        def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
            records = super().poll(timeout_ms, 2)
            if self.taken > 4:
                raise KeyboardInterrupt
            return records

        def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
            self.called.append(f"commit {[(str(tp), offset) for tp, offset in offsets.items()]}")

    consumer = Interrupted({A: 20}, [A])
    with pytest.raises(KeyboardInterrupt):
        copy(consumer, follow=True)
    assert len(capfdbinary.readouterr().out.split()) == 4
    assert consumer.called == ["subscribe ['t']", "commit [('t:0', 4)]"]


def test_a_partition_of_ones_own_is_assigned(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    consumer = FakeConsumer({B: 1}, [B])
    copy(consumer, is_member=False)
    assert capfdbinary.readouterr().out.split() == [b"1-0"]
    assert consumer.called == ["assign ['t:1']"]


def test_no_more_is_taken_than_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    consumer = FakeConsumer({A: 100}, [A])
    copy(consumer, count=3, follow=True)
    assert len(capfdbinary.readouterr().out.split()) == consumer.taken == 3
    copy(consumer, count=0)
    assert consumer.taken == 3


def test_only_what_matches_counts(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    consumer = FakeConsumer({A: 100}, [A])
    copy(consumer, pattern=re.compile(rb"0$"), count=3, follow=True)
    assert capfdbinary.readouterr().out.split() == [b"0-0", b"0-10", b"0-20"]
    assert consumer.taken == 21


def test_records_that_come_later_are_not_waited_for(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    consumer = FakeConsumer({A: 2}, [A])
    copy(consumer)
    consumer.counts[B] = 5  # a partition that came later has no end to read to
    consumer.given.append(B)
    consumer.positions[B] = 0
    assert tail_module.unread(cast("Consumer", consumer), [A, B], {A: 2}) == []
    assert capfdbinary.readouterr().out.split() == [b"0-0", b"0-1"]


def test_a_member_that_is_given_nothing_ends_after_a_while(
    seconds: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    copy(FakeConsumer({A: 5}, []))
    assert tail_module.UNASSIGNED_S_MAX < seconds[0] < tail_module.UNASSIGNED_S_MAX + 5
    assert "other members read all partitions" in capfd.readouterr().err


def test_a_partition_that_gives_nothing_is_a_fault(seconds: list[float]) -> None:
    consumer = FakeConsumer({A: 5}, [A])
    consumer.silent.add(A)
    with pytest.raises(BrokerUnavailableError, match="t:0 returned no record for 60 s"):
        copy(consumer)
    assert seconds[0] > 60


@pytest.mark.parametrize("where", ["poll", "write", "after"])
def test_an_interrupt_is_told_from_an_end(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer({A: 2}, [A])

    def interrupt(*_arguments: object, **_more: object) -> None:
        raise KeyboardInterrupt

    if where == "after":  # all that was taken is printed: it may be committed
        monkeypatch.setattr(consumer, "position", interrupt)
        assert isinstance(copy(consumer), KeyboardInterrupt)
        return
    monkeypatch.setattr(
        *{"poll": (consumer, "poll"), "write": (output, "write_bytes")}[where], interrupt
    )
    with pytest.raises(KeyboardInterrupt):
        copy(consumer)


def test_an_interrupt_in_the_middle_of_a_write_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    consumer = FakeConsumer({A: 2}, [A])
    write = output.write_bytes

    def interrupted(data: bytes) -> None:
        signal.raise_signal(signal.SIGINT)
        write(data)

    monkeypatch.setattr(output, "write_bytes", interrupted)
    assert isinstance(copy(consumer, follow=True), KeyboardInterrupt)
    assert capfdbinary.readouterr().out.split() == [b"0-0", b"0-1"]


# -- with a broker ---------------------------------------------------------------------------------


@pytest.fixture
def spread(bootstrap: str, topic: str) -> str:
    """The numbers 0 to 9 in partition 0, and 10 to 12 in 1."""
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
        producer.send_many(topic, [b"%d" % number for number in range(10, 13)], partition=1)
        producer.flush(timeout=20)
    return topic


def found_by_group(raftlog: Raftlog, *arguments: object) -> list[int]:
    return sorted(found(raftlog, *arguments))  # its partitions come in any order


@pytest.mark.integration
def test_a_group_goes_on_where_it_stopped(raftlog: Raftlog, bootstrap: str, spread: str) -> None:
    ours = (spread, "--group", f"g-{spread}")
    first = found_by_group(raftlog, *ours, "-n", 4)
    assert len(first) == 4
    assert sorted(first + found_by_group(raftlog, *ours)) == list(range(13))
    assert found_by_group(raftlog, *ours) == []
    with Producer(bootstrap) as producer:
        producer.send(spread, b"99", partition=1).result(timeout=20)
    assert found_by_group(raftlog, *ours) == [99]
    assert (
        found_by_group(raftlog, *ours, "-o", "earliest") == []
    )  # that is for where nothing is committed


@pytest.mark.integration
def test_one_partition_is_read_for_the_group(raftlog: Raftlog, spread: str) -> None:
    ours = (spread, "--group", f"g-{spread}")
    assert found_by_group(raftlog, *ours, "-p", 1) == [10, 11, 12]
    assert found_by_group(raftlog, *ours, "-p", 1) == []
    assert found_by_group(raftlog, *ours) == list(range(10))


@pytest.mark.integration
def test_a_group_may_begin_at_the_end(raftlog: Raftlog, spread: str) -> None:
    ours = (spread, "--group", f"g-{spread}", "-o", "latest")
    assert found_by_group(raftlog, *ours) == []


@pytest.mark.integration
@pytest.mark.parametrize(
    ("told_by", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_what_was_printed_is_committed_when_it_is_interrupted(
    raftlog: Raftlog, spawn: Spawn, spread: str, told_by: int, status: int
) -> None:
    group = f"g-{spread}"
    process = spawn("tail", spread, "--group", group, "-f")
    assert process.stdout is not None
    for _ in range(13):
        process.stdout.readline()
    process.send_signal(told_by)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (status, b"", b"")
    described = raftlog("group", "describe", group, "--json").json
    assert (described["state"], described["lag"]) == ("empty", 0)


@pytest.mark.integration
def test_two_of_a_group_share_the_partitions(
    raftlog: Raftlog, spawn: Spawn, bootstrap: str, spread: str
) -> None:
    group = f"g-{spread}"
    readers = [spawn("tail", spread, "--group", group, "-f", "--format", "%p") for _ in "12"]

    def shares() -> list[int]:
        listed = raftlog("group", "describe", group, "--json")
        members = json.loads(listed.out)["members"] if listed.status == 0 else []
        return [len(member["assigned"]) for member in members]

    wait_until(lambda: shares() == [1, 1], what="a partition each", timeout_s=30)
    with Producer(bootstrap) as producer:
        for partition in (0, 1):
            producer.send(spread, b"new", partition=partition)
        producer.flush(timeout=20)

    def lag() -> int:
        return int(raftlog("group", "describe", group, "--json").json["lag"])

    wait_until(lambda: lag() == 0, what="no lag", timeout_s=30)
    printed = []
    for reader in readers:
        reader.send_signal(signal.SIGINT)
        out, err = reader.communicate(timeout=30)
        assert (reader.returncode, err) == (130, b"")
        printed.append(out.split())
    assert sorted(printed[0] + printed[1]) == [b"0"] * 11 + [b"1"] * 4


@pytest.mark.parametrize("offsets", ["-5", "3", "@-2h", "1:2"])
def test_other_places_to_begin_are_wrong_usage(raftlog: Raftlog, offsets: str) -> None:
    ran = raftlog("tail", "t", "--group", "g", "-o", offsets, "--bootstrap", "127.0.0.1:1")
    assert ran.status == 2
    assert "raftlog group reset g --to" in ran.err


# -- files of records ------------------------------------------------------------------------------


def record_of(value: bytes, offset: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, None, value, (), 0, 0)


def files_in(directory: Path, topic: str = "t", **settings: Any) -> RecordFiles:
    return RecordFiles(directory, topic, ".log", **{"bytes_max": 100} | settings)


def names(directory: Path) -> list[str]:
    return sorted(path.name.replace("0" * 17, "~") for path in directory.glob("t-*"))


def test_files_are_rotated_by_size_and_by_time(tmp_path: Path) -> None:
    now_s = 0.0
    with files_in(tmp_path, bytes_max=10, seconds_max=5, monotonic=lambda: now_s) as files:
        files.write([record_of(b"1234", offset) for offset in range(3)], format_values)
        assert names(tmp_path) == ["t-0-~000-~001.log", "t-0-~002.part"]
        now_s = 5.0
        files.write([], format_values)
        assert names(tmp_path)[1:] == ["t-0-~002-~002.log"]
        files.write([record_of(b"longer than a file", 7)], format_values)
    assert names(tmp_path)[2:] == ["t-0-~007-~007.log"]


def test_the_names_of_complete_files_are_the_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with files_in(tmp_path) as files:
        files.write([record_of(b"a", 3), record_of(b"b", 5)], format_values)
    crashed = tmp_path / f"t-0-{6:020}.part"
    crashed.write_bytes(b"c\nhalf")
    with files_in(tmp_path) as files:
        assert not crashed.exists()
        zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
        span = Span(0, None)
        assert files.continued(zero, span, Extent(0, 9)) == Span(6, None)
        assert files.continued(one, span, Extent(0, 9)) == span
        assert files.continued(zero, span, Extent(8, 9)) == Span(8, None)
        assert "offsets 6 to 7 were deleted" in capsys.readouterr().err
        with pytest.raises(InvalidRequestError, match="up to offset 5, and the log ends at 2"):
            files.continued(zero, span, Extent(0, 2))
        with pytest.raises(InvalidRequestError, match="another `raftlog tail"), files_in(tmp_path):
            pass


def test_a_file_that_could_not_be_written_is_not_completed(tmp_path: Path) -> None:
    def fail(record: ConsumerRecord) -> bytes:
        raise OSError(28, "No space left on device")

    with suppress(OSError), files_in(tmp_path) as files:
        files.write([record_of(b"a", 0)], format_values)
        files.write([record_of(b"b", 1)], fail)
    assert names(tmp_path) == ["t-0-~000.part"]


def test_files_of_one_topic_get_no_records_of_another(tmp_path: Path) -> None:
    with files_in(tmp_path) as files:
        files.claim("one")
        files.claim("two")  # the directory has no records yet
        files.write([record_of(b"a", 5)], format_values)
        with pytest.raises(InvalidRequestError, match="up to offset 6, and the next one has the"):
            files.write([record_of(b"b", 6), record_of(b"c", 0)], format_values)
    assert names(tmp_path) == ["t-0-~005-~006.log"]
    with files_in(tmp_path) as files:
        files.claim("two")
        with pytest.raises(InvalidRequestError, match="with the ID two, and this topic has the ID"):
            files.claim("three")


@pytest.mark.integration
def test_a_topic_that_was_created_again_is_not_continued(
    raftlog: Raftlog, bootstrap: str, tmp_path: Path
) -> None:
    """The new log is longer than the files: its first records would be missing in them."""
    to = ["tail", "again", "--to", tmp_path]

    def create(count: int) -> None:
        with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            admin.create_topics([NewTopic("again", 1)])
            producer.send_many("again", [b"x"] * count).result(20)

    create(2)
    assert raftlog(*to).status == 0
    with Admin(bootstrap) as admin:
        admin.delete_topics(["again"])
    create(5)
    ran = raftlog(*to)
    assert (ran.status, "it was created again" in ran.err) == (1, True)
    assert [path.name[-8:] for path in tmp_path.glob("*.log")] == ["0001.log"]


@pytest.mark.integration
def test_the_next_run_writes_the_records_after_the_files(
    raftlog: Raftlog, numbers: str, tmp_path: Path
) -> None:
    to = ["tail", numbers, "--to", tmp_path / "archive"]
    assert raftlog(*to, "-n", 7, "-p", 0).status == 0
    ran = raftlog(*to, "--rotate-size", "10B")
    assert (ran.status, ran.out) == (0, b"")
    files = sorted((tmp_path / "archive").glob("*.log"))
    assert [int(line) for file in files for line in file.read_bytes().split()] == [
        *range(20),
        *range(100, 103),
    ]
    assert raftlog(*to).status == 0
    assert sorted((tmp_path / "archive").glob("*.log")) == files
    assert raftlog(*to, "--group", "g").status == 2
