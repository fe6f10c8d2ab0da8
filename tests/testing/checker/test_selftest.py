"""The self-test of the checker: histories that are edited, mutations, and what finds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
import zstandard

from raftlog.testing import history as keys
from raftlog.testing.checker import judge as judge_history
from raftlog.testing.checker import log, run
from raftlog.testing.checker.judge import GOLDEN, VALID, Result, is_expected, judge
from raftlog.testing.checker.verdict import KINDS
from raftlog.testing.history import (
    AnyEntry,
    Append,
    Commit,
    Committed,
    Dump,
    Member,
    Note,
    Poll,
    Read,
)
from tests.golden import make_histories
from tests.testing.checker import mutations_of_runs as runs
from tests.testing.checker.history_editor import HistoryEditor, renumbered, singles
from tests.testing.checker.mutations import MUTATIONS, UNKNOWN, Mutation
from tests.testing.checker.small import P, Small, good
from tests.testing.checker.synthetic import SHORT, SIDE, Size, history
from tests.testing.checker.synthetic_compaction import CLEAN, KEYS, TOMBSTONES_KEPT, Compacted
from tests.testing.checker.synthetic_groups import (
    APPENDED,
    MEMBERLESS,
    PARTITIONS,
    SILENT,
    SPOKEN,
    TICKS,
    Groups,
)

# -- editing ---------------------------------------------------------------------------------------

# A tape can be edited without a change to the entries that others have as well.


def tape_of(small: Small) -> HistoryEditor:
    return HistoryEditor(small.entries, Random(1))


def finished() -> Small:
    small = good()
    small.poll((0, 3, 1, 1), (3, 2, 4, 1))
    small.phase("heal")
    small.finish(dumps={2: {"should_be_whole": False}})
    return small


def test_singles_and_their_numbers() -> None:
    assert singles([(5, 2, 9, 1), (7, 1, 3, 2)]) == [(5, 1, 9, 1), (6, 1, 10, 1), (7, 1, 3, 2)]
    assert renumbered([(5, 1, 9, 1), (8, 1, 3, 2)]) == [(5, 1, 9, 1), (6, 1, 3, 2)]


def test_finding() -> None:
    tape = tape_of(finished())
    assert [at for at, _ in tape.find(Append)] == [2, 3, 4, 5, 6, 7]
    assert not list(tape.find(Append, "u:0"))
    assert [(one.invoked, one.completed, one.offset) for one in tape.acked(P)] == [
        (2, 3, 0),
        (4, 5, 3),
        (6, 7, 5),
    ]
    assert not tape.acked(P, idempotent=False)
    ((at, records),) = tape.polls(P)
    assert (at, len(records)) == (9, 5)
    assert tape.final(P) == singles([(0, 3, 1, 1), (3, 2, 4, 1), (5, 1, 6, 1)])
    assert tape.when("heal") == tape.entries[10].time


def test_changes_stay_on_the_tape() -> None:
    small = finished()
    before = repr(small.entries)
    tape = tape_of(small)
    tape.change(2, count=9)
    tape.give(9, P, [(0, 1, 1, 1)])
    tape.rewrite(P, lambda log: log[:2], end=2)
    tape.show(P, (0, 1, 1, 1))
    tape.insert(Note(time=0, process="r", type="info", text="first"))
    assert repr(small.entries) == before
    assert isinstance(tape.entries[0], Note)
    assert next(entry.count for _, entry in tape.find(Append)) == 9
    polled = [entry.records for _, entry in tape.find(Poll) if entry.records]
    assert polled == [{P: [(0, 1, 1, 1)]}] * 2
    assert [(e.end, len(e.records)) for _, e in tape.find(Read)] == [(2, 2), (2, 2)]
    # A replica which need not be whole stays as it is.
    assert [(e.end, len(e.records)) for _, e in tape.find(Dump)] == [(2, 2), (6, 3)]


def test_the_parts_of_a_copy_are_edited_as_one() -> None:
    small = finished()
    tape = tape_of(small)
    at, read = next(iter(tape.find(Read)))
    tape.change(at, records=read.records[:1])
    tape.insert(
        Read(time=read.time, process="r1", type="ok", partition=P, start=0, end=6,
             records=read.records[1:])
    )  # fmt: skip
    tape.reread(P, "r1", lambda log: log[1:])
    parts = [entry.records for _, entry in tape.find(Read) if entry.process == "r1"]
    assert [len(part) for part in parts] == [5, 0]


def test_entries_are_taken() -> None:
    tape = tape_of(finished())
    count = len(tape.entries)
    first, second = tape.take(2, 5)
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    assert (first.first, second.first, len(tape.entries)) == (1, 4, count - 2)


def test_an_append_that_failed() -> None:
    small = finished()
    small.invoke(9, partition="load:0")
    small.complete(9, partition="load:0", type_="fail")
    assert tape_of(small).failed().first == 9


# -- mutations -------------------------------------------------------------------------------------

# There is a mutation for every kind, and each changes something, in the same way every time.


GOOD = tuple(history(7))


def test_every_kind_has_a_mutation() -> None:
    assert {mutation.kind for mutation in MUTATIONS} == {*KINDS, UNKNOWN}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.kind}: {m.name}")
def test_a_mutation_changes_a_tape_of_its_own(mutation: Mutation) -> None:
    before = repr(GOOD)
    one, other = HistoryEditor(GOOD, Random(3)), HistoryEditor(GOOD, Random(3))
    mutation.apply(one)
    mutation.apply(other)
    assert one.entries == other.entries
    assert one.entries != list(GOOD)
    assert repr(GOOD) == before
    times = [entry.time for entry in one.entries]
    assert times == sorted(times)


# -- mutations of groups ---------------------------------------------------------------------------
#
# Mutations of groups and of compacted topics change nothing but those.


MUTATIONS_OF_GROUPS_GOOD = tuple(history(11))
MINE = [m for m in MUTATIONS if m.kind.startswith(("GROUP-", "COMPACT-"))]


def others(entries: list[AnyEntry] | tuple[AnyEntry, ...]) -> list[AnyEntry]:
    """What has to do neither with groups nor with keys."""
    return [
        entry
        for entry in entries
        if not getattr(entry, "group", "")
        and not getattr(entry, "partition", "").startswith("keyed:")
        and getattr(entry, "name", "") != "drain"
    ]


def test_there_are_some_for_each_kind() -> None:
    assert len({mutation.kind for mutation in MINE}) == 12
    assert len(MINE) >= 18


@pytest.mark.parametrize("mutation", MINE, ids=lambda m: m.name)
def test_what_a_mutation_leaves_alone(mutation: Mutation) -> None:
    tape = HistoryEditor(MUTATIONS_OF_GROUPS_GOOD, Random(1))
    mutation.apply(tape)
    assert others(tape.entries) == others(MUTATIONS_OF_GROUPS_GOOD)
    assert tape.entries != list(MUTATIONS_OF_GROUPS_GOOD)


def test_copies_are_changed_alike_unless_it_is_about_one() -> None:
    mutation = next(m for m in MINE if m.name == "lose a key")
    tape = HistoryEditor(MUTATIONS_OF_GROUPS_GOOD, Random(1))
    mutation.apply(tape)
    left = [
        e.records
        for e in tape.entries
        if isinstance(e, Read | Dump) and e.partition == "keyed:0" and e.records
    ]
    assert len({repr(records) for records in left}) == 1


# -- mutations of runs -----------------------------------------------------------------------------
#
# What spoils a run leaves its records alone: no other kind of anomaly comes of it.


MUTATIONS_OF_RUNS_GOOD = tuple(history(8))


@pytest.mark.parametrize(
    ("mutate", "kinds", "trouble"),
    [
        (runs.stop_for_a_while, {"UNAVAILABLE"}, ""),
        (runs.refuse_most, {"UNAVAILABLE"}, ""),
        (runs.break_off, set(), "did not complete"),
        (runs.read_nothing_at_the_end, set(), "was not read at the end"),
        (runs.acknowledge_nothing, set(), "no append was acknowledged"),
        (runs.claim_a_fault, set(), "without an effect"),
        (runs.inject_nothing, set(), "was injected"),
        (runs.be_in_trouble, set(), "?"),
        (runs.send_a_value_twice, set(), "that another append sends"),
    ],
)
def test_only_the_run_is_spoiled(
    mutate: Callable[[HistoryEditor], None], kinds: set[str], trouble: str
) -> None:
    tape = HistoryEditor(MUTATIONS_OF_RUNS_GOOD, Random(1))
    mutate(tape)
    verdict = judge(tape.entries)
    assert verdict.kinds == kinds
    if trouble:
        assert any(trouble in text for text in verdict.troubles)
    else:
        assert not verdict.troubles


# -- synthetic histories ---------------------------------------------------------------------------

# Synthetic histories have all that makes judging hard, and nothing that is wrong.


@pytest.mark.parametrize("seed", range(50, 60))
def test_they_are_valid(seed: int) -> None:
    verdict = judge(history(seed))
    assert (verdict.valid, verdict.kinds, verdict.troubles) == ("valid", frozenset(), ())


def test_the_same_seed_and_size_give_the_same() -> None:
    assert list(history(1)) == list(history(1))
    assert list(history(1)) != list(history(2))


def test_they_are_as_long_as_they_should_be() -> None:
    for operations in (300, 3_000):
        size = Size(operations=operations, time_s=120.0)
        invoked = [
            e
            for e in history(1, size)
            if e.type == "invoke" and not getattr(e, "group", "") and "keyed" not in e.process
        ]
        count = sum(isinstance(entry, Append | Poll) for entry in invoked)
        assert 0.7 * operations < count < 1.3 * operations


def has_duplicates(entries: list[AnyEntry]) -> bool:
    values: Counter[int] = Counter()
    for entry in entries:
        if isinstance(entry, Read) and entry.process == "reader-1":
            for _, count, first, _ in entry.records:
                values.update(range(first, first + count))
    return max(values.values()) > 1


def test_they_have_all_that_makes_judging_hard() -> None:
    entries = list(history(1))
    appends = [entry for entry in entries if isinstance(entry, Append)]
    ends = Counter(entry.type for entry in appends)
    assert min(ends[type_] for type_ in ("ok", "fail", "info")) > 0
    assert ends["invoke"] > ends["ok"] + ends["fail"] + ends["info"]  # some are never completed
    assert {entry.acks for entry in appends} == {-1, 0, 1}
    assert {entry.idempotent for entry in appends} == {True, False}
    assert any(e.type == "info" and e.offsets for s in range(5) for e in of(s, Append))
    assert any(has_duplicates(list(history(seed))) for seed in range(5))
    starts = {entry.partition: entry.start for entry in entries if isinstance(entry, Read)}
    assert starts["load:0"] == 0
    assert starts["load:1"] > 0  # somebody deleted records
    assert starts[SHORT] > 0  # the brokers did
    assert SIDE in starts
    assert any(not dump.should_be_whole for dump in of(1, Dump))
    consumers = {entry.process for entry in entries if isinstance(entry, Poll)}
    assert len(consumers) > 3  # sessions end, others begin


def of(seed: int, kind: type) -> list[Append]:
    return [entry for entry in history(seed) if isinstance(entry, kind)]


# -- synthetic compaction --------------------------------------------------------------------------
#
# The compacted topic of a synthetic history: what is left of each key is what was last of it.


def made(seed: int) -> Compacted:
    compacted = Compacted(Random(seed), 0, 10**9)
    compacted.entries()
    return compacted


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_is_what_was_last(seed: int) -> None:
    compacted = made(seed)
    left = compacted.log()
    assert 0 < len(left) < compacted.log_end
    assert [offset for offset, *_ in left] == sorted({offset for offset, *_ in left})
    for offset, _, value, _ in left:
        assert compacted.values[offset] == value
    state = {keys.key_of(value, KEYS): value for value in compacted.values}
    now = {keys.key_of(value, KEYS): value for _, _, value, _ in left}
    for key, value in state.items():
        assert now.get(key) == value or (key not in now and keys.is_tombstone(value))


def test_holes_and_tombstones_come_up() -> None:
    compacted = made(1)
    clean = int(CLEAN * compacted.log_end)
    left = compacted.log()
    assert sum(offset < clean for offset, *_ in left) < clean / 2
    assert [offset for offset, *_ in left if offset >= clean] == [*range(clean, compacted.log_end)]
    gone = [
        value
        for value in compacted.values[: int(TOMBSTONES_KEPT * compacted.log_end)]
        if keys.is_tombstone(value)
    ]
    assert gone
    assert not set(gone) & {value for _, _, value, _ in left}


def test_entries_are_in_order_and_some_nobody_knows() -> None:
    entries = Compacted(Random(1), 0, 10**9).entries()
    times = [entry.time for entry in entries]
    assert times == sorted(times)
    assert {e.type for e in entries if isinstance(e, Append)} == {"invoke", "ok", "info"}


# -- synthetic groups ------------------------------------------------------------------------------
#
# The groups of a synthetic history: all that makes judging hard comes up.


def synthetic_groups_made(seed: int = 1) -> Groups:
    return Groups(Random(seed), [1_000_000 * tick for tick in range(1, TICKS + 1)])


def test_entries_are_in_order_and_the_same_for_the_same_seed() -> None:
    groups = synthetic_groups_made()
    entries = groups.entries()
    load = list(entries)
    times = [entry.time for entry in load]
    assert times == sorted(times)
    assert synthetic_groups_made().entries() == load
    assert any(synthetic_groups_made(seed).entries() != load for seed in range(2, 6))


def test_what_comes_up() -> None:
    entries = list(synthetic_groups_made().entries())
    whats = {entry.what for entry in entries if isinstance(entry, Member)}
    assert whats == {"start", "assigned", "revoked", "lost", "killed", "paused", "resumed", "end"}
    commits = [entry for entry in entries if isinstance(entry, Commit)]
    assert {commit.group for commit in commits} == {SPOKEN, MEMBERLESS}
    assert {commit.type for commit in commits} == {"invoke", "ok", "info"}
    given = {entry.group for entry in entries if isinstance(entry, Poll)}
    assert given == {SPOKEN, SILENT}


def test_in_the_end_all_is_given_and_committed() -> None:
    groups = synthetic_groups_made()
    groups.entries()
    ending = list(groups.ending(10**12))
    noted = [e for e in ending if isinstance(e, Committed) and e.type == "ok" and e.group == SILENT]
    assert noted
    for entry in noted:
        assert entry.offsets == groups.ends
    for partition in PARTITIONS:
        runs = groups.log(partition)
        assert sum(count for _, count, _, _ in runs) == groups.ends[partition]
        assert {count for _, count, _, _ in runs} == {APPENDED}


# -- the self-test ---------------------------------------------------------------------------------

# The checker finds every anomaly that is put into a good run, and none in the good run itself.


def missed(seed: int, mutations: Sequence[Mutation] = MUTATIONS) -> list[str]:
    """The mutations of a seed's history that are not found; ``valid`` if that itself is not."""
    good = list(history(seed))
    found = [] if is_expected(VALID, judge_history.judge(good)) else [VALID]
    for mutation in mutations:
        editor = HistoryEditor(good, Random(seed))
        mutation.apply(editor)
        if not is_expected(mutation.kind, judge_history.judge(editor.entries)):
            found.append(mutation.name)
    return found


