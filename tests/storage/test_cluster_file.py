"""The copy of the cluster state: a spare one, so nothing about it keeps a broker from starting."""

from __future__ import annotations

import errno
from random import Random

import pytest

from raftlog.storage import cluster_file, state_files
from raftlog.storage.cluster_file import ClusterCopy
from raftlog.testing.disk import Fault, SimDisk

COPY = ClusterCopy(7, b"\x00state", {1: "d1", 3: "d3"})


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(Random(1))
    disk.make_dirs("data")
    return disk


def test_a_copy_is_there_after_a_start(disk: SimDisk) -> None:
    assert cluster_file.read(disk, "data") == ClusterCopy()
    cluster_file.write(disk, "data", COPY)
    disk.power_cut()
    assert cluster_file.read(disk, "data") == COPY


def test_a_damaged_file_is_no_copy(disk: SimDisk) -> None:
    for bad in (b"nonsense", state_files.encode({"version": 1})):
        disk.write_atomic("data/cluster", bad)
        assert cluster_file.read(disk, "data") == ClusterCopy()


def test_a_full_disk_keeps_the_older_one(disk: SimDisk) -> None:
    cluster_file.write(disk, "data", COPY)
    disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    cluster_file.write(disk, "data", ClusterCopy(8, b"x", {}))
    assert cluster_file.read(disk, "data") == COPY
