"""Tests of raftlog.bench.imports."""

from __future__ import annotations

import pytest

from raftlog.bench.imports import imports


@pytest.mark.integration
def test_modules_and_cpu_time_of_an_import() -> None:
    cases = {"nothing": "pass", "raftlog": "import raftlog.limits"}
    empty, raftlog = imports(rounds=2, cases=cases)
    assert empty.values["own_modules"] == 0
    assert raftlog.values["own_modules"] == 2
    assert raftlog.values["modules"] > empty.values["modules"] > 10
    assert raftlog.values["import_ms"] > 0
    assert raftlog.values["cpu_ms"] > 0
    assert raftlog.cells["of raftlog"] == "2"
