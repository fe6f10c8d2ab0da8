"""Every kind of fault with its sentence, and which can be injected here."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog_jepsen.cluster import ClusterUnderTest
from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.report import kinds
from raftlog_jepsen.report.kinds import kinds_here

pytestmark = pytest.mark.integration  # what the machine has is found by trying it


def test_every_kind_has_a_sentence() -> None:
    found = kinds_here(without_root=True)
    assert [kind.name for kind in found] == list(driver.KINDS)
    assert all(kind.description[-1] == "." for kind in found)


def test_without_root_what_needs_it_is_refused_and_the_rest_is_not() -> None:
    why = {kind.name: kind.why_not for kind in kinds_here(without_root=True)}
    assert not any(why[name] for name in ("kill", "storm", "pause", "wipe", "transfer"))
    assert all("root" in why[name] for name in ("power", "disk-full", "clock-bases"))


def test_what_the_machine_lacks_is_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ClusterUnderTest.__init__

    def lacking(self: Any, shape: Any, needs: Any, *others: Any, **named: Any) -> None:
        if needs.fake_time:
            raise OSError("no libfaketime")
        made(self, shape, needs, *others, **named)

    monkeypatch.setattr(kinds, "NEED_ROOT", driver.needs_of(driver.KINDS) - {"fake_time"})
    monkeypatch.setattr(ClusterUnderTest, "__init__", lacking)
    why = {kind.name: kind.why_not for kind in kinds_here(without_root=True)}
    assert "faketime" in why["clock-jump"]
    assert why["kill"] == ""
