"""The offsets workload: consumers commit how far they have come, and others read it back.

Every group has a place in every partition: the offset of the next record to read, as it was last
committed. Here nobody is a member of a group; consumers assign partitions to themselves, and for
each group and partition one of them at a time commits, in order, offsets that grow. A commit is for
one partition or for several at once. Appends go on meanwhile, as in the append workload, whose
operations and anomalies hold here as well: nothing is committed beyond what was acknowledged.

Operations, besides those:

    commit     Somebody commits an offset for each of some partitions of a group. ``ok``: whoever
               asks from now on is told these, or later ones. ``fail``: none of them was taken.
               ``info``: each may be told or not, or come into effect later.
    committed  A client that is new asks what a group has committed, for all partitions. -1:
               nothing.

When the load is over and all is quiet, fresh clients ask for what all groups have committed.

What must not be found, besides:

    GROUP-OFFSET-LOST      somebody was told less than was acknowledged before they asked, and not
                           by a commit of which nobody knew when it would come into effect
    GROUP-OFFSET-PHANTOM   somebody was told what nobody had tried to commit until then, or what had
                           failed, or an offset with the note of another
    GROUP-OFFSET-ZERO      somebody was told that nothing is committed, or 0, after something was
                           acknowledged
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from raftlog.aio import AsyncConsumer
from raftlog.errors import RaftlogError
from raftlog.jepsen_like.client import Process
from raftlog.jepsen_like.committing import commit, committed
from raftlog.jepsen_like.plan import GroupShape, WorkloadName
from raftlog.jepsen_like.workload import append
from raftlog.jepsen_like.workload.base import (
    PATIENCE_S,
    Client,
    WorkloadContext,
    create_topics,
    group_consumer_of,
    run_all,
)
from raftlog.types import Offset, TopicPartition

COMMITTERS: Final = 2  # of each group; they share its partitions
PAUSE_S: Final = (0.0, 0.2)  # between two commits
SESSION_S: Final = (3.0, 20.0)  # of a committer's consumer; then another takes its place
STEP_MAX: Final = 5  # records from one commit to the next
ASK_PAUSE_S: Final = (0.1, 1.0)
FINAL_TIMEOUT_S: Final = 60.0
FINAL_READERS: Final = 2


class OffsetsWorkload:
    """The clients of the append workload, committers, and those who ask."""

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
    """One consumer after the other, until the load ends."""
    random = context.fork(name)
    loop = asyncio.get_running_loop()
    committer = _Committer(context, group, Process(name), random, dict.fromkeys(partitions, 0))
    while not context.stopping.is_set():
        ends_at = loop.time() + random.uniform(*SESSION_S)
        entrance = context.entrance(random, pinned=random.random() < 0.5)
        try:
            async with group_consumer_of(entrance, group.name) as consumer:
                await consumer.assign(partitions)
                while loop.time() < ends_at and not context.stopping.is_set():
                    await committer.commit(consumer)
        except RaftlogError:  # of assigning
            await context.sleep(PATIENCE_S)


@dataclass(slots=True)
class _Committer:
    """Whoever commits for some partitions of a group. ``offsets``: what was tried last."""

    context: WorkloadContext
    group: GroupShape
    process: Process
    random: Random
    offsets: dict[TopicPartition, Offset]

    async def commit(self, consumer: AsyncConsumer) -> None:
        """Once, what has grown: some of it, by some records."""
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
        """Nothing is committed beyond what there is."""
        return self.context.clients.acked.get(str(partition), 0)


def askers(context: WorkloadContext, group: GroupShape) -> dict[str, Client]:
    """Who asks what a group has committed, by name."""
    name = f"asker-{group.name}"
    return {name: partial(keep_asking, context, name, group)}


async def keep_asking(context: WorkloadContext, name: str, group: GroupShape) -> None:
    """A new client each time, until the load ends."""
    random = context.fork(name)
    number = 0
    while not context.stopping.is_set():
        number += 1
        await context.sleep(random.uniform(*ASK_PAUSE_S))
        entrance = context.entrance(random, pinned=random.random() < 0.5)
        await ask(context, f"{name}/{number}", group, entrance)


async def ask(context: WorkloadContext, process: str, group: GroupShape, entrance: str) -> bool:
    """Ask once, with a client of its own, for all partitions of a group; whether it was told."""
    partitions = [tp for tp in context.targets if tp.topic in group.topics]
    async with group_consumer_of(entrance, group.name) as consumer:
        told = await committed(context.recorder, consumer, process, group.name, partitions)
    return told is not None


async def _until_told(context: WorkloadContext, process: str, group: GroupShape) -> None:
    """Each attempt by a process of its own: an answer that is missing must not count."""
    attempt = 1
    while not await ask(context, f"{process}/{attempt}", group, context.bootstrap):
        attempt += 1
        await asyncio.sleep(PATIENCE_S)


async def final_offsets(context: WorkloadContext) -> bool:
    """Ask for what every group has committed, several times; whether all was told in a minute."""
    try:
        async with asyncio.timeout(FINAL_TIMEOUT_S):
            for group in context.plan.workload.groups:
                for number in range(1, FINAL_READERS + 1):
                    process = f"final-{group.name}-{number}"
                    await _until_told(context, process, group)
    except TimeoutError:
        context.note("not all groups' offsets could be read at the end", is_trouble=True)
        return False
    return True
