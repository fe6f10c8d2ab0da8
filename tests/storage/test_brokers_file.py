"""The last known addresses: a hint, so nothing about them keeps a broker from starting."""

from __future__ import annotations

import errno
from random import Random

from raftlog.config import Address
from raftlog.storage import state_files
from raftlog.testing.disk import Fault, SimDisk

BROKERS = {1: Address("10.0.0.1", 9100), 12: Address("::1", 9101)}


def test_addresses_are_there_after_a_start() -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("data")
    assert state_files.read_brokers(disk, "data") == {}
    state_files.write_brokers(disk, "data", BROKERS)
    disk.power_cut()
    assert state_files.read_brokers(disk, "data") == BROKERS


def test_a_damaged_file_is_empty() -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("data")
    disk.write_atomic("data/brokers", b"nonsense")
    assert state_files.read_brokers(disk, "data") == {}


def test_a_full_disk_keeps_the_older_ones() -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("data")
    state_files.write_brokers(disk, "data", BROKERS)
    disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    state_files.write_brokers(disk, "data", {})
    assert state_files.read_brokers(disk, "data") == BROKERS
