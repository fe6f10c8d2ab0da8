"""Fault-injection harness, after Jepsen: injects faults into a cluster and checks the history of
its clients.

``runner`` executes a run: a cluster, clients, nemeses, a history. ``checker`` checks the history.
"""
