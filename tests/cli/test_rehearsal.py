"""Tests of raftlog_cli.demo."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog.disk import OsDisk
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.types import OffsetRange
from raftlog_cli import demo
from raftlog_cli.demo import (
    Comparison,
    Copy,
    Ledger,
    Load,
    Outage,
    Outages,
    Result,
    Verdict,
    compare,
)

GOOD = Result(
    verdict=Verdict(10, 10, 0, 0, in_order=True, identical=True, sha256="ab"),
    outages=[
        Outage(2, 4711, 4, 0.5, leader=1, wiped=True),
        Outage(1, 4712, 7, 0.25, leader=2, wiped=False),
    ],
    comparison=Comparison((Copy(1, 10, 300, "cd", "ef"), Copy(2, 10, 300, "cd", "ef"))),
    brokers=3,
    bytes_sent=200,
    unavailable_seconds=0.5004,
    seconds=6.0,
)


def test_the_report_has_the_promised_keys() -> None:
    report = GOOD.to_dict()
    assert GOOD.holds
    promised = {"acknowledged": 10, "found": 10, "lost": 0, "duplicated": 0, "brokers": 3}
    assert promised.items() <= report.items()
    assert report["failovers"] == 2
    assert report["failover_seconds"] == [0.5, 0.25]
    assert report["wiped"] == 2
    assert report["replicas_identical"] is True
    assert report["acknowledged_before_kill"] == 4
    assert report["unavailable_seconds"] == 0.5
    assert report["replicas"][1]["broker"] == 2


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, verdict=replace(GOOD.verdict, lost=1)),
        replace(GOOD, verdict=replace(GOOD.verdict, duplicated=1)),
        replace(GOOD, verdict=replace(GOOD.verdict, in_order=False)),
        replace(GOOD, comparison=Comparison(())),
        replace(GOOD, comparison=Comparison((Copy(1, 10, 300, "cd", "ef", problem="torn"),))),
        replace(
            GOOD,
            comparison=Comparison((Copy(1, 10, 300, "cd", "ef"), Copy(2, 10, 300, "cd", "00"))),
        ),
    ],
)
def test_one_thing_that_is_wrong_breaks_the_promise(bad: Result) -> None:
    assert not bad.holds


def test_nobody_lost_a_disk_in_a_cluster_of_one() -> None:
    alone = replace(GOOD, outages=[replace(GOOD.outages[0], wiped=False)])
    assert alone.wiped is None


# -- load ------------------------------------------------------------------------------------------


TOPIC = "t"


class FakeFuture:
    """An outcome that is there when the test says so."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        self.ranges = ranges
        self.is_done = True
        self.error: RaftlogError | None = None

    def done(self) -> bool:
        return self.is_done

    def result(self, timeout: float | None = None) -> list[OffsetRange]:
        if self.error is not None:
            raise self.error
        return self.ranges


class FakeProducer:
    """Keeps what it is given; each portion is acknowledged at once, unless ``holds``."""

    def __init__(self) -> None:
        self.portions: list[list[bytes]] = []
        self.futures: list[FakeFuture] = []
        self.holds = False
        self._next = 0

    def send_many(self, topic: str, values: list[bytes], *, partition: int) -> FakeFuture:
        assert (topic, partition) == (TOPIC, 0)
        first, self._next = self._next, self._next + len(values)
        future = FakeFuture([OffsetRange(topic, 0, first, self._next - 1)])
        future.is_done = not self.holds
        self.portions.append(values)
        self.futures.append(future)
        return future


