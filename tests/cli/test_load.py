"""The demo's load: everything is sent once, there is always some left, and waits are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from raftlog.cli import load as module
from raftlog.cli.load import Load
from raftlog.errors import RaftlogError
from raftlog.types import OffsetRange

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
    monkeypatch.setattr(module, "time", fake)
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
    assert load.longest_wait == pytest.approx(50 * module.TICK_S)


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
