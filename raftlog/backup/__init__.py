"""Backup: copies topics to files, and restores them into a cluster, with their offsets.

``store`` reads and writes the files, ``manifest`` lists them, ``writer`` fills a backup from a
cluster, and ``source`` is a backup as the source of a mirror, which restores it. Reasons and
limits: docs/adr/0048.
"""

from raftlog.backup.writer import BackupSource, Progress, open_store, verify, write_backup

__all__ = ["BackupSource", "Progress", "open_store", "verify", "write_backup"]
