"""The file ``clock``: the last time by which a broker deleted."""

from __future__ import annotations

import errno
from random import Random

import pytest

from raftlog.storage import state_files
from raftlog.testing.disk import Fault, SimDisk


def test_the_time_is_durable_and_a_damaged_file_is_none() -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("data")
    assert state_files.read_clock(disk, "data") is None
    state_files.write_clock(disk, "data", 123)
    disk.power_cut()
    assert state_files.read_clock(disk, "data") == 123
    disk.flip_bit("data/clock", 100)
    assert state_files.read_clock(disk, "data") is None


def test_on_a_full_disk_the_older_time_stays_and_other_errors_are_raised() -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("data")
    state_files.write_clock(disk, "data", 123)
    disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    state_files.write_clock(disk, "data", 456)
    assert state_files.read_clock(disk, "data") == 123
    disk.faults.append(Fault(("write",)))
    with pytest.raises(OSError, match="Input/output"):
        state_files.write_clock(disk, "data", 456)
