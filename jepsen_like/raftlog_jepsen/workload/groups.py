"""The groups workload: members of consumer groups share partitions, crash, and rejoin.

Groups read topics by name or by pattern. Each group has several members. Each member is a separate
process, which can be killed, stopped and isolated. A member processes the records of its assigned
partitions, commits its offsets, and is notified when a partition is revoked. Members with
``manual`` commits report each commit; with ``auto``, the consumer commits. Producers append at the
same time, as in the append workload. Its operations and anomalies apply here, too. Sometimes
partitions are added to a topic.

Operations, in addition to those of the append workload:

    member     An event of a member: ``start``; ``assigned``, ``revoked`` and ``lost``, as reported
               to its application; ``killed``, ``paused``, ``resumed``, ``cut``, ``mended`` by the
               nemesis; ``end``.
    poll       With ``group``: a member has processed these records. Records that it received but
               did not process, because it crashed, count as not delivered.
    commit     As in the offsets workload, by a member, for the records that it has processed. A
               commit with an error may have been accepted.
    committed  As in the offsets workload.

After all faults are healed, members have time to receive all records. Then they leave, and new
clients fetch the committed offsets of the groups.

Additional anomalies, also in addition to those of the offsets workload:

    GROUP-SKIPPED          no member processed a record below the final committed offset of the
                           group: at-least-once is broken
    GROUP-UNDELIVERED      a record above that offset was delivered to no member, although later
                           records were
    GROUP-STUCK            after all faults were healed, a group did not reach the end
    GROUP-TWO-OWNERS       two members owned a partition at the same time. A member owns it from
                           the assignment until it is notified, ends or is killed. After a stop or
                           a network partition, a member can assume to own a partition that has
                           been assigned to another member. This is no anomaly if its commits are
                           rejected. It is an anomaly in three cases: commits of both members were
                           accepted that were made while both assumed ownership; both were running
                           and assumed ownership for longer than a session timeout and the
                           detection time of an application; or the first member was notified after
                           the assignment to the second, without a fault that delayed the
                           notification
    GROUP-COMMIT-BACKWARD  an accepted commit, of a former owner, has a lower offset than a commit
                           that was acknowledged since the partition was assigned to its owner
    GROUP-OFFSET-LOST      also if a new owner starts below the offset that a former owner committed
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from raftlog.aio import AsyncAdmin
from raftlog.errors import RaftlogError
from raftlog.types import Offset, TopicPartition
from raftlog_jepsen.client import AnyConsumer, Process, commit, committed
from raftlog_jepsen.members import Members
from raftlog_jepsen.plan import GroupShape, WorkloadName
from raftlog_jepsen.workload import append
from raftlog_jepsen.workload.admin import Operator, add_partitions
from raftlog_jepsen.workload.base import (
    PATIENCE_S,
    REQUEST_TIMEOUT_MS,
    Client,
    WorkloadContext,
    create_topics,
    group_consumer_of,
    reader_of,
    run_all,
)

MIND_S: Final = 1.0  # interval of checks for members that ended unexpectedly
POLL_S: Final = 0.5
DRAIN_S: Final = 240.0  # maximum time for all groups to reach the end
STANDSTILL_S: Final = 40.0  # maximum time without progress


class GroupsWorkload:
    """Producers, a few consumers without a group, members, and clients that fetch offsets."""

    name: WorkloadName = "groups"
    drains: bool = True

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        members = _members(context)
        clients = append.clients(context)
        for group in context.plan.workload.groups:
            clients |= askers(context, group)
        clients["members"] = partial(mind, context, members)
        if context.plan.workload.admin_rate > 0:
            clients["operator"] = partial(extend, context, "operator")
        await run_all(context, clients)

    async def drain(self, context: WorkloadContext) -> bool:
        members = _members(context)
        slots = [slot.number for slot in members.slots]
        await asyncio.to_thread(members.start, slots)
        has_all = await catch_up(context, members)
        ended = await asyncio.to_thread(members.stop, slots)
        late = [members.name(slot) for slot, how in ended.items() if how.startswith("signal")]
        if late:
            context.note(f"did not leave in time, and were killed: {', '.join(late)}")
        return await final_offsets(context) and has_all


def _members(context: WorkloadContext) -> Members:
    assert context.members is not None, "the runner has created them"
    return context.members


async def mind(context: WorkloadContext, members: Members) -> None:
    """Start all members, and restart those that ended unexpectedly, until the load ends."""
    random = context.fork("members")
    for slot in members.slots:  # not all at the same time
        await asyncio.to_thread(members.start, [slot.number])
        await context.sleep(random.uniform(0.0, 0.3))
    while not context.stopping.is_set():
        await asyncio.to_thread(members.mind)
        await context.sleep(MIND_S)


async def extend(context: WorkloadContext, name: str) -> None:
    """Add partitions at random times until the load ends. Clients use them immediately."""
    random: Random = context.fork(name)
    async with AsyncAdmin(context.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        operator = Operator(context, admin, random, Process(name))
        while not context.stopping.is_set():
            await context.sleep(random.expovariate(context.plan.workload.admin_rate))
            if not context.stopping.is_set():
                await add_partitions(operator)


# -- the end ---------------------------------------------------------------------------------------


async def catch_up(context: WorkloadContext, members: Members) -> bool:
    """Wait until all groups have received all records, for a limited time. Returns whether they
    have."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    behind = ["the end offsets of partitions are unknown"]
    given, moved_at = -1, loop.time()
    while loop.time() < min(deadline, moved_at + STANDSTILL_S):
        await asyncio.to_thread(members.mind)
        ends = await _ends(context)
        if ends:
            behind = _behind(context.plan.workload.groups, members, ends)
        if not behind:
            return True
        if sum(members.given.values()) != given:
            given, moved_at = sum(members.given.values()), loop.time()
        await asyncio.sleep(POLL_S)
    context.note(f"groups that did not catch up: {'; '.join(behind)}")
    return False


