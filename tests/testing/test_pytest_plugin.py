"""The fixtures that users get: brokers that answer, and their addresses."""

from __future__ import annotations

import pytest

from raftlog import Admin, NewTopic
from raftlog.testing import Cluster

pytestmark = pytest.mark.integration


def test_the_fixtures_are_a_running_broker(
    raftlog_cluster: Cluster, raftlog_bootstrap: str
) -> None:
    assert raftlog_bootstrap == raftlog_cluster.bootstrap
    assert len(raftlog_cluster.brokers) == 1
    with Admin(raftlog_bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
        assert admin.list_topics() == ["t"]


@pytest.mark.raftlog_cluster(brokers=3, settings={"rack": "here"})
def test_a_mark_asks_for_more(raftlog_cluster: Cluster, raftlog_bootstrap: str) -> None:
    assert len(raftlog_cluster.brokers) == 3
    assert raftlog_cluster.relays is not None
    with Admin(raftlog_bootstrap) as admin:
        assert {broker.rack for broker in admin.describe_cluster().brokers} == {"here"}
