"""Requests of brokers that join and leave a cluster, and of brokers without a vote in its group.

``cluster_state`` and ``propose`` are for brokers without a vote. ``reserve_broker_id``,
``decommission`` and ``cancel_decommission`` are requests of operators.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.recovery import Seat
from raftlog.protocol.schema import ClusterId, Counter, Failure, Message, NodeId

_Command = Annotated[bytes, Meta(min_length=1, max_length=limits.CLUSTER_CHANGES_KEPT_BYTES_MAX)]


class ClusterStateRequest(Message):
    """Request changes of the cluster state after ``version``, and wait for them.

    ``leader``: known Raft leader of the cluster group; the broker also responds if that changes.
    """

    version: Counter
    wait_ms: Annotated[int, Meta(ge=0, le=limits.CLUSTER_STATE_WAIT_MS_MAX)]
    leader: NodeId | None = None


class ClusterStateResponse(Message):
    """The commands that lead from the requested version to ``version``, in their order.

    If they are not kept any longer, the attachment is an encoded state of that version.
    ``has_vote``: whether the responding broker has a vote in the cluster group. ``leader`` and
    ``voters``: of the group, as it knows them.
    """

    cluster_id: ClusterId
    version: Counter
    has_vote: bool
    leader: NodeId | None = None
    voters: Annotated[list[Seat], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)] = []
    commands: Annotated[list[_Command], Meta(max_length=limits.CLUSTER_CHANGES_KEPT_MAX)] = []


class ProposeRequest(Message):
    """Propose a command of the cluster group for a broker without a vote."""

    command: _Command


class ProposeResponse(Message):
    """The command was decided. ``failure``: the reason why it was rejected.

    ``version``: of a cluster state that contains its effect.
    """

    version: Counter
    failure: Failure | None = None


class ReserveBrokerIdRequest(Message):
    """Reserve an ID for a broker that joins the cluster."""


class ReserveBrokerIdResponse(Message):
    """``id``: no broker had it before, and it is not assigned again."""

    id: NodeId
    cluster_id: ClusterId


class DecommissionRequest(Message):
    """Remove a broker from the cluster, after its replicas and votes have moved to others.

    The request can be repeated; it then returns the progress.
    """

    broker: NodeId


class DecommissionResponse(Message):
    """Progress of a decommission.

    ``removed``: it is complete. ``partitions``: number of those that the broker still stores or
    votes for. ``has_vote``: whether it has a vote in the cluster group. ``waits_for``: why no
    progress is possible now; empty otherwise.
    """

    removed: bool
    partitions: Counter = 0
    has_vote: bool = False
    waits_for: Annotated[str, Meta(max_length=limits.ERROR_MESSAGE_CHARS_MAX)] = ""


class CancelDecommissionRequest(Message):
    """Keep a broker that is being decommissioned, and cancel the moves away from it.

    A separate request: a broker of an earlier release would read a flag of ``decommission`` as
    the request to remove the broker.
    """

    broker: NodeId


class CancelDecommissionResponse(Message):
    """The broker stays. ``moving``: number of partitions that get their former replicas back."""

    moving: Counter = 0
