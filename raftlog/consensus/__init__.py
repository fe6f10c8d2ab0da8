"""Raft groups, many per broker: PySyncObj, hardened. Commands are opaque bytes.

``ConsensusNode`` runs all groups of one broker. Time, chance, disk and sending are arguments.
"""

from raftlog.consensus.hosted_group import GroupStatus, Journaled
from raftlog.consensus.journal import Journal, JournalSyncTask, PeerSeen
from raftlog.consensus.machine import StateMachine
from raftlog.consensus.node import ConsensusNode
from raftlog.consensus.outcome import Applied, CommandFailed, NotProposed, Outcome, Unknown
from raftlog.consensus.peer_transport import Heard
from raftlog.consensus.settings import ConsensusSettings

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
