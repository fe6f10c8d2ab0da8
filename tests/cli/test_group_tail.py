"""``raftlog tail --group``: what is printed, when it ends, and what is left to the next reader."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterable
from typing import cast

import pytest

from raftlog import Consumer, Producer
from raftlog.cli import group_tail, output
from raftlog.cli.formats import format_values
from raftlog.errors import BrokerUnavailableError
from raftlog.testing.probes import wait_until
from raftlog.types import ConsumerRecord, TopicPartition
from tests.cli.conftest import Raftlog

Spawn = Callable[..., "subprocess.Popen[bytes]"]
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

    monkeypatch.setattr(group_tail.time, "monotonic", monotonic)
    return now


def copy(
    consumer: FakeConsumer,
    *,
    is_member: bool = True,
    pattern: re.Pattern[bytes] | None = None,
    count: int | None = None,
    follow: bool = False,
) -> KeyboardInterrupt | None:
    return group_tail.copy(
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
    assert group_tail.unread(cast("Consumer", consumer), [A, B], {A: 2}) == []
    assert capfdbinary.readouterr().out.split() == [b"0-0", b"0-1"]


def test_a_member_that_is_given_nothing_ends_after_a_while(
    seconds: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    copy(FakeConsumer({A: 5}, []))
    assert group_tail.UNASSIGNED_S_MAX < seconds[0] < group_tail.UNASSIGNED_S_MAX + 5
    assert "other members read all partitions" in capfd.readouterr().err


def test_a_partition_that_gives_nothing_is_a_fault(seconds: list[float]) -> None:
    consumer = FakeConsumer({A: 5}, [A])
    consumer.silent.add(A)
    with pytest.raises(BrokerUnavailableError, match="t:0 gave no record for 60 s"):
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
def numbers(bootstrap: str, topic: str) -> str:
    """The numbers 0 to 9 in partition 0, and 10 to 12 in 1."""
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
        producer.send_many(topic, [b"%d" % number for number in range(10, 13)], partition=1)
        producer.flush(timeout=20)
    return topic


def found(raftlog: Raftlog, *arguments: object) -> list[int]:
    ran = raftlog("tail", *arguments)
    assert ran.status == 0, ran.err
    return sorted(map(int, ran.out.split()))


@pytest.mark.integration
def test_a_group_goes_on_where_it_stopped(raftlog: Raftlog, bootstrap: str, numbers: str) -> None:
    ours = (numbers, "--group", f"g-{numbers}")
    first = found(raftlog, *ours, "-n", 4)
    assert len(first) == 4
    assert sorted(first + found(raftlog, *ours)) == list(range(13))
    assert found(raftlog, *ours) == []
    with Producer(bootstrap) as producer:
        producer.send(numbers, b"99", partition=1).result(timeout=20)
    assert found(raftlog, *ours) == [99]
    assert found(raftlog, *ours, "-o", "earliest") == []  # that is for where nothing is committed


@pytest.mark.integration
def test_one_partition_is_read_for_the_group(raftlog: Raftlog, numbers: str) -> None:
    ours = (numbers, "--group", f"g-{numbers}")
    assert found(raftlog, *ours, "-p", 1) == [10, 11, 12]
    assert found(raftlog, *ours, "-p", 1) == []
    assert found(raftlog, *ours) == list(range(10))


@pytest.mark.integration
def test_a_group_may_begin_at_the_end(raftlog: Raftlog, numbers: str) -> None:
    ours = (numbers, "--group", f"g-{numbers}", "-o", "latest")
    assert found(raftlog, *ours) == []


@pytest.mark.integration
@pytest.mark.parametrize(
    ("told_by", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_what_was_printed_is_committed_when_it_is_interrupted(
    raftlog: Raftlog, spawn: Spawn, numbers: str, told_by: int, status: int
) -> None:
    group = f"g-{numbers}"
    process = spawn("tail", numbers, "--group", group, "-f")
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
    raftlog: Raftlog, spawn: Spawn, bootstrap: str, numbers: str
) -> None:
    group = f"g-{numbers}"
    readers = [spawn("tail", numbers, "--group", group, "-f", "--format", "%p") for _ in "12"]

    def shares() -> list[int]:
        listed = raftlog("group", "describe", group, "--json")
        members = json.loads(listed.out)["members"] if listed.status == 0 else []
        return [len(member["assigned"]) for member in members]

    wait_until(lambda: shares() == [1, 1], what="a partition each", timeout_s=30)
    with Producer(bootstrap) as producer:
        for partition in (0, 1):
            producer.send(numbers, b"new", partition=partition)
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
