"""Deletion and recreation of the checked topic: which operations belong to the new topic.

A send that was acknowledged before the deletion was requested belongs to the former topic: it need
not exist, and must not be in the new one. While any broker leads a partition of the former topic,
the topic of an operation is unknown. After that, the checks of other topics apply.

A member of a consumer group knows the ID of the topic of each of its partitions. The group is
therefore checked in each of the two topics, from its first to its last member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.testing.simulator.checker import Violation
from raftlog.testing.simulator.history import (
    NEVER_NS,
    Commit,
    Committed,
    Deletion,
    EndOffsets,
    History,
    Outcome,
    Owning,
    Poll,
    Recreation,
    Seen,
    Send,
)
from raftlog.testing.simulator.process import ClientMachine
from raftlog.testing.simulator.workload import PATIENCE_S, TOPIC, Workload, create_topic
from raftlog.types import TopicPartition

FORMER = "FORMER"  # a record of a topic that was deleted is in the one that was made in its place


class Recreating:
    """A client that deletes and recreates the topic once, also if it is killed during that."""

    def __init__(self, workload: Workload, after_s: float) -> None:
        self._workload = workload
        self._after_s = after_s
        self._recreation: Recreation | None = None
        self._is_deleted = False

    async def run(self, machine: ClientMachine) -> None:
        workload = self._workload
        if self._recreation is None:
            await asyncio.sleep(self._after_s)
            self._recreation = workload.history.recreation(machine.name)
        while not self._is_deleted:
            await self._delete(machine)
        await create_topic(workload, machine)
        workload.history.end(self._recreation, Outcome.OK)

    async def _delete(self, machine: ClientMachine) -> None:
        admin = self._workload.admin(machine)
        try:
            await admin.delete_topics([TOPIC])
        except UnknownTopicError:
            self._is_deleted = True
        except RaftlogError as error:
            self._workload.world.trace(f"the topic is not deleted yet: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            self._is_deleted = True
        await admin.close()


def recreation_of(history: History) -> Recreation | None:
    """The one that there is, if there is one."""
    return next((entry for entry in history if isinstance(entry, Recreation)), None)


def revenants(
    history: History,
    recreation: Recreation,
    found: Iterable[tuple[TopicPartition, Iterable[Seen]]],
) -> Iterator[Violation]:
    """What was ``found`` in the new topic, and was acknowledged before the other's deletion."""
    former = {
        send.value
        for send in history.sends
        if send.is_ok and send.offset >= 0 and send.completed_ns < recreation.invoked_ns
    }
    for name, records in found:
        for seen in records:
            if seen.value in former:
                yield Violation(FORMER, f"{name} has {seen.value} at {seen.offset}")


def polled(history: History) -> Iterator[tuple[TopicPartition, Sequence[Seen]]]:
    """All that consumers were given."""
    for entry in history:
        if isinstance(entry, Poll) and entry.is_ok:
            yield from entry.records.items()


def of_the_new_topic(
    history: History, recreation: Recreation, since_ns: int, topic_id: str = ""
) -> History:
    """Return the operations to check. ``since_ns``: end of the last leadership of a partition of
    the former topic. ``topic_id``: of the new one.

    A consumer may have fetched records before, so only consumers that started later are checked,
    and what members of the consumer group received of the new topic.
    """
    found = History(lambda: 0)
    first_ns: dict[str, int] = {}
    for entry in history:
        if isinstance(entry, Poll) and entry.topic_ids:
            found.operations.append(_polled_of(entry, topic_id))
            continue
        first_ns.setdefault(entry.process, entry.invoked_ns)
        is_early = entry.invoked_ns <= since_ns
        if isinstance(entry, Poll):
            is_early = first_ns[entry.process] <= since_ns
        elif isinstance(entry, Deletion):
            is_early = entry.completed_ns < recreation.invoked_ns
        if is_early and isinstance(entry, Send) and entry.is_ok:
            found.operations.append(replace(entry, outcome=Outcome.INFO))
        elif not is_early or not isinstance(entry, Poll | EndOffsets | Deletion):
            found.operations.append(entry)
    return found


def of_the_group(
    history: History, topic_id: str, *, since_ns: int = -1, until_ns: int = NEVER_NS
) -> History:
    """Return what a consumer group did with the topic that has this ID.

    ``since_ns`` and ``until_ns``: when its committed offsets were certainly those of this topic.
    """
    found = History(lambda: 0)
    for entry in history:
        if isinstance(entry, Poll):
            found.operations.append(_polled_of(entry, topic_id))
        elif isinstance(entry, Commit):
            offsets = {
                tp: offset
                for tp, offset in entry.offsets.items()
                if entry.topic_ids[tp] == topic_id
            }
            found.operations.append(replace(entry, offsets=offsets))
        elif (isinstance(entry, Owning) and entry.topic_id == topic_id) or (
            isinstance(entry, Committed)
            and entry.invoked_ns > since_ns
            and entry.completed_ns < until_ns
        ):
            found.operations.append(entry)
    return found


def _polled_of(poll: Poll, topic_id: str) -> Poll:
    records = {tp: seen for tp, seen in poll.records.items() if poll.topic_ids.get(tp) == topic_id}
    return replace(poll, records=records)
