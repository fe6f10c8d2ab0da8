"""What is done to the demo's brokers: in order, to the leader, and never after it was told to stop.

The outages of real brokers are ``test_demo.py``'s.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from raftlog.cli.outages import Outages
from raftlog.errors import BrokerUnavailableError


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
        with pytest.raises(BrokerUnavailableError, match="ended early"):
            working.result(timeout=30)
    assert cluster.did == []
