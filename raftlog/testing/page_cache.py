"""Files and directories with their unsynced changes, and the effect of a power cut on them.

Part of the simulated disk. Pure except for the ``random.Random`` of a power cut. Does not know
paths, handles or faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple, TypeAlias

SECTOR_BYTES: Final = 512
# Unsynced changes that survive a power cut: none, the first ones, or any.
_SURVIVAL: Final = ("none", "prefix", "subset")
_SIZE: Final = -1  # marks the file's size, where other keys are sector numbers


class Change(NamedTuple):
    """A write of ``data`` at ``position``; without data, a change of the size to ``position``."""

    position: int
    data: bytes | None

    def apply(self, image: bytearray) -> range:
        """Apply the change to ``image``. Returns the sectors that have changed."""
        before = len(image)
        end = self.position + len(self.data or b"")
        image.extend(bytes(max(0, (self.position if self.data is None else end) - before)))
        if self.data is None:
            del image[self.position :]
            end = max(before, self.position)
        else:
            image[self.position : end] = self.data
        return range(min(before, self.position) // SECTOR_BYTES, -(-end // SECTOR_BYTES))


@dataclass(slots=True, eq=False)
class CachedFile:
    """A file. ``data``: its content for processes, ``durable`` with all of ``pending`` applied."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    reserved_end: int = 0  # space is allocated up to here; the file may be shorter
    unreadable: range = range(0)  # bytes that can no longer be read
    inode: int = 0  # assigned when it is asked for; a copy is another file

    @property
    def allocated_bytes(self) -> int:
        return max(len(self.data), self.reserved_end)

    def can_read(self, start: int, end: int) -> bool:
        return max(start, self.unreadable.start) >= min(end, self.unreadable.stop)

    def change(self, change: Change) -> None:
        change.apply(self.data)
        self.pending.append(change)

    def sync(self) -> None:
        pending, self.pending = self.pending, []
        for change in pending:
            change.apply(self.durable)

    def copied(self) -> CachedFile:
        """Return another file with the same bytes, all of them durable."""
        return CachedFile(bytearray(self.data), bytearray(self.data))

    def power_cut(self, random: Random) -> None:
        """Discard unsynced changes at random.

        Each sector, and the size, is left in its state after a random number of the changes.
        """
        total, how = len(self.pending), random.choice(_SURVIVAL)
        whole = random.randint(0, total) if how == "prefix" else 0
        drawn: dict[int, int] = {}

        def changes_seen(sector: int) -> int:
            if how == "subset" and sector not in drawn:
                drawn[sector] = random.randint(0, total)
            return drawn.get(sector, whole)

        image, size = bytearray(self.durable), len(self.durable)
        working = bytearray(self.durable)
        for number, change in enumerate(self.pending, start=1):
            sectors = change.apply(working)
            if how == "prefix" and number == whole + 1:  # a torn write: its first sectors
                torn = range(sectors.start, random.randint(sectors.start, sectors.stop))
                drawn |= dict.fromkeys((*torn, _SIZE) if torn else (), number)
            for sector in sectors:
                if number <= changes_seen(sector):
                    _copy_sector(working, image, sector)
            if number <= changes_seen(_SIZE):
                size = len(working)
        image.extend(bytes(max(0, size - len(image))))
        self.data, self.durable, self.pending = image[:size], image[:size], []
        self.reserved_end = 0


def _copy_sector(source: bytearray, target: bytearray, sector: int) -> None:
    start, end = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
    target.extend(bytes(max(0, end - len(target))))
    target[start:end] = source[start:end].ljust(SECTOR_BYTES, b"\0")


Node: TypeAlias = "CachedFile | CachedDirectory"


@dataclass(slots=True, eq=False)
class CachedDirectory:
    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def change(self, changes: dict[str, Node | None]) -> None:
        """Set the names of several nodes atomically; None removes a name."""
        self.pending.append(changes)
        _rename(self.names, changes)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.names), []

    def power_cut(self, random: Random) -> None:
        total, how = len(self.pending), random.choice(_SURVIVAL)
        whole = random.randint(0, total) if how == "prefix" else 0
        for number, changes in enumerate(self.pending, start=1):
            if random.random() < 0.5 if how == "subset" else number <= whole:
                _rename(self.durable, changes)
        self.names, self.pending = dict(self.durable), []
        for _name, node in sorted(self.names.items()):
            node.power_cut(random)

    def copied(self) -> CachedDirectory:
        """Return another directory with copies of all files, all of them durable."""
        names = {name: node.copied() for name, node in self.names.items()}
        return CachedDirectory(dict(names), dict(names))

    def files(self) -> Iterator[CachedFile]:
        for node in self.names.values():
            if isinstance(node, CachedFile):
                yield node
            else:
                yield from node.files()


def _rename(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
