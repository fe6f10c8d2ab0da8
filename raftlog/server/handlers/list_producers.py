"""``list_producers``: the producers of a partition that the leader knows, committed or not.

The response is a description for people and tools. It waits for no commit, unlike that of
``describe_producers``, from which a named producer continues.
"""

from __future__ import annotations

from typing import Final, cast

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.produce import (
    ListedPartition,
    ListedProducer,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.requests.producers import list_producers
from raftlog.server.turns import Steps

PARTITIONS_PER_STEP: Final = 256  # without a list of producers


def handle_list_producers(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    queries = cast(ListProducersRequest, request.message).partitions
    count = sum(query.limit for query in queries)
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
