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
from functools import partial
from random import Random
from typing import Final

from raftlog.aio import AsyncAdmin
from raftlog.errors import RaftlogError
from raftlog.types import Offset, TopicPartition
from raftlog_jepsen.client import Process
from raftlog_jepsen.members import Members
from raftlog_jepsen.plan import GroupShape, WorkloadName
from raftlog_jepsen.workload import append, offsets
from raftlog_jepsen.workload.admin import Operator, add_partitions
from raftlog_jepsen.workload.base import (
    REQUEST_TIMEOUT_MS,
    WorkloadContext,
    create_topics,
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
            clients |= offsets.askers(context, group)
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
        return await offsets.final_offsets(context) and has_all


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
