"""The pictures of a report as data: bars, columns and curves over the time of the run. Pure.

``page.html`` draws them. Horizontal places are percent of the run. Colours are never the only
distinction: each element also has a name, a pattern, or a title. Also formats numbers with their
units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog.testing.history import Member
from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.report.digest import NS, Digest, FaultSpan, Second, quantile_s

TEXT_CHARS_MAX: Final = 2_000  # maximum length of one text of a history


def cut(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return ``text``, or its beginning and the number of omitted characters."""
    left = len(text) - chars_max
    return text if left <= 0 else f"{text[:chars_max]} ... and {left:,} more characters"


# -- numbers --------------------------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 kill``, ``2,000 kills``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def seconds(value: float) -> str:
    """Format a duration: ``1.2 ms``, ``3.45 s``, ``2 min 5 s``, ``3 h 20 min``."""
    if 0 < value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if 0 < value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 60:
        return f"{value:.3g} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(value: float) -> str:
    """Format a time of the run: ``75.0 s``, from ten minutes on ``1:02:03``."""
    if value < 600:
        return f"{value:.1f} s"
    whole = int(value)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def size(count: float) -> str:
    """Format bytes: ``512 B``, ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


# -- elements --------------------------------------------------------------------------------------


BINS_MAX: Final = 400
TICKS_MAX: Final = 10
TICK_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200)
BIN_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200)
BAR_WIDTH_MIN: Final = 0.35  # percent of the run

# Colours of the page, each for light and dark mode.
COLOURS: Final[dict[str, tuple[str, str]]] = {
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9aa4af"),
    "paper": ("#ffffff", "#0d1117"),
    "soft": ("#f3f5f8", "#161c24"),
    "line": ("#d0d7de", "#343c46"),
    "ok": ("#2b8a4b", "#3fb765"),
    "info": ("#b46a00", "#e0a030"),
    "fail": ("#c4232f", "#ff7b72"),
    "read": ("#2563c9", "#6ca8ff"),
    "process": ("#c2542d", "#e8835d"),
    "network": ("#3568c9", "#7aa7ff"),
    "links": ("#1d8599", "#4fb9cc"),
    "disk": ("#8f6a12", "#d3a83c"),
    "power": ("#a11f6b", "#e56bb3"),
    "damage": ("#7c3fc0", "#b58cf0"),
    "losses": ("#5d4a8f", "#a597d8"),
    "clocks": ("#4d7a1f", "#97c45f"),
    "resources": ("#7a5c52", "#c3a398"),
    "admin": ("#5a6672", "#9aa7b4"),
    "members": ("#0f7a5c", "#45c29c"),
    "membership": ("#8a3f5a", "#d487a3"),
    "other": ("#5a6672", "#9aa7b4"),
}


@dataclass(frozen=True, slots=True)
class Window:
    """A time without an acknowledgement, in seconds since the history began."""

    begin_s: float
    end_s: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Bin:
    """Merged counts of some consecutive seconds of the run."""

    begin_s: float
    width_s: float
    counts: Second

    @property
    def label(self) -> str:
        return f"{clock(self.begin_s)} to {clock(self.begin_s + self.width_s)}"


def bins(digest: Digest) -> list[Bin]:
    """Divide the run into at most ``BINS_MAX`` equal bins of at least 1 s, also empty ones."""
    seconds_all = max(1, math.ceil(digest.length_s))
    width = _step(seconds_all / BINS_MAX, BIN_STEPS_S)
    made = [Bin(float(at), float(width), Second()) for at in range(0, seconds_all, width)]
    for number, second in digest.seconds.items():
        made[min(number // width, len(made) - 1)].counts.merge(second)
    return made


def _step(wanted: float, steps: Sequence[int]) -> int:
    larger = [step for step in steps if step >= wanted]
    return larger[0] if larger else math.ceil(wanted)


class Bar(NamedTuple):
    """A part of a row. ``left`` and ``width``: percent of the run. ``text``: in the bar, if there
    is room. ``kind``: classes of ``page.html``; ``colour``: of ``COLOURS``."""

    left: float
    width: float
    title: str
    text: str = ""
    kind: str = ""
    colour: str = ""


class Row(NamedTuple):
    label: str
    bars: list[Bar]


class Column(NamedTuple):
    """A bin of a chart. ``parts``: class and height in percent, from bottom to top."""

    title: str
    parts: list[tuple[str, float]]


class Curve(NamedTuple):
    """A line of a chart. ``path``: of an SVG whose unit is a bin and 1 % of the height."""

    text: str
    colour: str
    kind: str
    path: str


class Chart(NamedTuple):
    """``width``: of all columns, in percent of the run. ``scale``: height in percent, and text."""

    label: str
    width: float
    scale: list[tuple[float, str]]
    columns: list[Column]
    curves: list[Curve]


class Picture(NamedTuple):
    """``ticks``: place and text. ``legend``: classes, colour and text."""

    title: str
    description: str
    rows: list[Row]
    ticks: list[tuple[float, str]]
    shades: Sequence[Bar] = ()
    chart: Chart | None = None
    legend: Sequence[tuple[str, str, str]] = ()


def _bar(found: Digest, begin_s: float, end_s: float, title: str, **other: str) -> Bar:
    length_s = max(found.length_s, 1.0)
    left, right = (100 * min(max(at / length_s, 0.0), 1.0) for at in (begin_s, end_s))
    left = min(left, 100 - BAR_WIDTH_MIN)
    return Bar(left, max(right - left, BAR_WIDTH_MIN), title, **other)


def _shades(found: Digest, windows: Iterable[Window]) -> list[Bar]:
    return [_bar(found, window.begin_s, window.end_s, window.text) for window in windows]


def ticks(length_s: float) -> list[tuple[float, str]]:
    """Return round times of the run."""
    length_s = max(length_s, 1.0)
    step = _step(length_s / TICKS_MAX, TICK_STEPS_S)
    times = range(0, math.floor(length_s) + 1, step)
    return [(100 * at / length_s, tick(at, length_s)) for at in times]


def _chart(
    found: Digest,
    label: str,
    scale: list[tuple[float, str]],
    columns: list[Column],
    curves: Sequence[Curve] = (),
) -> Chart:
    width = 100 * bins(found)[0].width_s * len(columns) / max(found.length_s, 1.0)
    return Chart(label, width, scale, columns, list(curves))


def _linear(largest: float) -> tuple[float, list[tuple[float, str]]]:
    """Return the top of a scale that includes ``largest``, and its lines."""
    limit, step = scale_of(largest)
    lines = [number * step for number in range(round(limit / step) + 1)]
    return limit, [(100 * at / limit, f"{at:,g}") for at in lines]


def _curve(text: str, colour: str, kind: str, heights: Sequence[float | None]) -> Curve:
    """Draw a line through the middles of the bins, interrupted at bins without a value."""
    path, joined = [], False
    for number, height in enumerate(heights):
        if height is not None:
            place = f"{number + 0.5:g} {100 - height:.1f}"
            path.append(f"L{place}" if joined else f"M{place}h.1")
        joined = height is not None
    return Curve(text, colour, kind, "".join(path))


def tick(at_s: int, length_s: float) -> str:
    """Return the label of a time on the axis: ``30 s``, ``5:00``, ``1:05:00``."""
    if length_s <= 120:
        return f"{at_s} s"
    minutes, rest = divmod(at_s, 60)
    if length_s <= 3600:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def scale_of(largest: float) -> tuple[float, float]:
    """Return the top of a linear scale that includes ``largest``, and the distance of its lines."""
    if largest <= 0:
        return 1.0, 1.0
    power = 10 ** math.floor(math.log10(largest))
    step = next(s * power / 10 for s in (2.5, 5, 10, 20, 25, 50) if s * power / 10 * 4 >= largest)
    return max(step * math.ceil(largest / step), step), step


# -- owners ----------------------------------------------------------------------------------------
#
# Ownership of the partitions of consumer groups over time: data and picture.
#
# A bar shows the time in which a member assumed ownership of a partition. If another member assumed
# ownership at the same time, its bar has half the height. Faults are drawn below.


ROWS_MAX: Final = 96  # rows of groups and partitions; further rows are only counted
BARS_MAX: Final = 4_000
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


def ownership(found: Digest) -> Picture | None:
    """Return the ownership over the complete run; None if no partition was assigned."""
    owners = owners_of(found.members, found.base_ns, found.length_s)
    keys = sorted(owners.by_partition, key=_natural)
    if not keys:
        return None
    count = sum(map(len, owners.by_partition.values()))
    description = f"{len(keys)} partitions of groups, assigned {count} times in total."
    tints = _tints(owners)
    rows, left = [], BARS_MAX
    for key in keys[:ROWS_MAX]:
        owned = list(_lanes(owners.by_partition[key]))
        bars = [b for one, lane in owned[:left] for b in _owned(found, owners, one, lane, tints)]
        left = max(left - len(owned), 0)
        rows.append(Row(" ".join(key), bars))
    if keys[ROWS_MAX:]:
        rows.append(Row(f"and {len(keys) - ROWS_MAX} more", []))
    rows += _fault_rows(found)
    return Picture("Partition ownership", description, rows, ticks(found.length_s))


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


def _owned(
    found: Digest, owners: Owners, one: Owned, lane: int, tints: dict[str, str]
) -> Iterator[Bar]:
    title = (
        f"{one.member}: {clock(one.begin_s)} to {clock(one.end_s)}"
        f"{f', {one.how}' if one.how else ''}"
        f"{'; another member assumed ownership, too' if lane else ''}"
    )
    text = "" if lane else one.member.rpartition("/")[2]
    kind, colour = "half" if lane else "", tints[one.member]
    yield _bar(found, one.begin_s, one.end_s, title, text=text, kind=kind, colour=colour)
    for begin_s, end_s in owners.stopped.get(one.member, ()):
        begin, end = max(begin_s, one.begin_s), min(end_s, one.end_s)
        if end > begin:
            yield _bar(found, begin, end, "", kind=f"{kind} over hatch")


# -- plots -----------------------------------------------------------------------------------------
#
# Throughput and latency over the run, with the time axis of the timeline.


def throughput(found: Digest, windows: Sequence[Window]) -> Picture:
    """Return the records per second that were acknowledged and that consumers read."""
    run = bins(found)
    acked = [b.counts.acked / b.width_s for b in run]
    read = [b.counts.read / b.width_s for b in run]
    largest = max(*acked, *read)
    limit, scale = _linear(largest)
    columns = [
        Column(f"{b.label}: {counted(b.counts.acked, 'record')} acknowledged, "
               f"{b.counts.read:,} read", [])
        for b in run
    ]  # fmt: skip
    curves = [
        _curve("acknowledged", "ok", "", [100 * value / limit for value in acked]),
        _curve("read by consumers", "read", "dashed", [100 * value / limit for value in read]),
    ]
    chart = _chart(found, "records/s", scale, columns, curves)
    description = f"Records per second, {largest:,.0f} at most."
    return _plot("Throughput", description, found, windows, chart)


def latency(found: Digest, windows: Sequence[Window]) -> Picture:
    """Return the latency of appends on a logarithmic scale: quantiles of ok, and the median of
    info."""
    run = bins(found)
    curves: list[tuple[str, str, str, list[float | None]]] = [
        ("longest of all ok", "fail", "dotted", [_longest(b) for b in run]),
        ("99 % of ok within", "info", "dashed", [_quantile(b, 0.99) for b in run]),
        ("half of ok within", "ok", "", [_quantile(b, 0.5) for b in run]),
    ]
    unknown = [_unknown(b) for b in run]
    values = [v for values in (*(c[-1] for c in curves), unknown) for v in values if v]
    low, high = _decades(values)

    def height(value: float | None) -> float | None:
        return None if value is None else 100 * (math.log10(value) - low) / (high - low)

    powers = range(low, high + 1)
    scale = [(100 * (at - low) / (high - low), _round(10.0**at)) for at in powers]
    columns = [
        Column(f"{b.label}: {_describe(b)}", [] if at is None else [("mark", at)])
        for b, at in zip(run, map(height, unknown), strict=True)
    ]
    lines = [_curve(*each[:3], list(map(height, each[3]))) for each in curves]
    description = f"Latency of appends. The longest of an acknowledged append was {_worst(run)}."
    chart = _chart(found, "", scale, columns, lines)
    marks = [("mark", "ink", "info: half took at most that long")] if any(unknown) else []
    return _plot("Latency of appends", description, found, windows, chart, marks)


def _plot(
    title: str,
    description: str,
    found: Digest,
    windows: Sequence[Window],
    chart: Chart,
    marks: Sequence[tuple[str, str, str]] = (),
) -> Picture:
    legend = [(f"curve {curve.kind}", curve.colour, curve.text) for curve in chart.curves]
    shades = _shades(found, windows)
    return Picture(title, description, [], ticks(found.length_s), shades, chart, [*legend, *marks])


def _round(value: float) -> str:
    return f"{value:g} s" if value >= 1 else seconds(value)


def _quantile(one: Bin, share: float) -> float | None:
    """Return a quantile in seconds, limited to the longest latency: the middle of a bucket can be
    above all its values."""
    if not one.counts.ok:
        return None
    return max(min(quantile_s(one.counts.ok, share), one.counts.longest_ns / 1e9), 1e-6)


def _longest(one: Bin) -> float | None:
    return max(one.counts.longest_ns / 1e9, 1e-6) if one.counts.ok else None


def _unknown(one: Bin) -> float | None:
    return quantile_s(one.counts.unknown, 0.5) if one.counts.unknown else None


def _worst(run: Sequence[Bin]) -> str:
    return seconds(max(one.counts.longest_ns for one in run) / 1e9)


def _describe(one: Bin) -> str:
    parts = [
        f"{text} {seconds(value)}"
        for text, value in (
            ("half within", _quantile(one, 0.5)),
            ("99 % within", _quantile(one, 0.99)),
            ("longest", _longest(one)),
            ("info after", _unknown(one)),
        )
        if value is not None
    ]
    return ", ".join(parts) or "no append ended"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten below and above all values."""
    if not values:
        return -3, 0
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


