"""Ending a process at every single change that an act makes to the disk, in every way.

``sweep`` prepares a disk, lets ``act`` run up to its k-th change, ends the process there by a kill,
by a power cut, or by a kill and then a power cut, and has ``check`` judge what the next process
finds. A power cut has several outcomes, so each is tried with several seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

import pytest

from raftlog.testing.disk import Fault, SimDisk, Stopped

T = TypeVar("T")
WAYS: Final = ("kill", "power cut", "kill, then power cut")


def chances_of(few: int, more: int) -> Callable[[pytest.FixtureRequest], int]:
    """A fixture: how many outcomes of each power cut are looked at; ``more`` in `make seeds`."""

    @pytest.fixture(params=[few, pytest.param(more, marks=pytest.mark.seeds)])
    def chances(request: pytest.FixtureRequest) -> int:
        count: int = request.param
        return count

    return chances


def sweep(
    prepare: Callable[[SimDisk], T],
    act: Callable[[SimDisk, T], None],
    check: Callable[[SimDisk, T], None],
    *,
    seed: int,
    chances: int = 3,
    make_disk: Callable[[Random], SimDisk] = SimDisk,
) -> int:
    """How many changes ``act`` makes; each was the last one once, and so was none of them."""
    disk = make_disk(Random(seed))
    state = prepare(disk)
    before = disk.changes
    act(disk, state)
    changes = disk.changes - before
    assert changes > 0
    for stop in range(changes + 1):
        for way, chance in _ways(chances):
            disk = make_disk(Random(seed + 1_000 * chance))
            _try_one(disk, prepare, act, check, stop=stop, way=way, seed=seed + 1_000 * chance)
    return changes


def _ways(chances: int) -> Iterator[tuple[str, int]]:
    """A kill has one outcome."""
    for way in WAYS:
        for chance in range(1 if way == "kill" else chances):
            yield way, chance


def _try_one(
    disk: SimDisk,
    prepare: Callable[[SimDisk], T],
    act: Callable[[SimDisk, T], None],
    check: Callable[[SimDisk, T], None],
    *,
    seed: int,
    stop: int,
    way: str,
) -> None:
    state = prepare(disk)
    disk.faults.append(Fault(error=None, skip=stop))
    with suppress(Stopped):
        act(disk, state)
    disk.faults.clear()
    try:
        if way == "power cut":
            disk.power_cut()
        else:
            disk.crash()
        check(disk, state)
        if way == "kill, then power cut":
            disk.power_cut()
            check(disk, state)
    except BaseException as error:
        error.add_note(f"{way} before change {stop}, seed {seed}")
        raise
