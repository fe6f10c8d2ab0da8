"""Topic administration: create, delete, describe, alter, add partitions, delete records.

Requests name several topics (or partitions); each is answered by itself, so one bad name does not
hurt its neighbours.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.metadata import PartitionInfo
from raftlog.protocol.schema import (
    ConfigKey,
    ConfigValue,
    Failure,
    Message,
    PartitionCount,
    PartitionIndex,
    TopicName,
    WireOffset,
)

_Topics = Meta(min_length=1, max_length=limits.TOPICS_PER_REQUEST_MAX)
_ConfigKeys = Meta(max_length=limits.CONFIG_KEYS_PER_TOPIC_MAX)


class TopicToCreate(Message):
    """``replication_factor`` of 0 asks for the cluster's default."""

    name: TopicName
    partitions: int = 1
    replication_factor: int = 1
    config: Annotated[dict[ConfigKey, ConfigValue], _ConfigKeys] = {}


class CreateTopicsRequest(Message):
    topics: Annotated[list[TopicToCreate], _Topics]
    validate_only: bool = False


class DeleteTopicsRequest(Message):
    topics: Annotated[list[TopicName], _Topics]


class TopicToAlter(Message):
    """``config``: keys to set; a value of None puts the key back to its default."""

    name: TopicName
    config: Annotated[dict[ConfigKey, ConfigValue | None], _ConfigKeys]


class AlterTopicsRequest(Message):
    topics: Annotated[list[TopicToAlter], _Topics]


class TopicToExtend(Message):
    """``partitions``: the new total."""

    name: TopicName
    partitions: PartitionCount


class AddPartitionsRequest(Message):
    topics: Annotated[list[TopicToExtend], _Topics]


class TopicResult(Message):
    name: str
    failure: Failure | None = None
    id: str = ""


class TopicsResponse(Message):
    """The answer to create, delete, alter and add partitions: one result per topic, in order."""

    results: list[TopicResult]


class DescribeTopicsRequest(Message):
    """``topics`` of None describes all that come after ``after`` in the order of their names.

    ``paged``: the answer may leave topics out at the end, when it gets long, and be asked for more.
    """

    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] | None = None
    after: Annotated[str, Meta(max_length=4 * limits.TOPIC_NAME_CHARS_MAX)] = ""
    paged: bool = False


class PartitionDescription(Message):
    """What only a replica knows of the partition is -1, 0 or empty where the broker is none."""

    info: PartitionInfo
    log_start_offset: WireOffset = -1
    high_watermark: WireOffset = -1
    log_end_offset: WireOffset = -1
    size_bytes: int = 0
    damage: str = ""  # what is wrong with the stored bytes; empty when nothing is


class TopicDescription(Message):
    """``config`` holds every key; ``config_overrides`` names those that were set on the topic."""

    name: str
    failure: Failure | None = None
    id: str = ""
    config: dict[str, str] = {}
    config_overrides: list[str] = []
    partitions: list[PartitionDescription] = []
    is_internal: bool = False  # made, written and dropped by brokers only


class DescribeTopicsResponse(Message):
    """``is_page``: these are the first ones of the topics asked for, and there are more."""

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