def _behind(
    groups: tuple[GroupShape, ...], members: Members, ends: dict[TopicPartition, Offset]
) -> list[str]:
    """Return a text for each group and partition that has not reached the end."""
    found = []
    for group in groups:
        for partition, end in ends.items():
            given = members.given.get((group.name, str(partition)), 0)
            if partition.topic in group.topics and given < end:
                found.append(f"{group.name} reached {given} of {partition}, which ends at {end}")
    return found


async def _ends(context: WorkloadContext) -> dict[TopicPartition, Offset]:
    """Return the end offsets of the partitions; empty after an error."""
    try:
        async with reader_of(context, context.bootstrap) as consumer:
            return await context.clients.ends(consumer, "drain", list(context.targets))
    except RaftlogError:
        return {}


# -- offsets ---------------------------------------------------------------------------------------
#
# The offsets workload: consumers commit offsets, and other clients read them back.
#
# A group has one committed offset per partition: that of the next record to read. In this workload,
# groups have no members: consumers assign partitions to themselves. For each group and partition,
# one client commits increasing offsets, one commit at a time. A commit contains one or more
# partitions. Appends run at the same time, as in the append workload. Its operations and anomalies
# apply here, too. No commit is beyond the acknowledged records.
#
# Operations, in addition to those:
#
#     commit     A client commits offsets for some partitions of a group. ``ok``: all later requests
#                return these or later offsets. ``fail``: no offset was accepted. ``info``: each
#                offset may be accepted, now, later, or never.
#     committed  A new client requests the committed offsets of a group, for all partitions. -1: no
#                committed offset.
#
# When the load is over and the cluster has converged, new clients request the committed offsets of
# all groups.
#
# Additional anomalies:
#
#   GROUP-OFFSET-LOST      a client received a lower offset than was acknowledged before the
#                          request, and no late commit with an unknown outcome explains it
#   GROUP-OFFSET-PHANTOM   a client received an offset that no client had tried to commit, whose
#                          commit had failed, or with the metadata of another offset
#   GROUP-OFFSET-ZERO      a client received no offset, or 0, after another offset was acknowledged


COMMITTERS: Final = 2  # per group; they share its partitions
PAUSE_S: Final = (0.0, 0.2)  # seconds between two commits
SESSION_S: Final = (3.0, 20.0)  # seconds until a new consumer replaces that of a committer
STEP_MAX: Final = 5  # maximum number of records from one commit to the next
ASK_PAUSE_S: Final = (0.1, 1.0)
FINAL_TIMEOUT_S: Final = 60.0
FINAL_READERS: Final = 2


