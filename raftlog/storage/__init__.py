"""One broker's bytes on one disk: logs, their recovery, the catalog of topics. No roles."""

from typing import TYPE_CHECKING

from raftlog.storage.catalog import Topic
from raftlog.storage.disk_tasks import DeleteTask, SyncTask
from raftlog.storage.identity import Identity
from raftlog.storage.log import Appended, Log, ReplicatedAppend
from raftlog.storage.log_compacting import CompactionStatus
from raftlog.storage.store import Store

if TYPE_CHECKING:  # numpy is loaded by the first compaction
    from raftlog.storage.cleaner import CompactionTicket as CompactionTicket

__all__ = [
    "Appended",
    "CompactionStatus",
    "DeleteTask",
    "Identity",
    "Log",
    "ReplicatedAppend",
    "Store",
    "SyncTask",
    "Topic",
]
