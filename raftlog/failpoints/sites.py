"""Names of all failpoints.

    <role>.<operation>.<before or after>      a file or a directory; see ``disk.role``
    reply.<api>.<before or after>             a response to a client or to another broker
    peer.<api>.<before or after>              a request to another broker

``after`` of a response or request: the operating system has accepted it. Directories are synced,
not written. Reads have no ``after``, because they change nothing. A test runs all operations of a
cluster and verifies that it hits exactly the failpoints of this list.
"""

from __future__ import annotations

from typing import Final

_ON_DISK: Final = {
    "catalog": "create read write truncate sync rename remove",
    "checkpoint": "create read write sync remove",
    "clean": "create read write truncate sync rename remove",
    "cleaned": "create write sync remove",
    "brokers": "create read write truncate sync rename",
    "clock": "create read write truncate sync rename remove",
    "compaction": "create read write truncate sync rename remove",
    "copies": "create read write truncate sync rename remove",
    "data-dir": "create sync",
    "epochs": "create read write truncate sync rename remove",
    "identity": "create read write truncate sync rename remove",
    "index": "create read write truncate rename remove",
    "journal": "read write truncate sync rename",
    "journal-draft": "create write truncate sync remove",
    "parent-dir": "sync",
    "partition-dir": "create sync rename remove",
    "producers": "create read write truncate sync rename remove",
    "segment": "create read write truncate sync rename remove",
    "topic-dir": "create sync remove",
    "topics-dir": "create sync",
}
_ANSWERS: Final = (
    "add_partitions alter_topics api_versions create_topics delete_groups delete_offsets "
    "delete_records delete_topics describe_cluster describe_copies describe_groups describe_topics "
    "fetch find_coordinators group_heartbeat init_producer_id list_groups list_offsets metadata "
    "offset_commit offset_fetch peer_hello peer_ping peer_prove produce reassign recover_cluster "
    "replica_fetch survey transfer_leader"
)
_REQUESTS: Final = (
    "api_versions cluster_state describe_copies partition_states peer_hello peer_ping peer_prove "
    "propose raft replica_fetch replica_progress survey"
)

READS: Final = frozenset(
    f"{what}.read.before" for what, operations in _ON_DISK.items() if "read" in operations.split()
)
CHANGES: Final = frozenset(  # of the disk
    f"{what}.{operation}.{moment}"
    for what, operations in _ON_DISK.items()
    for operation in operations.split()
    for moment in ("before", "after")
    if operation != "read"
)
SENDS: Final = frozenset(
    f"{way}.{api}.{moment}"
    for way, apis in (("reply", _ANSWERS), ("peer", _REQUESTS))
    for api in apis.split()
    for moment in ("before", "after")
)
SITES: Final = READS | CHANGES | SENDS
# All files in directories of ``log.dirs``, under one name. Most brokers have none.
LOG_DIRS: Final = frozenset(
    f"log-dir.{operation}.{moment}"
    for operation in ("create", "write", "truncate", "sync", "rename", "remove")
    for moment in ("before", "after")
) | {"log-dir.read.before"}