# -- timeline --------------------------------------------------------------------------------------
#
# The complete run: phases, faults by kind, outages, appends per second.


SUB_ROWS_MAX: Final = 4  # of one kind; further overlapping faults share the last row
FAULT_BARS_MAX: Final = 1_500  # with more faults, close faults share a bar
SHARED_WIDTH: Final = 0.12  # distance of close faults, in percent of the run
LEADER_WIDTH: Final = 0.25  # of the places of new leaders, in percent of the run
EFFECT_CHARS_MAX: Final = 200
FAMILIES: Final = {"power": "power", "crash-at": "process", "pause-inside": "process"}


def family(kind: str) -> str:
    """Return the group of a kind of fault, which determines its colour."""
    for group, kinds in driver.GROUPS.items():
        if kind in kinds and group != "all":
            return group if group in COLOURS else "other"
    return FAMILIES.get(kind, "other")


def timeline(found: Digest, windows: Sequence[Window]) -> Picture:
    """Return the events from the first to the last entry of the history."""
    description = (
        f"{counted(len(found.faults), 'fault')} of "
        f"{counted(len({fault.kind for fault in found.faults}), 'kind')} in "
        f"{seconds(found.length_s)}, {counted(len(windows), 'time')} without an "
        "acknowledgement."
    )
    phases = [
        _bar(found, p.begin_s, p.end_s, f"{p.name}: {clock(p.begin_s)} to {clock(p.end_s)}",
             text=p.name, kind="phase")
        for p in found.phases
    ]  # fmt: skip
    outages = [
        _bar(found, w.begin_s, w.end_s, w.text, text=seconds(w.end_s - w.begin_s), colour="fail")
        for w in windows
    ]
    rows = [
        Row("phase", phases),
        *_fault_rows(found),
        Row("no acks", outages),
        Row("new leaders", list(_new_leaders(found))),
    ]
    return Picture(
        "Timeline of the run",
        description,
        [row for row in rows if row.bars],
        ticks(found.length_s),
        _shades(found, windows),
        _appends(found),
        [
            ("", "ok", "ok"),
            ("hatch", "info", "info: outcome unknown"),
            ("cross", "fail", "fail: no effect"),
            ("", "other", "fault, with its brokers"),
            ("cross", "other", "not injected"),
            ("outage", "", "no acknowledgement"),
        ],
    )


