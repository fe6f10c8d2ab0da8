"""Topic administration: create, delete, describe, alter, add partitions, delete records.

A request contains several topics or partitions. Each has its own result, so an invalid name does
not fail the other topics.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.metadata import PartitionInfo
from raftlog.protocol.schema import (
    ConfigKey,
    ConfigValue,
    Counter,
    Failure,
    Message,
    PartitionCount,
    PartitionIndex,
    PartitionRange,
    TopicId,
    TopicName,
    WireOffset,
)

_Topics = Meta(min_length=1, max_length=limits.TOPICS_PER_REQUEST_MAX)
_ConfigKeys = Meta(max_length=limits.CONFIG_KEYS_PER_TOPIC_MAX)


class TopicToCreate(Message):
    """Topic to create. ``replication_factor``: 0 for the cluster's default."""

    name: TopicName
    partitions: int = 1
    replication_factor: int = 1
    config: Annotated[dict[ConfigKey, ConfigValue], _ConfigKeys] = {}


class CreateTopicsRequest(Message):
    topics: Annotated[list[TopicToCreate], _Topics]
    validate_only: bool = False


class DeleteTopicsRequest(Message):
    """``ids``: by name, the ID of the topic that is meant. A request that arrives late then does
    not delete a newer topic of the same name.
    """

    topics: Annotated[list[TopicName], _Topics]
    ids: Annotated[dict[TopicName, TopicId], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] = {}


class TopicToAlter(Message):
    """Topic to alter. ``config``: keys to set; a value of None resets the key to its default."""

    name: TopicName
    config: Annotated[dict[ConfigKey, ConfigValue | None], _ConfigKeys]


class AlterTopicsRequest(Message):
    topics: Annotated[list[TopicToAlter], _Topics]


class TopicToExtend(Message):
    """Topic to extend. ``partitions``: new total number of partitions."""

    name: TopicName
    partitions: PartitionCount


class AddPartitionsRequest(Message):
    topics: Annotated[list[TopicToExtend], _Topics]


class TopicResult(Message):
    name: str
    failure: Failure | None = None
    id: str = ""


class TopicsResponse(Message):
    """Response to create, delete, alter and add partitions: one result per topic, in order."""

    results: list[TopicResult]


class DescribeTopicsRequest(Message):
    """Describe topics.

    ``topics``: None for all topics whose names sort after ``after``. ``paged``: the broker can omit
    topics at the end of a long response, and the client then requests the next page. ``span``: of
    each topic, describe only these partitions.
    """

    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] | None = None
    after: Annotated[str, Meta(max_length=4 * limits.TOPIC_NAME_CHARS_MAX)] = ""
    paged: bool = False
    span: PartitionRange | None = None


class PartitionDescription(Message):
    """Partition details. On a broker without a replica, the fields after ``info`` are unset.

    ``tombstones_removed_below``, ``clean_end``: of its log; see ``CompactionState``.
    """

    info: PartitionInfo
    log_start_offset: WireOffset = -1
    high_watermark: WireOffset = -1
    log_end_offset: WireOffset = -1
    size_bytes: int = 0
    damage: str = ""  # description of corrupt data; empty if there is none
    tombstones_removed_below: Counter = 0
    clean_end: Counter = 0


class TopicDescription(Message):
    """Topic details. ``config``: all keys. ``config_overrides``: keys that were set explicitly.

    ``partition_count``: also of partitions that were not requested; -1 from earlier releases.
    """

    name: str
    failure: Failure | None = None
    id: str = ""
    config: dict[str, str] = {}
    config_overrides: list[str] = []
    partitions: list[PartitionDescription] = []
    is_internal: bool = False  # created, written and deleted by brokers only
    partition_count: int = -1


class DescribeTopicsResponse(Message):
    """Topic descriptions. ``is_page``: True if more topics follow on the next page."""

    topics: list[TopicDescription]
    is_page: bool = False


class RecordsToDelete(Message):
    """Delete the records below ``before_offset``; -1 means up to the high watermark."""

    topic: TopicName
    partition: PartitionIndex
    before_offset: WireOffset


class DeleteRecordsRequest(Message):
    partitions: Annotated[
        list[RecordsToDelete], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class DeletedRecords(Message):
    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    log_start_offset: WireOffset = -1


class DeleteRecordsResponse(Message):
    partitions: list[DeletedRecords]
