"""Tests of raftlog.bench.target."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from raftlog.bench.target import target


@pytest.mark.integration
def test_the_broker_and_its_directory_are_gone_afterwards(tmp_path: Path) -> None:
    with target(tmp_path) as running:
        assert psutil.pid_exists(running.pid)
        assert running.directory.is_dir()
    assert not psutil.pid_exists(running.pid)
    assert list(tmp_path.iterdir()) == []
