"""Producers of a topic: pages over the lists of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftlog.client.cluster import Cluster
from raftlog.client.descriptions import ProducerDescription, ProducerPage
from raftlog.client.partition_requests import try_list_producers
from raftlog.errors import RaftlogError
from raftlog.protocol.produce import ListedProducers
from raftlog.security.producer_ids import NAMED_ID_BASE
from raftlog.types import TopicPartition

PATIENCE_MS: Final = 2_000  # for leaders that do not respond


async def list_producers(
    cluster: Cluster, topic: str, partitions: Iterable[int] | None, skip: int, limit: int
) -> ProducerPage:
    """Return ``limit`` producers after the first ``skip`` of all ``partitions`` (None: of the
    topic).
    """
    await cluster.refresh([topic])
    known = await cluster.topic(topic)
    numbers = range(known.partition_count) if partitions is None else sorted({*partitions})
    asked = [TopicPartition(topic, known.check_partition(number)) for number in numbers]
    counted = await try_list_producers(
        cluster, dict.fromkeys(asked, (0, 0)), patience_ms=PATIENCE_MS
    )
    totals = {tp: one.total for tp, one in counted.items() if isinstance(one, ListedProducers)}
    wanted = windows(totals, skip, limit)
    listed = await try_list_producers(cluster, wanted, patience_ms=PATIENCE_MS)
    return ProducerPage(
        tuple(
            description
            for tp in wanted
            if isinstance(found := listed[tp], ListedProducers)
            for description in _descriptions(found)
        ),
        skip,
        sum(totals.values()),
        {
            tp.partition: str(outcome)
            for tp, outcome in (*counted.items(), *listed.items())
            if isinstance(outcome, RaftlogError)
        },
    )


def windows(
    totals: dict[TopicPartition, int], skip: int, limit: int
) -> dict[TopicPartition, tuple[int, int]]:
    """Return how many producers of each partition to skip and to list, in the order of
    ``totals``.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    for tp, total in totals.items():
        count = min(total - skip, limit)
        if count > 0:
            found[tp] = skip, count
            limit -= count
        skip = max(skip - total, 0)
    return found


def _descriptions(found: ListedProducers) -> Iterable[ProducerDescription]:
    for each in found.producers:
        yield ProducerDescription(
            partition=found.partition,
            producer_id=each.producer_id,
            kind="named" if each.producer_id >= NAMED_ID_BASE else "idempotent",
            epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_offset=each.last_offset,
            last_timestamp_ms=each.last_timestamp_ms,
            state="committed" if each.last_offset < found.high_watermark else "uncommitted",
        )
