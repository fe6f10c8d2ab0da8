"""Promise 3, on real processes: all brokers at once, under load, by SIGKILL or for want of power."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.testing import cluster
from raftlog.testing.cluster import local_cluster
from tests.integration.load import Load, create, same_everywhere, summary, until_in_sync
from tests.integration.power import Disks, why_not

pytestmark = pytest.mark.integration

NO_POWER = why_not()


@pytest.mark.parametrize(
    "trials", [3, pytest.param(20, marks=[pytest.mark.seeds, pytest.mark.timeout(600)])]
)
def test_all_brokers_are_killed_at_once(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    silences = []
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            for _ in range(trials):
                killed_at = time.monotonic()
                running.kill()
                running.start()
                load.goes_on()
                silences.append(load.silence(killed_at))
                load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"SIGKILL of all three, without an acknowledgement: {summary(silences)}")


@pytest.mark.skipif(bool(NO_POWER), reason=f"a power cut cannot be injected here: {NO_POWER}")
@pytest.mark.parametrize(
    "trials", [2, pytest.param(20, marks=[pytest.mark.seeds, pytest.mark.timeout(900)])]
)
def test_s40_all_power_cut(tmp_path: Path, trials: int, say: Callable[[str], None]) -> None:
    """What reached the three disks, and nothing else, is there when the power comes back."""
    silences = []
    with Disks(tmp_path, count=3) as disks:
        running = local_cluster(tmp_path, brokers=3)
        for broker, place in zip(running.brokers, disks.places, strict=True):
            broker.data_dir = place / "data"
        try:
            running.start()
            create(running, copies=3)
            with Load(running.bootstrap) as load:
                for _ in range(trials):
                    disks.mark()
                    cut_at = time.monotonic()
                    running.kill()
                    disks.cut_power()
                    assert not any(disks.marks()), "what nobody synced is there: no power was cut"
                    running.start()
                    load.goes_on()
                    silences.append(load.silence(cut_at))
                    load.goes_on(count=100)
            load.check(running.bootstrap)
            until_in_sync(running)
            same_everywhere(running)
        finally:
            running.close()
    say(f"power cut of all three, without an acknowledgement: {summary(silences)}")
