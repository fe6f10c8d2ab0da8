"""That a library that is not the one relied on is found."""

from __future__ import annotations

import pytest
from pysyncobj import SyncObj

from raftlog.consensus import selftest
from raftlog.consensus.raft_group import RaftGroup


def faults(library: type = SyncObj, group: type = RaftGroup, version: str = "0.3.17") -> str:
    return "; ".join(selftest._faults(library, group, version))


def test_this_library_passes() -> None:
    selftest.check()
    assert not faults()


def test_another_version_is_refused() -> None:
    assert "version 0.3.18" in faults(version="0.3.18")


def test_a_name_that_is_gone_is_found() -> None:
    class Renamed(RaftGroup):  # type: ignore[misc]
        def step(self, now: float) -> None:
            self._SyncObj__onTock()

    assert "it has no onTock" in faults(group=Renamed)


def test_all_private_names_in_use_are_looked_at() -> None:
    names = set(selftest.names_in(RaftGroup))
    assert "_SyncObj__onBecomeLeader" in names, "overridden"
    assert "_SyncObj__raftMatchIndex" in names, "used"
    assert "_SyncObj__raftState" in names, "used in a property"


def test_changed_arguments_are_found() -> None:
    class Changed(RaftGroup):  # type: ignore[misc]
        def _SyncObj__setState(self) -> None:  # noqa: N802
            pass

    assert "setState takes other arguments" in faults(group=Changed)


def test_a_library_that_behaves_differently_is_found() -> None:
    class Eager(RaftGroup):  # type: ignore[misc]
        def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
            self._SyncObj__raftCommitIndex = self._log.last_index
            super()._onTick(timeToWait)

    assert "one of two voters is not a majority" in faults(group=Eager)


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"onTick.*Install pysyncobj==0\.3\.17"):
        selftest._complain(["it has no onTick"])