def _fault_rows(found: Digest) -> Iterator[Row]:
    """Return rows for each kind of fault: overlapping faults are in different rows, if possible."""
    kinds: dict[str, list[FaultSpan]] = {}
    for fault in found.faults:
        kinds.setdefault(fault.kind, []).append(fault)
    apart = SHARED_WIDTH if len(found.faults) > FAULT_BARS_MAX else -1.0
    for kind in sorted(kinds, key=lambda kind: (family(kind), kind)):
        rows: list[list[Bar]] = []
        for faults in _shared(found, kinds[kind], apart):
            bar = _fault_bar(found, faults)
            free = next((row for row in rows if row[-1].left + row[-1].width <= bar.left), None)
            if free is None and len(rows) < SUB_ROWS_MAX:
                rows.append([bar])
            else:
                (rows[-1] if free is None else free).append(bar)
        yield from (Row(kind if row is rows[0] else "", row) for row in rows)


def _shared(found: Digest, faults: Iterable[FaultSpan], apart: float) -> Iterator[list[FaultSpan]]:
    """Yield the faults of each bar. Faults closer than ``apart`` share one if it is positive."""
    shared: list[FaultSpan] = []
    right = 0.0
    for fault in faults:
        bar = _bar(found, fault.begin_s, fault.end_s, "")
        if shared and (apart < 0 or bar.left - right >= apart):
            yield shared
            shared, right = [], 0.0
        shared.append(fault)
        right = max(right, bar.left + bar.width)
    if shared:
        yield shared


