"""Brokers in memory and in virtual time, for the tests of this package."""

from __future__ import annotations

import pytest

from tests.server.peers.world import Run
from tests.server.peers.world import run as run_world


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a test in a world of its own."""
    return lambda test: run_world(test, monkeypatch)
