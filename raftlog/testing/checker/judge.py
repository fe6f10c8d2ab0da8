"""Verdict on a history: one pass over the entries, then each check in turn.

The checks are pure and independent of each other. docs/reference/fault-injection.md and
``verdict.KINDS`` describe the conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import zstandard

from raftlog.testing import history
from raftlog.testing.checker import groups, log
from raftlog.testing.checker import run as run_checks
from raftlog.testing.checker.gather import FAIL, INFO, NEVER, OK, SECOND, Gatherer
from raftlog.testing.checker.partition import Lifetimes, Partition, Polls
from raftlog.testing.checker.verdict import (
    EVIDENCE_MAX,
    KINDS,
    TRANSACTIONS,
    Findings,
    Verdict,
    judged,
)
from raftlog.testing.history import AnyEntry, DamagedHistoryError

RETENTION: Final = ("retention.ms", "retention.bytes")
RETENTION_MS_MIN: Final = 86_400_000  # longer than a run
BEYOND: Final = "a fault exceeded the guarantees of the cluster"
RESTING: Final = {
    "quiesce": ("STUCK", "the cluster did not converge"),
    "drain": ("GROUP-STUCK", "the members of consumer groups did not catch up"),
    "read": ("STUCK", "not every partition could be read to its end"),
}
NO_LIMIT: Final = "the duration of outages is not limited"
NO_DUMPS: Final = "the files of replicas were not checked"
NO_GROUPS: Final = "there was no consumer group"
NO_MEMBERS: Final = "the consumer groups had no members"
NO_TRANSACTIONS: Final = "there was no transaction"
NOT_COMPACTED: Final = "no topic was compacted"
LOSSES: Final = (
    "LOST-tail",
    "LOST-mid",
    "OBSERVED-THEN-LOST",
    "GROUP-SKIPPED",
    "COMPACT-LOST-KEY",
    "COMPACT-RESURRECTED",
    "TXN-LOST-WRITE",
    "TXN-TORN",
    "TXN-ABORTED-READ",
    "TXN-DUPLICATE",
    "TXN-OFFSETS-SPLIT",
    "TXN-INCONSISTENT-OFFSET",
    "TXN-POLL-SKIP",
)
OF_MEMBERS: Final = (
    "GROUP-SKIPPED",
    "GROUP-UNDELIVERED",
    "GROUP-TWO-OWNERS",
    "GROUP-COMMIT-BACKWARD",
    "GROUP-STUCK",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits below which there is no anomaly. Times in ns.

    ``outage_max_ns``: maximum unexcused unavailability, and maximum duration of the recovery from
    an excused one. ``lag_ns``: how long after an acknowledgement, and after a fault, a consumer may
    receive no records, or records of a deleted topic. ``evidence_max``: findings of one kind that
    are reported with evidence. ``durable_acks``: the values of ``acks`` whose acknowledgement
    guarantees that a record remains. ``drift_ns``: by how much the clocks of group members can
    differ over a session, if each member runs as soon as it has work; then the ends of their
    sessions are exact. -1: members share busy processors.
    """

    outage_max_ns: int = 10 * SECOND
    lag_ns: int = 10 * SECOND
    evidence_max: int = EVIDENCE_MAX
    durable_acks: tuple[int, ...] = (-1,)
    drift_ns: int = -1


DEFAULT: Final = Limits()


def judge_file(path: Path, limits: Limits = DEFAULT) -> Verdict:
    """Check a history file.

    If a line cannot be read, the entries before it are checked, and the verdict is unknown at best.
    Raises ``OSError``.
    """
    gathered = Gatherer(limits.lag_ns)
    try:
        for entry in history.read(path):
            gathered.add(entry)
    except DamagedHistoryError as error:
        gathered.trouble(str(error))
    return _judge(gathered, limits)


def judge(entries: Iterable[AnyEntry], limits: Limits = DEFAULT) -> Verdict:
    """Check a history. ``entries``: in the order of its lines."""
    gathered = Gatherer(limits.lag_ns)
    for entry in entries:
        gathered.add(entry)
    return _judge(gathered, limits)