def _fault_bar(found: Digest, faults: list[FaultSpan]) -> Bar:
    is_injected = any(fault.injected for fault in faults)
    beyond = any(fault.beyond for fault in faults)
    title = "\n".join(describe(fault) for fault in faults[:5])
    if len(faults) > 5:
        title += f"\nand {len(faults) - 5} more"
    targets = ",".join(map(str, sorted({t for fault in faults for t in fault.targets})))
    return _bar(
        found,
        faults[0].begin_s,
        max(fault.end_s for fault in faults),
        title,
        text=targets + "!" * beyond if is_injected else "",
        kind=" ".join(["cross"] * (not is_injected) + ["beyond"] * beyond),
        colour=family(faults[0].kind),
    )


def describe(fault: FaultSpan) -> str:
    """Describe a fault in one line of text."""
    targets = ", ".join(map(str, fault.targets))
    on = f" on {'brokers' if len(fault.targets) > 1 else 'broker'} {targets}" if targets else ""
    when = f"{clock(fault.begin_s)} to {clock(fault.end_s)}"
    head = f"{fault.kind}{on}, {when}"
    if not fault.injected:
        return f"{head}, not injected: {cut(fault.why, EFFECT_CHARS_MAX)}"
    seen = "; ".join(f"{name} {value}" for name, value in fault.effect.items())
    budget = ", beyond budget" if fault.beyond else ""
    return f"{head}{budget}" + (f"; {cut(seen, EFFECT_CHARS_MAX)}" if seen else "")


