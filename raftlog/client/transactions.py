"""Transactions of a producer: their state, and the requests to their coordinator.

    new --init--> idle
    idle --begin--> open --commit, abort--> ending --response--> idle
                                               +-- no response: unknown --recover--> idle

A producer that begins transactions in quick succession reserves its partitions for the next one
with each commit: their leaders then store the first batch without a question to the coordinator.
A reservation that is not used soon is given back by an abort, so that an idle producer has no open
transaction.

Records and offsets of a transaction become visible together, or not at all. The producer sends its
batches with the identity that the coordinator gave for this transaction. Each end of a transaction
gives the next identity, so that batches that arrive late belong to none (KIP-890). The leader of a
partition adds it to the transaction with the first batch.

``Transactions`` runs on the loop of the producer. ``Transaction`` and ``AsyncTransaction`` are what
the application uses.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from raftlog import limits
from raftlog.client.accumulator import ProducerIdAndEpoch
from raftlog.client.cluster import Cluster
from raftlog.client.delivery import DeliveryFuture, RangesFuture
from raftlog.client.groups.coordinator import TRANSACTIONS, Coordinators, fetch_offsets
from raftlog.client.producer import CLOSE_AFTER_INTERRUPT_S
from raftlog.client.sender import Sender
from raftlog.client.settings import ProducerSettings
from raftlog.errors import (
    BrokerUnavailableError,
    FencedMemberError,
    InstanceFencedError,
    InvalidRequestError,
    OutcomeUnknownError,
    PartitionNotOwnedError,
    ProducerFencedError,
    RaftlogError,
    RequestTimedOutError,
    RetriableError,
    StaleMemberEpochError,
    TransactionAbortedError,
    UnknownMemberError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    EndTransactionRequest,
    EndTransactionResponse,
    InitProducerIdResponse,
    InitTransactionsRequest,
    OffsetCommitResponse,
    OffsetToCommit,
    PartitionName,
    TransactionOffsetCommitRequest,
)
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from raftlog.client.aio.clients import AsyncProducer
    from raftlog.client.consumer import ConsumerBase
    from raftlog.client.groups.member import Member, Reading
    from raftlog.client.producer import Producer

# Errors of a commit of offsets: others have the partitions, and process the records again.
_OF_MEMBERS: Final = (
    StaleMemberEpochError,
    UnknownMemberError,
    FencedMemberError,
    InstanceFencedError,
    PartitionNotOwnedError,
)
RESERVE_WITHIN_S: Final = 1.0  # between two transactions of a producer that reserves partitions
CLOSE_ABORT_S: Final = 5.0  # that closing a producer waits for the abort of its transaction
RESERVED_S: Final = limits.TRANSACTION_RESERVED_MS / 1_000


class Transactions:
    """Transactions of one producer. Set ``sender`` before use."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster) -> None:
        self.sender: Sender
        self.is_open = False
        self._settings = settings
        self._id = settings.transactional_id
        self._cluster = cluster
        self._coordinators = Coordinators(cluster, TRANSACTIONS)
        self._groups = Coordinators(cluster)
        self._identity: ProducerIdAndEpoch | None = None  # of the next or open transaction
        self._starting: asyncio.Task[ProducerIdAndEpoch] | None = None  # request for the first one
        self._failure: RaftlogError | None = None  # why the open transaction must be aborted
        self._has_offsets = False
        self._ended_at = -math.inf  # time of the loop when the last commit was requested
        self._reserves = False  # whether the open transaction reserves partitions for the next one
        self._has_reserved = False  # whether the last one has, and this producer has used none
        self._timer: asyncio.TimerHandle | None = None  # that gives a reservation back
        self._returning: asyncio.Task[None] | None = None  # gives it back; None in a transaction
        self._unknown: bool | None = None  # the end that had no response: True for a commit
        self._fenced: ProducerFencedError | None = None
        self._beginning = asyncio.Lock()

    def note_failure(self, error: RaftlogError) -> None:
        """Note that a record or an offset of the open transaction is missing."""
        # guard: a lost record aborts
        if self._failure is None:
            self._failure = error

    def check_open(self) -> None:
        """Raise ``InvalidRequestError`` without an open transaction."""
        if not self.is_open:
            raise InvalidRequestError(
                f"the producer of transactional_id={self._id!r} sends within transactions only. "
                "Use `with producer.transaction() as txn: txn.send(...)`"
            )

    # -- on the loop -------------------------------------------------------------------------------

    def start(self) -> None:
        """Request the first identity, before the first transaction. This ends the open transaction
        of an earlier producer: a consumer may be waiting for its end before it reads anything.
        """
        if self._identity is None and self._starting is None:
            self._starting = asyncio.ensure_future(self._init())
            self._starting.add_done_callback(_look_at)

    async def close(self) -> None:
        """Stop. Abort an open transaction, and give back a reserved one. Without a response within
        ``CLOSE_ABORT_S``, it ends by its time limit, or with the next producer.
        """
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        is_used = self.is_open and self._is_used
        self.is_open = False
        with suppress(RaftlogError, TimeoutError):
            async with asyncio.timeout(CLOSE_ABORT_S):
                await self._keep_reservation()
                if is_used or (self._has_reserved and self._unknown is None):
                    await self._end(commit=False)
        if self._returning is not None:
            self._returning.cancel()

    async def begin(self) -> None:
        """Begin a transaction. Only the first one asks the coordinator.

        Raises ``InvalidRequestError`` if one is open or was not recovered, ``ProducerFencedError``,
        ``RetriableError`` if there is no response, or other errors of the request.
        """
        async with self._beginning:  # else two blocks would share one transaction
            await self._begin()

    async def _begin(self) -> None:
        if self._fenced is not None:
            raise ProducerFencedError(*self._fenced.args)
        if self.is_open:
            raise InvalidRequestError(
                "a transaction of this producer is open. End it first, or create another producer "
                "with another transactional_id"
            )
        if self._unknown:
            raise InvalidRequestError(
                "it is unknown whether the last transaction was committed. Call producer.recover()"
            )
        await self._keep_reservation()
        try:
            idle_s = asyncio.get_running_loop().time() - self._ended_at
            self._reserves = idle_s <= RESERVE_WITHIN_S
            if self._unknown is not None or (self._has_reserved and idle_s > RESERVED_S):
                await self._end(commit=False)
            if self._identity is None:
                self.start()
                self._identity = await self._started()
        except OutcomeUnknownError as error:
            raise BrokerUnavailableError(f"no transaction was begun: {error}") from error
        self.sender.begin_transaction(self._identity)
        self._failure, self._has_offsets, self._returning = None, False, None
        self.is_open = True

    async def fetch_offset(self, group: str, tp: TopicPartition) -> OffsetAndMetadata | None:
        """Return the committed offset of a partition. Waits for open transactions that commit one.

        Only within a transaction: those of earlier producers of the transactional ID have ended.
        """
        self.check_open()
        found = await fetch_offsets(self._groups, group, [tp])
        return found[tp]

    async def commit_offsets(
        self,
        group: str,
        credentials: tuple[str, int],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, str],
    ) -> None:
        """Commit offsets of a group with the open transaction. After an error, it is aborted."""
        self.check_open()
        assert self._identity is not None, "a transaction is open"
        self._has_offsets = True
        request = TransactionOffsetCommitRequest(
            transactional_id=self._id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            group=group,
            offsets=[
                OffsetToCommit(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=given.offset,
                    leader_epoch=given.leader_epoch,
                    metadata=given.metadata,
                )
                for tp, given in offsets.items()
            ],
            member_id=credentials[0],
            member_epoch=credentials[1],
            topic_ids=dict(topic_ids),
        )
        try:
            answer = await self._groups.call(group, apis.TRANSACTION_OFFSET_COMMIT, request)
            assert isinstance(answer, OffsetCommitResponse)
            for part in answer.partitions:
                if part.failure is not None:
                    raise part.failure.to_error()
        except _OF_MEMBERS as error:
            raise self.offsets_refused(error) from error
        except RaftlogError as error:
            self.note_failure(error)
            raise
        except BaseException:
            # guard: a cancelled commit of offsets aborts
            self.note_failure(RequestTimedOutError("a commit of offsets was cancelled"))
            raise

    def offsets_refused(self, error: RaftlogError) -> TransactionAbortedError:
        """Return the error of offsets that the group does not accept from its member. The
        transaction can only be aborted, also if the application ignores this error.
        """
        self.note_failure(error)
        return TransactionAbortedError(
            f"the offsets cannot be committed, and the transaction is aborted: {error}. Poll "
            "again, so that the consumer joins its group again, and run the block with the records "
            "that it returns"
        )

    async def commit(self) -> None:
        """Commit. All batches must have an outcome. If a record is missing, abort instead.

        Raises ``TransactionAbortedError`` (nothing of it becomes visible), ``OutcomeUnknownError``
        (``recover`` finds out) or ``ProducerFencedError``.
        """
        failure = self._failure
        if failure is None:
            await self._end_open(commit=True)
            return
        with suppress(OutcomeUnknownError):  # the next transaction aborts this one again
            await self.abort()
        raise aborted(failure) from failure

    async def abort(self) -> None:
        """Abort: fail the batches that are not acknowledged, and end the transaction.

        Does nothing if none is open: Ctrl-C may have come before its begin, or during its end.
        """
        if not self.is_open:
            return
        self.sender.abandon(TransactionAbortedError("the transaction was aborted"))
        await self._end_open(commit=False)

    async def recover(self) -> bool:
        """Repeat the end that had no response. Return whether the transaction is committed."""
        commit = self._unknown
        if commit is None or self._returning is not None:
            raise InvalidRequestError(
                "nothing to recover: how the last transaction of this producer ended is known"
            )
        try:
            await self._end(commit=commit)
        except TransactionAbortedError:
            return False
        return commit

    async def _started(self) -> ProducerIdAndEpoch:
        starting = self._starting
        assert starting is not None, "start() first"
        try:
            return await asyncio.shield(starting)
        finally:
            if starting.done():  # after an error, the next transaction requests it again
                self._starting = None

    async def _init(self) -> ProducerIdAndEpoch:
        request = InitTransactionsRequest(
            transactional_id=self._id, timeout_ms=self._settings.transaction_timeout_ms
        )
        answer = await self._coordinators.call(self._id, apis.INIT_TRANSACTIONS, request)
        assert isinstance(answer, InitProducerIdResponse)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def _end_open(self, *, commit: bool) -> None:
        self.is_open = False
        if self._is_used:
            await self._end(commit=commit)
        else:
            self._return_later()

    def _return_later(self) -> None:
        """Give a reserved transaction back if no transaction is begun in time."""
        if self._has_reserved:
            self._timer = asyncio.get_running_loop().call_later(RESERVED_S, self._return_now)

    def _return_now(self) -> None:
        self._returning = asyncio.ensure_future(self._end(commit=False))
        self._returning.add_done_callback(_look_at)

    async def _keep_reservation(self) -> None:
        """Do not give a reservation back from now on. If this has begun, wait for its outcome:
        only one request may set the identity of the next transaction.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._returning is not None:
            await asyncio.wait([self._returning])

    @property
    def _is_used(self) -> bool:
        return self.sender.has_sent or self._has_offsets

    async def _end(self, *, commit: bool) -> None:
        assert self._identity is not None, "a transaction was begun"
        # guard: a commit without a response is unknown
        self._unknown = commit  # until there is a response, also if this is cancelled
        reserved: list[TopicPartition] = []
        if commit and self._reserves:
            reserved = self.sender.partitions[: limits.TRANSACTION_RESERVED_MAX]
        reserves_offsets = commit and self._reserves and self._has_offsets
        self._ended_at = asyncio.get_running_loop().time() if commit else -math.inf
        request = EndTransactionRequest(
            transactional_id=self._id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            commit=commit,
            reserve=[PartitionName(topic=tp.topic, partition=tp.partition) for tp in reserved],
            reserve_offsets=reserves_offsets,
        )
        try:
            answer = await self._coordinators.call(self._id, apis.END_TRANSACTION, request)
        except (RetriableError, OutcomeUnknownError) as error:
            self._raise_unknown(error, commit=commit)
        except TransactionAbortedError:
            with suppress(RaftlogError):  # the response has the identity of the next one
                await self._end(commit=False)
            raise
        except RaftlogError as error:
            self._unknown = self._identity = None
            self._has_reserved = False
            if isinstance(error, ProducerFencedError):
                self._fenced = error
            raise
        assert isinstance(answer, EndTransactionResponse)
        self._unknown = None
        self._has_reserved = bool(reserved) or reserves_offsets
        self._identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        self._return_later()

    def _raise_unknown(self, error: RaftlogError, *, commit: bool) -> NoReturn:
        if not commit:
            raise OutcomeUnknownError(
                f"the transaction is perhaps not aborted yet: {error}. Nothing of it becomes "
                "visible; the next transaction aborts it first"
            ) from error
        raise OutcomeUnknownError(
            f"it is unknown whether the transaction is committed: {error}. Call "
            "producer.recover(), which completes it, or tells that it was aborted"
        ) from error


def _look_at(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved: the next transaction raises it, or tries again."""
    if not task.cancelled():
        task.exception()


