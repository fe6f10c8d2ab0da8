"""Administration of transactions: list and describe transactional ids, abort open transactions.

The coordinator of a transactional id handles requests about it. The list of all ids is merged from
all coordinators. It is complete, or the call fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from msgspec.structs import replace

from raftlog import limits
from raftlog.client.administration.describe import PATIENCE_S
from raftlog.client.administration.groups import all_of, ask_coordinators, coordinating
from raftlog.client.cluster import Cluster
from raftlog.client.groups.coordinator import Coordinators
from raftlog.client.settings import integer
from raftlog.errors import (
    CoordinatorLoadingError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    AbortTransactionRequest,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from raftlog.protocol.records import TransactionListing as WireListing
from raftlog.types import TRANSACTIONS_TOPIC, TimestampMs, TopicPartition

STATES: Final = (
    *("empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort"),
)
_PRODUCER_ID_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """Short description of one transactional id.

    ``state``: "empty" (no transaction yet, or none of the present producer), "ongoing" (a
    transaction is open), "prepare_commit" or "prepare_abort" (its end is decided, and partitions
    have not confirmed it), "complete_commit" or "complete_abort" (how the last one ended).
    ``producer_id``, ``producer_epoch``: of the producer that uses the id. ``timeout_ms``: time
    limit of its transactions. ``started_ms``: when the transaction began that is open or being
    completed, in ms since 1970; else None. ``coordinator``: id of the broker that coordinates it.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: TimestampMs | None
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """Description of one transactional id. The first fields are those of ``TransactionListing``.

    ``partitions``: of the transaction that is open or being completed, sorted; those of
    ``__consumer_offsets`` stand for groups whose offsets it commits. Deleted topics, and topics
    that this client may not describe, are left out.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: TimestampMs | None
    coordinator: int
    partitions: tuple[TopicPartition, ...]


def transactional_ids(ids: Iterable[str]) -> list[str]:
    """Return the ids, each once. Raises ``TypeError`` and ``InvalidRequestError``."""
    if isinstance(ids, str | bytes):
        raise TypeError(f"ids={ids!r} is not a list of transactional ids. Pass [{ids!r}]")
    names = list(dict.fromkeys(ids))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not a transactional id (str)")
        if not 0 < len(name) <= limits.TRANSACTIONAL_ID_CHARS_MAX:
            raise InvalidRequestError(
                f"a transactional id has 1 to {limits.TRANSACTIONAL_ID_CHARS_MAX} characters, not "
                f"{len(name)}: {name[:60]!r}"
            )
    return names


def listing_request(
    states: Iterable[str] | None, producer_ids: Iterable[int] | None, min_duration_ms: int | None
) -> ListTransactionsRequest:
    """Return the request of a listing. Raises ``TypeError`` and ``InvalidRequestError``."""
    if isinstance(states, str | bytes):
        raise TypeError(f"states={states!r} is not a list of states. Pass [{states!r}]")
    wanted = list(dict.fromkeys(states or ()))
    for state in wanted:
        if state not in STATES:
            raise InvalidRequestError(
                f"{state!r} is not a state of a transaction. The states are {', '.join(STATES)}"
            )
    producers = [
        integer("producer_id", each, 0, _PRODUCER_ID_MAX)
        for each in dict.fromkeys(producer_ids or ())
    ]
    if len(producers) > limits.TRANSACTION_FILTERS_MAX:
        raise InvalidRequestError(
            f"producer_ids has {len(producers)} ids. Pass {limits.TRANSACTION_FILTERS_MAX} at most"
        )
    open_for_ms = -1
    if min_duration_ms is not None:
        open_for_ms = integer("min_duration_ms", min_duration_ms, 0, limits.TIMESTAMP_MS_MAX)
    return ListTransactionsRequest(states=wanted, producer_ids=producers, open_for_ms=open_for_ms)


async def list_transactions(
    cluster: Cluster, request: ListTransactionsRequest
) -> list[TransactionListing]:
    """Return the transactional ids, sorted. Waits for coordinators that are still loading.

    Raises ``LeaderNotAvailableError`` or a coordinator's error if the list would be incomplete.
    """

    async def attempt() -> list[TransactionListing]:
        leaders = await coordinating(cluster, TRANSACTIONS_TOPIC)
        first = await ask_coordinators(
            cluster,
            leaders,
            apis.LIST_TRANSACTIONS,
            request,
            topic=TRANSACTIONS_TOPIC,
            what="transactions",
        )
        found: dict[str, TransactionListing] = {}
        for broker, answer in first.items():
            assert isinstance(answer, ListTransactionsResponse)
            for listing in await _pages(cluster, broker, answer, request):
                found[listing.transactional_id] = _listing(listing, broker)
        if await coordinating(cluster, TRANSACTIONS_TOPIC) != leaders:
            raise LeaderNotAvailableError("the coordinators have just changed. Try again")
        return [found[name] for name in sorted(found)]

    return await cluster.persist(attempt, repeatable=True)


async def _pages(
    cluster: Cluster,
    broker: int,
    answer: ListTransactionsResponse,
    request: ListTransactionsRequest,
) -> list[WireListing]:
    """Return all that a broker lists. ``answer``: its first page."""
    found: list[WireListing] = []
    while True:
        if answer.loading:
            raise CoordinatorLoadingError(
                f"broker {broker} is still loading the transactions that it coordinates "
                f"({answer.loading} partitions of {TRANSACTIONS_TOPIC}). Try again in a moment"
            )
        found += answer.transactions
        if answer.after < 0:
            return found
        address = cluster.view.brokers.get(broker)
        if address is None:
            raise LeaderNotAvailableError(f"broker {broker} has just left the cluster. Try again")
        answers = await cluster.ask_all(
            apis.LIST_TRANSACTIONS,
            replace(request, after=answer.after),
            brokers={broker: address},
            patience_s=PATIENCE_S,
        )
        following = answers[broker]
        if isinstance(following, RaftlogError):
            raise following
        answer = cast(ListTransactionsResponse, following)


def _listing(listing: WireListing, coordinator: int) -> TransactionListing:
    return TransactionListing(
        listing.transactional_id,
        listing.state,
        listing.producer_id,
        listing.producer_epoch,
        listing.timeout_ms,
        _time(listing.started_ms),
        coordinator,
    )


def _time(started_ms: TimestampMs) -> TimestampMs | None:
    return None if started_ms < 0 else started_ms


async def describe_transactions(
    coordinators: Coordinators, ids: Sequence[str]
) -> list[TransactionDescription]:
    """Describe each id. Processes all ids before it raises the first error."""

    async def describe(name: str) -> TransactionDescription:
        request = DescribeTransactionRequest(transactional_id=name)
        found = await coordinators.call(name, apis.DESCRIBE_TRANSACTION, request)
        assert isinstance(found, DescribeTransactionResponse)
        return TransactionDescription(
            found.transactional_id,
            found.state,
            found.producer_id,
            found.producer_epoch,
            found.timeout_ms,
            _time(found.started_ms),
            found.coordinator,
            tuple(
                TopicPartition(each.topic, number)
                for each in found.topics
                for number in each.partitions
            ),
        )

    return await all_of(ids, describe)


async def abort_transaction(coordinators: Coordinators, name: str) -> None:
    """Abort the open transaction. See ``AsyncAdmin.abort_transaction``."""
    request = AbortTransactionRequest(transactional_id=name)
    await coordinators.call(name, apis.ABORT_TRANSACTION, request)
