"""The history of a run: its format, and the content of its records.

The simulator and `raftlog chaos` write it; ``raftlog.testing.checker`` checks it.
"""
