"""A broker for real Kafka clients, on the machine's clock."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest

from raftlog.clock import SystemClock
from tests.server.harness import RunningBroker, running


@pytest.fixture(autouse=True)
def _without_garbage() -> Iterator[None]:
    """Clients that fail leave connections open, which would be reported in the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all tests: each has topics with names of its own."""
    with running(tmp_path_factory.mktemp("clients"), clock=SystemClock()) as broker:
        yield broker


@pytest.fixture(scope="package")
def address(broker: RunningBroker) -> str:
    return str(broker.address)
