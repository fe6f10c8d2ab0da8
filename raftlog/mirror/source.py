"""Source of a mirror: a cluster, or an object with the same queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

from raftlog.client.admin import Admin
from raftlog.client.batch_reader import BatchReader
from raftlog.client.consumer_core import Checked
from raftlog.client.descriptions import ClusterDescription, TopicDescription, TopicListing
from raftlog.client.environment import ClientEnvironment
from raftlog.client.group_descriptions import GroupListing
from raftlog.client.settings import Bootstrap
from raftlog.types import Offset, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

_ONE_BATCH_BYTES: Final = 1  # a fetch then returns one batch


class SourceAdmin(Protocol):
    """The methods of ``Admin`` that a mirror calls for its source."""

    def describe_cluster(self, *, partitions: bool = True) -> ClusterDescription: ...

    def find_topics(self) -> dict[str, TopicListing]: ...

    def list_topics(self) -> list[str]: ...

    def describe_topics(self, topics: Iterable[str]) -> list[TopicDescription]: ...

    def list_offsets(
        self, at: Mapping[TopicPartition, Literal["earliest", "latest"]]
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]: ...

    def list_groups(self) -> list[GroupListing]: ...

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]: ...


class SourceReader(Protocol):
    """The methods of ``BatchReader``."""

    def start(self, positions: Mapping[TopicPartition, Offset]) -> None: ...

    def poll(self, timeout_s: float) -> tuple[TopicPartition | None, list[Checked]]: ...


@runtime_checkable
class Source(Protocol):
    """``reader``: with ``one_batch``, for single batches at given offsets."""

    def admin(self) -> AbstractContextManager[SourceAdmin]: ...

    def reader(self, *, one_batch: bool = False) -> AbstractContextManager[SourceReader]: ...


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """A cluster. ``host``: environment of its clients."""

    bootstrap: Bootstrap
    host: ClientEnvironment | None = None

    def admin(self) -> Admin:
        return Admin(self.bootstrap, host=self.host)

    def reader(self, *, one_batch: bool = False) -> BatchReader:
        if one_batch:
            return BatchReader(
                self.bootstrap,
                read_from="leader",
                max_partition_fetch_bytes=_ONE_BATCH_BYTES,
                host=self.host,
            )
        return BatchReader(self.bootstrap, read_from="leader", host=self.host)
