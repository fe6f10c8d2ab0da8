"""What can go wrong with consumer groups and compaction, put into good histories: see
``mutations``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from msgspec.structs import replace

from raftlog.testing import history as entries
from raftlog.testing.history import (
    AnyEntry,
    Append,
    Commit,
    Committed,
    Member,
    Poll,
    Seen,
    Type,
)
from tests.testing.checker.history_editor import HistoryEditor, singles
from tests.testing.checker.synthetic_compaction import KEYS
from tests.testing.checker.synthetic_compaction import PARTITION as KEYED
from tests.testing.checker.synthetic_groups import MEMBERLESS, PARTITIONS, SILENT, SPOKEN

ONE, OTHER = PARTITIONS


# -- offsets ---------------------------------------------------------------------------------------


def _last_told(tape: HistoryEditor, group: str) -> tuple[int, Committed]:
    """The last answer about a group's offsets."""
    return [
        (at, entry)
        for at, entry in enumerate(tape.entries)
        if isinstance(entry, Committed) and entry.type == "ok" and entry.group == group
    ][-1]


def _tell(tape: HistoryEditor, group: str, offset: Callable[[int], int]) -> None:
    at, entry = _last_told(tape, group)
    tape.change(at, offsets={**entry.offsets, ONE: offset(entry.offsets[ONE])})


