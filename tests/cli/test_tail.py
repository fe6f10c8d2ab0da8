"""``raftlog tail`` of a real broker: exactly the records asked for, exactly their bytes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from raftlog import Producer
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-o", "earliest"], {*range(20), 100, 101, 102}),
        (["-n", 2], {18, 19, 101, 102}),
        (["-o", 10], set(range(10, 20))),
        (["-o", "1:2"], {1, 101}),
    ],
    ids=str,
)
def test_without_a_partition_all_are_read(
    raftlog: Raftlog, numbers: str, arguments: list[object], expected: set[int]
) -> None:
    assert set(found(raftlog, numbers, *arguments)) == expected


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["-o", "yesterday"], 2, "earliest, latest, N"),
        (["--format", "%q"], 2, "grammar"),
        (["--grep", "("], 2, "--grep"),
        (["-f", "-o", "1:2"], 2, "range"),
        (["--json", "--format", "%v"], 2, "--json"),
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


def test_an_unknown_topic_is_refused(raftlog: Raftlog, bootstrap: str) -> None:
    ran = raftlog("tail", "no-such-topic", "--bootstrap", bootstrap)
    assert ran.status == 1
    assert "no-such-topic" in ran.err


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


def test_following_stops_after_the_count(spawn: Spawn, numbers: str) -> None:
    process = spawn("tail", numbers, "-p", 0, "-o", 18, "-f", "-n", 2)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"18\n19\n")


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
