"""The pytest plugin: fixtures with real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raftlog.testing.cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "raftlog_cluster(brokers=1, settings=None, with_relays=None): arguments of the "
        "fixture `raftlog_cluster`; see raftlog.testing.cluster",
    )


@pytest.fixture
def raftlog_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster for one test, on free ports, in a temporary directory.

    One broker, unless the test is marked ``@pytest.mark.raftlog_cluster(brokers=3)``.
    """
    from raftlog.testing.cluster import cluster  # every pytest run loads this plugin: keep it light

    marker = request.node.get_closest_marker("raftlog_cluster")
    with cluster(*marker.args, **marker.kwargs) if marker else cluster() as running:
        yield running


@pytest.fixture
def raftlog_bootstrap(raftlog_cluster: Cluster) -> str:
    """The bootstrap servers of ``raftlog_cluster``."""
    return raftlog_cluster.bootstrap
