"""A run against a secured cluster: clients authenticate, and their rules are what permits them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.client import profiles
from raftlog.errors import AuthenticationError
from raftlog.jepsen_like.cluster import ClusterUnderTest, Needs
from raftlog.jepsen_like.secured import RULES
from tests.jepsen_like.test_cluster import PATIENCE_S, shape_of

pytestmark = pytest.mark.integration


def test_clients_need_the_profile_and_its_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ClusterUnderTest(shape_of(1), Needs(), tmp_path, secure=True)
    try:
        made.start()
        assert made.secured is not None
        path = Path(made.secured.environment[profiles.VARIABLE])
        tls = {"security_protocol": "SSL", "ssl_cafile": profiles.load(str(path))["ssl_cafile"]}
        with Admin(made.bootstrap, **tls) as admin, pytest.raises(AuthenticationError):
            admin.list_topics()
        for name, value in made.secured.environment.items():
            monkeypatch.setenv(name, value)
        with Admin(made.bootstrap) as admin:
            assert {*RULES} <= {*admin.describe_acls()}
        assert made.wait_quiet(PATIENCE_S) == []
        assert os.stat(path).st_mode & 0o077 == 0
        made.start_broker(1)
    finally:
        made.close()
