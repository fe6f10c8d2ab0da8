"""raftlog: a partitioned commit log. The names that users import; no logic.

Names are imported at their first use, so that ``raftlog --help`` does not import numpy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from raftlog.former_names import Finder

if TYPE_CHECKING:
    from raftlog import aio, errors
    from raftlog.client.administration.admin import Admin
    from raftlog.client.administration.groups import (
        GroupDescription,
        GroupListing,
        MemberDescription,
        PartitionLag,
    )
    from raftlog.client.administration.security import AclDecision
    from raftlog.client.administration.transactions import (
        TransactionDescription,
        TransactionListing,
    )
    from raftlog.client.consumer import Consumer
    from raftlog.client.delivery import DeliveryFuture, RangesFuture, outcomes
    from raftlog.client.descriptions import (
        BrokerDescription,
        ClusterDescription,
        DiskDescription,
        DiskUseDescription,
        LeaderDescription,
        LogDirDescription,
        PartitionDescription,
        PartitionOverview,
        RecoveredPartition,
        RecoveryDescription,
        ReplicaDescription,
        TopicDescription,
        TopicDiskUse,
        TopicListing,
    )
    from raftlog.client.producer import Producer
    from raftlog.client.scan import Scan, scan
    from raftlog.client.transactions import Transaction
    from raftlog.embedded import EmbeddedLog
    from raftlog.embedded import open as open  # noqa: A004 - `raftlog.open` is its name
    from raftlog.mirror.table import Table
    from raftlog.security.acl import Acl, AclFilter
    from raftlog.security.quota import QuotaEntity
    from raftlog.types import (
        ConsumerRecord,
        GroupMetadata,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        OffsetRange,
        RebalanceListener,
        RecordMetadata,
        TopicPartition,
    )

__version__ = "0.1.0"

sys.meta_path.insert(0, Finder())

# Without "open": `from raftlog import *` would replace the built-in function.
__all__ = [
    "Acl",
    "AclDecision",
    "AclFilter",
    "Admin",
    "BrokerDescription",
    "ClusterDescription",
    "Consumer",
    "ConsumerRecord",
    "DeliveryFuture",
    "DiskDescription",
    "DiskUseDescription",
    "EmbeddedLog",
    "GroupDescription",
    "GroupListing",
    "GroupMetadata",
    "LeaderDescription",
    "LogDirDescription",
    "MemberDescription",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetRange",
    "PartitionDescription",
    "PartitionLag",
    "PartitionOverview",
    "Producer",
    "QuotaEntity",
    "RangesFuture",
    "RebalanceListener",
    "RecordMetadata",
    "RecoveredPartition",
    "RecoveryDescription",
    "ReplicaDescription",
    "Scan",
    "Table",
    "TopicDescription",
    "TopicDiskUse",
    "TopicListing",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionListing",
    "__version__",
    "aio",
    "errors",
    "outcomes",
    "scan",
    "schema",
]

# Public name -> its module; a name that is a module has its own path as the value.
_HOMES: Final = {
    "AclDecision": "raftlog.client.administration.security",
    "Admin": "raftlog.client.administration.admin",
    "Consumer": "raftlog.client.consumer",
    "Producer": "raftlog.client.producer",
    "DeliveryFuture": "raftlog.client.delivery",
    "RangesFuture": "raftlog.client.delivery",
    "BrokerDescription": "raftlog.client.descriptions",
    "ClusterDescription": "raftlog.client.descriptions",
    "DiskDescription": "raftlog.client.descriptions",
    "LogDirDescription": "raftlog.client.descriptions",
    "DiskUseDescription": "raftlog.client.descriptions",
    "TopicDiskUse": "raftlog.client.descriptions",
    "LeaderDescription": "raftlog.client.descriptions",
    "PartitionDescription": "raftlog.client.descriptions",
    "PartitionOverview": "raftlog.client.descriptions",
    "RecoveredPartition": "raftlog.client.descriptions",
    "RecoveryDescription": "raftlog.client.descriptions",
    "ReplicaDescription": "raftlog.client.descriptions",
    "TopicDescription": "raftlog.client.descriptions",
    "TopicListing": "raftlog.client.descriptions",
    "TransactionDescription": "raftlog.client.administration.transactions",
    "TransactionListing": "raftlog.client.administration.transactions",
    "GroupDescription": "raftlog.client.administration.groups",
    "GroupListing": "raftlog.client.administration.groups",
    "MemberDescription": "raftlog.client.administration.groups",
    "PartitionLag": "raftlog.client.administration.groups",
    "Scan": "raftlog.client.scan",
    "outcomes": "raftlog.client.delivery",
    "scan": "raftlog.client.scan",
    "Table": "raftlog.mirror.table",
    "Transaction": "raftlog.client.transactions",
    "EmbeddedLog": "raftlog.embedded",
    "open": "raftlog.embedded",
    "Acl": "raftlog.security.acl",
    "AclFilter": "raftlog.security.acl",
    "QuotaEntity": "raftlog.security.quota",
    "ConsumerRecord": "raftlog.types",
    "GroupMetadata": "raftlog.types",
    "NewTopic": "raftlog.types",
    "OffsetAndMetadata": "raftlog.types",
    "OffsetAndTimestamp": "raftlog.types",
    "OffsetRange": "raftlog.types",
    "RebalanceListener": "raftlog.types",
    "RecordMetadata": "raftlog.types",
    "TopicPartition": "raftlog.types",
    "aio": "raftlog.aio",
    "errors": "raftlog.errors",
    "schema": "raftlog.schema",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'raftlog' has no attribute {name!r}")
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name != home:
            raise
        from raftlog.install import install_command

        raise ImportError(
            f"raftlog.{name} is not in raftlog-client, which has only clients. Uninstall it, and "
            f"run {install_command()}"
        ) from None
    return module if home == f"raftlog.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