def _new_leaders(found: Digest) -> Iterator[Bar]:
    """Mark each time when a consumer received the first record of a leader epoch."""
    places: dict[int, list[tuple[float, str]]] = {}
    for at_s, partition, epoch in found.new_leaders:
        title = f"{partition}: epoch {epoch} at {clock(at_s)}"
        place = int(_bar(found, at_s, at_s, "").left / LEADER_WIDTH)
        places.setdefault(place, []).append((at_s, title))
    for seen in places.values():
        title = "\n".join(title for _, title in seen[:8])
        more = f"\nand {len(seen) - 8} more" if seen[8:] else ""
        yield _bar(found, seen[0][0], seen[0][0], title + more, kind="leader")


def _appends(found: Digest) -> Chart:
    """Return stacked columns of appends per second: ok, info, fail from bottom to top."""
    run = bins(found)
    limit, scale = _linear(max(b.counts.appends.total() / b.width_s for b in run))
    columns = []
    for b in run:
        counts = b.counts.appends
        title = (
            f"{b.label}: {counts['ok']:,} appends ok, {counts['info']:,} info, "
            f"{counts['fail']:,} fail; {b.counts.acked:,} records"
        )
        parts = [
            (kind, 100 * counts[outcome] / b.width_s / limit)
            for outcome, kind in (("ok", "ok"), ("info", "info hatch"), ("fail", "fail cross"))
            if counts[outcome]
        ]
        columns.append(Column(title, parts))
    return _chart(found, "appends/s", scale, columns)
