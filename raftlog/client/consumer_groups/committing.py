"""Offset commits of a consumer, in the order of its calls, several commits in one request.

Runs on the I/O loop. While a request is in flight, new commits are collected for the next request,
which contains the newest offset of each partition. A commit is retried if its response is lost.
Each request has a sequence number, so that one which the network held back cannot replace a newer
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from raftlog import limits
from raftlog.client.consumer_groups.coordinator import Coordinators
from raftlog.client.consumer_groups.heartbeats import Heartbeats
from raftlog.client.consumer_groups.membership import Membership
from raftlog.client.consumer_groups.offsets import Offsets
from raftlog.errors import (
    FencedMemberError,
    InstanceFencedError,
    RaftlogError,
    RequestTimedOutError,
    StaleMemberEpochError,
    UnknownMemberError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.groups import OffsetCommitRequest, OffsetCommitResponse, OffsetToCommit
from raftlog.types import TopicPartition

# Errors that concern the member, not the partition.
_OF_MEMBERS: Final = (
    StaleMemberEpochError,
    UnknownMemberError,
    FencedMemberError,
    InstanceFencedError,
)


@dataclass(slots=True, eq=False)
class _Commit:
    offsets: Offsets
    topic_ids: Mapping[str, str]
    incarnation: int  # join count of the membership that read the records
    deadline: float  # loop time
    future: asyncio.Future[Offsets]


class Committer:
    """Committer of one consumer. ``on_committed`` is called with all committed offsets."""

    def __init__(
        self,
        membership: Membership,
        coordinators: Coordinators,
        heartbeats: Heartbeats,
        *,
        on_committed: Callable[[Offsets], None],
    ) -> None:
        self._membership = membership
        self._coordinators = coordinators
        self._heartbeats = heartbeats
        self._on_committed = on_committed
        self._waiting: list[_Commit] = []
        self._current: list[_Commit] = []  # being sent
        self._sending: asyncio.Task[None] | None = None
        self._sequence = 0  # of the last request; it repeats that of its first attempt

    def start(
        self, offsets: Offsets, topic_ids: Mapping[str, str], *, incarnation: int, timeout_ms: int
    ) -> asyncio.Future[Offsets]:
        """Commit ``offsets``. Returns a future that fails with ``RaftlogError``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Offsets] = loop.create_future()
        future.add_done_callback(_look_at)
        if not offsets:
            future.set_result(offsets)
            return future
        deadline = loop.time() + timeout_ms / 1_000
        self._waiting.append(_Commit(offsets, topic_ids, incarnation, deadline, future))
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())
        return future

    async def settled(self) -> None:
        """Wait until every started commit has succeeded or failed."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                commits = self._next()
                self._current = commits
                try:
                    failures = await self._send(commits)
                except RaftlogError as error:
                    failures = {tp: error for commit in commits for tp in commit.offsets}
                for commit in commits:
                    _resolve(commit, failures)
        finally:
            self._sending = None

    def _next(self) -> list[_Commit]:
        """Remove and return the first commits that fit one request: those of one incarnation."""
        taken: list[_Commit] = []
        partitions: set[TopicPartition] = set()
        for commit in self._waiting:
            union = partitions | commit.offsets.keys()
            if taken and (
                commit.incarnation != taken[0].incarnation
                or commit.topic_ids != taken[0].topic_ids
                or len(union) > limits.PARTITIONS_PER_REQUEST_MAX
            ):
                break
            taken.append(commit)
            partitions = union
        del self._waiting[: len(taken)]
        return taken

    async def _send(self, commits: list[_Commit]) -> dict[TopicPartition, RaftlogError]:
        """Commit the offsets. Returns the errors of partitions; raises errors that concern all."""
        offsets = {tp: given for commit in commits for tp, given in commit.offsets.items()}
        deadline = max(commit.deadline for commit in commits)
        incarnation = commits[0].incarnation
        membership = self._membership
        loop = asyncio.get_running_loop()
        problem: RaftlogError = RequestTimedOutError("offset commit timed out")
        self._sequence += 1
        while True:
            credentials = membership.credentials(incarnation)
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise problem
            if credentials is not None:
                request = self._request(credentials, offsets, commits[0].topic_ids)
                try:
                    failures = await self._ask(request, timeout_ms=int(left_s * 1_000))
                    self._on_committed(
                        {tp: given for tp, given in offsets.items() if tp not in failures}
                    )
                    return failures
                except StaleMemberEpochError as stale:
                    problem = stale
                except (UnknownMemberError, FencedMemberError) as error:
                    membership.fenced(error, incarnation=incarnation)
                    self._heartbeats.poll()
                    raise
                except InstanceFencedError as error:
                    membership.end(error)
                    self._heartbeats.poll()
                    raise
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - loop.time()):
                    await self._heartbeats.next_answer()

    def _request(
        self, credentials: tuple[str, int], offsets: Offsets, topic_ids: Mapping[str, str]
    ) -> OffsetCommitRequest:
        member_id, epoch = credentials
        topics = {tp.topic for tp in offsets}
        return OffsetCommitRequest(
            group=self._membership.settings.group,
            offsets=[
                OffsetToCommit(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=given.offset,
                    leader_epoch=given.leader_epoch,
                    metadata=given.metadata,
                )
                for tp, given in offsets.items()
            ],
            member_id=member_id,
            member_epoch=epoch,
            topic_ids={topic: of for topic, of in topic_ids.items() if topic in topics},
            sequence=self._sequence if member_id else 0,
        )

    async def _ask(
        self, request: OffsetCommitRequest, *, timeout_ms: int
    ) -> dict[TopicPartition, RaftlogError]:
        answer = await self._coordinators.call(
            request.group, apis.OFFSET_COMMIT, request, timeout_ms=timeout_ms
        )
        assert isinstance(answer, OffsetCommitResponse)
        failures = {
            TopicPartition(part.topic, part.partition): part.failure.to_error()
            for part in answer.partitions
            if part.failure is not None
        }
        for error in failures.values():
            if isinstance(error, _OF_MEMBERS):
                raise error
        return failures

    async def close(self) -> None:
        """Cancel all commits without a response."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        for commit in (*self._current, *self._waiting):
            commit.future.cancel()


def _resolve(commit: _Commit, failures: Mapping[TopicPartition, RaftlogError]) -> None:
    if commit.future.done():
        return
    for tp in commit.offsets:
        if tp in failures:
            commit.future.set_exception(failures[tp])
            return
    commit.future.set_result(commit.offsets)


def _look_at(future: asyncio.Future[Offsets]) -> None:
    """Mark the exception of the future as retrieved, because a caller does not have to await it."""
    if not future.cancelled():
        future.exception()
