"""The file of access rules: what is saved is read, and what is damaged is not taken for nothing."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.config import Address
from raftlog.disk import KEEP_INODES, TEMPORARY_SUFFIX, NoInodeError, OsDisk, _file_system
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    DiskFullError,
    FileLimitError,
    StorageFailedError,
)
from raftlog.record.batch import crc32c
from raftlog.storage import (
    Identity,
    Store,
    state_files,
)
from raftlog.storage import state_files as cluster_file
from raftlog.storage import state_files as place
from raftlog.storage.state_files import ClusterCopy, IdentityFile, NameSyncs, Place, storage_error
from raftlog.testing.disk import Fault, SimDisk, Stopped
from tests.storage.crashes import sweep
from tests.storage.directories import DATA, FIRST, host, open_store, reopened
from tests.storage.logs import fill, sim_disk


def test_a_state_is_read_as_it_was_saved(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    assert state_files.read_access(disk, directory) == b""
    state_files.write(disk, f"{directory}/access", {"state": "AHN0YXRl/w=="})
    assert state_files.read_access(disk, directory) == b"\x00state\xff"


def test_damage_is_an_error(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    state_files.write(disk, f"{directory}/access", {"state": "c3RhdGU="})
    path = tmp_path / "access"
    path.write_bytes(path.read_bytes().replace(b"state", b"State", 1))
    with pytest.raises(DamagedLogError):
        state_files.read_access(disk, directory)
    state_files.write(disk, str(path), {"state": "not base64"})
    with pytest.raises(DataDirectoryError):
        state_files.read_access(disk, directory)


# -- what cannot be read ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["identity", "catalog", "copies"])
def test_a_state_that_cannot_be_read_is_not_a_missing_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a bad sector under an inode gives a directory another identity, or an empty catalog."""
    disk, directory = OsDisk(), str(tmp_path / "data")
    store = Store.open(disk, directory)
    host(store, 0, count=1)
    store.close()
    path, stat, read_file = tmp_path / "data" / name, os.stat, disk.read_file
    before = path.read_bytes()

    def check(at: object) -> None:
        if at == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), at)

    def failing_stat(at: Any, **options: Any) -> os.stat_result:
        check(at)
        return stat(at, **options)

    def failing_read(at: str, *, bytes_max: int) -> bytes:
        check(at)
        return read_file(at, bytes_max=bytes_max)

    monkeypatch.setattr(os, "stat", failing_stat)
    monkeypatch.setattr(disk, "read_file", failing_read)
    with pytest.raises(DataDirectoryError, match=name):
        Store.open(disk, directory)
    monkeypatch.undo()
    assert path.read_bytes() == before
    store = Store.open(disk, directory)
    assert store.hosted_log(FIRST, 0).log_end_offset == 1
    store.close()


@pytest.mark.parametrize("name", ["brokers", "clean", "clock", "cluster"])
def test_a_bad_sector_under_a_hint_does_not_prevent_a_start(name: str) -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=1)
    store.save_time(5)
    store.save_brokers(BROKERS)
    store.save_cluster(COPY)
    store.close()
    disk.crash()
    disk.faults.append(Fault({"read"}, path=f"{DATA}/{name}"))
    store = open_store(disk)
    assert store.hosted_log(FIRST, 0).log_end_offset == 1
    assert (store.saved_time_ms is None) == (name == "clock")
    assert (store.saved_brokers == {}) == (name == "brokers")
    assert (store.saved_cluster == ClusterCopy()) == (name == "cluster")
    assert store.was_clean == (name != "clean")
    store.close()


@pytest.mark.parametrize("name", ["clock", "identity"])
def test_other_errors_of_a_read_are_raised(name: str) -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.save_time(5)
    store.close()
    disk.crash()
    disk.faults.append(Fault({"read"}, path=f"{DATA}/{name}", error=errno.EACCES))
    with pytest.raises(DataDirectoryError, match=name):
        open_store(disk)


# -- brokers file ----------------------------------------------------------------------------------
#
# The last known addresses: a hint, so nothing about them keeps a broker from starting.


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


# -- clean mark ------------------------------------------------------------------------------------
#
# Whether the last process stopped cleanly: what leaves the mark, what takes it away (S12).


def closed(disk: SimDisk) -> None:
    store = open_store(disk)
    fill(host(store, 0, flush_policy="os"), 3, sync=False)
    store.close()


