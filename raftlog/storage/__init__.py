"""One broker's bytes on one disk: logs, their recovery, the catalog of topics. No roles."""

from raftlog.storage.catalog import Topic
from raftlog.storage.identity import Identity
from raftlog.storage.log import Appended, Log, ReplicatedAppend
from raftlog.storage.store import Store
from raftlog.storage.tickets import DropTicket, SyncTicket

__all__ = [
    "Appended",
    "DropTicket",
    "Identity",
    "Log",
    "ReplicatedAppend",
    "Store",
    "SyncTicket",
    "Topic",
]
