"""The judge of real runs and the simulator's checker agree on the histories that both can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pytest

from raftlog.jepsen_like.checker.judge import judge
from raftlog.jepsen_like.history import (
    AnyEntry,
    Append,
    Delete,
    Dump,
    Ends,
    Phase,
    Poll,
    Read,
    Seen,
)
from raftlog.testing.simulator import history as simulated
from raftlog.testing.simulator.history import NEVER_NS, Deletion, EndOffsets, Operation, Send
from raftlog.types import TopicPartition
from tests.testing.simulator import test_checker
from tests.testing.simulator.test_checker import MUTATIONS, Run, good_run

SEEDS: Final = range(10)
SAME: Final = {"LOST-tail": "LOST", "LOST-mid": "LOST", "STUCK": "REPLICA-BEHIND"}
ENDED: Final = 1 << 61


def converted(run: Run) -> list[AnyEntry]:
    """The run as a history of the harness. A value is a number here, in the order of sends."""
    numbers: dict[str, int] = {}
    for send in run.history.sends:
        numbers.setdefault(send.value, len(numbers) + 1)

    def seen(records: Sequence[simulated.Seen]) -> list[Seen]:
        return [(r.offset, 1, numbers.get(r.value, -1), r.epoch) for r in records]

    entries: list[tuple[int, int, AnyEntry]] = []
    for number, operation in enumerate(run.history):
        invoke, done = both(operation, numbers, seen)
        invoke.time = operation.invoked_ns
        entries.append((operation.invoked_ns, number, invoke))
        if operation.completed_ns < NEVER_NS:
            # A mutation may have it answered before it was asked, which no file can say.
            done.time = max(operation.invoked_ns, operation.completed_ns)
            entries.append((done.time, number, done))
    ordered = [entry for _, _, entry in sorted(entries, key=lambda row: row[:2])]
    return [*ordered, *ending(run, seen)]


def both(
    operation: Operation,
    numbers: dict[str, int],
    seen: Callable[[Sequence[simulated.Seen]], list[Seen]],
) -> tuple[AnyEntry, AnyEntry]:
    """The invocation and the completion. Times are set by who calls."""
    found: list[AnyEntry] = []
    for type_ in ("invoke", operation.outcome.value):
        entry: AnyEntry
        is_done = type_ != "invoke"
        who = {"time": 0, "process": operation.process, "type": type_}
        if isinstance(operation, Send):
            value = numbers[operation.value]
            entry = Append(
                **who,  # type: ignore[arg-type]
                partition=str(operation.partition),
                first=value,
                acks=operation.acks,
                idempotent=operation.idempotent,
                offsets=[(value, 1, operation.offset)] if operation.is_ok and is_done else [],
            )
        elif isinstance(operation, simulated.Poll):
            given = operation.records if is_done and operation.is_ok else {}
            records = {str(name): seen(some) for name, some in given.items()}
            entry = Poll(**who, records=records)  # type: ignore[arg-type]
        elif isinstance(operation, EndOffsets):
            ends = operation.ends if is_done and operation.is_ok else {}
            entry = Ends(**who, ends={str(name): end for name, end in ends.items()})  # type: ignore[arg-type]
        else:
            assert isinstance(operation, Deletion)
            name = str(operation.partition)
            entry = Delete(**who, partition=name, before=operation.before)  # type: ignore[arg-type]
        found.append(entry)
    return found[0], found[1]


def ending(run: Run, seen: Callable[[Sequence[simulated.Seen]], list[Seen]]) -> list[AnyEntry]:
    def read(name: TopicPartition, reader: str, records: Sequence[simulated.Seen]) -> Read:
        end = records[-1].offset + 1 if records else 0
        return Read(
            time=ENDED, process=reader, type="ok", partition=str(name), start=0, end=end,
            records=seen(records),
        )  # fmt: skip

    return [
        *(read(name, "r1", records) for name, records in run.logs.items()),
        *(read(name, "r2", records) for name, records in run.second.items()),
        *(
            Dump(
                time=ENDED, process="runner", type="info", broker=int(dump.broker[-1]),
                partition=str(dump.partition), start=0,
                end=dump.records[-1].offset + 1 if dump.records else 0,
                should_be_whole=dump.is_in_sync, records=seen(dump.records),
            )
            for dump in run.dumps
        ),
        Phase(time=ENDED, process="runner", type="info", name="end"),
    ]  # fmt: skip


def kinds(run: Run) -> set[str]:
    verdict = judge(converted(run))
    return {SAME.get(kind, kind) for kind in verdict.kinds} - {"UNAVAILABLE"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_good_run_is_good_for_both(seed: int) -> None:
    run = good_run(seed)
    assert not run.kinds
    assert kinds(run) == set()
    assert judge(converted(run)).valid == "valid"


# Where the two rightly differ. A file is in the order of its times, so that what a mutation sends
# earlier is sent first; another epoch of a record is one kind here, whoever has it.
ALSO: Final = {"acknowledge_before_what_is_before": {"NONMONOTONIC-SEND"}}
NOT: Final = {
    "answer_out_of_order": {"REALTIME-ORDER"},
    "change_an_epoch_on_a_replica": {"REPLICA-DIVERGENCE"},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mutate", dict.fromkeys(m for m, _ in MUTATIONS), ids=lambda m: m.__name__)
def test_both_find_the_same(mutate: Callable[[Run], None], seed: int) -> None:
    run = good_run(seed)
    mutate(run)
    theirs, ours = run.kinds, kinds(run)
    name = mutate.__name__
    assert theirs - ours <= NOT.get(name, set()), (theirs, ours)
    assert ours - theirs <= ALSO.get(name, set()), (theirs, ours)


def test_all_of_its_mutations_are_tried() -> None:
    assert test_checker.MUTATIONS is MUTATIONS
    assert len({mutate for mutate, _ in MUTATIONS}) > 20