def test_a_new_directory_is_clean() -> None:
    disk = sim_disk()
    assert open_store(disk).was_clean
    assert not reopened(disk).was_clean


def test_a_clean_stop_is_remembered_for_one_start() -> None:
    for power_cut in (False, True):
        disk = sim_disk()
        closed(disk)
        store = reopened(disk, power_cut=power_cut)
        assert store.was_clean
        assert store.hosted_log(FIRST, 0).log_end_offset == 3
        assert not reopened(disk, power_cut=power_cut).was_clean


def test_a_store_that_was_abandoned_is_not_clean() -> None:
    disk = sim_disk()
    closed(disk)
    open_store(disk).abandon()
    assert not open_store(disk).was_clean


def test_a_log_that_fails_to_close_leaves_no_mark() -> None:
    disk = sim_disk()
    store = open_store(disk)
    fill(host(store, 0), 1, sync=False)
    disk.faults.append(Fault({"sync"}, path="*.log"))
    with pytest.raises(StorageFailedError):
        store.close()
    assert not reopened(disk).was_clean


def test_a_log_that_has_failed_before_or_is_damaged_leaves_none_either() -> None:
    for how in ("failed", "damaged"):
        disk = sim_disk()
        store = open_store(disk)
        log = host(store, 0, count=2)
        if how == "failed":
            disk.faults.append(Fault({"write"}, path="*.log"))
            with suppress(StorageFailedError):
                fill(log, 1)
        else:
            fill(log, 1, sync=False)
            log.note_damage("bad", offset=1)
        store.close()
        assert not reopened(disk).was_clean


def test_a_mark_that_cannot_be_written_counts_as_a_crash() -> None:
    disk = sim_disk()
    store = open_store(disk)
    disk.faults.append(Fault({"create"}, errno.ENOSPC, path="*clean*"))
    store.close()
    assert not reopened(disk).was_clean
    store = reopened(disk)
    disk.faults.append(Fault({"create"}, errno.EIO, path="*clean*"))
    with pytest.raises(StorageFailedError, match="clean"):
        store.close()
    open_store(disk)  # the lock was let go of


def test_a_damaged_mark_or_one_of_another_directory_is_none() -> None:
    disk = sim_disk()
    closed(disk)
    disk.flip_bit(f"{DATA}/clean", 99)
    assert not open_store(disk).was_clean
    disk = sim_disk()
    disk.make_dirs(DATA)
    state_files.leave(disk, DATA, directory_id="another")
    assert not state_files.take(disk, DATA, directory_id="this")
    assert not disk.exists(f"{DATA}/clean")
    assert not state_files.take(disk, DATA, directory_id="another")


@pytest.mark.parametrize(
    ("has_peers", "policy", "in_doubt"),
    [(True, "os", True), (True, "fsync", False), (False, "os", False)],
)
def test_unsynced_logs_of_a_replica_are_in_doubt_after_a_crash(
    has_peers: bool, policy: str, in_doubt: bool
) -> None:
    disk = sim_disk()
    fill(host(open_store(disk), 0, flush_policy=policy), 3, sync=False)
    disk.crash()
    store = Store.open(disk, DATA, has_peers=has_peers)
    assert bool(store.hosted_log(FIRST, 0).doubt) == in_doubt


def test_a_doubt_that_is_not_settled_outlives_a_clean_stop() -> None:
    disk = sim_disk()
    fill(host(open_store(disk), 0, flush_policy="os"), 3, sync=False)
    disk.crash()
    Store.open(disk, DATA, has_peers=True).close()
    store = Store.open(disk, DATA, has_peers=True)
    assert store.hosted_log(FIRST, 0).doubt
    assert store.resolve(FIRST, 0).log_end_offset == 3
    store.close()
    assert not Store.open(disk, DATA, has_peers=True).hosted_log(FIRST, 0).doubt


@dataclass
class Stop:
    store: Store
    appended: int = 0


