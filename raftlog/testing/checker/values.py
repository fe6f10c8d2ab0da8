"""Checks values: never sent, failed, duplicate, or of a deleted topic. Pure."""

from __future__ import annotations

import numpy as np

from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import Cover, Runs, agree, distinct
from raftlog.testing.checker.verdict import Findings, Found


def check_stored_values(partition: Partition, findings: Findings) -> None:
    """Report PHANTOM, G1A, DUPLICATE and RESURRECTED in the final log and in all poll results."""
    log = partition.log.runs if partition.log is not None else None
    odd = partition.odd()
    if partition.log is None or log is None:
        seen = agree(odd).runs
        below = seen
    else:
        gone = agree(odd.outside(partition.log.offsets)).runs
        below = gone if partition.is_compacted else gone.below(partition.gone_below)
        seen = log.with_(gone).with_(_disagreeing(partition, odd))
        below = log.with_(below)
    check_values(partition, seen, "", findings)
    _duplicates(partition, below, findings)
    _resurrected(partition, findings)
    for life in range(partition.lifetimes.last):
        former = agree(partition.seen.take(partition.seen_life == life)).runs
        check_values(partition, former, " before its topic was deleted", findings)
        _duplicates(partition, former, findings)
    unclear = agree(partition.seen.take(partition.seen_life < 0)).runs
    check_values(partition, unclear, " while its topic was being deleted", findings)


def check_values(partition: Partition, runs: Runs, where: str, findings: Findings) -> None:
    """Report PHANTOM and G1A in these runs. ``where``: text for the message."""
    end = runs.value + runs.count

    def describe(place: int) -> Found:
        return (
            f"{partition.name} had {runs.describe(place)}{where}",
            {"partition": partition.name} | evidence(runs, place),
        )

    known = partition.sent.count(runs.value, end)
    findings.each("PHANTOM", np.flatnonzero(known < runs.count), describe)

    def tell_failed(place: int) -> Found:
        message, found = describe(place)
        found["operations"] = _senders(partition, runs, place)
        return f"{message}, of an append that failed", found

    failed = partition.failed.count(runs.value, end)
    findings.each("G1A", np.flatnonzero(failed > 0), tell_failed)


def evidence(runs: Runs, place: int) -> dict[str, object]:
    """Return offsets and values of one run, each as first and last."""
    offset, count, value = (int(c[place]) for c in (runs.offset, runs.count, runs.value))
    return {"offsets": [offset, offset + count - 1], "values": [value, value + count - 1]}


def _senders(partition: Partition, runs: Runs, place: int) -> list[dict[str, object]]:
    """Return the appends that sent a run's values, at most two."""
    appends = partition.appends
    value, end = int(runs.value[place]), int(runs.value[place] + runs.count[place])
    rows = np.flatnonzero((appends.first < end) & (appends.first + appends.count > value))
    return [appends.describe(int(row)) for row in rows[:2]]


def _disagreeing(partition: Partition, odd: Runs) -> Runs:
    """Return poll results at offsets of the final log that are not in it."""
    if partition.log is None:
        return odd
    away = partition.log.values.count(odd.value, odd.value + odd.count) < odd.count
    inside = partition.log.offsets.count(odd.offset, odd.end) > 0
    return agree(odd.take(away & inside)).runs


def _duplicates(partition: Partition, runs: Runs, findings: Findings) -> None:
    order = np.lexsort((runs.offset, runs.value))
    runs = runs.take(order)
    end = runs.value + runs.count
    if len(runs) < 2:
        return
    farthest = np.maximum.accumulate(end)
    before = np.append(runs.value[:1], farthest[:-1])
    stop = np.minimum(end, before)
    bad = partition.idempotent.count(runs.value, np.maximum(stop, runs.value)) > 0

    def describe(place: int) -> Found:
        earlier = _holder(runs, place)
        return (
            f"{partition.name} has {runs.describe(earlier)}, and {runs.describe(place)}",
            {
                "partition": partition.name,
                "places": [evidence(runs, earlier), evidence(runs, place)],
                "operations": _senders(partition, runs, place),
            },
        )

    findings.each("DUPLICATE", np.flatnonzero(bad), describe)


def _holder(runs: Runs, place: int) -> int:
    """Return the row before ``place`` whose run also contains its first value."""
    holds = runs.value[:place] + runs.count[:place] > runs.value[place]
    return int(np.flatnonzero(holds)[-1])


def _resurrected(partition: Partition, findings: Findings) -> None:
    """Report RESURRECTED: only records acknowledged before a deletion was requested must not
    reappear after it."""
    lifetimes = partition.lifetimes
    acked = partition.appends.completed[partition.acked.by]
    # An older consumer returns the records that it had already fetched at any later time.
    began = partition.polls.session_began() if lifetimes.last else partition.polls.invoked
    since = 0
    for invoked, visible in zip(
        lifetimes.invoked.tolist(), lifetimes.visible.tolist(), strict=True
    ):
        dead = partition.acked.take((acked >= since) & (acked < invoked))
        seen = partition.seen.take(began[partition.seen.by] > visible)
        if partition.log is not None and lifetimes.is_clear:
            dumps = partition.gathered.dumps.values()
            for runs in (partition.log.runs, *(Runs.of(dump.records) for dump in dumps)):
                seen = runs.with_(seen)
        _seen_again(partition, dead, distinct(seen), invoked, findings)
        since = invoked


def _seen_again(
    partition: Partition, dead: Runs, seen: Runs, deleted: int, findings: Findings
) -> None:
    values = Cover(dead.value, dead.value + dead.count)
    found = values.count(seen.value, seen.value + seen.count)

    def describe(place: int) -> Found:
        return (
            (
                f"{partition.name} has {seen.describe(place)}, acknowledged before the topic "
                f"was deleted"
            ),
            {"partition": partition.name, "deletion_invoked_ns": deleted}
            | evidence(seen, place)
            | {"operations": _senders(partition, seen, place)},
        )

    findings.each("RESURRECTED", np.flatnonzero(found > 0), describe)
