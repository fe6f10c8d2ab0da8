"""The pytest plugin: real brokers for a test, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raftlog.testing.cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "raftlog_cluster(brokers=1, settings=None, with_relays=None): what the fixture "
        "`raftlog_cluster` starts; the arguments of raftlog.testing.cluster",
    )


@pytest.fixture
def raftlog_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of the test's own, on free ports, in a directory that is removed.

    One broker, unless the test is marked ``@pytest.mark.raftlog_cluster(brokers=3)``.
    """
    from raftlog.testing.cluster import cluster  # every pytest run loads this plugin: keep it light

    marker = request.node.get_closest_marker("raftlog_cluster")
    with cluster(*marker.args, **marker.kwargs) if marker else cluster() as running:
        yield running


@pytest.fixture
def raftlog_bootstrap(raftlog_cluster: Cluster) -> str:
    """The addresses of ``raftlog_cluster``, as clients take them."""
    return raftlog_cluster.bootstrap
