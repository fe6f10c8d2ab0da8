"""Ownership of the partitions of consumer groups over time: data and picture. Pure.

A bar shows the time in which a member assumed ownership of a partition. If another member assumed
ownership at the same time, its bar has half the height. Faults are drawn below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.etree.ElementTree import Element

from raftlog.testing.history.entries import Member
from raftlog_jepsen.report import markup
from raftlog_jepsen.report.canvas import Sheet
from raftlog_jepsen.report.digest import NS, Digest
from raftlog_jepsen.report.markup import node
from raftlog_jepsen.report.timeline import draw_faults

ROW: Final = 17.0
BAR: Final = 13.0
ROWS_MAX: Final = 96  # rows of groups and partitions; further rows are only counted
BARS_MAX: Final = 4_000
BAR_WIDTH_MIN: Final = 1.5
CHAR: Final = 6.2  # width of a character in a bar
# Colours of members, used cyclically.
TINTS: Final = ("read", "ok", "power", "disk", "damage", "links", "process", "clocks", "resources")


@dataclass(slots=True)
class Owned:
    """Ownership of a partition by one member. Times in seconds since the history began.

    ``how``: how it ended: revoked, lost, killed, end; empty if it did not end.
    """

    member: str
    begin_s: float
    end_s: float = math.inf
    how: str = ""


@dataclass(slots=True)
class Owners:
    """Ownership of all partitions. ``by_partition``: by group and partition. ``stopped``: times in
    which a member was stopped, by its name."""

    by_partition: dict[tuple[str, str], list[Owned]] = field(default_factory=dict)
    stopped: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def of(self, group: str, partition: str) -> list[Owned]:
        return self.by_partition.setdefault((group, partition), [])


def owners_of(entries: Iterable[Member], base_ns: int, length_s: float) -> Owners:
    """Collect the ownership from the events of members, in order. ``base_ns``: start of the
    history; ``length_s``: its length."""
    found = Owners()
    for entry in entries:
        at_s = ((entry.at or entry.time) - base_ns) / NS
        if entry.what == "assigned":
            for partition in entry.partitions:
                found.of(entry.group, partition).append(Owned(entry.process, at_s))
        elif entry.what in {"revoked", "lost"}:
            for partition in entry.partitions:
                _end(found.of(entry.group, partition), entry, at_s)
        elif entry.what in {"killed", "end"}:
            for owned in found.by_partition.values():
                _end(owned, entry, at_s)
        elif entry.what == "paused":
            found.stopped.setdefault(entry.process, []).append((at_s, math.inf))
        elif entry.what == "resumed" and found.stopped.get(entry.process):
            begin, _ = found.stopped[entry.process].pop()
            found.stopped[entry.process].append((begin, at_s))
    for owned in found.by_partition.values():
        for one in owned:
            one.end_s = min(one.end_s, length_s)
    return found


def _end(owned: list[Owned], entry: Member, at_s: float) -> None:
    for one in reversed(owned):
        if one.member == entry.process and math.isinf(one.end_s):
            one.end_s, one.how = at_s, entry.what
            return


# -- the picture -----------------------------------------------------------------------------------


def ownership(digest: Digest) -> Element | None:
    """Draw the ownership over the complete run; None if no partition was assigned."""
    found = owners_of(digest.members, digest.base_ns, digest.length_s)
    rows = sorted(found.by_partition, key=_natural)
    if not rows:
        return None
    bars = sum(map(len, found.by_partition.values()))
    description = f"{len(rows)} partitions of groups, assigned {bars} times in total."
    sheet = Sheet("owners", "Partition ownership", description, length_s=digest.length_s)
    top = y = 6.0
    tints = _tints(found)
    left = BARS_MAX
    for key in rows[:ROWS_MAX]:
        sheet.label(y + 10, " ".join(key))
        for one, lane in _lanes(found.by_partition[key]):
            if left > 0:
                sheet.put(*_draw(sheet, found, one, lane, y, tints[one.member]))
            left -= 1
        y += ROW
    if rows[ROWS_MAX:]:
        sheet.label(y + 10, f"and {len(rows) - ROWS_MAX} more")
        y += ROW
    y = draw_faults(sheet, digest, y + 6)
    sheet.axis(top, y)
    return sheet.finish(y + 24)


def _natural(key: tuple[str, str]) -> tuple[str, str, int]:
    group, partition = key
    topic, _, number = partition.rpartition(":")
    return group, topic, int(number) if number.isdigit() else -1


def _tints(found: Owners) -> dict[str, str]:
    """Return a colour for each member. The processes of one slot have the same colour."""
    names = sorted({one.member for owned in found.by_partition.values() for one in owned})
    slots = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return {name: TINTS[slots.index(name.partition(".")[0]) % len(TINTS)] for name in names}


def _lanes(owned: Sequence[Owned]) -> Iterator[tuple[Owned, int]]:
    """Yield each ownership, with 1 if another member owns the partition at its start, else 0."""
    last_s = -math.inf
    for one in sorted(owned, key=lambda each: each.begin_s):
        yield one, int(one.begin_s < last_s)
        last_s = max(last_s, one.end_s)


def _draw(
    sheet: Sheet, found: Owners, one: Owned, lane: int, y: float, tint: str
) -> Iterator[Element]:
    left = sheet.x(one.begin_s)
    right = max(sheet.x(one.end_s), left + BAR_WIDTH_MIN)
    height = BAR / 2 if lane else BAR
    place = {"y": y + (BAR - height), "height": height}
    description = (
        f"{one.member}: {markup.clock(one.begin_s)} to {markup.clock(one.end_s)}"
        f"{f', {one.how}' if one.how else ''}"
        f"{'; another member assumed ownership, too' if lane else ''}"
    )
    shape = node("rect", node("title", description), x=left, width=right - left, rx=1.5, **place)
    shape.set("style", f"fill: var(--{tint}); stroke: var(--paper); stroke-width: 0.6")
    yield shape
    for begin_s, end_s in found.stopped.get(one.member, ()):
        begin, end = max(left, sheet.x(begin_s)), min(right, sheet.x(min(end_s, one.end_s)))
        if end > begin:
            yield node(
                "rect",
                x=begin,
                width=end - begin,
                fill=sheet.pattern("hatch"),
                pointer_events="none",
                **place,
            )
    text = one.member.rpartition("/")[2]
    if not lane and right - left > CHAR * len(text) + 5:
        yield node("text", text, x=left + 3, y=y + 9.8, class_="on")