def test_a_start_that_is_clean_has_everything(seed: int) -> None:
    """Wherever the stop, or the start and the appends after it, ends."""

    def prepare(disk: SimDisk) -> Stop:
        store = open_store(disk)
        fill(host(store, 0, flush_policy="os"), 4, sync=False)
        return Stop(store, appended=4)

    def act(disk: SimDisk, state: Stop) -> None:
        state.store.close()
        store = open_store(disk)
        log = store.hosted_log(FIRST, 0)
        for _ in range(2):
            state.appended += 1
            fill(log, 1, sync=False)

    def check(disk: SimDisk, state: Stop) -> None:
        has_mark = disk.exists(f"{DATA}/clean")
        store = open_store(disk)
        assert store.was_clean == has_mark
        if store.was_clean:
            assert (state.appended, store.hosted_log(FIRST, 0).log_end_offset) == (4, 4)
        assert not disk.exists(f"{DATA}/clean")
        store.abandon()
        disk.crash()

    sweep(prepare, act, check, seed=seed)


# -- clock file ------------------------------------------------------------------------------------
#
# The file ``clock``: the last time by which a broker deleted.


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


# -- faults ----------------------------------------------------------------------------------------
#
# Tests of raftlog.storage.state_files.


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_an_error_that_passes(code: int) -> None:
    error = storage_error("writing x", OSError(code, os.strerror(code)))
    assert isinstance(error, DiskFullError)
    assert str(error).startswith(f"writing x: no space ({os.strerror(code)})")
    assert "Free disk space" in str(error)


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "RLIMIT_NOFILE"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (NoInodeError(errno.ENOSPC, "No inode left", "/data/x"), "/data/x has no inode left"),
    ],
)
def test_a_limit_of_files_is_no_full_disk(error: OSError, limit: str) -> None:
    found = storage_error("writing x", error)
    assert isinstance(found, FileLimitError)
    assert limit in str(found)
    assert "disk space" not in str(found)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EBADF, errno.EFBIG, errno.EACCES])
def test_any_other_error_means_the_disk_is_not_to_be_trusted(code: int) -> None:
    error = storage_error("writing x", OSError(code, os.strerror(code), "some/file"))
    assert isinstance(error, StorageFailedError)
    assert str(error).startswith("writing x failed: ")
    assert os.strerror(code) in str(error)
    assert "some/file" in str(error)


def test_an_error_without_a_code_is_not_taken_for_no_room() -> None:
    assert isinstance(storage_error("writing x", OSError("odd")), StorageFailedError)


# -- identity --------------------------------------------------------------------------------------
#
# Whose a data directory is: joining a cluster, becoming another directory. See also test_store.


def test_a_directory_without_a_cluster_adopts_one_once() -> None:
    disk = sim_disk()
    store = open_store(disk, cluster_id="")
    assert store.identity.cluster_id == ""
    before = store.identity
    store = reopened(disk, power_cut=True)
    assert store.identity == before
    store.adopt_cluster_id("ours")
    assert store.identity == Identity(before.broker_id, "ours", before.directory_id)
    changes = disk.changes
    store.adopt_cluster_id("ours")
    assert disk.changes == changes
    with pytest.raises(DataDirectoryError, match="belongs to cluster id ours, not theirs"):
        store.adopt_cluster_id("theirs")
    assert reopened(disk, power_cut=True).identity.cluster_id == "ours"


def test_a_broker_that_does_not_know_its_cluster_takes_what_the_directory_says() -> None:
    disk = sim_disk()
    open_store(disk, cluster_id="ours").close()
    assert open_store(disk, cluster_id="").identity.cluster_id == "ours"


def test_a_cluster_that_is_named_at_the_start_is_adopted() -> None:
    disk = sim_disk()
    open_store(disk, cluster_id="").close()
    open_store(disk, cluster_id="ours").close()
    assert open_store(disk).identity.cluster_id == "ours"


def test_a_new_directory_of_its_own_makes_a_cluster() -> None:
    assert len(open_store(sim_disk()).identity.cluster_id) == 32


def test_a_change_that_fails_has_not_happened() -> None:
    for code, error in ((errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)):
        disk = sim_disk()
        store = open_store(disk, cluster_id="")
        before = store.identity
        disk.faults.append(Fault({"write"}, code))
        with pytest.raises(error):
            store.adopt_cluster_id("c")
        assert store.identity == before
        assert reopened(disk).identity == before


def test_the_journal_lies_in_the_directory() -> None:
    assert open_store(sim_disk()).journal_path == f"{DATA}/consensus.journal"


def test_room_is_kept_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    store = open_store(disk)
    kept: list[tuple[str, int]] = []
    monkeypatch.setattr(disk, "reserve", lambda path, size: kept.append((path, size)))
    store.reserve_for_journal(1 << 20)
    assert kept == [(f"{DATA}/consensus.journal", 1 << 20)]


