"""What can go wrong with a whole run, put into good histories: see ``mutations``.

Nothing is wrong with any record here. Either clients waited in vain, or the run proves nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftlog.testing.history import (
    Append,
    Commit,
    Committed,
    Dump,
    Ends,
    Fault,
    Member,
    Note,
    Phase,
    Poll,
    Read,
)
from tests.testing.checker.history_editor import HistoryEditor
from tests.testing.checker.synthetic import SECOND

P = "load:0"


# -- availability ----------------------------------------------------------------------------------


def stop_for_a_while(tape: HistoryEditor) -> None:
    """All that comes after some moment comes half a minute later, while somebody waits."""
    time = tape.when("heal") - 30 * SECOND
    pause = 30 * SECOND
    tape.entries = [e if e.time < time else replace(e, time=e.time + pause) for e in tape.entries]
    waiting = Append(time=time, process="patient", type="invoke", partition=P, first=1 << 40)
    tape.insert(waiting, replace(waiting, time=time + pause, type="info"))


def refuse_most(tape: HistoryEditor) -> None:
    """While there is a fault that should not matter."""
    begun = next(e.time for e in tape.entries if isinstance(e, Fault))
    invokes = [
        Append(
            time=begun + n, process=f"unlucky-{n}", type="invoke", partition=P, first=(1 << 40) + n
        )
        for n in range(1, 200)
    ]
    tape.insert(*invokes, *(replace(e, time=e.time + SECOND, type="info") for e in invokes))


# -- what cannot be judged -------------------------------------------------------------------------


def break_off(tape: HistoryEditor) -> None:
    tape.entries = [e for e in tape.entries if not (isinstance(e, Phase) and e.name == "end")]


def read_nothing_at_the_end(tape: HistoryEditor) -> None:
    tape.entries = [e for e in tape.entries if not isinstance(e, Read) or e.partition != P]


def acknowledge_nothing(tape: HistoryEditor) -> None:
    gone = Append | Poll | Ends | Commit | Committed | Member | Fault | Dump | Read
    tape.entries = [e for e in tape.entries if not isinstance(e, gone)]


def claim_a_fault(tape: HistoryEditor) -> None:
    for at, entry in enumerate(tape.entries):
        if isinstance(entry, Fault) and entry.effect:
            tape.change(at, effect={}, injected=True)


def inject_nothing(tape: HistoryEditor) -> None:
    tape.entries = [e for e in tape.entries if not isinstance(e, Fault)]


def be_in_trouble(tape: HistoryEditor) -> None:
    trouble = Note(time=tape.when("load"), process="runner", type="info", text="?", is_trouble=True)
    tape.insert(trouble)


def send_a_value_twice(tape: HistoryEditor) -> None:
    first = tape.random.choice(tape.acked(P)).entry.first
    late = tape.when("heal") - 1
    tape.insert(Append(time=late, process="copycat", type="invoke", partition=P, first=first))