class OffsetsWorkload:
    """The clients of the append workload, committers, and clients that fetch offsets."""

    name: WorkloadName = "offsets"
    drains: bool = True

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        clients = append.clients(context)
        for group in context.plan.workload.groups:
            for number in range(1, COMMITTERS + 1):
                name = f"committer-{group.name}-{number}"
                mine = context.targets[number - 1 :: COMMITTERS]
                if mine:
                    clients[name] = partial(keep_committing, context, name, group, mine)
            clients |= askers(context, group)
        await run_all(context, clients)

    async def drain(self, context: WorkloadContext) -> bool:
        return await final_offsets(context)


async def keep_committing(
    context: WorkloadContext, name: str, group: GroupShape, partitions: list[TopicPartition]
) -> None:
    """Commit with one consumer at a time, until the load ends."""
    random = context.fork(name)
    loop = asyncio.get_running_loop()
    committer = _Committer(context, group, Process(name), random, dict.fromkeys(partitions, 0))
    while not context.stopping.is_set():
        ends_at = loop.time() + random.uniform(*SESSION_S)
        entrance = context.entrance(random, pinned=random.random() < 0.5)
        try:
            async with group_consumer_of(context, entrance, group.name) as consumer:
                await consumer.assign(partitions)
                while loop.time() < ends_at and not context.stopping.is_set():
                    await committer.commit(consumer)
        except RaftlogError:  # while it assigns partitions
            await context.sleep(PATIENCE_S)


@dataclass(slots=True)
class _Committer:
    """Commits offsets for some partitions of a group. ``offsets``: of the last attempts."""

    context: WorkloadContext
    group: GroupShape
    process: Process
    random: Random
    offsets: dict[TopicPartition, Offset]

    async def commit(self, consumer: AnyConsumer) -> None:
        """Commit once: for some of the partitions, at most ``STEP_MAX`` records further."""
        random, context = self.random, self.context
        await context.sleep(random.uniform(*PAUSE_S))
        behind = [tp for tp, offset in self.offsets.items() if offset < self._acked(tp)]
        if not behind:
            return
        some = random.sample(behind, random.randint(1, len(behind)))
        wanted = {
            tp: min(self._acked(tp), self.offsets[tp] + random.randint(1, STEP_MAX)) for tp in some
        }
        self.offsets |= wanted
        name = self.process.name
        if not await commit(context.recorder, consumer, name, self.group.name, wanted):
            self.process.retire(name)
            await context.sleep(PATIENCE_S)

    def _acked(self, partition: TopicPartition) -> Offset:
        """Return the end of the acknowledged records, which limits commits."""
        return self.context.clients.acked.get(str(partition), 0)


def askers(context: WorkloadContext, group: GroupShape) -> dict[str, Client]:
    """Return the clients that fetch the committed offsets of a group, by name."""
    name = f"asker-{group.name}"
    return {name: partial(keep_asking, context, name, group)}


async def keep_asking(context: WorkloadContext, name: str, group: GroupShape) -> None:
    """Fetch with a new client each time, until the load ends."""
    random = context.fork(name)
    number = 0
    while not context.stopping.is_set():
        number += 1
        await context.sleep(random.uniform(*ASK_PAUSE_S))
        entrance = context.entrance(random, pinned=random.random() < 0.5)
        await ask(context, f"{name}/{number}", group, entrance)


async def ask(context: WorkloadContext, process: str, group: GroupShape, entrance: str) -> bool:
    """Fetch once, with a separate client, for all partitions of a group. Returns whether it
    succeeded."""
    partitions = [tp for tp in context.targets if tp.topic in group.topics]
    async with group_consumer_of(context, entrance, group.name) as consumer:
        reported = await committed(context.recorder, consumer, process, group.name, partitions)
    return reported is not None


async def _until_reported(context: WorkloadContext, process: str, group: GroupShape) -> None:
    """Fetch until it succeeds. Each attempt is a separate process in the history, so that an
    attempt without a response does not count."""
    attempt = 1
    while not await ask(context, f"{process}/{attempt}", group, context.bootstrap):
        attempt += 1
        await asyncio.sleep(PATIENCE_S)


async def final_offsets(context: WorkloadContext) -> bool:
    """Fetch the committed offsets of every group several times. Returns whether all succeeded
    within a minute."""
    try:
        async with asyncio.timeout(FINAL_TIMEOUT_S):
            for group in context.plan.workload.groups:
                for number in range(1, FINAL_READERS + 1):
                    process = f"final-{group.name}-{number}"
                    await _until_reported(context, process, group)
    except TimeoutError:
        context.note("committed offsets could not be read at the end", is_trouble=True)
        return False
    return True