def test_a_new_file_is_told_from_an_old_one() -> None:
    disk = sim_disk()
    disk.make_dirs(DATA)
    ids = iter("abc")
    for is_new in (True, False):
        file = IdentityFile(disk, DATA, new_id=lambda: next(ids))
        assert file.take(7, None) == Identity(7, "a", "b")
        assert file.is_new == is_new


def test_crashes_while_joining(seed: int) -> None:
    def prepare(disk: SimDisk) -> list[Store]:
        return [open_store(disk, cluster_id="")]

    def act(disk: SimDisk, state: list[Store]) -> None:
        state[0].adopt_cluster_id("ours")

    def check(disk: SimDisk, state: list[Store]) -> None:
        store = open_store(disk)
        adopted, found = state[-1].identity, store.identity
        assert found.cluster_id == "ours" or adopted.cluster_id == ""
        assert found.broker_id == adopted.broker_id
        state.append(store)

    sweep(prepare, act, check, seed=seed)


# -- name syncs ------------------------------------------------------------------------------------
#
# Which names a sync of a directory covers: those that were created before it began.


def disk_with(*paths: str) -> tuple[SimDisk, list[str]]:
    """A disk with these directories, and the syncs from now on."""
    disk = sim_disk()
    for path in paths:
        disk.make_dirs(path)
    syncs: list[str] = []
    disk.before = lambda operation, path: syncs.append(path) if operation == "sync_dir" else None
    return disk, syncs


def test_one_sync_covers_all_names_from_before_it() -> None:
    disk, syncs = disk_with("a")
    names = NameSyncs(disk)
    numbers = [names.created() for _ in range(5)]
    for number in reversed(numbers):
        names.sync("a", number)
    assert syncs == ["a"]
    names.sync("a", names.created())
    assert syncs == ["a", "a"]


def test_a_sync_does_not_cover_a_name_that_is_created_while_it_runs() -> None:
    disk, syncs = disk_with("a")
    names = NameSyncs(disk)
    late: list[int] = []
    disk.before = lambda _operation, path: (syncs.append(path), late.append(names.created()))[0]
    names.sync("a", names.created())
    names.sync("a", late[0])
    assert syncs == ["a", "a"]


def test_a_sync_does_not_cover_another_directory() -> None:
    disk, syncs = disk_with("a", "b")
    names = NameSyncs(disk)
    one, other = names.created(), names.created()
    names.sync("a", one)
    names.sync("b", other)
    assert syncs == ["a", "b"]


def test_a_failed_sync_covers_nothing() -> None:
    disk, syncs = disk_with("a")
    names = NameSyncs(disk)
    number = names.created()
    disk.faults.append(Fault({"sync_dir"}))
    with pytest.raises(OSError, match="Input/output"):
        names.sync("a", number)
    names.sync("a", number)
    assert syncs == ["a", "a"]


def test_a_limited_number_of_directories_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "SYNCED_MAX", 2)
    disk, syncs = disk_with("a", "b", "c")
    names = NameSyncs(disk)
    number = names.created()
    for path in ("a", "b", "c", "c", "a"):
        names.sync(path, number)
    assert syncs == ["a", "b", "c", "a"]


# -- state file ------------------------------------------------------------------------------------
#
# Tests of raftlog.storage.state_files.


PATH = "data/state"
OLD: dict[str, Any] = {"epochs": [[0, 0], [2, 17]], "name": "größe"}
NEW: dict[str, Any] = {"epochs": [[3, 40]], "more": "x" * 2_000}
# What a disk does to a write_atomic, in its order.
STEPS = ("create", "truncate", "write", "sync", "rename", "sync_dir")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 64) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values))
def test_text_in_parts_is_that_of_the_whole(state: dict[str, Any]) -> None:
    parts = {
        name: state_files.array_of(map(state_files.text_of, value))
        if isinstance(value, list)
        else state_files.text_of(value)
        for name, value in state.items()
    }
    assert state_files.encode(state_files.object_of(parts)) == state_files.encode(state)


def state_file_disk_with(state: dict[str, Any] | None, *, seed: int = 1) -> SimDisk:
    disk = sim_disk(seed)
    disk.make_dirs("data")
    if state is not None:
        state_files.write(disk, PATH, state)
    return disk


