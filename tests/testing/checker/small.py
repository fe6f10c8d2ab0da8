"""Small histories, written by hand: one partition, a step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from raftlog.testing.checker.judge import DEFAULT, Limits, judge
from raftlog.testing.checker.verdict import Verdict
from raftlog.testing.history import (
    Admin,
    AnyEntry,
    Append,
    Commit,
    Committed,
    Delete,
    Dump,
    Ends,
    Fault,
    Member,
    Note,
    Phase,
    Poll,
    Read,
    Seen,
    Start,
    Type,
    Where,
)

P: Final = "t:0"
SECOND: Final = 1_000_000_000


class Small:
    """Each step takes a millisecond, unless ``pass_s`` lets more go by.

    ``log`` is what is in the final log, one run for each append that landed; change it, or say
    otherwise in ``finish``.
    """

    def __init__(self, plan: dict[str, Any] | None = None) -> None:
        self.now = 0
        self.entries: list[AnyEntry] = []
        self.log: list[Seen] = []
        self.add(Start(time=0, process="runner", type="info", plan=plan or {}))
        self.phase("load")

    def add(self, entry: AnyEntry) -> None:
        self.now += 1_000_000
        entry.time = self.now
        self.entries.append(entry)

    def pass_s(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def phase(self, name: str, type_: Type = "info") -> None:
        self.add(Phase(time=0, process="runner", type=type_, name=name))

    def note(self, text: str, *, is_trouble: bool = False) -> None:
        self.add(Note(time=0, process="runner", type="info", text=text, is_trouble=is_trouble))

    # -- appends

    @property
    def end(self) -> int:
        return self.log[-1][0] + self.log[-1][1] if self.log else 0

    def invoke(self, first: int, count: int = 1, *, process: str = "p", **how: Any) -> None:
        how = {"partition": P, **how}
        entry = Append(time=0, process=process, type="invoke", first=first, count=count, **how)
        self.add(entry)

    def complete(
        self,
        first: int,
        count: int = 1,
        *,
        type_: Type = "ok",
        offsets: Sequence[Where] | None = None,
        process: str = "p",
        partition: str = P,
    ) -> None:
        """As it was acknowledged; without ``offsets``, it has landed at the end of the log."""
        if offsets is None:
            offsets = [(first, count, self.land(first, count))] if type_ == "ok" else []
        self.add(
            Append(
                time=0, process=process, type=type_, partition=partition, first=first, count=count,
                offsets=list(offsets),
            )
        )  # fmt: skip

    def append(self, first: int, count: int = 1, *, process: str = "p", **how: Any) -> None:
        """Invoke and complete at once."""
        self.invoke(first, count, process=process, **how)
        self.complete(first, count, process=process)

    def land(self, first: int, count: int = 1, epoch: int = 1) -> int:
        offset = self.end
        self.log.append((offset, count, first, epoch))
        return offset

    # -- consumers

    def poll(
        self,
        *records: Seen,
        process: str = "c",
        at: int | None = None,
        type_: Type = "ok",
        takes_s: float = 0.0,
        partition: str = P,
    ) -> None:
        position = at if at is not None else records[0][0] if records else 0
        positions = {partition: position}
        self.add(Poll(time=0, process=process, type="invoke", positions=positions))
        self.pass_s(takes_s)
        given = {partition: list(records)} if records else {}
        self.add(Poll(time=0, process=process, type=type_, records=given))

    def ends(self, end: int, process: str = "asker") -> None:
        self.add(Ends(time=0, process=process, type="invoke"))
        self.add(Ends(time=0, process=process, type="ok", ends={P: end}))

    # -- consumer groups

    def commit(
        self, offset: int, *, process: str = "m1", type_: Type = "ok", group: str = "g"
    ) -> None:
        """Invoke and complete; nothing comes of one that is only invoked."""
        for kind in ("invoke", type_) if type_ != "invoke" else ("invoke",):
            entry = Commit(time=0, process=process, type="ok", group=group, offsets={P: offset})
            entry.type = kind  # type: ignore[assignment]
            self.add(entry)

    def noted(self, offset: int, *, who: str = "asker", group: str = "g") -> None:
        """Somebody asks what is committed."""
        self.add(Committed(time=0, process=who, type="invoke", group=group))
        self.add(Committed(time=0, process=who, type="ok", group=group, offsets={P: offset}))

    def member(self, what: str, name: str = "m1", **args: Any) -> None:
        """Of the one partition. It starts with a session of a second."""
        if what == "start":
            args = {"topics": ["t"], "session_timeout_s": 1.0, "commits": "manual", **args}
        has_partition = what in {"assigned", "revoked", "lost"}
        self.add(
            Member(
                time=0, process=name, type="info", group="g", what=what, args=args,
                partitions=[P] if has_partition else [],
            )
        )  # fmt: skip

    def owns(self, name: str = "m1", **args: Any) -> None:
        """It starts, and is assigned the partition."""
        self.member("start", name, **args)
        self.member("assigned", name)

    def given(self, *records: Seen, name: str = "m1", generation: int = 1) -> None:
        """A member has dealt with records."""
        process = f"{name}#{generation}"
        self.add(Poll(time=0, process=process, type="invoke", group="g"))
        found = {P: list(records)}
        self.add(Poll(time=0, process=process, type="ok", group="g", records=found))

    # -- changes and faults

    def delete(self, before: int, type_: Type = "ok", partition: str = P) -> None:
        for kind in ("invoke", type_):
            entry = Delete(time=0, process="op", type="ok", partition=partition, before=before)
            entry.type = kind  # type: ignore[assignment]
            self.add(entry)

    def admin(self, what: str, type_: Type = "ok", **args: Any) -> None:
        for kind in ("invoke", type_):
            entry = Admin(time=0, process="op", type="ok", what=what, topic="t", args=args)
            entry.type = kind  # type: ignore[assignment]
            self.add(entry)

    def fault(
        self,
        number: int,
        phase: Literal["begin", "end"] = "begin",
        *,
        seen: Any = "dead",
        **how: Any,
    ) -> None:
        how = {"kind": "kill", **how}
        noted = {key: how.pop(key) for key in ("injected", "effect") if key in how}
        noted = {"effect": {"seen": seen}, **noted}
        self.add(Fault(time=0, process="n", type="invoke", id=number, phase=phase, **how))
        self.add(Fault(time=0, process="n", type="info", id=number, phase=phase, **how, **noted))

    # -- the end

    def finish(
        self,
        *,
        start: int = 0,
        end: int | None = None,
        log: Sequence[Seen] | None = None,
        second: Sequence[Seen] | None = None,
        second_end: int | None = None,
        dumps: dict[int, dict[str, Any]] | None = None,
        partition: str = P,
    ) -> None:
        """Two readers and two replicas; ``dumps`` says what is different in whose files."""
        given = list(self.log if log is None else log)
        stop = end if end is not None else given[-1][0] + given[-1][1] if given else start
        self.phase("read")
        for reader, records, last in (
            ("r1", given, stop),
            ("r2", given if second is None else second, stop if second_end is None else second_end),
        ):
            self.add(
                Read(
                    time=0, process=reader, type="ok", partition=partition, start=start, end=last,
                    records=list(records),
                )
            )  # fmt: skip
        self.phase("dump")
        for broker in (1, 2):
            what = {"start": start, "end": stop, "records": given, "chain": "abc"}
            what |= (dumps or {}).get(broker, {})
            self.add(
                Dump(
                    time=0,
                    process="runner",
                    type="info",
                    broker=broker,
                    partition=partition,
                    **what,
                )
            )
        self.phase("end")

    def judge(self, limits: Limits = DEFAULT) -> Verdict:
        return judge(self.entries, limits)

    def found(self) -> dict[str, int]:
        """What is found of each kind, without zeros; there must be no doubt."""
        verdict = self.judge()
        assert not verdict.troubles
        return {kind: count for kind, count in verdict.counts.items() if count}


def good() -> Small:
    """Three appends: values 1 to 3 at 0 to 2, 4 to 5 at 3 to 4, 6 at 5. Not finished."""
    small = Small()
    small.append(1, 3)
    small.append(4, 2)
    small.append(6)
    return small
