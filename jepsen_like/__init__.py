"""The harness that breaks a cluster on purpose and judges what its clients saw, after Jepsen.

``runner`` makes a run: a cluster, clients, nemeses, a history. ``checker`` judges the history.
"""
