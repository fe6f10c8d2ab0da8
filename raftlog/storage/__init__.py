"""Storage of one broker: logs, log recovery and the topic catalog. No replication roles."""

from typing import TYPE_CHECKING

from raftlog.storage.catalog import Topic
from raftlog.storage.compaction import CompactionStatus
from raftlog.storage.disk_tasks import DeleteTask, SyncTask
from raftlog.storage.log import Appended, Log, ReplicatedAppend
from raftlog.storage.segment import TimestampSearch
from raftlog.storage.state_files import Identity
from raftlog.storage.store import Store

if TYPE_CHECKING:  # the first compaction imports numpy
    from raftlog.storage.compaction import CompactionTask as CompactionTask

__all__ = [
    "Appended",
    "CompactionStatus",
    "DeleteTask",
    "Identity",
    "Log",
    "ReplicatedAppend",
    "Store",
    "SyncTask",
    "TimestampSearch",
    "Topic",
]
