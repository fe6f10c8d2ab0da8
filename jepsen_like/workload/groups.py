"""The groups workload: members of consumer groups share partitions, and die, and come back.

Some groups read some topics, by name or by pattern; each has several members, every one a process
of its own, which can be killed, stopped and cut off. A member is assigned partitions, deals with
the records that it is given, commits how far it has come, and is told when a partition is to be
another's. Some members say what they commit (``manual``), some leave it to the consumer (``auto``).
Producers append meanwhile, as in the append workload, whose operations and anomalies hold here as
well; now and then a topic gets more partitions.

Operations, besides those of appending:

    member     Something happened to a member: ``start``; ``assigned``, ``revoked`` and ``lost``, as
               its application was told; ``killed``, ``paused``, ``resumed``, ``cut``, ``mended``
               by the nemesis; ``end``.
    poll       With ``group``: a member has dealt with these records. What it was given and did not
               deal with, because it died, counts as not given.
    commit     As in the offsets workload, by a member, of what it has dealt with. One whose answer
               is an error may have been taken.
    committed  As in the offsets workload.

When all is healed, members get the time to be given everything that there is. Then they leave, and
fresh clients ask for what the groups have committed.

What must not be found, besides, and besides what the offsets workload looks for:

    GROUP-SKIPPED          a record below what the group has committed in the end was dealt with by
                           nobody: at-least-once is broken
    GROUP-UNDELIVERED      a record above that was given to nobody, though later ones were
    GROUP-STUCK            a group did not get to the end of a partition, when all was healed
    GROUP-TWO-OWNERS       two members owned a partition at the same time. A member owns it from
                           when it was assigned until it is told, ends or is killed. One that was
                           stopped or cut off goes on believing that it owns what has been given to
                           another, whose session has begun meanwhile; that is no anomaly, as long
                           as its commits are refused. It is one if commits of both were accepted
                           that were made while both believed it; or if both were awake and believed
                           it for longer than a session and what an application may take to notice;
                           or if the first was asked for it after the second had it, which nothing
                           had held up
    GROUP-COMMIT-BACKWARD  a commit was accepted of an offset that is lower than one that was
                           acknowledged since the partition was the committer's: by a member that
                           had lost it
    GROUP-OFFSET-LOST      also where a new owner begins below what the one before had committed
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Final

from raftlog.aio import AsyncAdmin
from raftlog.errors import RaftlogError
from raftlog.jepsen_like.client import Process
from raftlog.jepsen_like.members import Members
from raftlog.jepsen_like.plan import GroupShape, WorkloadName
from raftlog.jepsen_like.workload import append, offsets
from raftlog.jepsen_like.workload.admin import Operator, add_partitions
from raftlog.jepsen_like.workload.base import (
    REQUEST_TIMEOUT_MS,
    WorkloadContext,
    consumer_of,
    create_topics,
    run_all,
)
from raftlog.types import Offset, TopicPartition

MIND_S: Final = 1.0  # until a member that ended by itself has a successor
LOOK_S: Final = 0.5
DRAIN_S: Final = 240.0  # at most, for all groups to get to the end
STANDSTILL_S: Final = 40.0  # without any progress


class GroupsWorkload:
    """Producers, a few consumers without a group, members, and those who ask for offsets."""

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
    assert context.members is not None, "the runner has made them"
    return context.members


async def mind(context: WorkloadContext, members: Members) -> None:
    """Start all members, and those that ended by themselves again, until the load ends."""
    random = context.fork("members")
    for slot in members.slots:  # not all at the same moment
        await asyncio.to_thread(members.start, [slot.number])
        await context.sleep(random.uniform(0.0, 0.3))
    while not context.stopping.is_set():
        await asyncio.to_thread(members.mind)
        await context.sleep(MIND_S)


async def extend(context: WorkloadContext, name: str) -> None:
    """Add partitions now and then, until the load ends; they are written to at once."""
    random: Random = context.fork(name)
    async with AsyncAdmin(context.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        operator = Operator(context, admin, random, Process(name))
        while not context.stopping.is_set():
            await context.sleep(random.expovariate(context.plan.workload.admin_rate))
            if not context.stopping.is_set():
                await add_partitions(operator)


# -- the end ---------------------------------------------------------------------------------------


async def catch_up(context: WorkloadContext, members: Members) -> bool:
    """Wait until every group was given all that there is; whether it was, in a bounded time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    behind = ["nobody says where partitions end"]
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
        await asyncio.sleep(LOOK_S)
    context.note(f"groups that did not catch up: {'; '.join(behind)}")
    return False


def _behind(
    groups: tuple[GroupShape, ...], members: Members, ends: dict[TopicPartition, Offset]
) -> list[str]:
    """What is missing, a text for each group and partition."""
    found = []
    for group in groups:
        for partition, end in ends.items():
            given = members.given.get((group.name, str(partition)), 0)
            if partition.topic in group.topics and given < end:
                found.append(f"{group.name} has {given} of {partition}, which ends at {end}")
    return found


async def _ends(context: WorkloadContext) -> dict[TopicPartition, Offset]:
    """Where the partitions end; nothing if nobody says."""
    try:
        async with consumer_of(context.bootstrap) as consumer:
            return await context.clients.ends(consumer, "drain", list(context.targets))
    except RaftlogError:
        return {}
