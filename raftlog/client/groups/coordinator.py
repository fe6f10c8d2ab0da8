"""Committed offsets of a group: checks of arguments, and requests to the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.connection import SILENCE_S, Connection
from raftlog.client.requests import list_offsets
from raftlog.client.retry import may_retry
from raftlog.client.settings import integer
from raftlog.client.subscription import check_partitions
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    InvalidRequestError,
    NotCoordinatorError,
    OutcomeUnknownError,
    RaftlogError,
    RequestTimedOutError,
    RetriableError,
    StaleMemberEpochError,
    UnknownPartitionError,
    UnknownTopicError,
    UnstableOffsetError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.records import (
    DeleteGroupsResponse,
    DeleteOffsetsResponse,
    DescribeGroupsResponse,
    FindCoordinatorsRequest,
    FindCoordinatorsResponse,
    FindTransactionCoordinatorsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionName,
    TransactionOffsetCommitRequest,
)
from raftlog.protocol.schema import Failure, Message
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]

_STEP = limits.PARTITIONS_PER_REQUEST_MAX


def check_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check the argument of ``commit``: partition -> offset of the next record to read.

    Raises ``TypeError`` or ``InvalidRequestError`` if it is wrong.
    """
    if not isinstance(offsets, Mapping):
        raise TypeError(
            f"offsets={offsets!r} is not a dict of TopicPartition to the offset of the next record "
            "(int or OffsetAndMetadata)"
        )
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, value in zip(check_partitions(offsets), offsets.values(), strict=True):
        given = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        integer(f"the offset of {tp}", given.offset, 0, limits.OFFSET_MAX)
        integer(f"the leader epoch of {tp}", given.leader_epoch, -1, (1 << 31) - 1)
        if not isinstance(given.metadata, str):
            raise TypeError(f"the metadata of {tp} is {given.metadata!r}, not a str")
        if len(given.metadata) > limits.OFFSET_METADATA_CHARS_MAX:
            raise InvalidRequestError(
                f"the metadata of {tp} has {len(given.metadata)} characters. Shorten it to "
                f"{limits.OFFSET_METADATA_CHARS_MAX}"
            )
        checked[tp] = given
    return checked


async def check_ends(
    cluster: Cluster, offsets: Offsets, *, known: Mapping[TopicPartition, Offset]
) -> None:
    """Raise ``InvalidRequestError`` for an offset beyond the end of its partition.

    ``known``: offsets that the partitions are known to have. Also raises ``UnknownTopicError`` and
    ``UnknownPartitionError``.
    """
    doubtful = [tp for tp, given in offsets.items() if given.offset > known.get(tp, 0)]
    for tp in offsets:
        await cluster.check_partition(tp)
    ends = await list_offsets(cluster, dict.fromkeys(doubtful, "latest"))
    for tp in doubtful:
        if offsets[tp].offset > ends[tp].offset:
            raise InvalidRequestError(
                f"{tp}: offset {offsets[tp].offset} is beyond the end offset {ends[tp].offset}. "
                "Commit the offset after the last record that was processed"
            )


