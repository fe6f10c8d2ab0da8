"""Test support for raftlog and its users: real clusters on this machine, and fakes.

from raftlog.testing import cluster

with cluster(brokers=3) as c:
    Producer(c.bootstrap)
    c.brokers[0].kill()
"""

from raftlog.testing.cluster import BrokerProcess, Cluster, cluster, wait_until

__all__ = ["BrokerProcess", "Cluster", "cluster", "wait_until"]
