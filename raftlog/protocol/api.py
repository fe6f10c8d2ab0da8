"""The API table: every request there is, its number, its versions and its two message types.

A version is raised when the meaning of a field changes; a new field with a default raises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog.errors import UnsupportedApiError, UnsupportedVersionError
from raftlog.protocol import fetch, handshake, metadata, produce, topics
from raftlog.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table. ``idempotent``: repeating it after an unknown outcome does no harm."""

    number: int
    name: str
    request: type[Message]
    response: type[Message]
    version_min: int = 0
    version_max: int = 0
    idempotent: bool = False


API_VERSIONS: Final = Api(
    0, "api_versions", handshake.ApiVersionsRequest, handshake.ApiVersionsResponse, idempotent=True
)
METADATA: Final = Api(
    1, "metadata", metadata.MetadataRequest, metadata.MetadataResponse, idempotent=True
)
PRODUCE: Final = Api(2, "produce", produce.ProduceRequest, produce.ProduceResponse)
FETCH: Final = Api(3, "fetch", fetch.FetchRequest, fetch.FetchResponse, idempotent=True)
LIST_OFFSETS: Final = Api(
    4, "list_offsets", fetch.ListOffsetsRequest, fetch.ListOffsetsResponse, idempotent=True
)
INIT_PRODUCER_ID: Final = Api(
    5,
    "init_producer_id",
    produce.InitProducerIdRequest,
    produce.InitProducerIdResponse,
    idempotent=True,
)
CREATE_TOPICS: Final = Api(6, "create_topics", topics.CreateTopicsRequest, topics.TopicsResponse)
DELETE_TOPICS: Final = Api(7, "delete_topics", topics.DeleteTopicsRequest, topics.TopicsResponse)
DESCRIBE_TOPICS: Final = Api(
    8,
    "describe_topics",
    topics.DescribeTopicsRequest,
    topics.DescribeTopicsResponse,
    idempotent=True,
)
ALTER_TOPICS: Final = Api(
    9, "alter_topics", topics.AlterTopicsRequest, topics.TopicsResponse, idempotent=True
)
ADD_PARTITIONS: Final = Api(
    10, "add_partitions", topics.AddPartitionsRequest, topics.TopicsResponse
)
DELETE_RECORDS: Final = Api(
    11,
    "delete_records",
    topics.DeleteRecordsRequest,
    topics.DeleteRecordsResponse,
    idempotent=True,
)

APIS: Final[dict[int, Api]] = {
    api.number: api
    for api in (
        API_VERSIONS,
        METADATA,
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        INIT_PRODUCER_ID,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DESCRIBE_TOPICS,
        ALTER_TOPICS,
        ADD_PARTITIONS,
        DELETE_RECORDS,
    )
}


def lookup(number: int, version: int) -> Api:
    """The row for ``number``, if ``version`` of it is spoken here."""
    api = APIS.get(number)
    if api is None:
        raise UnsupportedApiError(
            f"API {number} is not known to this broker (it knows 0 to {max(APIS)}); "
            "upgrade the broker, or use an older client"
        )
    if not api.version_min <= version <= api.version_max:
        raise UnsupportedVersionError(
            f"version {version} of {api.name} is not spoken here "
            f"(only {api.version_min} to {api.version_max}); upgrade the older side"
        )
    return api
