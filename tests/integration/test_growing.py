"""A cluster of real brokers grows and shrinks under load: nothing lost, and no client error."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.server.main import STATUS_REMOVED
from raftlog.testing import Cluster, cluster, wait_until
from tests.integration.load import PATIENCE_S, TOPIC, Load, create, same_everywhere

pytestmark = pytest.mark.integration


def removed(admin: Admin, broker: int) -> bool:
    return admin.decommission_broker(broker).removed


def decommission(running: Cluster, broker: int) -> None:
    """Remove a broker; its process ends, and says why."""
    with Admin(running.bootstrap) as admin:
        wait_until(
            partial(removed, admin, broker), timeout_s=PATIENCE_S, what=f"broker {broker} removed"
        )
    process = running.broker(broker)
    wait_until(lambda: not process.running, timeout_s=PATIENCE_S, what="the end of its process")
    assert process.exit_status == STATUS_REMOVED
    assert "was decommissioned" in process.log_path.read_text()
    running.forget(broker)


@pytest.mark.nightly
def test_three_brokers_become_five_and_two_founders_leave(
    tmp_path: Path, say: Callable[[str], None]
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            began = time.monotonic()
            four, five = running.join(2)
            assert (four.id, five.id) == (4, 5)
            load.goes_on(count=100)
            for broker in (1, 2):
                decommission(running, broker)
                load.goes_on(count=100)
            # Without `join` and `voters`: the directory has the addresses.
            four.settings = {k: v for k, v in four.settings.items() if k != "join"}
            four.stop()
            load.goes_on(count=100)
            four.start()
            running.wait_known([four, five], timeout_s=PATIENCE_S)
            load.goes_on(count=100)
            silence = load.silence(began)
        load.check(running.bootstrap)
        same_everywhere(running)
        with Admin(running.bootstrap) as admin:
            described = admin.describe_cluster([TOPIC])
        assert [broker.id for broker in described.brokers if broker.has_vote] == [3, 4, 5]
        assert set(described.partitions[0].replicas) == {3, 4, 5}
    say(f"3 brokers to 5 to 3, longest time without an acknowledgement: {silence:.2f} s")


def test_brokers_restart_one_after_the_other(tmp_path: Path, say: Callable[[str], None]) -> None:
    """A rolling restart: each broker when the cluster is ready for it, and none is noticed."""
    silences = []
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            for broker in running.brokers:
                wait_until(
                    lambda: running.is_in_sync(TOPIC, 0), timeout_s=PATIENCE_S, what="readiness"
                )
                began = time.monotonic()
                broker.stop()
                broker.start()
                load.goes_on(count=100)
                silences.append(load.silence(began))
        load.check(running.bootstrap)
        same_everywhere(running)
    say("SIGTERM of each, without an acknowledgement: " + ", ".join(f"{s:.2f} s" for s in silences))
