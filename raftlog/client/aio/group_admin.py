"""The part of ``AsyncAdmin`` that is about consumer groups: it checks arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from raftlog import limits
from raftlog.client.aio.loop_bound import LoopBound
from raftlog.client.cluster import Cluster
from raftlog.client.group_descriptions import GroupDescription, GroupListing
from raftlog.client.groups import administration
from raftlog.client.groups.coordinator import Coordinators
from raftlog.client.host import Host
from raftlog.client.settings import integer
from raftlog.client.subscription import check_partitions
from raftlog.errors import InvalidRequestError
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition, check_group_id

GroupOffsets: TypeAlias = Mapping[TopicPartition, Offset | OffsetAndMetadata]

_NO_EPOCH = -1
_EPOCH_MAX = (1 << 31) - 1


class AsyncGroupAdmin(LoopBound):
    """Lists, describes and deletes consumer groups; reads and sets their offsets."""

    _cluster: Cluster
    _coordinators: Coordinators
    _host: Host

    async def list_groups(self) -> list[GroupListing]:
        """All consumer groups, sorted by name.

        Every broker that coordinates groups is asked; one that has just begun to is waited for. The
        list is whole, or an error: raises ``LeaderNotAvailableError``, ``BrokerUnavailableError``
        or ``CoordinatorLoadingError`` when that takes longer than a request may.
        """
        self._bind()
        return await administration.list_groups(self._cluster)

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """The members of each group, and how far it is in each partition; also without members.

        A partition whose leader does not answer within 5 s is told of with its ``problem``.
        Raises ``UnknownGroupError``, ``InvalidGroupError``.
        """
        self._bind()
        return await administration.describe_groups(
            self._cluster,
            self._coordinators,
            _group_ids(groups),
            now_ms=self._host.clock.wall_ms,
        )

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups that have no members, with all that they have committed.

        All are tried. Raises ``UnknownGroupError``, ``GroupNotEmptyError``.
        """
        self._bind()
        await administration.delete_groups(self._coordinators, _group_ids(groups))

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for partitions that none of its members reads.

        Raises ``UnknownGroupError``, ``GroupNotEmptyError``.
        """
        self._bind()
        (name,) = _group_ids([group])
        await administration.delete_offsets(
            self._coordinators, name, list(dict.fromkeys(check_partitions(partitions)))
        )

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, by partition. Raises ``UnknownGroupError``."""
        self._bind()
        (name,) = _group_ids([group])
        return await administration.group_offsets(self._coordinators, name)

    async def alter_group_offsets(
        self, group: str, offsets: GroupOffsets, *, metadata: str = ""
    ) -> None:
        """Have a group without members go on from these offsets; it is made if there is none.

        Other partitions keep theirs. ``metadata``: a note of up to 4,096 characters, for offsets
        given as numbers. Raises ``GroupNotEmptyError``; ``OffsetOutOfRangeError`` for an offset
        that its partition does not have, and then nothing is changed; ``UnknownTopicError``,
        ``UnknownPartitionError``.
        """
        self._bind()
        (name,) = _group_ids([group])
        wanted = _offsets(offsets, metadata)
        await administration.check_in_range(self._cluster, wanted)
        await administration.commit_offsets(self._cluster, self._coordinators, name, wanted)

    async def commit_offsets(
        self, group: str, offsets: GroupOffsets, *, metadata: str = ""
    ) -> None:
        """Commit for a group without members, as a program does that keeps its place elsewhere.

        Then tools that show lag show its progress. As ``alter_group_offsets``, but whether the
        partitions have these offsets is not looked at.
        """
        self._bind()
        (name,) = _group_ids([group])
        wanted = _offsets(offsets, metadata)
        await administration.commit_offsets(self._cluster, self._coordinators, name, wanted)


def _group_ids(groups: Iterable[str]) -> list[str]:
    if isinstance(groups, str | bytes):
        raise TypeError(f"groups={groups!r}: a list of names, such as [{groups!r}]")
    names = list(dict.fromkeys(groups))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{name!r}: the name of a consumer group is a text (str)")
    return [check_group_id(name) for name in names]


def _offsets(offsets: GroupOffsets, metadata: str) -> dict[TopicPartition, OffsetAndMetadata]:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets={offsets!r}: a dict of TopicPartition to an offset")
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, wanted in zip(check_partitions(offsets), offsets.values(), strict=True):
        given = (
            wanted if isinstance(wanted, OffsetAndMetadata) else OffsetAndMetadata(wanted, metadata)
        )
        checked[tp] = OffsetAndMetadata(
            integer("offset", given.offset, 0, limits.OFFSET_MAX),
            _note(given.metadata),
            integer("leader_epoch", given.leader_epoch, _NO_EPOCH, _EPOCH_MAX),
        )
    return checked


def _note(metadata: object) -> str:
    if not isinstance(metadata, str):
        raise TypeError(f"metadata={metadata!r}: a text (str)")
    if len(metadata) > limits.OFFSET_METADATA_CHARS_MAX:
        raise InvalidRequestError(
            f"the metadata has {len(metadata)} characters: up to "
            f"{limits.OFFSET_METADATA_CHARS_MAX} are kept with an offset"
        )
    return metadata
