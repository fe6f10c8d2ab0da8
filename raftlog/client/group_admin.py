"""The part of ``Admin`` that is about consumer groups: ``AsyncGroupAdmin``, from a thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.client.aio.group_admin import GroupOffsets
from raftlog.client.group_descriptions import GroupDescription, GroupListing
from raftlog.types import OffsetAndMetadata, TopicPartition

T = TypeVar("T")


class GroupAdmin:
    """Lists, describes and deletes consumer groups; reads and sets their offsets."""

    _admin: AsyncAdmin

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        raise NotImplementedError

    def list_groups(self) -> list[GroupListing]:
        """All consumer groups, sorted by name.

        Every broker that coordinates groups is asked; one that has just begun to is waited for. The
        list is whole, or an error: raises ``LeaderNotAvailableError``, ``BrokerUnavailableError``
        or ``CoordinatorLoadingError`` when that takes longer than a request may.
        """
        return self._call(self._admin.list_groups)

    def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """The members of each group, and how far it is in each partition; also without members.

        A partition whose leader does not answer within 5 s is told of with its ``problem``.
        Raises ``UnknownGroupError``, ``InvalidGroupError``.
        """
        return self._call(lambda: self._admin.describe_groups(groups))

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups that have no members, with all that they have committed.

        All are tried. Raises ``UnknownGroupError``, ``GroupNotEmptyError``.
        """
        self._call(lambda: self._admin.delete_groups(groups))

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for partitions that none of its members reads.

        Raises ``UnknownGroupError``, ``GroupNotEmptyError``.
        """
        self._call(lambda: self._admin.delete_group_offsets(group, partitions))

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, by partition. Raises ``UnknownGroupError``."""
        return self._call(lambda: self._admin.group_offsets(group))

    def alter_group_offsets(self, group: str, offsets: GroupOffsets, *, metadata: str = "") -> None:
        """Have a group without members go on from these offsets; it is made if there is none.

        Other partitions keep theirs. ``metadata``: a note of up to 4,096 characters, for offsets
        given as numbers. Raises ``GroupNotEmptyError``; ``OffsetOutOfRangeError`` for an offset
        that its partition does not have, and then nothing is changed; ``UnknownTopicError``,
        ``UnknownPartitionError``.
        """
        self._call(lambda: self._admin.alter_group_offsets(group, offsets, metadata=metadata))

    def commit_offsets(self, group: str, offsets: GroupOffsets, *, metadata: str = "") -> None:
        """Commit for a group without members, as a program does that keeps its place elsewhere.

        Then tools that show lag show its progress. As ``alter_group_offsets``, but whether the
        partitions have these offsets is not looked at.
        """
        self._call(lambda: self._admin.commit_offsets(group, offsets, metadata=metadata))
