"""The fault-injection harness for raftlog. It is not written yet: this package holds its place."""
