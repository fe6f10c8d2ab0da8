"""Committed offsets of a group: checks of arguments, and requests to the coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.consumer_groups.coordinator import Coordinators
from raftlog.client.partition_requests import list_offsets
from raftlog.client.settings import integer
from raftlog.client.subscription import check_partitions
from raftlog.errors import InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol.groups import OffsetFetchRequest, OffsetFetchResponse, PartitionName
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
    coordinators: Coordinators, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the committed offset of each partition; None without one. Raises the first error."""
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for start in range(0, len(partitions), _STEP):
        request = OffsetFetchRequest(
            group=group,
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
