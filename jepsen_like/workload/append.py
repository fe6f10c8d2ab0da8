"""The append workload: many producers write to a log, many consumers read it meanwhile.

A log is a list of records that only grows at its end; each record has an offset, one more than the
one before it. The workload has a few topics of some partitions each, and every partition is such a
log. The model is Jepsen's Kafka workload (``jepsen/tests/kafka.clj``).

Operations:

    append  A producer sends a group of values, each an integer that nobody else in the run sends,
            to one partition. ``ok``: all replicas in sync have them, at the offsets given.
            ``fail``: none of those without an offset can ever be seen. ``info``: each may be there,
            or come yet, or never. A producer may have several groups under way; they are sent in
            the order in which they were invoked, and ``first`` tells which one a completion
            belongs to. With idempotence, no value is stored twice and the order is kept; without
            it, a producer that does not know an outcome is not used again.
    poll    A consumer asks for the next records of the partitions that it reads. What it gets says,
            for each record, the offset, the value and the leader epoch in which it was appended.
            Nothing but polls moves a consumer; one that seeks is another process.
    ends    Somebody asks the leaders where partitions end for consumers.

When the load is over and all is quiet, fresh consumers read every partition from its start to its
end, and the files of all replicas are read offline: the final log, which all else is held against.

What must not be found:

    LOST, MOVED            an acknowledged value is not in the final log, or at another offset
    INCONSISTENT-OFFSET    two values at one offset, whoever saw them: producer, consumer, replica
    DUPLICATE              a value of an idempotent producer at two offsets
    G1A, PHANTOM           a value is seen whose append failed, or that nobody sent there
    OBSERVED-THEN-LOST     a consumer was given a value that the final log lacks
    POLL-SKIP, NONMONOTONIC-POLL (and INT-, within one poll)
                           a consumer leaves a record out, or goes back
    NONMONOTONIC-SEND      what a producer sent later comes before what it sent earlier
    REALTIME-ORDER         what was acknowledged before something was sent comes after it
    HW-REGRESSION          an end is lower than one that was known before it was asked for
    GAP, EPOCH-ORDER       offsets are missing, or leader epochs go down
    REPLICA-DIVERGENCE, STUCK
                           replicas differ when all is quiet, or do not catch up
    STALE-READ             a poll gives nothing where something was acknowledged long before
    UNAVAILABLE            nothing is acknowledged although enough brokers are there
"""

from __future__ import annotations

from functools import partial

from raftlog.jepsen_like.plan import WorkloadName
from raftlog.jepsen_like.workload.base import (
    Client,
    LoadOnly,
    WorkloadContext,
    create_topics,
    run_all,
)
from raftlog.jepsen_like.workload.consuming import consume, observe_ends
from raftlog.jepsen_like.workload.producing import produce


class AppendWorkload(LoadOnly):
    """Producers, consumers, and two that ask where partitions end."""

    name: WorkloadName = "append"

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        await run_all(context, clients(context))


def clients(context: WorkloadContext) -> dict[str, Client]:
    """The clients of this workload, which others have as well, by name."""
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
