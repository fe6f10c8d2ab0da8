"""Epochs that were cut do not come back with the next start."""

from __future__ import annotations

from tests.storage.logs import SMALL, open_log, sim_disk
from tests.storage.replicas import follow, leader_of, lives


def test_an_epoch_that_starts_at_the_cut_is_gone_from_the_disk_too() -> None:
    disk = sim_disk()
    first = open_log(disk)
    follow(first, leader_of((0, 4), (3, 3)))
    first.sync()
    first.truncate_to(4)
    for log in lives(first, disk, SMALL):
        assert list(log.epochs) == [(0, 0)]
