"""Verdict types: kinds of anomaly with their exact conditions, findings, and the verdict.

This module contains only the texts and types. The other modules of this package find the anomalies.
A run of consecutive records is one finding, independent of its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

Valid: TypeAlias = Literal["valid", "invalid", "unknown"]
Found: TypeAlias = tuple[str, dict[str, Any]]  # a message, and evidence

SEVERITY: Final[Mapping[Valid, int]] = {"valid": 0, "unknown": 1, "invalid": 2}
EVIDENCE_MAX: Final = 20  # findings of one kind that are reported with evidence

KINDS: Final[Mapping[str, str]] = {
    "LOST-tail": "an acknowledged value is not in the final log, which ends below its offset",
    "LOST-mid": "an acknowledged value is not in the final log, which has later offsets; or the "
    "log starts above the highest offset that a client deleted",
    "MOVED": "an acknowledged value is in the final log at another offset than acknowledged",
    "DUPLICATE": "a value of an idempotent producer is at two offsets",
    "G1A": "a reader received a value whose append certainly failed",
    "PHANTOM": "a reader received a value that no client sent to that partition",
    "NONMONOTONIC-SEND": "an idempotent producer's acknowledged appends are not in its order",
    "INT-NONMONOTONIC-SEND": "within one append of an idempotent producer, values are not in order",
    "REALTIME-ORDER": "a value was acknowledged before another with a lower offset was sent",
    "OBSERVED-THEN-LOST": "a value that a consumer received is not in the final log",
    "INCONSISTENT-OFFSET": "two values were read, or acknowledged, at one offset",
    "INT-POLL-SKIP": "within one poll, a record is missing",
    "INT-NONMONOTONIC-POLL": "within one poll, the offsets of a partition do not increase",
    "POLL-SKIP": "a record is missing between two polls of one consumer, or before its first",
    "NONMONOTONIC-POLL": "a poll returned an offset below the consumer's position",
    "STALE-READ": "a consumer received no records, long after a record at or above its position "
    "was acknowledged and after the last fault had ended",
    "HW-REGRESSION": "an end offset is lower than one that was known before the request",
    "GAP": "offsets are missing in a log above its start",
    "EPOCH-ORDER": "leader epochs decrease with increasing offsets, or differ for one record, or "
    "one epoch has two values at an offset",
    "REPLICA-DIVERGENCE": "a replica's log differs from the final log below its end",
    "DAMAGED-REPLICA": "a replica's files were corrupt at the end of the run",
    "STUCK": "after all faults were healed, a replica or a reader did not reach the end",
    "RESURRECTED": "a value acknowledged before its topic was deleted is in the topic that "
    "was created afterwards",
    "GROUP-OFFSET-LOST": "a lower offset was returned than the one that a group had committed; or "
    "a member started below it",
    "GROUP-OFFSET-PHANTOM": "an offset was returned as committed that no client tried to commit",
    "GROUP-OFFSET-AHEAD": "an offset was returned as committed beyond the end of the partition",
    "GROUP-OFFSET-ZERO": "no offset, or 0, was returned as committed after another was stored",
    "GROUP-SKIPPED": "a record below what a group has committed was processed by none of its "
    "members",
    "GROUP-UNDELIVERED": "a record was delivered to no member of a group, though later ones were",
    "GROUP-TWO-OWNERS": "two members of a group owned a partition at the same time, and commits of "
    "both were accepted, or both were running for longer than the detection time, or the second "
    "received it before the first was asked to release it; on exact clocks, the first polled or "
    "committed after the second had received it",
    "GROUP-COMMIT-BACKWARD": "a commit was accepted below one that another member, or the same, "
    "had made since the partition was assigned to the committer",
    "GROUP-STUCK": "after all faults were healed, the members of a group did not reach the end",
    "COMPACT-LOST-KEY": "the last acknowledged record of a key is missing in a compacted topic, "
    "and no later record has that key",
    "COMPACT-RESURRECTED": "a key has a value again, older than the acknowledged record that "
    "deleted it",
    "COMPACT-MOVED": "in a compacted topic, an acknowledged record is at another offset",
    "UNAVAILABLE": "no append was acknowledged for too long, or less than half of those sent, "
    "though the faults at that time should not have prevented it",
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding.

    ``evidence``: the partition, offsets, values, operations (with their lines in the history, from
    1) and replicas that belong to it; ready for JSON.
    """

    kind: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time without an acknowledgement while at least one client waited for one.

    Times in ns of the history's clock. ``unexcused_ns``: the part of it that no fault excuses.
    ``faults``: the kinds that were active.
    """

    start_ns: int
    length_ns: int
    unexcused_ns: int
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one history.

    ``counts``: findings by kind, with every kind. ``anomalies``: the first ``EVIDENCE_MAX`` of each
    kind. ``troubles``: reasons why the verdict is uncertain. ``not_injected``: faults that had no
    effect. ``not_applicable``: kinds that were not checked, each with the reason.
    """

    valid: Valid
    counts: Mapping[str, int]
    anomalies: tuple[Anomaly, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    troubles: tuple[str, ...] = ()
    not_injected: tuple[Mapping[str, Any], ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds that were found."""
        return frozenset(kind for kind, count in self.counts.items() if count)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        return asdict(self)


class Findings:
    """Collector of findings, with evidence for the first of each kind.

    ``not_applicable``: kinds that do not count for the verdict, each with the reason.
    """

    def __init__(
        self,
        not_applicable: Mapping[str, str] | None = None,
        evidence_max: int = EVIDENCE_MAX,
    ) -> None:
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.set_aside: dict[str, int] = {}
        self.anomalies: list[Anomaly] = []
        self.not_applicable = dict(not_applicable or {})
        self.evidence_max = evidence_max

    def add(self, kind: str, message: str, **evidence: Any) -> None:
        self.each(kind, (0,), lambda _: (message, evidence))

    def each(self, kind: str, places: Iterable[Any], describe: Callable[[int], Found]) -> None:
        """Add a finding for each of ``places`` (numbers). Calls ``describe`` only for the first
        ones."""
        for place in places:
            if kind in self.not_applicable:
                self.set_aside[kind] = self.set_aside.get(kind, 0) + 1
                continue
            self.counts[kind] += 1
            if self.counts[kind] <= self.evidence_max:
                message, evidence = describe(int(place))
                self.anomalies.append(Anomaly(kind, message, evidence))


def judged(counts: Mapping[str, int], troubles: Iterable[str]) -> Valid:
    """Return the verdict for these findings and troubles."""
    if any(counts.values()):
        return "invalid"
    return "unknown" if any(True for _ in troubles) else "valid"


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """Merge verdicts on the same run: the worst verdict, with all findings.

    If two verdicts have a statistic of the same name, the later one is kept. Without verdicts the
    result is unknown.
    """
    several = list(verdicts)
    counts = dict.fromkeys(KINDS, 0)
    for verdict in several:
        for kind, count in verdict.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    return Verdict(
        valid=max((v.valid for v in several), key=SEVERITY.__getitem__, default="unknown"),
        counts=counts,
        anomalies=tuple(anomaly for v in several for anomaly in v.anomalies),
        stats={name: stat for v in several for name, stat in v.stats.items()},
        outages=tuple(outage for v in several for outage in v.outages),
        troubles=tuple(trouble for v in several for trouble in v.troubles),
        not_injected=tuple(fault for v in several for fault in v.not_injected),
        not_applicable={kind: why for v in several for kind, why in v.not_applicable.items()},
    )