@pytest.mark.parametrize("seed", range(1, 21))
def test_every_anomaly_is_found(seed: int) -> None:
    assert missed(seed) == []


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_every_anomaly_is_found_in_many_more_histories() -> None:
    assert {seed: found for seed in range(100, 600) if (found := missed(seed))} == {}


# -- the stored histories


def test_the_stored_histories_are_those_of_the_generators() -> None:
    assert msgspec.json.encode(judge_history.load()) == msgspec.json.encode(make_histories.make())


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / GOLDEN.name
    path.write_bytes(GOLDEN.read_bytes()[:-100])
    with pytest.raises(zstandard.ZstdError):
        judge_history.load(path)


def nothing(*_: object, **__: object) -> tuple[str, ...]:
    return ()


def failed() -> list[Result]:
    return [result for result in judge_history.run() if not result.passed]


@pytest.mark.parametrize(
    ("check", "kinds"),
    [
        ("check_appends", {"LOST-tail", "MOVED", "REALTIME-ORDER", "NONMONOTONIC-SEND"}),
        ("check_observed", {"OBSERVED-THEN-LOST"}),
        ("check_polls", {"POLL-SKIP", "INT-POLL-SKIP", "NONMONOTONIC-POLL", "STALE-READ"}),
    ],
)
def test_a_judge_that_does_not_look_is_caught(
    check: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed() == []
    monkeypatch.setattr(log, check, nothing)
    found = {result.expected for result in failed()}
    assert found >= kinds
    assert VALID not in found


def test_a_judge_without_doubts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "troubles", nothing)
    unknown = [
        case for case in judge_history.load().cases if case.expected == judge_history.UNKNOWN
    ]
    assert len([result for result in failed() if result.expected == judge_history.UNKNOWN]) == len(
        unknown
    )


def test_a_judge_that_is_never_content_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., tuple[str, ...]] = run.troubles  # type: ignore[assignment]

    def doubt(*args: object) -> tuple[str, ...]:
        return (*real(*args), "who knows")

    monkeypatch.setattr(judge_history.run_checks, "troubles", doubt)
    assert judge_history.run()[0] == Result(VALID, VALID, passed=False)
