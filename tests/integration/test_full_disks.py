"""A broker whose disk is full, on real processes: others lead, and write on without it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from raftlog.disk import OsDisk
from raftlog.server.disks import KEPT_BYTES
from raftlog.testing import Cluster, wait_until
from raftlog.testing.cluster import local_cluster
from raftlog_jepsen.control.disks import LoopDisk, why_not
from tests.integration.load import (
    PATIENCE_S,
    TOPIC,
    Load,
    create,
    leader_of,
    same_everywhere,
    until_in_sync,
)

pytestmark = pytest.mark.integration

# Leadership is handed over after a second, and a second later the old leader is not in sync.
WITHIN_S = 15.0
BLOCK_BYTES = 512  # of st_blocks


@contextmanager
def on_disks(tmp_path: Path) -> Iterator[tuple[Cluster, dict[int, LoopDisk]]]:
    """Three brokers, each on a disk of its own, by their ids."""
    if why_not():
        pytest.skip(f"not injected: no disk can be filled here: {why_not()}")
    with ExitStack() as stack:
        running = local_cluster(tmp_path, brokers=3)
        disks = {}
        for broker in running.brokers:
            disks[broker.id] = stack.enter_context(LoopDisk(tmp_path, f"disk-{broker.id}"))
            broker.data_dir = disks[broker.id].mount_point / "data"
        stack.callback(running.close)
        running.start()
        yield running, disks


def journal_of(disk: LoopDisk) -> os.stat_result:
    return (disk.mount_point / "data" / "consensus.journal").stat()


@pytest.mark.parametrize(
    "trials", [1, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_s31_the_leaders_disk_is_full(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    """Each time whoever leads: with three brokers it leads the group too, some time."""
    silences = []
    with on_disks(tmp_path) as (running, disks):
        create(running, copies=3)
        for disk in disks.values():
            wait_until(
                lambda: journal_of(disk).st_blocks * BLOCK_BYTES >= KEPT_BYTES,  # noqa: B023
                timeout_s=PATIENCE_S,
                what="room is kept for the consensus journal",
            )
            assert journal_of(disk).st_size < KEPT_BYTES
        with Load(running.bootstrap) as load:
            for _ in range(trials):
                leader = leader_of(running)
                filled_at = time.monotonic()
                disks[leader].fill()
                wait_until(
                    lambda: running.leader(TOPIC, 0) not in (None, leader),  # noqa: B023
                    timeout_s=WITHIN_S,
                    what="another leader",
                )
                load.goes_on(count=100, timeout_s=WITHIN_S)
                silences.append(load.silence(filled_at))
                disks[leader].free()
                until_in_sync(running)
                load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"the leader's disk is full, without an acknowledgement: {silences}")


def test_what_is_kept_behind_a_file_is_there_when_the_disk_is_full(tmp_path: Path) -> None:
    if why_not():
        pytest.skip(f"not injected: no disk can be filled here: {why_not()}")
    with LoopDisk(tmp_path, "disk") as loop_disk:
        disk, path = OsDisk(), str(loop_disk.mount_point / "file")
        file = disk.open(path, create=True)
        try:
            file.append([b"abc"])
            file.sync()
            disk.reserve(path, 1 << 20)
            loop_disk.fill()
            for _ in range(200):
                file.append([bytes(5_000)])
                file.sync()
            with pytest.raises(OSError, match="No space"):
                file.append([bytes(1 << 20)])
        finally:
            file.close()
