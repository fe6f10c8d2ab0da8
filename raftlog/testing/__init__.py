"""What tests stand on, ours and our users': real clusters on this machine, and fakes.

from raftlog.testing import cluster

with cluster(brokers=1) as c:
    Producer(c.bootstrap)
"""

from raftlog.testing.cluster import BrokerProcess, Cluster, cluster, wait_until

__all__ = ["BrokerProcess", "Cluster", "cluster", "wait_until"]
