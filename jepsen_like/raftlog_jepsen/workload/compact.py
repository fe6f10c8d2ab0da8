"""The compact workload: every record has a key, and brokers keep the last record of each key.

The settings of the topics make brokers compact them early and often. A record without a value, a
*tombstone*, deletes its key. The value of an append determines its key and whether it is a
tombstone (``keys``), so that the history entries have the same form as those of the append
workload. The plan contains the number of keys per partition. Operations are those of the append
workload.

Compacted logs have gaps. The final log must contain, for each key, the last acknowledged state or a
later one.

Anomalies, in addition to those of appends (except GAP, and POLL-SKIP of records that do not exist
at the end):

  COMPACT-LOST-KEY: the last acknowledged record of a key is missing, and no later record has that
  key, in any copy: of a reader, or in a replica's files.
  COMPACT-RESURRECTED: a key has a value that is older than its tombstone.
  COMPACT-MOVED: an acknowledged record is at another offset.
  OBSERVED-THEN-LOST: a consumer received a record that is missing, and no later record has its key.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog_jepsen.plan import WorkloadName
from raftlog_jepsen.workload import append
from raftlog_jepsen.workload.base import WorkloadContext, create_topics, run_all

# Seconds for the cleaner. A reader that needs longer than delete.retention.ms can miss a tombstone.
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
