"""``replica_fetch`` and ``replica_progress``: a follower copies partitions that this broker leads.

Also ``partition_states``: partition states for brokers that are not voters; and
``describe_copies``: reports on this broker's copies, for an election.
"""

from __future__ import annotations

from typing import cast

from raftlog.protocol.connection import Request
from raftlog.protocol.replication import (
    DescribeCopiesRequest,
    PartitionStatesRequest,
    ReplicaFetchRequest,
    ReplicaProgressRequest,
)
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply


def handle_fetch(context: BrokerContext, request: Request, reply: Reply) -> None:
    session = context.clustered().session(reply.connection)
    session.fetch(cast(ReplicaFetchRequest, request.message), reply)


def handle_progress(context: BrokerContext, request: Request, reply: Reply) -> None:
    session = context.clustered().session(reply.connection)
    session.progress(cast(ReplicaProgressRequest, request.message).partitions)
    reply.none()


def handle_states(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(PartitionStatesRequest, request.message)
    context.clustered().state_broadcast.receive(message.states, message.recovery)
    reply.none()


def handle_copies(context: BrokerContext, request: Request, reply: Reply) -> None:
    surveys = context.clustered().surveys
    reply.send(surveys.describe(cast(DescribeCopiesRequest, request.message).partitions))
