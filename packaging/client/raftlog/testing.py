"""Not in raftlog-client. Beside an installed raftlog, its package of this name is found first."""

raise ImportError(
    "raftlog.testing starts brokers, which raftlog-client does not have: pip install raftlog"
)
