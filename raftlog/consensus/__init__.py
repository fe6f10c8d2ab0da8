"""Raft groups, many per broker: PySyncObj, hardened. Commands are opaque bytes.

``ConsensusNode`` runs all groups of one broker. Time, chance, disk and sending are arguments.
"""

from raftlog.consensus.hosted_group import GroupStatus, Journaled
from raftlog.consensus.journal import Journal, JournalSyncTask, PeerSeen
from raftlog.consensus.node import ConsensusNode
from raftlog.consensus.settings import (
    Applied,
    CommandFailed,
    ConsensusSettings,
    NotProposed,
    Outcome,
    StateMachine,
    Unknown,
)
from raftlog.consensus.transport import Heard

__all__ = [
    "Applied",
    "CommandFailed",
    "ConsensusNode",
    "ConsensusSettings",
    "GroupStatus",
    "Heard",
    "Journal",
    "JournalSyncTask",
    "Journaled",
    "NotProposed",
    "Outcome",
    "PeerSeen",
    "StateMachine",
    "Unknown",
]
