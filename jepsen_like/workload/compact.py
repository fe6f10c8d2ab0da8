"""The compact workload: every record has a key, and brokers keep the last one of each.

The topics are compacted, as early and as often as can be. A record has a key; one without a value,
a *tombstone*, deletes its key. Which key a record has, and whether it is a tombstone, follows from
its value (``keys``), so that appends, polls and copies are written as ever; how many keys a
partition has is in the plan. Operations are those of the append workload.

When the load is over and all is quiet, the log has holes. What is there at the end has to say of
each key what was last acknowledged about it, or something later.

What must not be found, besides what must not with appends (other than GAP, and POLL-SKIP of records
that are not there at the end):

    COMPACT-LOST-KEY       the last acknowledged record of a key is gone, and nothing of the key is
                           behind it, in any copy: of a reader, or in a replica's files
    COMPACT-RESURRECTED    a key has a value that is older than the tombstone that deleted it
    COMPACT-MOVED          an acknowledged record is at another offset
    OBSERVED-THEN-LOST     a consumer was given a record that is gone though nothing superseded it
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.jepsen_like.plan import WorkloadName
from raftlog.jepsen_like.workload import append
from raftlog.jepsen_like.workload.base import WorkloadContext, create_topics, run_all

# For the cleaner to come to rest: a reader who takes longer than tombstones are kept may miss one.
REST_S: Final = 5.0


class CompactWorkload:
    """The clients of the append workload, with keys."""

    name: WorkloadName = "compact"
    drains: bool = True

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        await run_all(context, append.clients(context))

    async def drain(self, _context: WorkloadContext) -> bool:
        """Let the brokers compact what they can."""
        await asyncio.sleep(REST_S)
        return True
