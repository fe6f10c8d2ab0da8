"""One broker's bytes on one disk: logs, their recovery, the catalog of topics. No roles."""

from raftlog.storage.catalog import Topic
from raftlog.storage.log import Appended, Log
from raftlog.storage.store import Identity, Store
from raftlog.storage.tickets import DropTicket, SyncTicket

__all__ = ["Appended", "DropTicket", "Identity", "Log", "Store", "SyncTicket", "Topic"]
