"""A run in a few figures."""

from __future__ import annotations

from raftlog.testing.checker.judge import judge
from raftlog.testing.history.entries import AnyEntry, Append, Fault, Note, Phase
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.runner import KILLS, summarise

S = 1_000_000_000


def fault(number: int, kind: str, at: int, *targets: int, injected: bool = True) -> list[AnyEntry]:
    seen = {"pid": 1} if injected else {"why": "no root"}
    return [
        Fault(
            time=(at + later) * S,
            process="nemesis",
            type="info",
            id=number,
            kind=kind,
            phase="end" if later else "begin",
            targets=list(targets),
            effect=seen,
            injected=injected,
        )
        for later in (0, 1)
    ]


def test_it_counts_what_was_done_and_what_was_acknowledged() -> None:
    entries: list[AnyEntry] = [
        Phase(time=0, process="runner", type="info", name="load"),
        *fault(1, "power", 1, 1, 2, 3),
        *fault(2, "wipe", 3, 2, 3),
        *fault(3, "fds", 5, 1, injected=False),
        Append(time=6 * S, process="p", type="invoke", partition="a:0", first=1, count=5),
        Append(
            time=7 * S,
            process="p",
            type="ok",
            partition="a:0",
            first=1,
            count=5,
            offsets=[(1, 5, 0)],
        ),
        Phase(time=9 * S, process="runner", type="info", name="heal"),
        Note(time=9 * S, process="runner", type="info", text=f"{KILLS}: 7 (broker 1 7)"),
    ]
    summary = summarise(digest(entries), judge(entries))
    assert summary["acknowledged"] == 5
    assert summary["load_s"] == 9.0
    assert summary["injected"] == {"power": 1, "wipe": 1}
    assert summary["not_injected"] == {"fds": 1}
    assert summary["effects"] == {
        "SIGKILLs of brokers": 7,
        "disks wiped": 2,
        "power cuts of brokers": 3,
    }
    assert summary["verdict"] == "unknown"  # nothing was read at the end
    assert summary["troubles"]
