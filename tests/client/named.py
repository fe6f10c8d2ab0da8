"""What tests of producers with a name share: a name, and a fake broker that knows what it wrote."""

from __future__ import annotations

from functools import partial
from typing import Final

from raftlog.client.resumable import producer_id_of
from raftlog.errors import RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DescribedProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducersQuery,
)
from raftlog.protocol.schema import Failure
from raftlog.record import BatchBody, encode
from raftlog.types import TopicPartition
from tests.client.world import Peer

TP: Final = TopicPartition("t", 0)
NAME: Final = "copy of yesterday"
ID: Final = producer_id_of(NAME)


def body(*values: bytes) -> BatchBody:
    return encode(list(values), timestamps_ms=1_700_000_000_000)


def describe(peer: Peer, request: Request) -> None:
    """Answer ``describe_producers`` as a broker does to which all it knows is committed."""
    message = request.message
    assert isinstance(message, DescribeProducersRequest)
    answers = [_described(peer, query) for query in message.partitions]
    peer.write(peer.state.reply(request, DescribeProducersResponse(partitions=answers)))


def _described(peer: Peer, query: ProducersQuery) -> DescribedProducers:
    answer = partial(DescribedProducers, topic=query.topic, partition=query.partition)
    try:
        topic = peer.cluster._topic(peer.broker_id, query.topic, query.partition)
        log = topic.log_at(peer.broker_id, query.partition, query.leader_epoch)
    except RaftlogError as error:
        return answer(failure=Failure.of(error))

    def states(ids: list[int]) -> list[DescribedProducer]:
        known = [(number, log.producers.last_written(number)) for number in ids]
        return [
            DescribedProducer(number) if last is None else DescribedProducer(number, *last)
            for number, last in known
        ]

    (first, *_) = query.producer_ids
    siblings = states(log.producers.family(first, query.family_bits)) if query.family_bits else None
    return answer(producers=states(query.producer_ids), siblings=siblings)