def framed(text: bytes) -> bytes:
    return f"{crc32c(text):08x} ".encode() + text + b"\n"


@given(state=st.dictionaries(st.text(), json_values, max_size=6))
def test_what_was_encoded_is_decoded(state: dict[str, Any]) -> None:
    assert state_files.decode(state_files.encode(state), path=PATH) == state


def test_a_person_can_read_the_file() -> None:
    data = state_files.encode({"b": [1, 2], "a": "x"})
    assert data == framed(b'{"a": "x", "b": [1, 2]}')


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80, 0xFF])
def test_no_damaged_byte_goes_unnoticed(mask: int) -> None:
    data = state_files.encode(OLD)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= mask
        with pytest.raises(DamagedLogError, match=PATH):
            state_files.decode(bytes(damaged), path=PATH)


def test_a_cut_file_is_damaged() -> None:
    data = state_files.encode(OLD)
    for size in range(len(data)):
        with pytest.raises(DamagedLogError, match=PATH):
            state_files.decode(data[:size], path=PATH)


@pytest.mark.parametrize(
    "data",
    [
        bytes(100),
        b"\n",
        b"0\n",  # the sum of nothing, and nothing
        b"00000000 \n",
        framed(b"[1, 2]"),
        framed(b"{"),
        framed(b'{"a": "\xff"}'),
        framed(b"{}")[:-1] + b" ",
    ],
)
def test_what_is_no_state_file_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedLogError, match=PATH):
        state_files.decode(data, path=PATH)


def test_a_missing_file_is_no_state() -> None:
    assert state_files.read(state_file_disk_with(None), PATH) is None


def test_what_was_written_is_read_after_a_power_cut(seed: int) -> None:
    disk = state_file_disk_with(OLD, seed=seed)
    state_files.write(disk, PATH, NEW)
    disk.power_cut()
    assert state_files.read(disk, PATH) == NEW


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("chance", range(5))
def test_a_power_cut_while_writing_leaves_the_old_or_the_new(
    step: str, chance: int, seed: int
) -> None:
    disk = state_file_disk_with(OLD, seed=seed + chance)
    disk.faults = [Fault((step,), error=None)]
    with pytest.raises(Stopped):
        state_files.write(disk, PATH, NEW)
    disk.power_cut()
    assert state_files.read(disk, PATH) in ((OLD, NEW) if step == "sync_dir" else (OLD,))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["create", "write", "sync", "rename"])
def test_where_there_is_no_room_the_old_file_stays_and_nothing_else(step: str, code: int) -> None:
    disk = state_file_disk_with(OLD)
    disk.faults = [Fault((step,), error=code)]
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.write(disk, PATH, NEW)
    assert caught.value.errno == code
    assert disk.list_dir("data") == ["state"]
    assert state_files.read(disk, PATH) == OLD


def test_a_full_disk_has_as_much_room_after_a_failed_write_as_before() -> None:
    disk = state_file_disk_with(OLD)
    disk.capacity_bytes = len(state_files.encode(OLD)) + 100
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.write(disk, PATH, NEW)
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes("data") == 100


def test_on_a_broken_disk_nothing_more_is_tried() -> None:
    disk = state_file_disk_with(OLD)
    disk.faults = [Fault(("sync",), error=errno.EIO)]
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.write(disk, PATH, NEW)
    assert caught.value.errno == errno.EIO
    assert disk.list_dir("data") == ["state", "state" + TEMPORARY_SUFFIX]
    assert state_files.read(disk, PATH) == OLD


def test_a_file_larger_than_any_state_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = state_file_disk_with(OLD)
    monkeypatch.setattr(limits, "STATE_FILE_BYTES_MAX", len(state_files.encode(OLD)) - 1)
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.read(disk, PATH)
    assert caught.value.errno == errno.EFBIG


# -- cluster file ----------------------------------------------------------------------------------
#
# The copy of the cluster state: a spare one, so nothing about it keeps a broker from starting.


COPY = ClusterCopy(7, b"\x00state", {1: "d1", 3: "d3"})


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(Random(1))
    disk.make_dirs("data")
    return disk


def test_a_copy_is_there_after_a_start(disk: SimDisk) -> None:
    assert cluster_file.read_cluster(disk, "data") == ClusterCopy()
    cluster_file.write_cluster(disk, "data", COPY)
    disk.power_cut()
    assert cluster_file.read_cluster(disk, "data") == COPY


