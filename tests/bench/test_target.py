"""Tests of raftlog.bench.figures."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from raftlog import Admin
from raftlog.bench.figures import target


@pytest.mark.integration
def test_the_broker_and_its_directory_are_gone_afterwards(tmp_path: Path) -> None:
    with target(tmp_path) as running:
        assert psutil.pid_exists(running.pid)
        assert running.directory.is_dir()
    assert not psutil.pid_exists(running.pid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_clients_of_a_secured_target_use_tls_until_it_ends(tmp_path: Path) -> None:
    with target(tmp_path, secure=True) as running:
        with Admin(running.bootstrap) as admin:
            assert list(admin.list_topics()) == []
        assert os.environ["RAFTLOG_SECURITY_PROTOCOL"] == "SSL"
    assert "RAFTLOG_SECURITY_PROTOCOL" not in os.environ
