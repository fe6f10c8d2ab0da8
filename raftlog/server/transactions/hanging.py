"""Transactions that no coordinator knows: their leaders abort them, so that none hangs.

Every transaction has a time limit, and its coordinator ends it. But a coordinator may have lost its
state: after a recovery without a majority, say, or in a cluster that has its topics from a backup
or a mirror. Then no marker would come, and readers of committed records would wait indefinitely.

A leader that has an open transaction for longer than any time limit asks all brokers for its
coordinator. If all partitions of ``__transaction_state`` have a confirmed leader, and none has the
producer with this partition in an open or ending transaction, it appends a marker itself. That
is safe: a partition is in the committed state of its transaction before its first batch is stored.
And if the producer has written in between, perhaps in a new transaction, nothing is done.

The coordinator of groups does the same for pending offsets: members that fetch offsets wait for
their transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from raftlog import limits
from raftlog.consumer_groups.shard import PendingTransaction
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.peer import (
    OpenTransaction,
    TransactionOwnersRequest,
    TransactionOwnersResponse,
)
from raftlog.server.exchange import Outcomes
from raftlog.server.groups.shard import ActiveShard
from raftlog.server.partition import Partition
from raftlog.server.transactions.shard import ActiveTransactions
from raftlog.storage.producer_state import LastWritten
from raftlog.transactions import Marker, OpenPart, TransactionShard
from raftlog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, LeaderEpoch, Offset

if TYPE_CHECKING:
    from raftlog.server.context import BrokerContext

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 30.0  # after the longest time limit
ASK_SECONDS: Final = 5.0


class _Open(NamedTuple):
    """An open transaction of a partition that this broker leads. ``begun``: its first offset; of
    pending offsets of groups, the epoch of the producer.
    """

    host: Partition
    leader_epoch: LeaderEpoch
    producer_id: int
    begun: Offset | int

    @property
    def part(self) -> OpenPart:
        at = self.host
        return self.producer_id, (at.topic_id, at.topic_partition.partition)


class HangingTransactions:
    """Exists as long as the broker, on its event loop."""

    def __init__(
        self,
        context: BrokerContext,
        shards: Callable[[], list[ActiveTransactions]],
    ) -> None:
        """``shards``: those of the partitions that this broker leads."""
        self._context = context
        self._shards = shards
        self._patience = context.config.transaction_max_timeout_ms / 1_000 + GRACE_SECONDS
        self._since: dict[_Open, float] = {}  # when it was seen first
        self._task: asyncio.Task[None] | None = None
        self._timer = context.loop.call_later(CHECK_SECONDS, self._check)

    async def stop(self) -> None:
        """Stop the checks."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _check(self) -> None:
        loop = self._context.loop
        self._timer = loop.call_later(CHECK_SECONDS, self._check)
        now = loop.time()
        self._since = {each: self._since.get(each, now) for each in self._opened()}
        overdue = [each for each, since in self._since.items() if now - since >= self._patience]
        if overdue and (self._task is None or self._task.done()):
            asked = overdue[: limits.TRANSACTION_ITEMS_PER_REQUEST_MAX]
            self._task = loop.create_task(self._resolve(asked))

    def _opened(self) -> Iterable[_Open]:
        for host in self._context.topics.hosts():
            transactions = host.log.producers.transactions
            if len(transactions) and host.leadership is not None and host.closed is None:
                for producer_id, first_offset in transactions.opened():
                    yield _Open(host, host.leader_epoch, producer_id, first_offset)
        for shard in self._groups():
            if shard.loaded is not None:
                for producer_id, epoch in shard.loaded.producers_pending():
                    yield _Open(shard.host, shard.epoch, producer_id, epoch)

    def _written(self, each: _Open) -> LastWritten | PendingTransaction | None:
        """Return what the producer has written, to compare: in any later write it differs."""
        if each.host.topic_partition.topic != OFFSETS_TOPIC:
            return each.host.log.producers.last_written(each.producer_id)
        shard = self._shard_of(each)
        groups = None if shard is None else shard.loaded
        return None if groups is None else groups.pending_of(each.producer_id)

    def _groups(self) -> list[ActiveShard]:
        """Return the shards of groups, none while the broker starts or stops."""
        try:
            return self._context.coordinator.shards()
        except RaftlogError:
            return []

    def _shard_of(self, each: _Open) -> ActiveShard | None:
        shards = (shard for shard in self._groups() if shard.host is each.host)
        return next((shard for shard in shards if shard.epoch == each.leader_epoch), None)

    async def _resolve(self, overdue: Sequence[_Open]) -> None:
        """Abort those that no coordinator knows."""
        before = {each: self._written(each) for each in overdue}
        try:
            owned = await self._owned([each.part for each in overdue])
        except RaftlogError as error:
            logger.info("coordinators of open transactions are not known: error=%s", error)
            return
        if owned is None:
            return
        for each, is_owned in zip(overdue, owned, strict=True):
            written = self._written(each)
            # guard: a leader aborts no transaction with new records
            # guard: a leader aborts no transaction that a coordinator has
            if not is_owned and written is not None and written == before[each]:
                self._abort(each, written)

    async def _owned(self, parts: list[OpenPart]) -> list[bool] | None:
        """Return which of these a coordinator knows; None if one was not asked."""
        context = self._context
        context.topics.check_complete()
        topic = context.topics.get(TRANSACTIONS_TOPIC)
        missing = set(range(0 if topic is None else len(topic.hosts)))
        others = sorted(context.cluster.machine.brokers)
        answers = await asyncio.gather(
            self._ask_here(parts),
            *(self._ask(broker, parts) for broker in others if broker != context.broker_id),
            return_exceptions=True,
        )
        owned = [False] * len(parts)
        for answer in answers:
            if isinstance(answer, TransactionOwnersResponse) and len(answer.owned) == len(parts):
                missing.difference_update(answer.shards)
                owned = [a or b for a, b in zip(owned, answer.owned, strict=True)]
        # guard: a leader aborts what no coordinator of all has
        return None if missing else owned

    async def _ask(self, broker: int, parts: list[OpenPart]) -> TransactionOwnersResponse:
        asked = [
            OpenTransaction(producer_id=producer_id, topic_id=topic_id, partition=number)
            for producer_id, (topic_id, number) in parts
        ]
        request = TransactionOwnersRequest(transactions=asked)
        links = self._context.cluster.links
        answer = await links.ask(broker, apis.TRANSACTION_OWNERS, request, ASK_SECONDS)
        return cast(TransactionOwnersResponse, answer)

    async def _ask_here(self, parts: list[OpenPart]) -> TransactionOwnersResponse:
        answered: asyncio.Future[TransactionOwnersResponse] = self._context.loop.create_future()

        def done(response: TransactionOwnersResponse) -> None:
            # An error here would take the answers of others that wait for the same confirmation.
            if not answered.done():  # it was given up after ``ASK_SECONDS``
                answered.set_result(response)

        self.answer(parts, done)
        async with asyncio.timeout(ASK_SECONDS):
            return await answered

    def answer(
        self, parts: Sequence[OpenPart], done: Callable[[TransactionOwnersResponse], None]
    ) -> None:
        """Call ``done`` with what the shards of this broker know, once it is confirmed that they
        lead.
        """
        wanted = frozenset(parts)

        def complete(found: list[tuple[int, frozenset[OpenPart]] | None]) -> None:
            known = [each for each in found if each is not None]
            owned = frozenset[OpenPart]().union(*(opened for _, opened in known))
            response = TransactionOwnersResponse(
                shards=[number for number, _ in known], owned=[each in owned for each in parts]
            )
            done(response)

        shards = self._shards()
        outcomes: Outcomes[tuple[int, frozenset[OpenPart]] | None] = Outcomes(len(shards), complete)
        for index, shard in enumerate(shards):
            number = shard.host.topic_partition.partition

            def failed(_error: RaftlogError, index: int = index) -> None:
                outcomes.resolve(index, None)

            def found(
                opened: frozenset[OpenPart], index: int = index, number: int = number
            ) -> None:
                outcomes.resolve(index, (number, opened))

            try:
                shard.ask(partial(TransactionShard.opened, wanted=wanted), found, failed)
            except RaftlogError as error:
                failed(error)

    def _abort(self, each: _Open, written: LastWritten | PendingTransaction) -> None:
        host = each.host
        noted = partial(_noted, each)
        try:
            if isinstance(written, PendingTransaction):
                shard = self._shard_of(each)
                if shard is not None and written.producer_epoch == each.begun:
                    _tell(each, written.producer_epoch)
                    marker = _abort_of(each, written.producer_epoch, written.coordinator_epoch)
                    shard.end_transaction(marker, lambda _nothing: None, noted)
                return
            producers = host.log.producers
            if (
                host.closed is None
                and host.leader_epoch == each.leader_epoch
                and producers.transactions.first_offset(each.producer_id) == each.begun
            ):
                _tell(each, written.epoch)
                coordinator_epoch = producers.coordinator_epoch(each.producer_id)
                host.append_marker(_abort_of(each, written.epoch, coordinator_epoch), noted)
        except RaftlogError as error:
            noted(error)


def _abort_of(each: _Open, epoch: int, coordinator_epoch: LeaderEpoch) -> Marker:
    return Marker(
        each.producer_id,
        epoch,
        is_commit=False,
        coordinator_epoch=coordinator_epoch,
        is_bumped=False,
    )


def _tell(each: _Open, epoch: int) -> None:
    logger.warning(
        "transaction aborted, as no coordinator knows it: partition=%s producer_id=%d epoch=%d "
        "begun=%d", each.host.topic_partition, each.producer_id, epoch, each.begun,
    )  # fmt: skip


def _noted(each: _Open, error: RaftlogError | None) -> None:
    if error is not None:
        at = each.host.topic_partition
        logger.warning("transaction not aborted: partition=%s error=%s", at, error)
