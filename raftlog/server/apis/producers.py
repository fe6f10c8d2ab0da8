"""``describe_producers``: the committed state of some producers in the log of a partition.

A named producer that restarts skips the batches that the response reports as stored. So the
response must not contain anything that a new leader could still truncate: it waits until everything
that it describes is committed, and then until it is confirmed that no other leader has newer
records.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple, cast

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DescribedProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListedPartition,
    ListedProducer,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
    ProducersQuery,
)
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Reply
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Steps
from raftlog.storage.producer_state import ActiveProducer, ProducerTable
from raftlog.types import LeaderEpoch, Offset


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    queries = cast(DescribeProducersRequest, request.message).partitions
    count = sum(len(query.producer_ids) for query in queries)
    if count > limits.PRODUCERS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"the request matches {count} producers in all of its partitions; the limit is "
            f"{limits.PRODUCERS_PER_REQUEST_MAX}. Split the request"
        )
    describing = _Describing(context, reply, len(queries))
    for index, query in enumerate(queries):
        yield None
        describing.begin(index, query)


class _Describing:
    """One request. Its response is sent when every partition has a result."""

    __slots__ = ("_answers", "_context", "_missing", "_reply")

    def __init__(self, context: BrokerContext, reply: Reply, count: int) -> None:
        self._context = context
        self._reply = reply
        self._answers: list[DescribedProducers | None] = [None] * count
        self._missing = count

    def begin(self, index: int, query: ProducersQuery) -> None:
        """Record the current state of the log. Respond once that is committed, and no other broker
        has become leader.
        """
        try:
            host = self._context.topics.host(query.topic, query.partition)
            host.check_epoch(query.leader_epoch)
            # guard: only the leader reports a named producer's sequence
            host.check_leading()
            answer, end_offset = _described(query, host)
        except RaftlogError as error:
            self._resolve(index, _failed(query, error))
            return
        # guard: the sequence of a named producer is committed
        host.when_committed(end_offset, partial(self._committed, index, query, host, answer))

    def _committed(
        self,
        index: int,
        query: ProducersQuery,
        host: Partition,
        answer: DescribedProducers,
        error: RaftlogError | None,
    ) -> None:
        """Process the commit of the described state; ``error`` is the reason if it may not be
        committed.
        """
        # guard: a named producer's sequence is confirmed
        if error is not None:
            self._confirmed(index, query, answer, error)
            return
        self._context.cluster.confirm(host, partial(self._confirmed, index, query, answer))

    def _confirmed(
        self,
        index: int,
        query: ProducersQuery,
        answer: DescribedProducers,
        error: RaftlogError | None,
    ) -> None:
        self._resolve(index, answer if error is None else _failed(query, error))

    def _resolve(self, index: int, answer: DescribedProducers) -> None:
        assert self._answers[index] is None, "a partition of a request has one outcome"
        self._answers[index] = answer
        self._missing -= 1
        if self._missing == 0:
            answers = cast(list[DescribedProducers], self._answers)
            self._reply.send(DescribeProducersResponse(partitions=answers))


def _described(query: ProducersQuery, host: Partition) -> tuple[DescribedProducers, Offset]:
    """Return the state of each producer in the log, and the offset after the last of their
    records.
    """
    table = host.log.producers
    producers = [_state_of(table, producer_id) for producer_id in query.producer_ids]
    siblings: list[DescribedProducer] | None = None
    if query.family_bits:
        if len(producers) > 1:
            raise InvalidRequestError("family_bits is for a query of one producer. Split the query")
        ids = table.family(query.producer_ids[0], query.family_bits)
        if len(ids) > limits.PRODUCERS_PER_REQUEST_MAX:
            raise InvalidRequestError(
                f"{host.topic_partition} has {len(ids)} producers of the family of producer "
                f"{query.producer_ids[0]}; the limit is {limits.PRODUCERS_PER_REQUEST_MAX}. Write "
                "with fewer tasks"
            )
        siblings = [_state_of(table, producer_id) for producer_id in ids]
    answer = DescribedProducers(
        topic=query.topic, partition=query.partition, producers=producers, siblings=siblings
    )
    end_offset = 0
    for each in (*producers, *(siblings or ())):
        # guard: all producers of a response are waited for
        end_offset = max(end_offset, each.last_offset + 1)
    return answer, end_offset


def _state_of(table: ProducerTable, producer_id: int) -> DescribedProducer:
    written = table.last_written(producer_id)
    if written is None:
        return DescribedProducer(producer_id=producer_id)
    return DescribedProducer(
        producer_id=producer_id,
        producer_epoch=written.epoch,
        last_sequence=written.last_sequence,
        last_offset=written.last_offset,
        first_offset=written.first_offset,
    )


def _failed(query: ProducersQuery, error: RaftlogError) -> DescribedProducers:
    failure = Failure.of(error)
    return DescribedProducers(topic=query.topic, partition=query.partition, failure=failure)


# -- list producers --------------------------------------------------------------------------------
#
# ``list_producers``: the producers of a partition that the leader knows, committed or not.
#
# The response is a description for people and tools. It waits for no commit, unlike that of
# ``describe_producers``, from which a named producer continues.


PARTITIONS_PER_STEP: Final = 256  # without a list of producers


def handle_list_producers(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    queries = cast(ListProducersRequest, request.message).partitions
    count = sum(query.limit for query in queries)
    # guard: a request lists a bounded number of producers
    if count > limits.LISTED_PRODUCERS_MAX:
        raise InvalidRequestError(
            f"the request lists up to {count} producers in all of its partitions; the limit is "
            f"{limits.LISTED_PRODUCERS_MAX}. Split the request"
        )
    answers: list[ListedProducers] = []
    for number, query in enumerate(queries):
        if query.limit or number % PARTITIONS_PER_STEP == 0:
            yield None
        try:
            answers.append(_listed(context, query))
        except RaftlogError as error:
            failure = Failure.of(error)
            answers.append(
                ListedProducers(topic=query.topic, partition=query.partition, failure=failure)
            )
    yield None
    reply.send(ListProducersResponse(partitions=answers))


def _listed(context: BrokerContext, query: ListedPartition) -> ListedProducers:
    listed = list_producers(
        context,
        query.topic,
        query.partition,
        query.leader_epoch,
        skip=query.skip,
        limit=query.limit,
    )
    return ListedProducers(
        topic=query.topic,
        partition=query.partition,
        total=listed.total,
        high_watermark=listed.high_watermark,
        producers=[
            ListedProducer(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.newest.last_sequence,
                last_offset=each.newest.last_offset,
                last_timestamp_ms=each.newest.append_timestamp_ms,
            )
            for each in listed.producers
        ],
    )


# -- producers -------------------------------------------------------------------------------------
#
# Producers of a partition that this broker leads, committed or not.


class Listed(NamedTuple):
    """``producers``: some of ``total``, the one that wrote last first."""

    total: int
    high_watermark: Offset
    producers: list[ActiveProducer]


def list_producers(
    context: BrokerContext,
    topic: str,
    partition: int,
    leader_epoch: LeaderEpoch,
    *,
    skip: int,
    limit: int,
    any_replica: bool = False,
) -> Listed:
    """Return ``limit`` producers after the first ``skip``, as the leader knows them, or with
    ``any_replica`` as this replica does.

    Raises the errors of ``TopicTable.host``, ``NotLeaderError``, and errors of the leader epoch (-1
    if the client knows none).
    """
    host = context.topics.host(topic, partition)
    # guard: a list of producers compares leader epochs
    host.check_epoch(leader_epoch)
    # guard: only the leader lists producers
    host.check_readable(replica_ok=any_replica)
    known = host.log.producers
    return Listed(len(known), host.high_watermark, known.active(skip, limit))
