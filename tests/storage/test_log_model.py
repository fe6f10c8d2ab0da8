"""A log against a list: every operation in any order, with crashes, power cuts and bad disks."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from raftlog import limits
from raftlog.disk import OsDisk
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.testing.disk import CHANGES, Fault, SimDisk
from tests.storage.compacting_machine import CompactingMachine, CompactingOnSimDisk
from tests.storage.log_machine import fractions
from tests.storage.logs import batch_of, stored
from tests.storage.replica_machine import ReplicaMachine

pytestmark = pytest.mark.timeout(1_800)  # `make seeds` runs many more examples


class LogOnOsDisk(CompactingMachine):
    """The machine's own file system: processes may be killed, nothing else happens."""

    def make_disk(self, seed: int) -> None:
        self.temporary = tempfile.TemporaryDirectory(prefix="raftlog-test-")
        self.disk = OsDisk()
        self.directory = f"{self.temporary.name}/log"

    def teardown(self) -> None:
        super().teardown()
        self.temporary.cleanup()


class LogOnSimDisk(CompactingOnSimDisk):
    """Power cuts, a disk that is full now and then, and operations that fail."""

    disk: SimDisk

    def make_disk(self, seed: int) -> None:
        self.disk = SimDisk(Random(seed))
        self.directory = "log"

    @property
    def is_full(self) -> bool:
        return self.disk.capacity_bytes is not None

    @precondition(lambda self: not self.is_full)
    @rule(bytes_left=st.integers(0, 2_000))
    def fill(self, bytes_left: int) -> None:
        used = 0
        self.disk.capacity_bytes = limits.GIB
        used = limits.GIB - self.disk.free_bytes(".")
        self.disk.capacity_bytes = used + bytes_left

    @precondition(lambda self: self.is_full)
    @rule()
    def make_room(self) -> None:
        self.disk.capacity_bytes = None

    def kill(self) -> None:
        self.disk.crash()

    @rule()
    def power_cut(self) -> None:
        self.disk.power_cut()
        self.reopen(power_cut=True)

    def end_process(self, *, power_cut: bool) -> None:
        """What has to follow a failure of the disk."""
        self.disk.faults.clear()
        if power_cut:
            self.disk.power_cut()
        else:
            self.disk.crash()
        self.reopen(power_cut=power_cut)

    def fail(self, skip: int, *, forgets: bool = False) -> Fault:
        fault = Fault(CHANGES, skip=skip, forgets=forgets)
        self.disk.faults.append(fault)
        return fault

    @rule(skip=st.integers(0, 6), elected=st.booleans(), power_cut=st.booleans())
    def append_on_a_bad_disk(self, skip: int, elected: bool, power_cut: bool) -> None:
        self.leader_epoch += elected
        batch = batch_of([b"z" * 600], timestamps_ms=self.now_ms)
        fault = self.fail(skip)
        try:
            self.append_to_log(batch)
        except StorageFailedError:
            self.check_poisoned(batch)
        except DiskFullError:
            assert self.is_full
        else:
            assert fault.times
            self.note(batch)
        self.end_process(power_cut=power_cut)

    def check_poisoned(self, batch: bytes) -> None:
        """No more writes, and reads as before."""
        self.disk.faults.clear()
        with pytest.raises(StorageFailedError):
            self.append_to_log(batch)
        assert self.log.begin_sync() is None
        assert stored(self.log) == [batch.data for batch in self.model.live()]

    @precondition(lambda self: self.task is not None and not self.task_has_run)
    @rule(skip=st.integers(0, 8), forgets=st.booleans(), power_cut=st.booleans())
    def sync_on_a_bad_disk(self, skip: int, forgets: bool, power_cut: bool) -> None:
        assert self.task is not None
        self.fail(skip, forgets=forgets)
        try:
            self.task.run()
        except OSError as error:
            self.log.failed_sync(self.task, error)
            self.check_poisoned(batch_of([b"late"]))
        self.end_process(power_cut=power_cut)

    @precondition(lambda self: self.drops)
    @rule(skip=st.integers(0, 10), forgets=st.booleans(), power_cut=st.booleans())
    def drop_on_a_bad_disk(self, skip: int, forgets: bool, power_cut: bool) -> None:
        """A full disk has no room to save producers before the batches that tell of them go."""
        self.producers_may_be_lost = self.is_full
        self.fail(skip, forgets=forgets)
        with suppress(OSError):
            self.drops.pop(0).run()
        self.end_process(power_cut=power_cut)

    @precondition(lambda self: self.task is None and not self.drops)
    @rule(fraction=fractions, skip=st.integers(0, 12))
    def truncate_on_a_bad_disk(self, fraction: int, skip: int) -> None:
        """A cut that was not promised may come undone, so power goes before anything else does."""
        offset = self.offset_between(self.model.start, self.model.end, fraction)
        self.producers_may_be_lost |= self.is_full or self.truncation_forgets(offset)
        self.fail(skip)
        with suppress(StorageFailedError, DiskFullError):
            self.log.truncate_to(offset)
        end = max(b for b in self.model.boundaries() if b <= offset)
        self.model.durable_end = min(self.model.durable_end, end)
        self.model.durable_start = min(self.model.durable_start, end)
        self.end_process(power_cut=True)


EXAMPLES = settings().max_examples
TestLogOnSimDisk = LogOnSimDisk.TestCase
TestLogOnSimDisk.settings = settings(max_examples=2 * EXAMPLES, stateful_step_count=50)
TestLogOnOsDisk = LogOnOsDisk.TestCase
# The same model and the same code: this one shows that a real disk does as the simulated one.
TestLogOnOsDisk.settings = settings(max_examples=max(10, EXAMPLES // 5), stateful_step_count=50)


# -- replica model ---------------------------------------------------------------------------------
#
# A follower's log holds a prefix of its leader's, through fail-overs, crashes and bad disks.


TestReplica = ReplicaMachine.TestCase
TestReplica.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=50)
