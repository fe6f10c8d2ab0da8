"""Test support for raftlog and its users: real clusters on this machine, and fakes.

from raftlog.testing import cluster

with cluster(brokers=3) as c:
    Producer(c.bootstrap)
    c.brokers[0].kill()
"""

from raftlog.testing.cluster import Cluster, cluster
from raftlog.testing.probes import wait_until
from raftlog.testing.processes import BrokerProcess

__all__ = ["BrokerProcess", "Cluster", "cluster", "wait_until"]