def aborted(error: RaftlogError) -> TransactionAbortedError:
    """Return the error of a transaction that was aborted because of ``error``."""
    return TransactionAbortedError(
        f"the transaction was aborted, because not all of it was stored: {error}. Rewind the "
        "consumer, if there is one, and run the block again"
    )


# -- what the application uses ---------------------------------------------------------------------


class _Consumed:
    """Offsets of a consumer that a transaction commits."""

    def __init__(
        self, consumer: ConsumerBase[Any, Any], reading: Reading, credentials: tuple[str, int]
    ) -> None:
        self.group = consumer.group_metadata().group
        self.reading = reading
        self.credentials = credentials

    def commit(self, transactions: Transactions) -> Coroutine[Any, Any, None]:
        reading = self.reading
        topics = {tp.topic for tp in reading.offsets}
        topic_ids = {topic: of for topic, of in reading.topic_ids.items() if topic in topics}
        return transactions.commit_offsets(self.group, self.credentials, reading.offsets, topic_ids)


class _TransactionBase:
    """What both kinds of transactions check."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._is_active = False
        self._committed: list[tuple[Member, Reading]] = []

    def _check(self) -> None:
        if not self._is_active:
            raise InvalidRequestError(
                "this transaction is not open. Use it within its `with` block only"
            )

    def _consumed(
        self, consumer: ConsumerBase[Any, Any], offsets: Mapping[TopicPartition, Any] | None
    ) -> _Consumed | None:
        """Return what ``commit_offsets`` commits; None for nothing."""
        self._check()
        member, reading = consumer._processed("commit_offsets", offsets)
        if member.settings.auto_commit:
            raise InvalidRequestError(
                "the consumer commits its offsets automatically, also those of records whose "
                "transaction is aborted. Create it with auto_commit=False"
            )
        if len(reading.offsets) > limits.TRANSACTION_OFFSETS_MAX:
            raise InvalidRequestError(
                f"the consumer has read {len(reading.offsets)} partitions since its last commit; a "
                f"transaction commits up to {limits.TRANSACTION_OFFSETS_MAX} offsets. Commit more "
                "often, or give each consumer fewer partitions"
            )
        if not reading.offsets:
            return None
        try:
            credentials = member.membership.credentials(reading.incarnation)
        except _OF_MEMBERS as error:
            raise self._transactions.offsets_refused(error) from error
        if credentials is None:
            raise self._transactions.offsets_refused(
                StaleMemberEpochError("the group is assigning its partitions")
            )
        self._committed.append((member, reading))
        return _Consumed(consumer, reading, credentials)

    def _note_committed(self) -> None:
        for member, reading in self._committed:
            member.note_committed(reading.offsets)


def _raise_aborted(error: BaseException) -> None:
    """Raise ``TransactionAbortedError`` if ``error``, which ended the block, is one that passes. Of
    a record or an offset, it would mean something else: the outcome of the transaction is known.
    """
    if isinstance(error, RetriableError | OutcomeUnknownError):
        raise aborted(error) from error


class Transaction(_TransactionBase):
    """A transaction of a ``Producer``: a context manager, see ``Producer.transaction``."""

    def __init__(self, producer: Producer, transactions: Transactions) -> None:
        super().__init__(transactions)
        self._producer = producer

    def __enter__(self) -> Transaction:
        try:
            self._producer._run_in_thread(self._transactions.begin)
            self._is_active = True
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: there is no __exit__
                self._abort(error)
            raise
        return self

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """Queue one record of the transaction. See ``Producer.send``.

        The exit of the block waits for all records: the future need not be checked.
        """
        self._check()
        return self._producer.send(topic, value, key, headers, timestamp_ms, partition)

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Any] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
        partition: int | None = None,
    ) -> RangesFuture:
        """Queue many records of the transaction. See ``Producer.send_many``."""
        self._check()
        return self._producer.send_many(
            topic,
            values,
            keys,
            headers=headers,
            timestamps_ms=timestamps_ms,
            partition=partition,
        )

    def commit_offsets(
        self,
        consumer: ConsumerBase[Any, Any],
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
    ) -> None:
        """Commit the offsets of a consumer's group with this transaction.

        ``consumer``: with a group and ``auto_commit=False``. ``offsets``: as in
        ``Consumer.commit``. Default: after the last record that was returned to the application.

        Raises ``TransactionAbortedError`` if the group does not accept them, as it has given the
        partitions to other members, which process the records, or assigns them just now. Let it
        leave the block, which aborts. If it is ignored, the end of the block aborts and raises it.
        """
        consumed = self._consumed(consumer, offsets)
        if consumed is not None:
            self._producer._run_in_thread(lambda: consumed.commit(self._transactions))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_active = False
        if error is not None:
            self._abort(error)
            _raise_aborted(error)
            return
        try:
            self._producer.flush()
            self._producer._run_in_thread(self._transactions.commit)
        except BaseException as interruption:
            self._abort(interruption)  # unless the commit has begun
            raise
        self._note_committed()

    def _abort(self, error: BaseException) -> None:
        """Abort because of ``error``, which is more important than those of the abort. Without a
        response, the next transaction repeats it, or its time limit ends it.
        """
        limit_s = None if isinstance(error, Exception) else CLOSE_AFTER_INTERRUPT_S
        with suppress(RaftlogError, TimeoutError):
            self._producer._run_in_thread(self._transactions.abort, limit_s)


class AsyncTransaction(_TransactionBase):
    """``Transaction`` of an ``AsyncProducer``: an asynchronous context manager."""

    def __init__(self, producer: AsyncProducer, transactions: Transactions) -> None:
        super().__init__(transactions)
        self._producer = producer

    async def __aenter__(self) -> AsyncTransaction:
        await self._producer._run_on_loop(self._transactions.begin)
        self._is_active = True
        return self

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """See ``Transaction.send``."""
        self._check()
        return await self._producer.send(topic, value, key, headers, timestamp_ms, partition)

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Any] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
        partition: int | None = None,
    ) -> RangesFuture:
        """See ``Transaction.send_many``."""
        self._check()
        return await self._producer.send_many(
            topic,
            values,
            keys,
            headers=headers,
            timestamps_ms=timestamps_ms,
            partition=partition,
        )

    async def commit_offsets(
        self,
        consumer: ConsumerBase[Any, Any],
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
    ) -> None:
        """See ``Transaction.commit_offsets``."""
        consumed = self._consumed(consumer, offsets)
        if consumed is not None:
            await self._producer._run_on_loop(lambda: consumed.commit(self._transactions))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_active = False
        if error is not None:
            await self._abort()
            _raise_aborted(error)
            return
        try:
            await self._producer.flush()
        except BaseException:
            await self._abort()
            raise
        await self._producer._run_on_loop(self._transactions.commit)
        self._note_committed()

    async def _abort(self) -> None:
        with suppress(RaftlogError):
            await self._producer._run_on_loop(self._transactions.abort)