def tell_an_offset_of_before(tape: HistoryEditor) -> None:
    """One that was acknowledged, and not the last, and that nobody else tried."""
    commits = [e for e in tape.entries if isinstance(e, Commit) and e.group == MEMBERLESS]
    unknown = {entry.offsets[ONE] for entry in commits if entry.type == "info"}
    known = {entry.offsets[ONE] for entry in commits if entry.type == "ok"}
    before = sorted(known - unknown)[:-1]
    _tell(tape, MEMBERLESS, lambda _: before[len(before) // 2])


def tell_a_member_s_offset_of_before(tape: HistoryEditor) -> None:
    known = sorted(
        entry.offsets[ONE]
        for entry in tape.entries
        if isinstance(entry, Commit) and entry.type == "ok" and ONE in entry.offsets
        if entry.group == SPOKEN
    )
    _tell(tape, SPOKEN, lambda _: known[0])


def begin_before_what_was_committed(tape: HistoryEditor) -> None:
    """The next owner is given from its first record on what was committed by the one before."""
    at = next(
        at
        for at, entry in enumerate(tape.entries)
        if isinstance(entry, Poll) and entry.process.startswith("c#") and ONE in entry.records
    )
    first = tape.final(ONE)[0]
    entry = tape.entries[at]
    assert isinstance(entry, Poll), "no poll"
    tape.give(at, ONE, [first, *entry.records[ONE]])


def tell_what_nobody_committed(tape: HistoryEditor) -> None:
    _tell(tape, MEMBERLESS, lambda offset: offset + 1_000)


def tell_what_failed(tape: HistoryEditor) -> None:
    """The last commit certainly had no effect."""
    time = tape.when("drain") - 10
    commit = Commit(time=time, process="unlucky", type="invoke", group=SPOKEN, offsets={ONE: 77})
    tape.insert(commit, replace(commit, time=time + 1, type="fail"))
    _tell(tape, SPOKEN, lambda _: 77)


def tell_more_than_was_given(tape: HistoryEditor) -> None:
    _tell(tape, SILENT, lambda offset: offset + 1)


def tell_zero(tape: HistoryEditor) -> None:
    _tell(tape, SPOKEN, lambda _: 0)


def tell_what_is_ahead(tape: HistoryEditor) -> None:
    _tell(tape, SPOKEN, lambda _: 1 << 40)


def tell_nothing(tape: HistoryEditor) -> None:
    _tell(tape, MEMBERLESS, lambda _: -1)


# -- members ---------------------------------------------------------------------------------------


def _withhold(tape: HistoryEditor, group: str, partition: str, offsets: set[int]) -> None:
    """Nobody in the group is given these records."""
    for at, entry in enumerate(tape.entries):
        if isinstance(entry, Poll) and entry.group == group and partition in entry.records:
            left = [seen for seen in singles(entry.records[partition]) if seen[0] not in offsets]
            tape.give(at, partition, left)


def _never_tell_more(tape: HistoryEditor, partition: str, offset: int) -> None:
    """Of the group whose members do not say what they commit."""
    for at, entry in enumerate(tape.entries):
        if isinstance(entry, Committed) and entry.group == SILENT and entry.type == "ok":
            noted = min(offset, entry.offsets[partition])
            tape.change(at, offsets={**entry.offsets, partition: noted})


def skip_a_record(tape: HistoryEditor) -> None:
    _withhold(tape, SPOKEN, ONE, {tape.random.randrange(3, 60)})


def skip_a_record_silently(tape: HistoryEditor) -> None:
    _withhold(tape, SILENT, OTHER, {tape.random.randrange(3, 60)})


def skip_what_is_not_committed(tape: HistoryEditor) -> None:
    """It would still come, had the group not been given later ones already."""
    lost = tape.random.randrange(40, 60)
    _withhold(tape, SILENT, ONE, {lost})
    _never_tell_more(tape, ONE, lost)


def stop_at_the_end(tape: HistoryEditor) -> None:
    """The last records go to nobody."""
    end = tape.final(ONE)[-1][0]
    last = {end - 2, end - 1, end}
    _withhold(tape, SILENT, ONE, last)
    _never_tell_more(tape, ONE, end - 2)


def read_nothing_of_a_partition(tape: HistoryEditor) -> None:
    _withhold(tape, SILENT, OTHER, set(range(10_000)))
    _never_tell_more(tape, OTHER, -1)


def never_catch_up(tape: HistoryEditor) -> None:
    at = next(at for at, e in enumerate(tape.entries) if getattr(e, "name", "") == "drain")
    tape.change(at, type="fail")


def _commit(
    tape: HistoryEditor, time: int, process: str, offset: int, ended: Type = "ok"
) -> tuple[AnyEntry, AnyEntry]:
    commit = Commit(time=time, process=process, type="invoke", group=SPOKEN,
                    offsets={OTHER: offset})  # fmt: skip
    made = commit, replace(commit, time=time + 1, type=ended)
    tape.insert(*made)
    return made


def _paused(tape: HistoryEditor) -> tuple[int, int]:
    """When another got what a member who was stopped has, and when that one noticed."""
    members = [entry for entry in tape.entries if isinstance(entry, Member)]
    assigned = next(m.time for m in members if m.process == "a.2" and m.what == "assigned")
    lost = next(m.time for m in members if m.process == "b" and m.what == "lost")
    return assigned, lost


def accept_commits_of_two(tape: HistoryEditor) -> None:
    """Of one who does not know that it has the partition no more, and of who has it now."""
    assigned, lost = _paused(tape)
    known = max(
        entry.offsets[OTHER]
        for entry in tape.entries
        if isinstance(entry, Commit) and entry.group == SPOKEN and OTHER in entry.offsets
        if entry.time < lost and entry.type == "ok"
    )
    _commit(tape, assigned + 1_000, "a.2", known + 1)
    _commit(tape, lost - 1_000, "b", known + 2)


def tell_two_that_they_own_it(tape: HistoryEditor) -> None:
    """Both are awake for as long as the load lasts."""
    time = tape.when("load") + (tape.when("heal") - tape.when("load")) // 2
    started = next(
        e for e in tape.entries if isinstance(e, Member) and e.process == "c" and e.what == "start"
    )
    tape.insert(
        replace(started, time=time, process="twin"),
        Member(time=time + 1, process="twin", type="info", group=SPOKEN, what="assigned",
               partitions=[OTHER]),
        replace(started, time=time + 2, process="twin-2"),
        Member(time=time + 3, process="twin-2", type="info", group=SPOKEN, what="assigned",
               partitions=[OTHER]),
    )  # fmt: skip


def ask_too_late(tape: HistoryEditor) -> None:
    """Nothing holds anybody up, and the owner is asked only when another one has it."""
    load, end = tape.when("load"), tape.when("heal")
    time = load + (end - load) * 9 // 10
    started = next(
        e for e in tape.entries if isinstance(e, Member) and e.process == "c" and e.what == "start"
    )
    steps = (
        ("twin", "assigned"),
        ("twin-2", "assigned"),
        ("twin", "revoked"),
        ("twin-2", "revoked"),
    )
    tape.insert(
        *(replace(started, time=time, process=name) for name in ("twin", "twin-2")),
        *(
            Member(time=time + 1 + number, process=name, type="info", group=SPOKEN, what=what,
                   partitions=[OTHER])
            for number, (name, what) in enumerate(steps)
        ),
    )  # fmt: skip


def commit_what_was_lost(tape: HistoryEditor) -> None:
    """Whoever has the partition now has committed more."""
    assigned, lost = _paused(tape)
    low = min(
        entry.offsets[OTHER]
        for entry in tape.entries
        if isinstance(entry, Commit) and entry.group == SPOKEN and OTHER in entry.offsets
    )
    high = tape.final(OTHER)[-1][0] + 1
    _commit(tape, assigned + 1_000, "a.2", high)
    _commit(tape, lost - 1_000, "b", low)


# -- compaction ------------------------------------------------------------------------------------


def _state(tape: HistoryEditor) -> dict[int, Seen]:
    """The last record of each key in the final log."""
    return {entries.key_of(seen[2], KEYS): seen for seen in tape.final(KEYED)}


def _acked(tape: HistoryEditor) -> set[int]:
    return {
        value
        for one in tape.acked(KEYED)
        for value in range(one.entry.first, one.entry.first + one.entry.count)
    }


def lose_a_key(tape: HistoryEditor) -> None:
    acked = _acked(tape)
    live = [s for s in _state(tape).values() if s[2] in acked and not entries.is_tombstone(s[2])]
    uncertain = {
        entries.key_of(value, KEYS)
        for _, entry in tape.find(Append, KEYED)
        if entry.type == "info"
        for value in range(entry.first, entry.first + entry.count)
        if entries.is_tombstone(value)
    }
    end = tape.final(KEYED)[-1][0]
    sure = [
        seen for seen in live if entries.key_of(seen[2], KEYS) not in uncertain and seen[0] < end
    ]
    lost = tape.random.choice(sure)
    which = entries.key_of(lost[2], KEYS)
    tape.rewrite(KEYED, lambda log: [s for s in log if entries.key_of(s[2], KEYS) != which])


def lose_a_key_on_a_replica(tape: HistoryEditor) -> None:
    """It has an older record of the key still."""
    acked = _acked(tape)
    state = _state(tape)
    older = [
        s
        for s in tape.final(KEYED)
        if s[0] < state[entries.key_of(s[2], KEYS)][0]
        and state[entries.key_of(s[2], KEYS)][2] in acked
        and not entries.is_tombstone(state[entries.key_of(s[2], KEYS)][2])
    ]
    lost = state[entries.key_of(tape.random.choice(older)[2], KEYS)]
    tape.redump(KEYED, 2, lambda log: [s for s in log if s != lost])


def bring_a_key_back(tape: HistoryEditor) -> None:
    """A record of old is there again, and the tombstone that had deleted it is not."""
    found = [
        (value, one.offset + number)
        for one in tape.acked(KEYED)
        for number, value in enumerate(range(one.entry.first, one.entry.first + one.entry.count))
    ]
    last = {entries.key_of(value, KEYS): (value, offset) for value, offset in found}
    state = _state(tape)
    back = [
        (offset, 1, value, 1)
        for value, offset in found
        for newest, at in (last[entries.key_of(value, KEYS)],)
        if entries.is_tombstone(newest) and not entries.is_tombstone(value)
        if state.get(entries.key_of(value, KEYS), (0,))[0] <= at
    ]
    ghost = tape.random.choice(back)
    which = entries.key_of(ghost[2], KEYS)
    tape.rewrite(
        KEYED,
        lambda log: sorted([*(s for s in log if entries.key_of(s[2], KEYS) != which), ghost]),
    )


def move_a_record(tape: HistoryEditor) -> None:
    log, acked = tape.final(KEYED), _acked(tape)
    free = [
        (one, other) for one, other in pairwise(log) if other[0] - one[0] > 1 and other[2] in acked
    ]
    _, moved = tape.random.choice(free)
    tape.rewrite(KEYED, lambda log: [(s[0] - 1, *s[1:]) if s[2] == moved[2] else s for s in log])
