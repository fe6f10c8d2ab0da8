"""A broker, and a client of it, for the tests of this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Client, FakeClock, FaultyDisk, RunningBroker, running


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def broker(tmp_path: Path, clock: FakeClock, disk: FaultyDisk) -> Iterator[RunningBroker]:
    with running(tmp_path / "data", clock=clock, disk=disk) as broker:
        yield broker


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with broker.client() as client:
        yield client
