"""The pytest plugin: a real broker for a test, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raftlog.testing.cluster import Cluster


@pytest.fixture
def raftlog_cluster() -> Iterator[Cluster]:
    """A one-broker cluster of the test's own, on a free port, in a directory that is removed."""
    from raftlog.testing.cluster import cluster  # every pytest run loads this plugin: keep it light

    with cluster(brokers=1) as running:
        yield running


@pytest.fixture
def raftlog_bootstrap(raftlog_cluster: Cluster) -> str:
    """The address of ``raftlog_cluster``, as clients take it."""
    return raftlog_cluster.bootstrap
