"""What a judge says: the kinds of anomaly, each with its exact condition; findings; the verdict.

Only the words of a judgement live here: who finds what is the business of the modules beside this
one. A run of records that follow each other is one finding, however many they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

Valid: TypeAlias = Literal["valid", "invalid", "unknown"]
Found: TypeAlias = tuple[str, dict[str, Any]]  # a message, and evidence

SEVERITY: Final[Mapping[Valid, int]] = {"valid": 0, "unknown": 1, "invalid": 2}
EVIDENCE_MAX: Final = 20  # findings of one kind that are told in full

KINDS: Final[Mapping[str, str]] = {
    "LOST-tail": "an acknowledged value is not in the final log, which ends below its offset",
    "LOST-mid": "an acknowledged value is not in the final log, which has later offsets; or the "
    "log starts above what anybody had deleted",
    "MOVED": "an acknowledged value is in the final log, but not where it was acknowledged",
    "DUPLICATE": "a value of an idempotent producer is at two offsets",
    "G1A": "a value whose append certainly had no effect is seen",
    "PHANTOM": "a value that nobody sent to that partition is seen",
    "NONMONOTONIC-SEND": "an idempotent producer's acknowledged appends are not in its order",
    "INT-NONMONOTONIC-SEND": "within one append of an idempotent producer, values are not in order",
    "REALTIME-ORDER": "a value was acknowledged before another was sent, whose offset is lower",
    "OBSERVED-THEN-LOST": "a value that a consumer was given is not in the final log",
    "INCONSISTENT-OFFSET": "two values were seen, or acknowledged, at one offset",
    "INT-POLL-SKIP": "within one poll, a record is left out",
    "INT-NONMONOTONIC-POLL": "within one poll, the offsets of a partition do not grow",
    "POLL-SKIP": "a record is left out between two polls of one consumer, or before its first",
    "NONMONOTONIC-POLL": "a poll gives an offset below the consumer's position",
    "STALE-READ": "a consumer is given nothing, long after a record at its position or above was "
    "acknowledged and after the last fault had ended",
    "HW-REGRESSION": "an end offset is lower than one that was known before it was asked for",
    "GAP": "offsets are missing in a log above its start",
    "EPOCH-ORDER": "leader epochs go down with growing offsets, or differ for one record, or one "
    "epoch has two values at an offset",
    "REPLICA-DIVERGENCE": "a replica's log differs from the final log below its end",
    "DAMAGED-REPLICA": "damage was found in a replica's files when all was over",
    "STUCK": "when all was healed, a replica or a reader did not get to the end",
    "RESURRECTED": "a value acknowledged before its topic was deleted is seen in the topic that "
    "was created afterwards",
    "GROUP-OFFSET-LOST": "an offset that a group had committed is not told, but a lower one; or a "
    "member begins below it",
    "GROUP-OFFSET-PHANTOM": "an offset is told as committed that nobody tried to commit",
    "GROUP-OFFSET-ZERO": "no offset, or 0, is told as committed after another was acknowledged",
    "GROUP-SKIPPED": "a record below what a group has committed was dealt with by none of its "
    "members",
    "GROUP-UNDELIVERED": "a record was given to no member of a group, though later ones were",
    "GROUP-TWO-OWNERS": "two members of a group owned a partition at the same time, and commits of "
    "both were accepted, or both were awake for longer than it takes to notice, or it was given to "
    "the second before the first was asked for it",
    "GROUP-COMMIT-BACKWARD": "a commit was accepted below one that another member, or the same, "
    "had made since the partition was the committer's",
    "GROUP-STUCK": "when all was healed, the members of a group did not get to the end",
    "COMPACT-LOST-KEY": "the last acknowledged record of a key is gone from a compacted topic, and "
    "none of that key is behind it",
    "COMPACT-RESURRECTED": "a key has a value again, older than the acknowledged record that "
    "deleted it",
    "COMPACT-MOVED": "in a compacted topic, an acknowledged record is at another offset",
    "UNAVAILABLE": "nothing was acknowledged for too long, or less than half of what was sent, "
    "though the faults at that time should not have hindered it",
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding. ``evidence``: whatever of partition, offsets, values, operations (with their
    lines in the history, from 1) and replicas belongs to it; ready for JSON."""

    kind: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time without an acknowledgement while somebody waited for one.

    Times in ns of the history's clock. ``unexcused_ns``: what of it no fault excuses. ``faults``:
    the kinds that were active.
    """

    start_ns: int
    length_ns: int
    unexcused_ns: int
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``counts``: findings by kind, every kind listed. ``anomalies``: of each kind the first
    ``EVIDENCE_MAX``. ``troubles``: why the judge cannot be sure. ``not_injected``: faults that did
    not come about. ``not_applicable``: kinds that were not judged, and why."""

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
        """The kinds that were found."""
        return frozenset(kind for kind, count in self.counts.items() if count)

    def to_dict(self) -> dict[str, Any]:
        """For verdict.json."""
        return asdict(self)


class Findings:
    """Collects what is found, with evidence for the first few of each kind.

    ``not_applicable``: kinds that are only counted aside, with the reason.
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

    def each(self, kind: str, places: Iterable[Any], tell: Callable[[int], Found]) -> None:
        """A finding for each of ``places``, numbers; ``tell`` is asked about the first few only."""
        for place in places:
            if kind in self.not_applicable:
                self.set_aside[kind] = self.set_aside.get(kind, 0) + 1
                continue
            self.counts[kind] += 1
            if self.counts[kind] <= self.evidence_max:
                message, evidence = tell(int(place))
                self.anomalies.append(Anomaly(kind, message, evidence))


def judged(counts: Mapping[str, int], troubles: Iterable[str]) -> Valid:
    """What findings and troubles come to."""
    if any(counts.values()):
        return "invalid"
    return "unknown" if any(True for _ in troubles) else "valid"


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict of several on the same run: the worst of them, with all that they found.

    Of statistics that two of them have under one name, the later one's stay. With no verdicts at
    all, nothing is known.
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