def _judge(run: Gatherer, limits: Limits) -> Verdict:
    beyond_since = min(
        (f.begun for f in run.faults.values() if f.is_beyond and f.is_harmful),
        default=NEVER,
    )
    not_applicable = _not_applicable(run, beyond_since)
    if limits.outage_max_ns >= NEVER:
        not_applicable["UNAVAILABLE"] = NO_LIMIT
    findings = Findings(not_applicable, limits.evidence_max)
    for kind, text in run.transactions.findings():
        findings.add(kind, text)
    partitions = list(_partitions(run, beyond_since, limits.durable_acks))
    for partition in partitions:
        if partition.name in run.transactions.partitions:
            run_checks.check_copies(partition, findings)  # aborted records are in them
            continue
        log.take_log(partition, findings)
        log.check_stored_values(partition, findings)
        log.check_appends(partition, findings)
        log.check_observed(partition, findings)
        log.check_polls(partition, findings, lag_ns=limits.lag_ns)
        log.check_watermarks(partition, findings)
        run_checks.check_replicas(partition, findings)
        log.check_compaction(partition, findings)
    named = {partition.name: partition for partition in partitions}
    is_exact = limits.drift_ns >= 0
    late = groups.check_offsets(
        run.groups, named, findings, beyond_since=beyond_since, is_exact=is_exact
    )
    groups.check_groups(
        run.groups,
        named,
        findings,
        drift_ns=limits.drift_ns,
        has_drained=any(phase.name == "drain" for phase in run.phases),
        faults=run.faults.values(),
        beyond_since=beyond_since,
    )
    for phase in run.phases:
        if phase.name in RESTING and phase.type == "fail":
            kind, what = RESTING[phase.name]
            findings.add(kind, f"after all faults were healed, {what}", phase=phase.name)
    outages, unavailability = run_checks.check(
        [partition.appends for partition in partitions],
        list(run.faults.values()),
        run.phases,
        findings,
        outage_max_ns=limits.outage_max_ns,
    )
    troubles = tuple(run_checks.troubles(run, partitions))
    return Verdict(
        valid=judged(findings.counts, troubles),
        counts=findings.counts,
        anomalies=tuple(findings.anomalies),
        stats=_stats(run, partitions) | late | unavailability | _set_aside(findings),
        outages=outages,
        troubles=troubles,
        not_injected=run_checks.not_injected(run.faults),
        not_applicable=findings.not_applicable,
    )


def _set_aside(findings: Findings) -> dict[str, Any]:
    return {"found_but_not_judged": findings.set_aside} if findings.set_aside else {}


def _not_applicable(run: Gatherer, beyond_since: int) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if not any(gathered.dumps for gathered in run.partitions.values()):
        reasons |= dict.fromkeys(("REPLICA-DIVERGENCE", "DAMAGED-REPLICA"), NO_DUMPS)
    if beyond_since < NEVER:
        reasons |= dict.fromkeys(LOSSES, BEYOND)
    if not run.groups.groups:
        reasons |= {kind: NO_GROUPS for kind in KINDS if kind.startswith("GROUP-")}
    elif not run.groups.members:
        reasons |= dict.fromkeys(OF_MEMBERS, NO_MEMBERS)
    if not run.transactions.partitions:
        reasons |= {kind: NO_TRANSACTIONS for kind in KINDS if kind.startswith(TRANSACTIONS)}
    if not any(keys for _, keys, _ in _compacted(run).values()):
        reasons |= {kind: NOT_COMPACTED for kind in KINDS if kind.startswith("COMPACT-")}
    return reasons


def _partitions(
    run: Gatherer, beyond_since: int, durable_acks: tuple[int, ...]
) -> Iterator[Partition]:
    columns = run.polls.columns()
    all_polls = Polls(run.sessions, *columns)
    shortened, compacted = _shortened(run), _compacted(run)
    lives = {
        topic: Lifetimes(changes, run.faults.values(), run.lag_ns)
        for topic, changes in run.topics.items()
    }
    for gathered in run.partitions.values():
        is_compacted, keys, keeps_tombstones = compacted.get(gathered.topic, (False, 0, False))
        yield Partition(
            gathered,
            names=run.processes,
            polls=all_polls,
            lifetimes=lives.get(gathered.topic) or Lifetimes(),
            is_shortened=gathered.topic in shortened,
            is_compacted=is_compacted,
            keys=keys,
            keeps_tombstones=keeps_tombstones,
            beyond_since=beyond_since,
            durable_acks=durable_acks,
        )


def _shortened(run: Gatherer) -> set[str]:
    """Return the topics whose settings allow brokers to delete records."""
    plan = run.start.plan if run.start is not None else {}
    topics = (plan.get("shape") or {}).get("topics") or ()
    found = {topic["name"] for topic in topics if _deletes(dict(topic.get("config") or ()))}
    for name, changes in run.topics.items():
        if any(_deletes(_settings(change.args)) for change in changes if change.outcome != FAIL):
            found.add(name)
    return found


def _compacted(run: Gatherer) -> dict[str, tuple[bool, int, bool]]:
    """Return for each topic of the plan whether it is compacted, its number of keys per partition,
    and whether a run is too short for a tombstone to be removed."""
    plan = run.start.plan if run.start is not None else {}
    topics = (plan.get("shape") or {}).get("topics") or ()
    found: dict[str, tuple[bool, int, bool]] = {}
    for topic in topics:
        config = dict(topic.get("config") or ())
        is_compacted = "compact" in str(config.get("cleanup.policy", ""))
        keeps_tombstones = int(config.get("delete.retention.ms") or 0) >= RETENTION_MS_MIN
        found[topic["name"]] = is_compacted, int(topic.get("keys") or 0), keeps_tombstones
    return found


