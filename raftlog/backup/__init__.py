"""Backup: copies topics to files, and restores them into a cluster, with their offsets.

``writer`` has the files of a backup, fills one from a cluster, and is the source of a mirror, which
restores it. Reasons and limits: docs/adr/0048.
"""

from raftlog.backup.writer import BackupSource, Progress, open_store, verify, write_backup

__all__ = ["BackupSource", "Progress", "open_store", "verify", "write_backup"]
