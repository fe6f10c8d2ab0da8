"""Fault-injection harness, after Jepsen: injects faults into a cluster and checks the history of
its clients.

``runner`` executes a run: cluster, clients, nemeses, history. ``raftlog.testing.checker`` checks
the history.
"""
