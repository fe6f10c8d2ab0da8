"""Transactions in a history: gathered, and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest
from msgspec.structs import replace

from raftlog.testing.checker import transactions as checks
from raftlog.testing.checker.gather import TransactionsGatherer
from raftlog.testing.checker.judge import judge
from raftlog.testing.checker.transactions import KINDS, Place, Read, Transaction, check
from raftlog.testing.checker.verdict import KINDS as ALL_KINDS
from raftlog.testing.checker.verdict import TRANSACTIONS, UNSETTLED
from raftlog.testing.history import AnyEntry, Fault, Phase, Transact
from raftlog.types import Offset, TopicPartition
from tests.testing.checker.mutations_of_transactions import transactions

# -- gathering -------------------------------------------------------------------------------------

# Transactions in a history are judged. ``test_selftest`` has the anomalies.


def history() -> list[AnyEntry]:
    end = Phase(time=1_000, process="runner", type="info", name="end")
    return [*transactions(), end]


def test_a_history_without_anomalies_is_valid() -> None:
    verdict = judge(history())
    assert (verdict.valid, verdict.troubles) == ("valid", ())
    assert verdict.stats["transactions"] == {"ok": 2, "fail": 1}
    assert {kind for kind in ALL_KINDS if kind.startswith(TRANSACTIONS)} == {
        UNSETTLED, *(TRANSACTIONS + kind for kind in checks.KINDS)
    }  # fmt: skip


def test_a_transaction_without_a_completion_may_be_committed() -> None:
    entries = history()
    del entries[1]
    assert judge(entries).valid == "valid"


def test_losses_that_are_not_judged_hide_no_other_anomaly() -> None:
    fault = Fault(
        time=0, process="n", type="info", id=1, kind="wipe", phase="begin", budget="beyond",
        effect={"seen": "empty"},
    )  # fmt: skip
    lost: list[AnyEntry] = [
        Transact(time=0, process="w", type=type_, name=f"lost-{n}", sent=[("txn:0", n)], ending=1)
        for n in range(100, 120)
        for type_ in ("invoke", "ok")
    ]
    entries = history()
    entries[9] = replace(entries[9], unsettled=["open"])
    entries[1] = replace(entries[1], after_fence=True)
    assert judge([fault, *lost, *entries]).kinds == {"TXN-ZOMBIE", "TXN-UNSETTLED"}


@pytest.mark.parametrize(
    ("line", "words"), [(0, "begins one again"), (1, "completes one, which was not begun")]
)
def test_entries_that_do_not_fit_are_troubles(line: int, words: str) -> None:
    troubles: list[str] = []
    gatherer = TransactionsGatherer(troubles.append)
    entries = history()
    for entry in (*entries[:2], entries[line]):
        assert isinstance(entry, Transact)
        gatherer.transact(entry, 1)
    assert words in troubles[0]


# -- judging ---------------------------------------------------------------------------------------

# Each anomaly of transactions is found where it is planted in a valid history, and only there.


A: Final = TopicPartition("a", 0)
B: Final = TopicPartition("b", 0)
OUT: Final = TopicPartition("out", 0)


@dataclass
class Timeline:
    """A commit over two partitions, an abort, an unknown commit that took effect, and one that
    reads the first and writes an output with the group's offset.
    """

    committed: Transaction = field(
        default_factory=lambda: Transaction(
            "t1", [Place(A, b"1"), Place(A, b"2"), Place(B, b"3")], [], "committed", 2.0
        )
    )
    aborted: Transaction = field(
        default_factory=lambda: Transaction("t2", [Place(A, b"4")], [], "aborted", None)
    )
    unknown: Transaction = field(
        default_factory=lambda: Transaction(
            "t3", [Place(A, b"5"), Place(B, b"6")], [], "unknown", 3.0
        )
    )
    copy: Transaction = field(
        default_factory=lambda: Transaction(
            "t4", [Place(OUT, b"o1"), Place(OUT, b"o2")], [], "committed", 4.0
        )
    )
    reads: list[Read] = field(
        default_factory=lambda: [
            Read("r", 2.5, A, 0, b"1"),
            Read("r", 2.5, A, 1, b"2"),
            Read("r", 3.5, A, 5, b"5"),
        ]
    )
    final: dict[TopicPartition, list[tuple[Offset, bytes]]] = field(
        default_factory=lambda: {
            A: [(0, b"1"), (1, b"2"), (5, b"5")],
            B: [(0, b"3"), (2, b"6")],
            OUT: [(0, b"o1"), (1, b"o2")],
        }
    )
    offsets: dict[TopicPartition, Offset] = field(default_factory=lambda: {A: 2})

    def __post_init__(self) -> None:
        self.copy.read = [Place(A, b"1"), Place(A, b"2")]

    def kinds(self) -> set[str]:
        noted = [self.committed, self.aborted, self.unknown, self.copy]
        return {found.kind for found in check(noted, self.reads, self.final, self.offsets)}


def test_a_valid_history_has_no_findings() -> None:
    assert Timeline().kinds() == set()


def lose(timeline: Timeline) -> None:
    del timeline.final[B][0]


def tear(timeline: Timeline) -> None:
    del timeline.final[B][1]


def read_early(timeline: Timeline) -> None:
    timeline.reads[0] = timeline.reads[0]._replace(at_s=1.9)


def skip(timeline: Timeline) -> None:
    del timeline.reads[1]


def lose_what_was_read(timeline: Timeline) -> None:
    del timeline.final[A][2], timeline.final[B][1]


def cycle(timeline: Timeline) -> None:
    timeline.committed.read = [Place(OUT, b"o1")]


def split_without_output(timeline: Timeline) -> None:
    timeline.offsets[A] = 6


def split_without_commit(timeline: Timeline) -> None:
    timeline.offsets[A] = 1


def fence(timeline: Timeline) -> None:
    timeline.unknown.after_fence = True


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda timeline: timeline.final[A].append((6, b"4")), "ABORTED-READ"),
        (lambda timeline: timeline.reads.append(Read("r", 9.0, A, 6, b"4")), "ABORTED-READ"),
        (lose, "LOST-WRITE"),
        (tear, "TORN"),
        (read_early, "PRECOMMITTED-READ"),
        (lambda timeline: timeline.final[B].append((7, b"6")), "DUPLICATE"),
        (lambda timeline: timeline.final[B].append((7, b"?")), "PHANTOM"),
        (lambda timeline: timeline.reads.append(Read("r", 9.0, B, 9, b"?")), "PHANTOM"),
        (lambda timeline: timeline.reads.append(Read("s", 9.0, A, 0, b"2")), "INCONSISTENT-OFFSET"),
        (
            lambda timeline: timeline.final.update({A: [(0, b"2"), (1, b"1"), (5, b"5")]}),
            "WRITE-ORDER",
        ),
        (lambda timeline: timeline.reads.append(Read("r", 9.0, A, 1, b"2")), "NONMONOTONIC-POLL"),
        (skip, "POLL-SKIP"),
        (lose_what_was_read, "LOST-WRITE"),
        (cycle, "G1C"),
        (split_without_output, "OFFSETS-SPLIT"),
        (split_without_commit, "OFFSETS-SPLIT"),
        (fence, "ZOMBIE"),
    ],
)
def test_planted_anomalies_are_found(plant: Callable[[Timeline], object], kind: str) -> None:
    timeline = Timeline()
    plant(timeline)
    assert kind in KINDS
    assert kind in timeline.kinds()
