"""A history that can be edited: what the mutations of the checker's self-test are written in.

The entries themselves are never changed, only replaced: many tapes may share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from raftlog.testing.history import AnyEntry, Append, Dump, Ends, Poll, Read, Seen

T = TypeVar("T", Append, Poll, Read, Dump, Ends)
Edit = Callable[[list[Seen]], list[Seen]]


class Acked(NamedTuple):
    """An append that is acknowledged in whole. ``invoked`` and ``completed``: where its entries
    are; ``offset``: of its first value."""

    invoked: int
    completed: int
    entry: Append
    offset: int


class HistoryEditor:
    """``random``: what a mutation chooses with."""

    def __init__(self, entries: Iterable[AnyEntry], random: Random) -> None:
        self.entries = list(entries)
        self.random = random

    def find(self, kind: type[T], partition: str = "") -> Iterator[tuple[int, T]]:
        """Entries of a kind, with where they are; those of one partition, if it is named."""
        for at, entry in enumerate(self.entries):
            if isinstance(entry, kind) and partition in {"", getattr(entry, "partition", "")}:
                yield at, entry

    def change(self, at: int, **changes: Any) -> None:
        """Replace fields of the entry there."""
        self.entries[at] = replace(self.entries[at], **changes)

    def insert(self, *entries: AnyEntry) -> None:
        """Put entries where their times say, after those of the same time."""
        self.entries.extend(entries)
        self.entries.sort(key=attrgetter("time"))

    def take(self, first: int, second: int) -> tuple[AnyEntry, AnyEntry]:
        """Remove two entries."""
        taken = self.entries[first], self.entries[second]
        self.entries = [e for at, e in enumerate(self.entries) if at not in {first, second}]
        return taken

    def when(self, name: str) -> int:
        """The time at which a phase began."""
        return next(e.time for e in self.entries if getattr(e, "name", "") == name)

    # -- appends

    def acked(self, partition: str, *, idempotent: bool = True, acks: int = -1) -> list[Acked]:
        """Those which are acknowledged in whole, as one run, by growing offsets."""
        invoked = {e.first: at for at, e in self.find(Append, partition) if e.type == "invoke"}
        found = [
            Acked(invoked[entry.first], at, entry, entry.offsets[0][2])
            for at, entry in self.find(Append, partition)
            if entry.type == "ok"
            and len(entry.offsets) == 1
            and (entry.idempotent, entry.acks) == (idempotent, acks)
        ]
        return sorted(found, key=lambda one: one.offset)

    def failed(self) -> Append:
        """An append that certainly had no effect, to a partition that is loaded all the time."""
        found = [
            entry
            for _, entry in self.find(Append)
            if entry.type == "fail" and entry.partition.startswith("load:")
        ]
        return self.random.choice(found)

    # -- polls

    def polls(self, partition: str, records_min: int = 3) -> list[tuple[int, list[Seen]]]:
        """Completed polls that gave some records of a partition, one by one."""
        found = ((at, singles(e.records.get(partition, ()))) for at, e in self.find(Poll))
        return [(at, records) for at, records in found if len(records) >= records_min]

    def give(self, at: int, partition: str, records: Sequence[Seen]) -> None:
        """Have the poll there give these records of a partition."""
        poll = self.entries[at]
        assert isinstance(poll, Poll), "no poll"
        self.change(at, records={**poll.records, partition: list(records)})

    def show(self, partition: str, record: Seen, *, time: int | None = None) -> None:
        """Have somebody be given one record, at a time or when the load ends."""
        time = self.when("heal") - 2 if time is None else time
        self.insert(
            Poll(time=time, process="stranger", type="invoke", positions={partition: record[0]}),
            Poll(time=time + 1, process="stranger", type="ok", records={partition: [record]}),
        )

    # -- what is there at the end

    def final(self, partition: str) -> list[Seen]:
        """The records of the final log, one by one."""
        readers = {e.process: e for _, e in self.find(Read, partition)}
        first = min(readers)
        return [
            seen
            for _, entry in self.find(Read, partition)
            if entry.process == first
            for seen in singles(entry.records)
        ]

    def rewrite(self, partition: str, edit: Edit, **ends: int) -> None:
        """Change what every reader and every whole replica has; ``start`` and ``end``, if given."""
        for reader in sorted({e.process for _, e in self.find(Read, partition)}):
            self.reread(partition, reader, edit, **ends)
        for broker in sorted(
            {e.broker for _, e in self.find(Dump, partition) if e.should_be_whole}
        ):
            self.redump(partition, broker, edit, **ends)

    def reread(self, partition: str, reader: str, edit: Edit, **ends: int) -> None:
        """Change what one reader was given at the end."""
        mine = [(at, e) for at, e in self.find(Read, partition) if e.process == reader]
        self._edit(mine, edit, ends)

    def redump(self, partition: str, broker: int, edit: Edit, **ends: Any) -> None:
        """Change what one replica's files have."""
        mine = [(at, e) for at, e in self.find(Dump, partition) if e.broker == broker]
        self._edit(mine, edit, ends)

    def _edit(
        self, parts: Sequence[tuple[int, Read | Dump]], edit: Edit, ends: dict[str, Any]
    ) -> None:
        records = edit([seen for _, entry in parts for seen in singles(entry.records)])
        for number, (at, _) in enumerate(parts):
            self.change(at, records=[] if number else records, **ends)


def singles(records: Iterable[Seen]) -> list[Seen]:
    """Each record as a run by itself."""
    return [
        (offset + number, 1, value + number, epoch)
        for offset, count, value, epoch in records
        for number in range(count)
    ]


def renumbered(records: Sequence[Seen]) -> list[Seen]:
    """The same records at the offsets from the first one's on."""
    first = records[0][0]
    return [(first + number, *seen[1:]) for number, seen in enumerate(records)]