class FakeTime:
    """Time that passes only while the load rests."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(demo, "time", fake)
    return fake


def make(producer: FakeProducer, total: int, stages: int = 4) -> Load:
    return Load(producer, TOPIC, total=total, stages=stages)  # type: ignore[arg-type]


def lines(count: int) -> Iterator[list[bytes]]:
    """In lists of all lengths."""
    start = 0
    while start < count:
        end = min(start + start % 7 + 1, count)
        yield [b"%d" % number for number in range(start, end)]
        start = end


def stepping(load: Load, steps: dict[int, Callable[[], None]]) -> Callable[[], None]:
    """A check that does something at the n-th look."""
    looks = iter(range(1_000_000))

    def check() -> None:
        steps.get(next(looks), lambda: None)()

    return check


def advance_at(load: Load, ticks: list[int]) -> Callable[[], None]:
    def advance() -> None:
        load.stage += 1

    return stepping(load, dict.fromkeys(ticks, advance))


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5, 100, 10_000])
def test_everything_is_sent_once_and_in_order(clock: FakeTime, total: int) -> None:
    producer, counted = FakeProducer(), []
    load = make(producer, total)
    load.run(lines(total), check=advance_at(load, [100, 300, 500]), advance=counted.append)
    assert [value for part in producer.portions for value in part] == [
        b"%d" % number for number in range(total)
    ]
    assert (load.sent, load.acknowledged, sum(counted)) == (total, total, total)
    assert load.bytes_sent == sum(len(b"%d" % number) for number in range(total))
    assert load.ledger.verdict().acknowledged == total


def test_a_stage_sends_its_part_and_no_more(clock: FakeTime) -> None:
    producer = FakeProducer()
    load = make(producer, 8_000)
    seen: list[int] = []

    def look() -> None:
        seen.append(load.sent)

    def move() -> None:
        look()
        load.stage += 1

    check = stepping(load, {2_000: move, 4_000: move, 6_000: move})
    load.run(lines(8_000), check=check, advance=lambda _: None)
    assert seen == [2_000, 4_000, 6_000]


def test_a_stage_that_takes_long_still_has_load(clock: FakeTime) -> None:
    producer = FakeProducer()
    load = make(producer, 200_000)
    load.stage = 1
    sizes: list[int] = []

    def check() -> None:
        sizes.append(len(producer.portions[-1]) if producer.portions else 0)
        if len(sizes) == 501:  # ten seconds
            assert load.sent < 100_000
            raise RaftlogError("seen enough")

    with pytest.raises(RaftlogError, match="seen enough"):
        load.run(lines(200_000), check=check, advance=lambda _: None)
    assert sizes[1] == 1_000
    assert all(later <= sooner for sooner, later in pairwise(sizes[1:]))
    assert sizes[-1] >= 1


def test_waits_are_measured_only_while_an_acknowledgement_is_due(clock: FakeTime) -> None:
    producer = FakeProducer()
    load = make(producer, 4)

    def hold() -> None:
        producer.holds = True
        load.stage = 1

    def release() -> None:
        producer.holds = False
        producer.futures[-1].is_done = True
        load.stage = 3

    # Nothing is due between the 2nd look and the 100th: one record is sent in each of the stages.
    check = stepping(load, {100: hold, 150: release})
    load.run(lines(4), check=check, advance=lambda _: None)
    assert load.longest_wait == pytest.approx(50 * demo.TICK_S)


def test_the_first_acknowledgement_after_a_moment(clock: FakeTime) -> None:
    producer = FakeProducer()
    load = make(producer, 3, stages=3)
    moments: list[float] = []

    def hold() -> None:
        assert load.is_idle
        moments.append(clock.now)
        assert load.acknowledged_since(clock.now) is None
        producer.holds = True
        load.stage = 1

    def waiting() -> None:
        assert not load.is_idle
        assert load.acknowledged_since(moments[0] - 0.001) is None

    def release() -> None:
        moments.append(clock.now)
        producer.holds = False
        producer.futures[-1].is_done = True
        load.stage = 2

    check = stepping(load, {10: hold, 15: waiting, 20: release})
    load.run(lines(3), check=check, advance=lambda _: None)
    assert load.acknowledged_since(0.0) == 100.0
    assert load.acknowledged_since(moments[0] - 0.001) == moments[1]
    assert load.acknowledged_since(clock.now) is None


def test_a_failure_ends_it(clock: FakeTime) -> None:
    producer = FakeProducer()
    load = make(producer, 100)

    def fail() -> None:
        producer.futures[-1].error = RaftlogError("lost")
        producer.futures[-1].is_done = True

    producer.holds = True
    with pytest.raises(RaftlogError, match="lost"):
        load.run(lines(100), check=stepping(load, {1: fail}), advance=lambda _: None)


# -- outages ---------------------------------------------------------------------------------------


@dataclass
class FakeBroker:
    id: int
    did: list[str]
    pid: int | None = None

    def __post_init__(self) -> None:
        self.pid = 100 + self.id

    @property
    def running(self) -> bool:
        return self.pid is not None

    def kill(self) -> None:
        self.did.append(f"kill {self.id}")
        self.pid = None

    def start(self) -> None:
        self.did.append(f"start {self.id}")
        self.pid = 200 + self.id


@dataclass
class FakeCluster:
    """The first broker that runs leads."""

    count: int
    did: list[str] = field(default_factory=list)
    brokers: list[FakeBroker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.brokers = [FakeBroker(number, self.did) for number in range(1, self.count + 1)]

    def broker(self, broker_id: int) -> FakeBroker:
        return self.brokers[broker_id - 1]

    def leader(self, _topic: str, _partition: int) -> int | None:
        return next((broker.id for broker in self.brokers if broker.running), None)

    def is_in_sync(self, _topic: str, _partition: int) -> bool:
        self.did.append("in sync")
        return all(broker.running for broker in self.brokers)

    def wipe(self, broker_id: int) -> None:
        assert not self.broker(broker_id).running
        self.did.append(f"wipe {broker_id}")


@dataclass
class FakeLoad:
    """Everything is acknowledged as soon as it is sent."""

    acknowledged: int = 1_000
    stage: int = 0
    is_idle: bool = False

    def acknowledged_since(self, moment: float) -> float | None:
        return moment + 0.5


def run(cluster: Any, load: Any, notes: list[str]) -> Any:
    outages = Outages(cluster, "t", total=1_000, note=notes.append)
    assert outages.stages == outages.kills + 2
    return outages.run(load)


def test_two_leaders_are_killed_and_the_first_loses_its_disk() -> None:
    cluster, load, notes = FakeCluster(3), FakeLoad(), []
    first, second = run(cluster, load, notes)
    assert cluster.did == [
        *("kill 1", "wipe 1", "start 1", "in sync"),
        *("kill 1", "start 1", "in sync"),
    ]
    assert (first.broker_id, first.pid, first.wiped, first.leader) == (1, 101, True, 2)
    assert (second.broker_id, second.pid, second.wiped) == (1, 201, False)
    assert first.seconds == pytest.approx(0.5)
    assert first.acknowledged == 1_000
    assert load.stage == 3
    assert notes[0] == "kill -9 101 (broker 1, which leads t:0)"
    assert "with an empty disk" in notes[2]


def test_a_broker_alone_is_killed_once_and_keeps_its_disk() -> None:
    cluster, load = FakeCluster(1), FakeLoad()
    (outage,) = run(cluster, load, [])
    assert cluster.did == ["kill 1", "start 1"]
    assert not outage.wiped
    assert load.stage == 2


def test_with_nothing_left_to_send_a_new_leader_is_enough() -> None:
    class Idle(FakeLoad):
        def acknowledged_since(self, moment: float) -> float | None:
            return None

    cluster = FakeCluster(3)
    first, _second = run(cluster, Idle(acknowledged=1_000, is_idle=True), [])
    assert first.seconds >= 0


def test_told_to_stop_it_does_no_more() -> None:
    cluster, load = FakeCluster(3), FakeLoad(acknowledged=0)
    outages = Outages(cluster, "t", total=1_000, note=lambda _: None)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as executor:
        working = executor.submit(outages.run, load)  # type: ignore[arg-type]
        outages.stop()
        with pytest.raises(BrokerUnavailableError, match="was stopped"):
            working.result(timeout=30)
    assert cluster.did == []


# -- ledger ----------------------------------------------------------------------------------------


SENT = [b"a", b"b", b"", b"a"]


def judge(
    found: list[tuple[int, bytes | None]], offsets: tuple[int, ...] = (0, 1, 2, 3)
) -> Verdict:
    ledger = Ledger()
    ledger.acknowledge(SENT[:2], offsets[:2])
    ledger.acknowledge(SENT[2:], offsets[2:])
    for offset, value in found:
        ledger.find(offset, value)
    return ledger.verdict()


def test_what_comes_back_as_it_was_sent_holds() -> None:
    verdict = judge(list(enumerate(SENT)))
    assert verdict.holds
    assert (verdict.acknowledged, verdict.found, verdict.lost, verdict.duplicated) == (4, 4, 0, 0)


@pytest.mark.parametrize(
    ("name", "found", "lost", "duplicated"),
    [
        ("a record is missing", [(0, b"a"), (1, b"b"), (2, b"")], 1, 0),
        ("the first is missing", [(1, b"b"), (2, b""), (3, b"a")], 1, 0),
        ("nothing is there", [], 4, 0),
        ("a byte has changed", [(0, b"a"), (1, b"B"), (2, b""), (3, b"a")], 1, 0),
        ("null for empty", [(0, b"a"), (1, b"b"), (2, None), (3, b"a")], 1, 0),
        ("two have changed places", [(0, b"b"), (1, b"a"), (2, b""), (3, b"a")], 2, 0),
        ("one is there twice", [*enumerate(SENT), (4, b"a")], 0, 1),
        ("an offset is read twice", [*enumerate(SENT), (3, b"a")], 0, 1),
    ],
)
def test_each_kind_of_loss_is_found(
    name: str, found: list[tuple[int, bytes | None]], lost: int, duplicated: int
) -> None:
    verdict = judge(found)
    assert not verdict.holds, name
    assert (verdict.lost, verdict.duplicated) == (lost, duplicated)


def test_gaps_between_acknowledged_offsets_are_allowed() -> None:
    offsets = (0, 1, 5, 6)
    assert judge(list(zip(offsets, SENT, strict=True)), offsets).holds


def test_acknowledgements_out_of_order_do_not_hold() -> None:
    verdict = judge([(0, b"a"), (1, b"b"), (2, b"a"), (3, b"")], (0, 1, 3, 2))
    assert not verdict.in_order
    assert not verdict.holds


def test_nothing_sent_and_nothing_found_holds() -> None:
    assert Ledger().verdict().holds


# -- replicas --------------------------------------------------------------------------------------


RECORDS = 50
Segment = Callable[[int], Path]


@pytest.fixture
def copies(tmp_path: Path) -> dict[int, str]:
    """Three data directories with the same log of several batches."""
    with raftlog.open(str(tmp_path / "1")) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for number in range(RECORDS):
                producer.send("t", value=b"%d" % number).result(timeout=10)
    for number in (2, 3):
        shutil.copytree(tmp_path / "1", tmp_path / str(number))
    return {number: str(tmp_path / str(number)) for number in (1, 2, 3)}


def segment(copies: dict[int, str], number: int) -> Path:
    return next(Path(copies[number]).rglob("*.log"))


def compared(copies: dict[int, str], end: int = RECORDS) -> Comparison:
    return compare(OsDisk(), copies, end)


def test_equal_copies_are_identical(copies: dict[int, str]) -> None:
    found = compared(copies)
    assert found.identical
    assert [copy.broker for copy in found.copies] == [1, 2, 3]
    assert {copy.end for copy in found.copies} == {RECORDS}
    assert {copy.bytes for copy in found.copies} == {segment(copies, 1).stat().st_size}
    assert len(found.copies[0].chain) == 16


def test_a_flipped_bit_is_found(copies: dict[int, str]) -> None:
    path = segment(copies, 2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = compared(copies)
    assert not found.identical
    assert [bool(copy.problem) for copy in found.copies] == [False, True, False]


def test_a_copy_that_is_short_is_found(copies: dict[int, str]) -> None:
    path = segment(copies, 3)
    path.write_bytes(path.read_bytes()[:-10])
    found = compared(copies)
    assert not found.identical
    assert found.copies[2].end == RECORDS - 1


def test_what_is_above_the_end_does_not_count(copies: dict[int, str]) -> None:
    path = segment(copies, 3)
    path.write_bytes(path.read_bytes() + b"the beginning of a batch")
    assert compared(copies).identical
    assert compared(copies, RECORDS - 10).identical
    assert not compared(copies, RECORDS + 1).identical


def test_other_records_are_found(copies: dict[int, str]) -> None:
    shutil.rmtree(copies[2])
    with raftlog.open(copies[2]) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for number in range(RECORDS):
                producer.send("t", value=b"%d" % (number % 49)).result(timeout=10)
    found = compared(copies)
    assert not any(copy.problem for copy in found.copies)
    assert not found.identical


def test_a_copy_that_is_gone_is_found(copies: dict[int, str]) -> None:
    shutil.rmtree(copies[1])
    Path(copies[1]).mkdir()
    found = compared(copies)
    assert not found.identical
    assert "holds no partition" in found.copies[0].problem