def _settings(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a change's arguments, which can be one level deeper."""
    inner = [value for value in args.values() if isinstance(value, dict)]
    return {key: value for part in (args, *inner) for key, value in part.items()}


def _deletes(settings: Mapping[str, Any]) -> bool:
    """Return whether records can be deleted during a run. Not by age if the retention time is
    longer than any run: a wrong clock is no excuse."""
    retention_ms, retention_bytes = (int(settings.get(key) or "-1") for key in RETENTION)
    return 0 <= retention_ms < RETENTION_MS_MIN or retention_bytes >= 0


def _stats(run: Gatherer, partitions: list[Partition]) -> dict[str, Any]:
    """Return the number of entries and operations of each kind."""
    outcomes = {"ok": OK, "fail": FAIL, "info": INFO}
    appended = {
        name: sum(int((p.appends.outcome == outcome).sum()) for p in partitions)
        for name, outcome in outcomes.items()
    }
    injected: dict[str, int] = {}
    for fault in run.faults.values():
        if fault.injected:
            injected[fault.kind] = injected.get(fault.kind, 0) + 1
    lines = {f"{kind.__name__.lower()} {type_}": n for (kind, type_), n in run.lines.items()}
    return {
        "lines": dict(sorted(lines.items())),
        "appends": appended,
        "records_sent": sum(int(p.appends.count.sum()) for p in partitions),
        "records_acknowledged": sum(int(p.acked.count.sum()) for p in partitions),
        "records_polled": sum(int(p.seen.count.sum()) for p in partitions),
        "records_final": sum(int(np.sum(p.log.runs.count)) for p in partitions if p.log),
        "partitions": len(partitions),
        "replicas_dumped": sum(len(p.gathered.dumps) for p in partitions),
        "faults_injected": dict(sorted(injected.items())),
        **_group_stats(run),
        **({"transactions": run.transactions.operations} if run.transactions.partitions else {}),
        "seconds": max(0, run.time - run.began) / SECOND if run.line else 0.0,
    }


def _group_stats(run: Gatherer) -> dict[str, Any]:
    """Return the statistics of consumer groups; empty without groups."""
    found = run.groups
    if not found.groups:
        return {}
    shares = [share for group in found.groups.values() for share in group.shares.values()]
    stats: dict[str, Any] = {
        "groups": len(found.groups),
        "group_operations": dict(sorted(found.operations.items())),
    }
    if found.members:
        stats["members"] = len(found.members)
        stats["assignments"] = sum(len(share.owned) for share in shares)
        stats["records_given_to_groups"] = sum(
            int(np.sum(share.given.columns()[1])) for share in shares
        )
    return stats


# -- selftest --------------------------------------------------------------------------------------
#
# The self-test of the checker: stored histories with a known verdict, checked again.
#
# ``golden_histories.zst`` contains one valid history, and for each anomaly the edits that add it to
# that history. The self-test shows users of a verdict what the checker detects. The tests create
# the file, and try the same anomalies in histories of many seeds
# (``tests/golden/make_histories.py``).


GOLDEN: Final = Path(__file__).with_name("golden_histories.zst")
FILE_BYTES_MAX: Final = 16 << 20  # decompressed
VALID: Final = "valid"
UNKNOWN: Final = "unknown"


class Edit(msgspec.Struct, frozen=True):
    """Replace the entries from ``start`` to before ``end`` of the valid history with
    ``entries``."""

    start: int
    end: int
    entries: list[AnyEntry]


class Case(msgspec.Struct, frozen=True):
    """One anomaly. ``expected``: its kind; or the verdict, ``valid`` or ``unknown``."""

    name: str
    expected: str
    edits: list[Edit]


class GoldenHistories(msgspec.Struct, frozen=True):
    """The valid history, and the anomalies that can be added to it."""

    valid: list[AnyEntry]
    cases: list[Case]

    def entries_of(self, case: Case) -> Iterator[AnyEntry]:
        """Return the history with the anomaly."""
        at = 0
        for edit in case.edits:
            yield from self.valid[at : edit.start]
            yield from edit.entries
            at = edit.end
        yield from self.valid[at:]


class Result(NamedTuple):
    """Result of the checker for one stored history."""

    name: str
    expected: str
    passed: bool


def load(path: Path = GOLDEN) -> GoldenHistories:
    """Load the stored histories. Raises ``OSError``, ``zstandard.ZstdError`` or
    ``msgspec.MsgspecError`` if the file is corrupt."""
    data = zstandard.ZstdDecompressor().decompress(
        path.read_bytes(), max_output_size=FILE_BYTES_MAX
    )
    return msgspec.json.decode(data, type=GoldenHistories)


def run() -> tuple[Result, ...]:
    """Check every stored history. Every result should have ``passed``."""
    golden = load()
    return tuple(
        Result(case.name, case.expected, is_expected(case.expected, judge(golden.entries_of(case))))
        for case in golden.cases
    )


def is_expected(expected: str, verdict: Verdict) -> bool:
    """Return whether the verdict has the expected state or contains the expected kind of
    anomaly."""
    if expected in (VALID, UNKNOWN):
        return verdict.valid == expected
    return verdict.valid == "invalid" and expected in verdict.kinds