async def fetch_offsets(
    coordinators: Coordinators,
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    is_stable: bool = True,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the committed offset of each partition; None without one. Raises the first error.

    ``is_stable``: wait for the end of open transactions that commit other offsets of these
    partitions: otherwise, their records would be read again. Then raises ``UnstableOffsetError`` if
    one takes too long.
    """
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for start in range(0, len(partitions), _STEP):
        request = OffsetFetchRequest(
            group=group,
            require_stable=is_stable,
            partitions=[
                PartitionName(topic=tp.topic, partition=tp.partition)
                for tp in partitions[start : start + _STEP]
            ],
        )
        answer = await coordinators.call(group, apis.OFFSET_FETCH, request)
        assert isinstance(answer, OffsetFetchResponse)
        for part in answer.offsets:
            if part.failure is not None:
                raise part.failure.to_error()
            tp = TopicPartition(part.topic, part.partition)
            found[tp] = (
                None
                if part.offset < 0
                else OffsetAndMetadata(part.offset, part.metadata, part.leader_epoch)
            )
    return {tp: found.get(tp) for tp in partitions}


# -- coordinator -----------------------------------------------------------------------------------
#
# Coordinator lookup for consumer groups, and requests to coordinators, with failover.
#
# A broker coordinates a group; if it fails, another broker takes over. Every broker can return the
# coordinator of a group. A broker whose response turns out to be wrong is avoided for the next
# lookup (``Cluster.mark_suspect``). As for partition leaders, the client stops waiting for an
# unresponsive coordinator once another broker is named.


logger: Final = logging.getLogger(__name__)

# Idempotent as long as the consumer sends no other commit between two attempts.
_REPEATABLE: Final = (apis.OFFSET_COMMIT, apis.DELETE_OFFSETS, apis.TRANSACTION_OFFSET_COMMIT)
_LOOK_AGAIN_S: Final = 0.5  # interval of lookups while a coordinator is unresponsive
# Retriable errors of a coordinator that decides.
_OF_THE_STATE: Final = (
    StaleMemberEpochError,
    ConcurrentTransactionsError,
    UnstableOffsetError,
)


class Coordinator(NamedTuple):
    """Broker that coordinates a group."""

    broker_id: int
    address: Address


class Coordinated(NamedTuple):
    """What coordinators are looked up for: groups, or transactional IDs."""

    name: str
    api: Api
    request: Callable[[list[str]], Message]


GROUPS: Final = Coordinated(
    "group", apis.FIND_COORDINATORS, lambda names: FindCoordinatorsRequest(groups=names)
)
TRANSACTIONS: Final = Coordinated(
    "transaction",
    apis.FIND_TRANSACTION_COORDINATORS,
    lambda names: FindTransactionCoordinatorsRequest(transactional_ids=names),
)


class Coordinators:
    """Known coordinators of groups, or of transactional IDs. Used on one event loop."""

    def __init__(self, cluster: Cluster, what: Coordinated = GROUPS) -> None:
        self._cluster = cluster
        self._what = what
        self._known: dict[str, Coordinator] = {}

    async def call(
        self, group: str, api: Api, message: Message, *, timeout_ms: int | None = None
    ) -> Message:
        """Send a request to the coordinator of the group, and retry errors that allow it.

        ``timeout_ms``: default: ``request_timeout_ms``. Idempotent requests and commits are retried
        after a lost response: the caller must keep the commits of one consumer in order. Errors of
        single groups or partitions stay in the response, unless they can be retried. Raises the
        errors of ``Cluster.call``. ``StaleMemberEpochError`` is raised immediately, because only
        the member knows its new epoch.
        """

        async def attempt() -> Message | StaleMemberEpochError:
            try:
                return await self.ask(group, api, message)
            except StaleMemberEpochError as stale:
                return stale

        answer = await self._cluster.persist(
            attempt, repeatable=_is_repeatable(api), timeout_ms=timeout_ms
        )
        if isinstance(answer, StaleMemberEpochError):
            raise answer
        return answer

    async def ask(self, group: str, api: Api, message: Message, *, wait_ms: int = 0) -> Message:
        """Send one request. ``wait_ms``: time that the coordinator may hold its response."""
        found = self._known.get(group)
        try:
            if found is None:
                found = (await self.find([group]))[group]
            connection = await self._connection(found)
            answer = await self._answer(group, found, connection, api, message, wait_ms)
            _check(answer, repeatable=_is_repeatable(api))
            self._check_heard(message, answer)
        except (RetriableError, OutcomeUnknownError) as error:
            # A broker that reports that it is loading may be a former coordinator that cannot reach
            # the others: another broker is asked who the coordinator is.
            if found is not None and not isinstance(error, _OF_THE_STATE):
                self._cluster.mark_suspect(found.broker_id)
                self.forget(group, found)
            raise
        return answer

    def _check_heard(self, message: Message, answer: Message) -> None:
        """Raise if a commit names a topic whose metadata the coordinator does not have yet.

        The refreshed metadata contains the topic, so the coordinator will receive it soon.
        """
        if not isinstance(message, OffsetCommitRequest | TransactionOffsetCommitRequest):
            return
        assert isinstance(answer, OffsetCommitResponse)
        known = self._cluster.view.topics
        for part in answer.partitions:
            error = None if part.failure is None else part.failure.to_error()
            if not isinstance(error, UnknownTopicError | UnknownPartitionError):
                continue
            topic = known.get(part.topic)
            if (
                topic is not None
                and topic.id == message.topic_ids.get(part.topic)
                and part.partition < topic.partition_count
            ):
                self._cluster.refresh_soon()
                raise CoordinatorLoadingError(f"the coordinator has stale metadata: {error}")

    async def find(self, groups: Iterable[str]) -> dict[str, Coordinator]:
        """Look up the coordinators of these groups once, and store them.

        Raises the first error; ``InvalidGroupError`` if a group name is not valid.
        """
        names = list(dict.fromkeys(groups))
        for start in range(0, len(names), limits.GROUPS_PER_REQUEST_MAX):
            request = self._what.request(names[start : start + limits.GROUPS_PER_REQUEST_MAX])
            answer = await self._cluster.call(self._what.api, request, timeout_ms=0)
            assert isinstance(answer, FindCoordinatorsResponse)
            for info in answer.coordinators:
                if info.failure is not None:
                    raise info.failure.to_error()
                address = Address(info.host, info.port)
                self._known[info.group] = Coordinator(info.broker_id, address)
        missing = [name for name in names if name not in self._known]
        if missing:
            raise NotCoordinatorError(
                f"the broker returned no coordinator of {self._what.name} {missing[0]!r}"
            )
        return {name: self._known[name] for name in names}

    def forget(self, group: str, found: Coordinator | None = None) -> None:
        """Look up the coordinator next time, unless another one than ``found`` is stored."""
        if found is None or self._known.get(group) == found:
            self._known.pop(group, None)

    async def _connection(self, found: Coordinator) -> Connection:
        connection = self._cluster.open_connection(found.broker_id)
        if connection is None:
            try:
                connection = await self._cluster.connection_to(found.address)
            except BrokerUnavailableError as error:
                raise BrokerUnavailableError(
                    f"cannot connect to the {self._what.name} coordinator, broker "
                    f"{found.broker_id} at {found.address}: {error}"
                ) from error
        if connection.broker_id != found.broker_id:
            raise NotCoordinatorError(
                f"broker {connection.broker_id} is at {found.address}, not broker {found.broker_id}"
            )
        return connection

    async def _answer(
        self,
        group: str,
        found: Coordinator,
        connection: Connection,
        api: Api,
        message: Message,
        wait_ms: int,
    ) -> Message:
        """Return the response. Raises if none arrives and another broker is now the coordinator."""
        timeout_ms = self._cluster.settings.request_timeout_ms + wait_ms
        asking = connection.start(api, message, timeout_ms=timeout_ms)
        patience_s = SILENCE_S + wait_ms / 1_000
        try:
            while not (await asyncio.wait([asking], timeout=patience_s))[0]:
                self._cluster.mark_suspect(found.broker_id)
                if await self._is_replaced(group, found):
                    raise RequestTimedOutError(
                        f"broker {found.broker_id} does not respond to {api.name}, and no "
                        f"longer coordinates {self._what.name} {group!r}"
                    )
                patience_s = _LOOK_AGAIN_S
            return asking.result().message
        finally:
            asking.cancel()

    async def _is_replaced(self, group: str, silent: Coordinator) -> bool:
        try:
            async with asyncio.timeout(SILENCE_S):
                found = await self.find([group])
        except (TimeoutError, RaftlogError) as error:
            logger.debug("coordinator lookup failed: group=%r error=%s", group, error)
            return False
        return found[group].broker_id != silent.broker_id


def _is_repeatable(api: Api) -> bool:
    return api.idempotent or api in _REPEATABLE


def _failures(answer: Message) -> Sequence[Failure | None]:
    """Return the failures of single groups or partitions."""
    if isinstance(answer, OffsetCommitResponse | DeleteOffsetsResponse):
        return [part.failure for part in answer.partitions]
    if isinstance(answer, OffsetFetchResponse):
        return [offset.failure for offset in answer.offsets]
    if isinstance(answer, DescribeGroupsResponse | DeleteGroupsResponse):
        return [group.failure for group in answer.groups]
    return ()


def _check(answer: Message, *, repeatable: bool) -> None:
    """Raise the first failure in ``answer`` that can be retried."""
    for failure in _failures(answer):
        if failure is not None:
            error = failure.to_error()
            if may_retry(error, repeatable=repeatable):
                raise error
