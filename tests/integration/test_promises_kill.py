"""Promises 1 and 2, on real processes: brokers are killed under load, and with them their disks."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.testing import Cluster, cluster
from tests.integration.load import (
    Load,
    create,
    leader_of,
    same_everywhere,
    summary,
    until_in_sync,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Tell a figure that is part of the result."""

    def told(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return told


def kill_leaders(running: Cluster, load: Load, times: int) -> list[float]:
    """SIGKILL the leader, and bring it back; how long nothing was acknowledged, for each."""
    silences = []
    for _ in range(times):
        leader = running.broker(leader_of(running))
        killed_at = time.monotonic()
        leader.kill()
        load.goes_on()
        silences.append(load.silence(killed_at))
        leader.start()
        until_in_sync(running)
        load.goes_on(count=100)
    return silences


@pytest.mark.parametrize(
    "trials", [3, pytest.param(20, marks=[pytest.mark.seeds, pytest.mark.timeout(600)])]
)
def test_writes_go_on_when_the_leader_is_killed(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            silences = kill_leaders(running, load, trials)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"SIGKILL of the leader, without an acknowledgement: {summary(silences)}")
    assert statistics.median(silences) < 2.0
    assert max(silences) < 5.0
