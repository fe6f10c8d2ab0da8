"""Tests of raftlog.storage.state_files."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.disk import TEMPORARY_SUFFIX
from raftlog.errors import DamagedLogError
from raftlog.record.batch import crc32c
from raftlog.storage import state_files
from raftlog.testing.disk import Fault, SimDisk, Stopped
from tests.storage.logs import sim_disk

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


def disk_with(state: dict[str, Any] | None, *, seed: int = 1) -> SimDisk:
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
    assert state_files.read(disk_with(None), PATH) is None


def test_what_was_written_is_read_after_a_power_cut(seed: int) -> None:
    disk = disk_with(OLD, seed=seed)
    state_files.write(disk, PATH, NEW)
    disk.power_cut()
    assert state_files.read(disk, PATH) == NEW


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("chance", range(5))
def test_a_power_cut_while_writing_leaves_the_old_or_the_new(
    step: str, chance: int, seed: int
) -> None:
    disk = disk_with(OLD, seed=seed + chance)
    disk.faults = [Fault((step,), error=None)]
    with pytest.raises(Stopped):
        state_files.write(disk, PATH, NEW)
    disk.power_cut()
    assert state_files.read(disk, PATH) in ((OLD, NEW) if step == "sync_dir" else (OLD,))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["create", "write", "sync", "rename"])
def test_where_there_is_no_room_the_old_file_stays_and_nothing_else(step: str, code: int) -> None:
    disk = disk_with(OLD)
    disk.faults = [Fault((step,), error=code)]
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.write(disk, PATH, NEW)
    assert caught.value.errno == code
    assert disk.list_dir("data") == ["state"]
    assert state_files.read(disk, PATH) == OLD


def test_a_full_disk_has_as_much_room_after_a_failed_write_as_before() -> None:
    disk = disk_with(OLD)
    disk.capacity_bytes = len(state_files.encode(OLD)) + 100
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.write(disk, PATH, NEW)
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes("data") == 100


def test_on_a_broken_disk_nothing_more_is_tried() -> None:
    disk = disk_with(OLD)
    disk.faults = [Fault(("sync",), error=errno.EIO)]
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.write(disk, PATH, NEW)
    assert caught.value.errno == errno.EIO
    assert disk.list_dir("data") == ["state", "state" + TEMPORARY_SUFFIX]
    assert state_files.read(disk, PATH) == OLD


def test_a_file_larger_than_any_state_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = disk_with(OLD)
    monkeypatch.setattr(limits, "STATE_FILE_BYTES_MAX", len(state_files.encode(OLD)) - 1)
    with pytest.raises(OSError, match="data/state") as caught:
        state_files.read(disk, PATH)
    assert caught.value.errno == errno.EFBIG
