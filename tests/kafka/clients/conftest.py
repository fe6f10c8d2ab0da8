"""A broker for real Kafka clients, on the machine's clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.clock import SystemClock
from tests.server.harness import RunningBroker, running


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all tests: each has topics with names of its own."""
    with running(tmp_path_factory.mktemp("clients"), clock=SystemClock()) as broker:
        yield broker


@pytest.fixture(scope="package")
def address(broker: RunningBroker) -> str:
    return str(broker.address)
