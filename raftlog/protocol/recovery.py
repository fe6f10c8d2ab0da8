"""``survey`` and ``revive``: how brokers find out together what is left, and go on with it.

Between brokers only, when an operator has asked one of them for ``recover_cluster``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.replication import PARTITION_STATE_BYTES_MAX
from raftlog.protocol.schema import (
    Counter,
    DirectoryId,
    Message,
    NodeId,
    NodeIds,
    Note,
    WireEpoch,
    WireOffset,
)

GROUP_ID_CHARS_MAX = 300
_GroupId = Annotated[str, Meta(min_length=1, max_length=GROUP_ID_CHARS_MAX)]
_State = Annotated[bytes, Meta(max_length=PARTITION_STATE_BYTES_MAX)]


class SurveyRequest(Message):
    """``groups``: names of Raft groups, of partitions or the cluster's own."""

    groups: Annotated[list[_GroupId], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)]


class Seat(Message):
    """A vote: which data directory of a broker has it."""

    broker: NodeId
    directory_id: DirectoryId


class GroupReport(Message):
    """What a broker has of one group; see ``raftlog.replication.recovery``.

    ``generation`` of None: its journal has nothing of it. ``state``: of a partition, encoded; None
    if it knows none. ``end`` of -1: it has no copy.
    """

    group: _GroupId
    generation: Counter | None = None
    term: Counter = 0
    index: Counter = 0
    voters: Annotated[list[Seat], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)] = []
    saw_end: NodeIds = []
    is_known: bool = False
    state: _State | None = None
    end: WireOffset = -1
    last_epoch: WireEpoch = -1
    high_watermark: WireOffset = -1
    damage: Note = ""


class SurveyResponse(Message):
    """One report for each group that was asked for, in any order."""

    reports: Annotated[list[GroupReport], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)]


class ReviveRequest(Message):
    """The broker asked goes on with a partition that it stores.

    From ``base``, an encoded state, it begins a generation above ``generation`` in which it alone
    votes; without, it proposes ``command`` to the group.
    """

    group: _GroupId
    generation: Counter
    base: _State | None = None
    command: _State | None = None


class ReviveResponse(Message):
    """It was begun, or agreed on."""
