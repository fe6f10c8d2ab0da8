"""The PySpark data source for raftlog. It is not written yet: this package holds its place."""
