"""``find_transaction_coordinators``, ``init_transactions``, ``end_transaction`` and
``transaction_offset_commit``: transactions of raftlog's producers.

They use version 2 of transactions (KIP-890): a leader adds its partition to the transaction with
the first batch, and each end of a transaction gives the epoch of the next one.
"""

from __future__ import annotations

from typing import cast

from raftlog.errors import RaftlogError
from raftlog.protocol import records
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure
from raftlog.security import producer_ids
from raftlog.server.apis.groups import PendingCommit, commit_of, commit_pending, send_committed
from raftlog.server.apis.produce import draw
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Reply
from raftlog.server.scheduling import Steps, in_steps
from raftlog.transactions.shard import BUMPING_VERSION, ProducerIdentity


def handle_find_coordinators(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(records.FindTransactionCoordinatorsRequest, request.message)
    context.transactions.check_available()
    lookup = context.transactions.lookup

    def made(error: RaftlogError | None) -> None:
        if error is None:
            brokers = {b.id: b for b in context.brokers(reply.connection.local_host)}
            found = [lookup.find(name, brokers) for name in message.transactional_ids]
        else:
            failure = Failure.of(error)
            names = message.transactional_ids
            found = [records.CoordinatorInfo(group=name, failure=failure) for name in names]
        reply.send(records.FindCoordinatorsResponse(coordinators=found))

    lookup.maker.when_made(made)


def handle_init(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(records.InitTransactionsRequest, request.message)
    owner = context.owner(reply.connection)

    def may_use(producer_id: int) -> bool:
        return owner is None or producer_ids.is_owner(owner, producer_id)

    def done(identity: ProducerIdentity) -> None:
        reply.send(
            records.InitProducerIdResponse(
                producer_id=identity.producer_id, producer_epoch=identity.epoch
            )
        )

    context.transactions.shard(message.transactional_id).init(
        message.transactional_id,
        done,
        reply.fail,
        timeout_ms=message.timeout_ms,
        new_id=draw(context.entropy, owner),
        expected=None,
        may_use=may_use,
    )


def handle_end(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(records.EndTransactionRequest, request.message)

    def done(identity: ProducerIdentity) -> None:
        reply.send(
            records.EndTransactionResponse(
                producer_id=identity.producer_id, producer_epoch=identity.epoch
            )
        )

    context.transactions.shard(message.transactional_id).end(
        message.transactional_id,
        ProducerIdentity(message.producer_id, message.producer_epoch),
        done,
        reply.fail,
        is_commit=message.commit,
        version=BUMPING_VERSION,
        new_id=draw(context.entropy, context.owner(reply.connection)),
    )


def handle_offset_commit(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(records.TransactionOffsetCommitRequest, request.message)
    offsets = yield from in_steps(message.offsets, commit_of)
    commit = PendingCommit(
        transactional_id=message.transactional_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        adds=True,
        group=message.group,
        member_id=message.member_id,
        member_epoch=message.member_epoch,
        instance_id=None,
        offsets=offsets,
        topic_ids=message.topic_ids,
    )

    def done(outcomes: list[RaftlogError | None]) -> None:
        reply.go_on(send_committed(reply, message.offsets, outcomes))

    yield from commit_pending(context, commit, done, reply.fail, reply.go_on)
