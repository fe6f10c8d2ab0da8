"""The fixtures that users get: a broker that answers, and its address."""

from __future__ import annotations

import pytest

from raftlog import Admin, NewTopic
from raftlog.testing import Cluster

pytestmark = pytest.mark.integration


def test_the_fixtures_are_a_running_broker(
    raftlog_cluster: Cluster, raftlog_bootstrap: str
) -> None:
    assert raftlog_bootstrap == raftlog_cluster.bootstrap
    with Admin(raftlog_bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
        assert admin.list_topics() == ["t"]
