"""The compact workload: every record has a key, and brokers keep the last record of each key.

The topics are compacted as early and as often as possible. A record has a key; one without a value,
a *tombstone*, deletes its key. Key and tombstone follow from the value (``keys``), so that the
entries of appends, polls and copies have the usual form. The plan contains the number of keys per
partition. Operations are those of the append workload.

When the load is over and the cluster has converged, the log has gaps. At the end it has to contain,
for each key, the last acknowledged state or a later one.

Anomalies, in addition to those of appends (except GAP, and POLL-SKIP of records that do not exist
at the end):

  COMPACT-LOST-KEY: the last acknowledged record of a key is missing, and no later record has that
  key, in any copy: of a reader, or in a replica's files.
  COMPACT-RESURRECTED: a key has a value that is older than the tombstone that deleted it.
  COMPACT-MOVED: an acknowledged record is at another offset.
  OBSERVED-THEN-LOST: a consumer received a record that is missing though no record superseded it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.jepsen_like.plan import WorkloadName
from raftlog.jepsen_like.workload import append
from raftlog.jepsen_like.workload.base import WorkloadContext, create_topics, run_all

# Time for the cleaner: a reader that takes longer than tombstones are kept can miss one.
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
        """Wait until the brokers have compacted their logs."""
        await asyncio.sleep(REST_S)
        return True