def test_a_damaged_file_is_no_copy(disk: SimDisk) -> None:
    for bad in (b"nonsense", state_files.encode({"version": 1})):
        disk.write_atomic("data/cluster", bad)
        assert cluster_file.read_cluster(disk, "data") == ClusterCopy()


def test_a_full_disk_keeps_the_older_one(disk: SimDisk) -> None:
    cluster_file.write_cluster(disk, "data", COPY)
    disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    cluster_file.write_cluster(disk, "data", ClusterCopy(8, b"x", {}))
    assert cluster_file.read_cluster(disk, "data") == COPY


# -- place -----------------------------------------------------------------------------------------
#
# A data directory that is a copy: it is another member of the cluster, unless it may move.


class Directory:
    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.make_dirs("data")
        self.ids = count(1)

    def take(self, *, directory_id: str = "d", may_move: bool = False) -> Place:
        return place.take_place(
            self.disk,
            "data",
            directory_id=directory_id,
            may_move=may_move,
            new_id=lambda: f"new-{next(self.ids)}",
        )

    def restore_a_copy(self) -> None:
        self.disk.put_back("data", self.disk.image("data"))


def test_a_directory_that_stays_in_its_place_keeps_its_id() -> None:
    at = Directory()
    for _ in range(3):
        assert at.take() == Place("d")
        at.disk.power_cut()


def test_a_copy_gets_another_id_and_keeps_that() -> None:
    at = Directory()
    at.take()
    at.restore_a_copy()
    found = at.take()
    assert found == Place("new-1", "d")
    assert "former_id=d" in found.notes()[0]
    at.disk.power_cut()
    assert at.take() == Place("new-1")
    assert Place("new-1").notes() == []
    at.restore_a_copy()
    assert at.take() == Place("new-2", "new-1")


def test_a_directory_that_was_closed_cleanly_may_be_moved() -> None:
    at = Directory()
    at.take()
    at.restore_a_copy()
    assert at.take(may_move=True) == Place("d")
    assert at.take() == Place("d"), "it is in its place now"


@pytest.mark.parametrize("has_peers", [True, False])
def test_a_data_directory_that_was_closed_may_be_moved(has_peers: bool) -> None:
    disk = SimDisk(Random(1))

    def ids(*, closes: bool) -> str:
        store = Store.open(disk, "data", has_peers=has_peers)
        if closes:
            store.close()
        else:
            disk.power_cut()
        disk.put_back("data", disk.image("data"))
        return store.place.member_id

    first = ids(closes=True)
    assert ids(closes=False) == first
    copied = ids(closes=True)
    assert (copied != first) == has_peers, "without peers nothing contradicts a copy"
    assert ids(closes=True) == copied


def test_without_inode_numbers_and_without_a_valid_file_no_copy_is_recognized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Directory()
    at.take()
    at.disk.write_atomic("data/place", b"nonsense")
    assert at.take() == Place("d")
    with monkeypatch.context() as without:
        without.setattr(SimDisk, "inode", lambda _disk, _path: 0)
        at.restore_a_copy()
        assert at.take() == Place("d")
    assert at.take() == Place("d"), "there was no number to compare with"


def test_a_file_of_another_directory_does_not_count() -> None:
    at = Directory()
    at.take(directory_id="another")
    assert at.take() == Place("d")


def test_a_copy_does_not_start_on_a_full_disk_and_the_original_does() -> None:
    at = Directory()
    at.disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    assert at.take() == Place("d")
    at.take()
    at.restore_a_copy()
    at.disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        at.take()
    assert at.take() == Place("new-2", "d")


@pytest.mark.skipif(_file_system("/tmp") not in KEEP_INODES, reason="no file system for it")
def test_a_copy_on_a_real_disk(tmp_path: Path) -> None:
    def take(directory: Path) -> Place:
        return place.take_place(
            OsDisk(), str(directory), directory_id="d", may_move=False, new_id=lambda: "new"
        )

    original, copy = tmp_path / "data", tmp_path / "copy"
    original.mkdir()
    take(original)
    shutil.copytree(original, copy)
    assert take(original) == Place("d")
    original.rename(tmp_path / "renamed")
    assert take(tmp_path / "renamed") == Place("d")
    assert take(copy) == Place("new", "d")
