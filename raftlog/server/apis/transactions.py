"""``find_transaction_coordinators``, ``init_transactions``, ``end_transaction`` and
``transaction_offset_commit``: transactions of raftlog's producers. ``list_transactions``,
``describe_transaction`` and ``abort_transaction``: requests of operators.

The producers use version 2 of transactions (KIP-890): a leader adds its partition to the
transaction with the first batch, and each end of a transaction gives the epoch of the next one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, cast
from zlib import crc32

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError, UnknownTransactionError
from raftlog.protocol import records
from raftlog.protocol.connection import Request
from raftlog.security import producer_ids
from raftlog.server.apis.groups import (
    PendingCommit,
    commit_of,
    commit_pending,
    find_coordinators,
    send_committed,
)
from raftlog.server.apis.produce import draw
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Exchange, Outcomes, Reply
from raftlog.server.scheduling import ITEMS_PER_STEP, Steps, in_steps
from raftlog.server.transactions.shard import ActiveTransactions
from raftlog.transactions import (
    BUMPING_VERSION,
    STATUSES,
    Part,
    ProducerIdentity,
    TransactionShard,
    TransactionView,
)
from raftlog.types import OFFSETS_TOPIC, TimestampMs


def handle_find_coordinators(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(records.FindTransactionCoordinatorsRequest, request.message)
    context.transactions.check_available()
    find_coordinators(context, reply, context.transactions.lookup, message.transactional_ids)


def handle_init(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(records.InitTransactionsRequest, request.message)

    def done(identity: ProducerIdentity) -> None:
        reply.send(
            records.InitProducerIdResponse(
                producer_id=identity.producer_id, producer_epoch=identity.epoch
            )
        )

    name, timeout_ms = message.transactional_id, message.timeout_ms
    init_transactions(context, reply, name, done, timeout_ms=timeout_ms)


def init_transactions(
    context: BrokerContext,
    reply: Exchange,
    name: str,
    done: Callable[[ProducerIdentity], None],
    *,
    timeout_ms: int,
    expected: ProducerIdentity | None = None,
) -> None:
    """Begin an instance of a transactional id, for the client of a request. ``expected``: the
    identity that it had before (KIP-360). Raises what the coordinator raises at once.
    """
    owner = context.owner(reply.connection)

    def may_use(producer_id: int) -> bool:
        return owner is None or producer_ids.is_owner(owner, producer_id)

    context.transactions.shard(name).init(
        name,
        done,
        reply.fail,
        timeout_ms=timeout_ms,
        new_id=draw(context.entropy, owner),
        expected=expected,
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
        reserved=_reserved(context, message),
    )


def _reserved(context: BrokerContext, message: records.EndTransactionRequest) -> list[Part]:
    """Return the partitions to reserve by the ids of their topics, without unknown ones."""
    parts: list[Part] = []
    for each in message.reserve:
        topic = context.topics.get(each.topic)
        if topic is not None:
            parts.append((topic.id, each.partition))
    offsets = context.topics.get(OFFSETS_TOPIC) if message.reserve_offsets else None
    if offsets is not None:  # those of the transaction are among them
        parts += [(offsets.id, number) for number in range(len(offsets.hosts))]
    return parts


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


# -- operators -------------------------------------------------------------------------------------


_RANGE_BITS: Final = 8  # of positions, which have 32


class WantedTransactions(NamedTuple):
    """Filters of a listing; empty ones select all. ``open_for_ms``: minimum age of the open
    transaction; -1: also those without one.
    """

    statuses: Collection[str]
    producer_ids: Collection[int]
    open_for_ms: int
    now_ms: TimestampMs

    def has(self, view: TransactionView) -> bool:
        """Whether the transactional id is wanted."""
        open_for_ms = max(0, self.now_ms - view.started_ms) if view.started_ms >= 0 else -1
        return (
            (not self.statuses or view.status in self.statuses)
            and (not self.producer_ids or view.producer_id in self.producer_ids)
            and open_for_ms >= self.open_for_ms
        )


class ListedTransactions(NamedTuple):
    """``after``: position of the next page, or -1. ``loading``: number of shards that load, or that
    have stopped during the request.
    """

    views: list[TransactionView]
    after: int
    loading: int


def list_transactions(
    shards: Sequence[ActiveTransactions],
    wanted: WantedTransactions,
    send: Callable[[ListedTransactions], None],
    *,
    after: int = -1,
    count: int | None = None,
) -> Steps:
    """Call ``send`` with the transactional ids of all shards, in the order of their positions.

    ``after``, ``count``: of a page. A position tells nothing of the id, which the client of the
    next request may not be permitted to know. Several ids with the same one are on the same page.
    """
    states = [shard.loaded for shard in shards]
    placed = yield from _by_position(states, after)
    views: list[TransactionView] = []
    last = next_after = -1
    for number, (position, name, holder) in enumerate(chain.from_iterable(map(_sorted, placed))):
        if count is not None and len(views) >= count and position != last:
            next_after = last
            break
        last = position
        with suppress(UnknownTransactionError):  # it has expired in between
            view = holder.view(name)
            if wanted.has(view):
                views.append(view)
        if not number % ITEMS_PER_STEP:
            yield None

    def confirmed(answers: list[bool]) -> None:
        send(ListedTransactions(views, next_after, answers.count(False)))

    outcomes: Outcomes[bool] = Outcomes(len(shards), confirmed)
    for index, (shard, state) in enumerate(zip(shards, states, strict=True)):
        failed = partial(_resolve_without, outcomes, index)
        try:
            # No other broker has had newer state when it was read.
            shard.ask(partial(operator.is_, state), partial(outcomes.resolve, index), failed)
        except RaftlogError as error:
            failed(error)
        yield None


_Placed: TypeAlias = tuple[int, str, TransactionShard]


def _by_position(
    states: Iterable[TransactionShard | None], after: int
) -> Generator[None, Any, list[list[_Placed]]]:
    """Return the ids with their positions, in ranges of positions that are small enough to sort."""
    ranges: list[list[_Placed]] = [[] for _ in range(1 << _RANGE_BITS)]

    def place(state: TransactionShard, name: str) -> None:
        position = crc32(name.encode("utf-8", "surrogatepass"))
        if position > after:
            ranges[position >> (32 - _RANGE_BITS)].append((position, name, state))

    for state in states:
        if state is not None:
            yield from in_steps(state.names(), partial(place, state))
        yield None
    return ranges


def _sorted(placed: list[_Placed]) -> list[_Placed]:
    return sorted(placed, key=itemgetter(0))


def _resolve_without(outcomes: Outcomes[bool], index: int, _error: RaftlogError) -> None:
    outcomes.resolve(index, False)


def handle_list(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(records.ListTransactionsRequest, request.message)
    context.transactions.check_available()
    unknown = sorted({*message.states} - {*STATUSES})
    if unknown:
        raise InvalidRequestError(
            f"unknown state of a transaction: {unknown[0][:60]!r}. The states are "
            f"{', '.join(STATUSES)}"
        )
    shards = context.transactions.shards()

    def send(found: ListedTransactions) -> None:
        reply.go_on(_send_listed(reply, found, shards))

    wanted = WantedTransactions(
        frozenset(message.states),
        frozenset(message.producer_ids),
        message.open_for_ms,
        context.clock.wall_ms(),
    )
    return list_transactions(
        shards, wanted, send, after=message.after, count=limits.LISTED_TRANSACTIONS_MAX
    )


def _send_listed(
    reply: Reply, found: ListedTransactions, shards: Sequence[ActiveTransactions]
) -> Steps:
    listings = yield from in_steps(found.views, _listing)
    reply.send(
        records.ListTransactionsResponse(
            transactions=listings,
            after=found.after,
            loading=found.loading,
            partitions=sorted(shard.host.topic_partition.partition for shard in shards),
        )
    )


def _listing(view: TransactionView) -> records.TransactionListing:
    return records.TransactionListing(
        transactional_id=view.transactional_id,
        state=view.status,
        producer_id=view.producer_id,
        producer_epoch=view.epoch,
        timeout_ms=view.timeout_ms,
        started_ms=view.started_ms,
    )


def topics_of(
    context: BrokerContext, view: TransactionView
) -> Generator[None, Any, dict[str, list[int]]]:
    """Return the partitions of a transaction by topic, without those of deleted topics."""
    topics: dict[str, list[int]] = {}

    def note(part: Part) -> None:
        with suppress(RaftlogError):
            topics.setdefault(context.topics.by_id(part[0]).name, []).append(part[1])

    yield from in_steps(view.parts, note)
    return dict(sorted(topics.items()))


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> None:
    name = cast(records.DescribeTransactionRequest, request.message).transactional_id

    def done(view: TransactionView) -> None:
        reply.go_on(_send_described(context, reply, view))

    context.transactions.shard(name).ask(
        partial(TransactionShard.view, name=name), done, reply.fail
    )


def _send_described(context: BrokerContext, reply: Reply, view: TransactionView) -> Steps:
    topics = yield from topics_of(context, view)
    reply.send(
        records.DescribeTransactionResponse(
            transactional_id=view.transactional_id,
            state=view.status,
            producer_id=view.producer_id,
            producer_epoch=view.epoch,
            timeout_ms=view.timeout_ms,
            coordinator=context.broker_id,
            started_ms=view.started_ms,
            topics=[
                records.TransactionTopic(topic=topic, partitions=numbers)
                for topic, numbers in topics.items()
            ],
        )
    )


def handle_abort(context: BrokerContext, request: Request, reply: Reply) -> None:
    name = cast(records.AbortTransactionRequest, request.message).transactional_id

    def done(_nothing: None) -> None:
        reply.send(records.AbortTransactionResponse())

    context.transactions.shard(name).abort(name, done, reply.fail)
