"""Not in raftlog-client. Beside an installed raftlog, its package of this name is found first."""

from raftlog.install import install_command

raise ImportError(
    "raftlog.testing starts brokers, which raftlog-client does not have. Uninstall it, and run "
    f"{install_command()}"
)
