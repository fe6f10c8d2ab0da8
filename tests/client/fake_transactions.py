"""A coordinator of transactions for a ``FakeCluster``: the real state machine, and no log.

The leaders add their partitions with each batch, and markers arrive at once. ``visible`` is what a
reader of committed records gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from raftlog.consumer_groups import Commit
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol import records as wire
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure, Message, slices
from raftlog.record import decode_lists, parse_header
from raftlog.transactions import (
    BUMPING_VERSION,
    Marker,
    ProducerIdentity,
    StateChange,
    TransactionSettings,
    TransactionShard,
)
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator, committed
from tests.client.virtual import START_MS
from tests.client.world import FakeCluster, Peer

GROUPS = "groups", 0  # the partition of the groups' offsets


class FakeTransactions:
    """Answers for the transactional ids of a fake cluster; ``groups`` has the offsets."""

    def __init__(self, cluster: FakeCluster, groups: FakeCoordinator | None = None) -> None:
        self.cluster = cluster
        self.groups = groups
        self.shard = TransactionShard(TransactionSettings(), coordinator_epoch=1)
        self.shard.start(now=self._now(), now_ms=START_MS)
        self.ends: list[Marker] = []
        self._loop = asyncio.get_running_loop()
        behaviours: dict[Any, Callable[[Request], Message]] = {
            apis.FIND_TRANSACTION_COORDINATORS: self._find,
            apis.INIT_TRANSACTIONS: self._init,
            apis.END_TRANSACTION: self._end,
            apis.TRANSACTION_OFFSET_COMMIT: self._commit_offsets,
        }
        for api, answer in behaviours.items():
            cluster.always[api] = self._answering(answer)
        cluster.always[apis.PRODUCE] = self._produce

    # -- what tests do

    def visible(self, topic: str = "t") -> list[bytes | None]:
        """The values of committed transactions, by partition."""
        committed = {
            (end.producer_id, end.producer_epoch - 1) for end in self.ends if end.is_commit
        }
        found: list[bytes | None] = []
        for log in self.cluster.topics[topic].logs:
            for batch in log.batches:
                header = parse_header(batch)
                assert header.is_transactional
                if (header.producer_id, header.producer_epoch) in committed:
                    found += decode_lists(batch).values
        return found

    def abort(self, name: str = "x") -> None:
        """As after its time limit."""
        self._take(self.shard.abort(name, now=self._now(), now_ms=START_MS))

    def end_and_ignore(self, _peer: Peer, request: Request) -> None:
        """End a transaction, and do not answer."""
        self._end(request)

    # -- inside

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _answering(self, answer: Callable[[Request], Message]) -> Callable[[Peer, Request], None]:
        def behave(peer: Peer, request: Request) -> None:
            try:
                peer.write(peer.state.reply(request, answer(request)))
            except RaftlogError as error:
                peer.write(peer.state.fail(request, error))

        return behave

    def _take(self, step: StateChange[Any]) -> Any:
        for name in step.ending:
            ending = self.shard.ending(name)
            assert ending is not None
            self.ends.append(ending.marker)
            if self.groups is not None:
                self.groups._write(
                    self.groups.shard.end_transaction(ending.marker, now=self._now())
                )
            marked = self.shard.marked(
                name, ending.number, ending.parts, now=self._now(), now_ms=START_MS
            )
            assert not marked.ending
        return step.result

    def _find(self, request: Request) -> Message:
        message = request.message
        assert isinstance(message, wire.FindTransactionCoordinatorsRequest)
        address = self.cluster.addresses[1]
        return wire.FindCoordinatorsResponse(
            coordinators=[
                wire.CoordinatorInfo(group=name, broker_id=1, host=address.host, port=address.port)
                for name in message.transactional_ids
            ]
        )

    def _init(self, request: Request) -> Message:
        message = request.message
        assert isinstance(message, wire.InitTransactionsRequest)
        step = self.shard.init(
            message.transactional_id,
            timeout_ms=message.timeout_ms,
            new_id=next(self.cluster.producer_ids),
            now=self._now(),
            now_ms=START_MS,
        )
        identity = self._take(step)
        if identity is None:  # a transaction had to be aborted first
            return self._init(request)
        return wire.InitProducerIdResponse(
            producer_id=identity.producer_id, producer_epoch=identity.epoch
        )

    def _end(self, request: Request) -> Message:
        message = request.message
        assert isinstance(message, wire.EndTransactionRequest)
        identity = self._take(
            self.shard.end(
                message.transactional_id,
                ProducerIdentity(message.producer_id, message.producer_epoch),
                is_commit=message.commit,
                version=BUMPING_VERSION,
                new_id=next(self.cluster.producer_ids),
                reserved=[(each.topic, each.partition) for each in message.reserve],
                now=self._now(),
                now_ms=START_MS,
            )
        )
        return wire.EndTransactionResponse(
            producer_id=identity.producer_id, producer_epoch=identity.epoch
        )

    def _add(self, name: str, identity: ProducerIdentity, part: tuple[str, int]) -> None:
        self._take(
            self.shard.add(
                name,
                identity,
                [part],
                version=BUMPING_VERSION,
                topics_version=1,
                now=self._now(),
                now_ms=START_MS,
            )
        )

    def _produce(self, peer: Peer, request: Request) -> None:
        message = request.message
        assert isinstance(message, wire.ProduceRequest)
        batches = slices(request.attachment, [part.length for part in message.partitions])
        failures: dict[int, RaftlogError] = {}
        for number, (part, batch) in enumerate(zip(message.partitions, batches, strict=True)):
            header = parse_header(batch)
            identity = ProducerIdentity(header.producer_id, header.producer_epoch)
            try:
                self._add(message.transactional_id, identity, (part.topic, part.partition))
            except RaftlogError as error:
                failures[number] = error
        if failures:
            refused = [
                wire.ProducedPartition(
                    topic=part.topic,
                    partition=part.partition,
                    failure=Failure.of(failures.get(number) or next(iter(failures.values()))),
                )
                for number, part in enumerate(message.partitions)
            ]
            peer.write(peer.state.reply(request, wire.ProduceResponse(partitions=refused)))
            return
        answer, _ = self.cluster.answer(peer.broker_id, request)
        peer.write(peer.state.reply(request, answer))

    def _commit_offsets(self, request: Request) -> Message:
        message = request.message
        assert isinstance(message, wire.TransactionOffsetCommitRequest)
        assert self.groups is not None
        groups = self.groups.shard
        identity = ProducerIdentity(message.producer_id, message.producer_epoch)
        guard = groups.guard(*identity)
        self._add(message.transactional_id, identity, GROUPS)
        outcomes: Sequence[RaftlogError | None] = self.groups._write(
            groups.commit_pending(
                guard,
                message.group,
                message.member_id,
                message.member_epoch,
                [Commit(one.topic, one.partition, one.offset) for one in message.offsets],
                message.topic_ids,
                now=self._now(),
                now_ms=START_MS,
            )
        )
        return committed(message.offsets, outcomes)
