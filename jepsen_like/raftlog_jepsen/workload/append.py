"""The append workload: many producers write to a log, and many consumers read it concurrently.

A log is a list of records that grows at its end only. The offset of each record is one higher than
that of the previous record. The workload has a few topics with some partitions each. Every
partition is such a log. The model is Jepsen's Kafka workload (``jepsen/tests/kafka.clj``).

Operations:

    append  A producer sends a group of values to one partition. Each value is an integer that is
            unique in the run. ``ok``: all in-sync replicas have the values, at the returned
            offsets. ``fail``: no value without an offset can ever be visible. ``info``: each value
            may be stored, now, later, or never. A producer may have several groups in flight. It
            sends them in the order of their invocations, and ``first`` identifies the group of a
            completion. With idempotence, no value is stored twice and the order is kept. Without
            idempotence, a producer is not used again after an unknown outcome.
    poll    A consumer requests the next records of the partitions that it reads. The result has,
            for each record, the offset, the value and the leader epoch in which it was appended.
            Only polls move a consumer. After a seek, it has another process name.
    ends    A client requests the end offsets for consumers from the leaders.

When the load is over and the cluster has converged, new consumers read every partition from its
start to its end, and the files of all replicas are read offline. The result is the final log. The
checker compares all other observations with it.

Anomalies:

    LOST, MOVED            an acknowledged value is not in the final log, or at another offset
    INCONSISTENT-OFFSET    two values at one offset, for any observers: producer, consumer, replica
    DUPLICATE              a value of an idempotent producer at two offsets
    G1A, PHANTOM           a value is read whose append failed, or that no client sent there
    OBSERVED-THEN-LOST     a consumer received a value that is not in the final log
    POLL-SKIP, NONMONOTONIC-POLL (and INT-, within one poll)
                           a consumer skips a record, or reads a lower offset than before
    NONMONOTONIC-SEND      the order of two values of one producer differs from the send order
    REALTIME-ORDER         a value has a higher offset than one sent after its acknowledgement
    HW-REGRESSION          an end is lower than an end that was known before the request
    GAP, EPOCH-ORDER       offsets are missing, or leader epochs decrease
    REPLICA-DIVERGENCE, STUCK
                           replicas differ after convergence, or do not catch up
    STALE-READ             a poll returns nothing where a record was acknowledged long before
    UNAVAILABLE            no append is acknowledged although enough brokers are running
"""

from __future__ import annotations

from functools import partial

from raftlog_jepsen.plan import WorkloadName
from raftlog_jepsen.workload.base import (
    Client,
    LoadOnly,
    WorkloadContext,
    create_topics,
    run_all,
)
from raftlog_jepsen.workload.consuming import consume, observe_ends
from raftlog_jepsen.workload.producing import produce


class AppendWorkload(LoadOnly):
    """Producers, consumers, and two clients that request end offsets."""

    name: WorkloadName = "append"

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        await run_all(context, clients(context))


def clients(context: WorkloadContext) -> dict[str, Client]:
    """Return the clients of this workload by name. Other workloads use them, too."""
    shape = context.plan.workload
    found: dict[str, Client] = {}
    for number, producer in enumerate(shape.producers, start=1):
        name = f"producer-{number}"
        found[name] = partial(produce, context, name, producer)
    for number, consumer in enumerate(shape.consumers, start=1):
        name = f"consumer-{number}"
        found[name] = partial(consume, context, name, consumer)
    for number, pinned in enumerate((False, True), start=1):
        name = f"ends-{number}"
        found[name] = partial(observe_ends, context, name, pinned=pinned)
    return found
