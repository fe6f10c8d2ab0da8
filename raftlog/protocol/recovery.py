"""``survey`` and ``revive``: requests to find the remaining data and to recover from it.

Brokers send them to each other when an operator requests ``recover_cluster``.
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
    Note,
    WireEpoch,
    WireOffset,
)

GROUP_ID_CHARS_MAX = 300
_GroupId = Annotated[str, Meta(min_length=1, max_length=GROUP_ID_CHARS_MAX)]
_State = Annotated[bytes, Meta(max_length=PARTITION_STATE_BYTES_MAX)]


class SurveyRequest(Message):
    """Request reports. ``groups``: names of the Raft groups of partitions and of the cluster."""

    groups: Annotated[list[_GroupId], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)]


class Seat(Message):
    """Voter of a group: the broker and its data directory."""

    broker: NodeId
    directory_id: DirectoryId


class GroupReport(Message):
    """Data that a broker stores of one group; see ``raftlog.replication.recovery``.

    ``generation``: Raft group generation; None if its journal does not contain the group.
    ``leader``: the group's leader, if it has contact with that one.
    ``state``: encoded partition state, or None. ``end``: end offset of its copy, or -1.
    ``damage``: reason why the copy cannot lead. ``is_offline``: its disk may return, with records
    that are not reported. ``is_unsure``: the copy may lack acknowledged
    records at its end.
    """

    group: _GroupId
    generation: Counter | None = None
    term: Counter = 0
    index: Counter = 0
    voters: Annotated[list[Seat], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)] = []
    leader: NodeId | None = None
    state: _State | None = None
    end: WireOffset = -1
    last_epoch: WireEpoch = -1
    high_watermark: WireOffset = -1
    damage: Note = ""
    is_unsure: bool = False
    is_offline: bool = False


class SurveyResponse(Message):
    """One report per requested group, in any order."""

    reports: Annotated[list[GroupReport], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)]


class ReviveRequest(Message):
    """Recover a partition that the receiving broker stores.

    With ``base``, an encoded state, the broker starts a Raft group generation above ``generation``
    with itself as the only voter. Without it, the broker proposes ``command`` to the group.
    """

    group: _GroupId
    generation: Counter
    base: _State | None = None
    command: _State | None = None


class ReviveResponse(Message):
    """Success: the generation was started, or the command was committed."""
