"""HTML and SVG elements as trees, so that all texts are escaped. Pure.

Also formats numbers with their units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element, tostring

from raftlog.testing.history.entries import Member
from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.report.digest import NS, Digest, FaultSpan, Second, quantile_s

SVG_NAMESPACE: Final = "http://www.w3.org/2000/svg"
TEXT_CHARS_MAX: Final = 2_000  # maximum length of one text of a history
_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Child = Element | str | None


def node(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """Return an element. ``class_`` becomes ``class``, other underscores become hyphens; ``None``
    is omitted."""
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), clean(shorten(value)))
    add(made, *children)
    return made


def add(parent: Element, *children: Child) -> Element:
    """Append ``children`` to ``parent``, and return ``parent``."""
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif child is not None:
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + clean(child)
            else:
                parent.text = (parent.text or "") + clean(child)
    return parent


def clean(text: str) -> str:
    """Replace characters that XML does not allow."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def shorten(value: str | float) -> str:
    """Format a coordinate with at most one decimal, so that pictures with many points stay
    small."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)


def cut(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return ``text``, or its beginning and the number of omitted characters."""
    left = len(text) - chars_max
    return text if left <= 0 else f"{text[:chars_max]} ... and {left:,} more characters"


def serialise(root: Element) -> str:
    """Serialize as XML that is also valid HTML: without self-closing elements."""
    return tostring(root, encoding="unicode", short_empty_elements=False)


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


# -- canvas ----------------------------------------------------------------------------------------
#
# Common parts of the pictures in a report: sheet, time axis, shading, legends and colours. Pure.
#
# Colours are never the only distinction: each element also has a name, a pattern, or a title.


WIDTH: Final = 1000.0
LEFT: Final = 118.0  # x of the start of the run
RIGHT: Final = WIDTH - 14.0  # x of the end of the run
TEXT: Final = 12.0  # height of a line of text
BINS_MAX: Final = 400
TICKS_MAX: Final = 10
TICK_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200)
BIN_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200)

# Colours of the pictures and the page, each for light and dark mode.
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

PICTURE_STYLE: Final = """
svg.picture { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg.picture text { fill: var(--ink); }
svg.picture text.faint { fill: var(--faint); }
svg.picture text.on { fill: var(--paper); font-size: 10.5px; pointer-events: none; }
svg.picture .grid { stroke: var(--line); stroke-width: 1; }
svg.picture .outage { fill: var(--fail); fill-opacity: 0.16; }
svg.picture .hover { fill: var(--ink); fill-opacity: 0; }
svg.picture .hover:hover { fill-opacity: 0.12; }
svg.picture .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
"""


def style() -> str:
    """Return the CSS: the colours as variables, for light and dark mode, and the picture style."""
    light, dark = (
        "".join(f"--{name}: {pair[which]}; " for name, pair in COLOURS.items()) for which in (0, 1)
    )
    return (
        f":root {{ color-scheme: light dark; {light}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{PICTURE_STYLE}"
    )


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


class Sheet:
    """An SVG of ``WIDTH`` by ``height`` whose x axis is the time of the run."""

    def __init__(self, name: str, title: str, description: str, *, length_s: float) -> None:
        self.name = name
        self.length_s = max(length_s, 1.0)
        self.root = node(
            "svg",
            node("title", title, id=f"{name}-title"),
            node("desc", description, id=f"{name}-description"),
            node("defs", *(self._pattern(kind) for kind in ("hatch", "cross"))),
            xmlns=SVG_NAMESPACE,
            class_="picture",
            role="img",
            aria_labelledby=f"{name}-title {name}-description",
        )

    def finish(self, height: float) -> Element:
        self.root.set("viewBox", f"0 0 {WIDTH:.0f} {height:.0f}")
        return self.root

    def put(self, *elements: Element | None) -> None:
        add(self.root, *elements)

    def behind(self, element: Element) -> None:
        """Draw the element behind all existing elements."""
        self.root.insert(3, element)  # after title, desc and defs

    def x(self, at_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * min(max(at_s / self.length_s, 0.0), 1.0)

    def pattern(self, kind: str) -> str:
        return f"url(#{self.name}-{kind})"

    def _pattern(self, kind: str) -> Element:
        """Return a pattern of stripes in the colour of the paper, to draw over a shape."""
        strokes = {"hatch": "M0 6 6 0", "cross": "M0 6 6 0M0 0 6 6"}[kind]
        return node(
            "pattern",
            node("path", d=strokes, stroke="var(--paper)", stroke_width=1.6, fill="none"),
            id=f"{self.name}-{kind}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        )

    def label(self, y: float, text: str) -> None:
        """Draw the label of a row on its left side."""
        self.put(node("text", text, x=LEFT - 8, y=y, text_anchor="end"))

    def axis(self, top: float, bottom: float) -> None:
        """Draw vertical lines at round times from ``top`` to ``bottom``, with the times below."""
        step = _step(self.length_s / TICKS_MAX, TICK_STEPS_S)
        for at in range(0, math.floor(self.length_s) + 1, step):
            x = self.x(at)
            self.behind(node("path", d=f"M{x:.1f} {top:.0f}V{bottom:.0f}", class_="grid"))
            text = node("text", tick(at, self.length_s), x=x, y=bottom + 15, class_="faint")
            text.set("text-anchor", "middle")
            self.put(text)

    def shade(self, windows: Iterable[Window], top: float, bottom: float) -> None:
        """Shade the times without an acknowledgement."""
        for window in windows:
            left, right = self.x(window.begin_s), self.x(window.end_s)
            self.behind(
                node(
                    "rect",
                    node("title", window.text),
                    x=left,
                    y=top,
                    width=max(right - left, 1.5),
                    height=bottom - top,
                    class_="outage",
                )
            )

    def hover(self, run: Sequence[Bin], texts: Sequence[str], top: float, bottom: float) -> None:
        """Draw invisible bins with titles over all other elements."""
        for one, text in zip(run, texts, strict=True):
            left, right = self.x(one.begin_s), self.x(one.begin_s + one.width_s)
            shape = node("rect", x=left, y=top, width=right - left, height=bottom - top)
            shape.set("class", "hover")
            self.put(add(shape, node("title", f"{one.label}: {text}")))

    def legend(self, y: float, parts: Sequence[tuple[Element, str]]) -> None:
        """Draw samples (14 by 10 units at 0,0) with their meaning, in a row."""
        x = LEFT
        for sample, text in parts:
            place = f"translate({x:.0f} {y - 9:.0f})"
            self.put(node("g", sample, transform=place))
            self.put(node("text", text, x=x + 19, y=y, class_="faint"))
            x += 19 + 6.6 * len(text) + 18


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
# Ownership of the partitions of consumer groups over time: data and picture. Pure.
#
# A bar shows the time in which a member assumed ownership of a partition. If another member assumed
# ownership at the same time, its bar has half the height. Faults are drawn below.


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
        f"{one.member}: {clock(one.begin_s)} to {clock(one.end_s)}"
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


# -- plots -----------------------------------------------------------------------------------------
#
# Pictures of throughput and latency over the run, with the time axis of the timeline. Pure.


TOP: Final = 10.0
BOTTOM: Final = 190.0
HEIGHT: Final = BOTTOM + 48


class Curve(NamedTuple):
    """One line of a plot. ``values``: one per bin; ``None`` for a bin without a value."""

    text: str
    colour: str
    dashes: str
    values: list[float | None]


def throughput(digest: Digest, windows: Sequence[Window]) -> Element:
    """Draw the records per second that were acknowledged and that consumers read."""
    run = bins(digest)
    curves = [
        Curve("acknowledged", "ok", "", [b.counts.acked / b.width_s for b in run]),
        Curve("read by consumers", "read", "5 3", [b.counts.read / b.width_s for b in run]),
    ]
    largest = max(value or 0.0 for curve in curves for value in curve.values)
    description = f"Records per second, {largest:,.0f} at most."
    sheet = Sheet("throughput", "Throughput", description, length_s=digest.length_s)
    limit, step = scale_of(largest)
    lines = [number * step for number in range(round(limit / step) + 1)]
    _scale(sheet, [(BOTTOM - (BOTTOM - TOP) * at / limit, f"{at:,g}") for at in lines])
    sheet.label(TOP + 4, "records/s")
    sheet.shade(windows, TOP, BOTTOM)
    for curve in curves:
        points = [None if v is None else BOTTOM - (BOTTOM - TOP) * v / limit for v in curve.values]
        _curve(sheet, run, curve, points)
    texts = [
        f"{counted(b.counts.acked, 'record')} acknowledged, {b.counts.read:,} read" for b in run
    ]
    return _finish(sheet, run, curves, texts)


def latency(digest: Digest, windows: Sequence[Window]) -> Element:
    """Draw the latency of appends on a logarithmic scale: quantiles of ok, and the median of
    info."""
    run = bins(digest)
    curves = [
        Curve("longest of all ok", "fail", "2 3", [_longest(b) for b in run]),
        Curve("99 % of ok within", "info", "6 3", [_quantile(b, 0.99) for b in run]),
        Curve("half of ok within", "ok", "", [_quantile(b, 0.5) for b in run]),
    ]
    unknown = [_unknown(b) for b in run]
    values = [v for values in (*(c.values for c in curves), unknown) for v in values if v]
    low, high = _decades(values)
    description = f"Latency of appends. The longest of an acknowledged append was {_worst(run)}."
    sheet = Sheet("latency", "Latency of appends", description, length_s=digest.length_s)

    def y(value: float | None) -> float | None:
        if value is None:
            return None
        return BOTTOM - (BOTTOM - TOP) * (math.log10(value) - low) / (high - low)

    marks = [(10.0**power, y(10.0**power)) for power in range(low, high + 1)]
    _scale(sheet, [(at or 0.0, _round(value)) for value, at in marks])
    sheet.shade(windows, TOP, BOTTOM)
    for curve in curves:
        _curve(sheet, run, curve, [y(value) for value in curve.values])
    for one, value in zip(run, map(y, unknown), strict=True):
        if value is not None:
            sheet.put(_cross(sheet.x(one.begin_s + one.width_s / 2), value))
    return _finish(sheet, run, curves, [_describe(b) for b in run], crosses=any(unknown))


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


def _scale(sheet: Sheet, lines: Sequence[tuple[float, str]]) -> None:
    for y, text in lines:
        sheet.behind(node("path", d=f"M{LEFT} {y:.0f}H{RIGHT}", class_="grid"))
        if y > TOP + 12 or text.endswith("s"):
            label = node("text", text, x=LEFT - 8, y=y + 4, class_="faint")
            label.set("text-anchor", "end")
            sheet.put(label)


def _curve(sheet: Sheet, run: Sequence[Bin], curve: Curve, points: Sequence[float | None]) -> None:
    """Draw a line through the middles of the bins, interrupted at bins without a value."""
    path, joined = [], False
    for one, y in zip(run, points, strict=True):
        if y is None:
            joined = False
            continue
        x = sheet.x(one.begin_s + one.width_s / 2)
        path.append(f"{'L' if joined else 'M'}{x:.1f} {y:.1f}" + ("" if joined else "h1"))
        joined = True
    line = node("path", d="".join(path) or "M0 0", class_="curve", stroke_dasharray=curve.dashes)
    line.set("style", f"stroke: var(--{curve.colour})")
    sheet.put(line)


def _cross(x: float, y: float) -> Element:
    cross = node("path", d=f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6", class_="curve")
    cross.set("style", "stroke: var(--ink)")
    return cross


def _finish(
    sheet: Sheet,
    run: Sequence[Bin],
    curves: Sequence[Curve],
    texts: Sequence[str],
    *,
    crosses: bool = False,
) -> Element:
    sheet.hover(run, texts, TOP, BOTTOM)
    sheet.axis(TOP, BOTTOM)
    parts = []
    for curve in curves:
        sample = node("path", d="M0 5h14", class_="curve", stroke_dasharray=curve.dashes)
        sample.set("style", f"stroke: var(--{curve.colour})")
        parts.append((sample, curve.text))
    if crosses:
        parts.append((_cross(7, 5), "info: half took at most that long"))
    sheet.legend(BOTTOM + 38, parts)
    return sheet.finish(HEIGHT)


# -- timeline --------------------------------------------------------------------------------------
#
# Picture of the complete run: phases, faults by kind, outages, appends per second. Pure.


FAULT_ROW: Final = 20.0
FAULT_BAR: Final = 14.0
CHART: Final = 110.0
FAULT_BAR_WIDTH_MIN: Final = 3.0
SUB_ROWS_MAX: Final = 4  # of one kind; further overlapping faults share the last row
FAULT_BARS_MAX: Final = 1_500  # with more faults, close faults share a bar
EFFECT_CHARS_MAX: Final = 200
FAMILIES: Final = {"power": "power", "crash-at": "process", "pause-inside": "process"}


def family(kind: str) -> str:
    """Return the group of a kind of fault, which determines its colour."""
    for group, kinds in driver.GROUPS.items():
        if kind in kinds and group != "all":
            return group if group in COLOURS else "other"
    return FAMILIES.get(kind, "other")


def timeline(digest: Digest, windows: Sequence[Window]) -> Element:
    """Draw the events from the first to the last entry of the history."""
    description = (
        f"{counted(len(digest.faults), 'fault')} of "
        f"{counted(len({fault.kind for fault in digest.faults}), 'kind')} in "
        f"{seconds(digest.length_s)}, {counted(len(windows), 'time')} without an "
        "acknowledgement."
    )
    sheet = Sheet("timeline", "Timeline of the run", description, length_s=digest.length_s)
    top = y = 6.0
    y = _phases(sheet, digest, y)
    y = draw_faults(sheet, digest, y)
    y = _outages(sheet, windows, y)
    y = _new_leaders(sheet, digest, y)
    bottom = y + 8 + CHART
    sheet.shade(windows, top, bottom)
    _appends(sheet, bins(digest), y + 8, bottom)
    sheet.axis(top, bottom)
    sheet.legend(bottom + 38, list(_legend(sheet)))
    return sheet.finish(bottom + 48)


def _phases(sheet: Sheet, digest: Digest, y: float) -> float:
    if not digest.phases:
        return y
    sheet.label(y + 11, "phase")
    for phase in digest.phases:
        left, right = sheet.x(phase.begin_s), sheet.x(phase.end_s)
        description = f"{phase.name}: {clock(phase.begin_s)} to {clock(phase.end_s)}"
        box = node(
            "rect", node("title", description), x=left, y=y, width=right - left, height=FAULT_BAR
        )
        box.set("style", "fill: var(--soft); stroke: var(--line)")
        sheet.put(box)
        if right - left > 6.6 * len(phase.name) + 6:
            text = node("text", phase.name, x=left + 4, y=y + 11, class_="faint")
            text.set("pointer-events", "none")
            sheet.put(text)
    return y + FAULT_ROW


# -- faults ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Bar:
    """Faults of one kind that share one bar."""

    faults: list[FaultSpan]
    left: float
    right: float


def draw_faults(sheet: Sheet, digest: Digest, y: float) -> float:
    """Draw rows for each kind of fault, from ``y`` on. Returns the y of the next row."""
    kinds: dict[str, list[FaultSpan]] = {}
    for fault in digest.faults:
        kinds.setdefault(fault.kind, []).append(fault)
    apart = 1.0 if len(digest.faults) > FAULT_BARS_MAX else -1.0
    for kind in sorted(kinds, key=lambda kind: (family(kind), kind)):
        sheet.label(y + 11, kind)
        rows = _pack(_bars(sheet, kinds[kind], apart))
        for row in rows:
            for bar in row:
                sheet.put(*_draw_fault(sheet, bar, y))
            y += FAULT_ROW if row is rows[-1] else FAULT_BAR + 1
    return y


def _bars(sheet: Sheet, faults: Iterable[FaultSpan], apart: float) -> list[_Bar]:
    """Return a bar for each fault. Faults closer than ``apart`` share a bar if it is positive."""
    made: list[_Bar] = []
    for fault in faults:
        left = sheet.x(fault.begin_s)
        right = max(sheet.x(fault.end_s), left + FAULT_BAR_WIDTH_MIN)
        if apart > 0 and made and left - made[-1].right < apart:
            made[-1].faults.append(fault)
            made[-1].right = max(made[-1].right, right)
        else:
            made.append(_Bar([fault], left, right))
    return made


def _pack(made: Iterable[_Bar]) -> list[list[_Bar]]:
    """Distribute bars to at most ``SUB_ROWS_MAX`` rows, so that they do not overlap if
    possible."""
    rows: list[list[_Bar]] = []
    for bar in made:
        free = next((row for row in rows if row[-1].right <= bar.left), None)
        if free is None and len(rows) < SUB_ROWS_MAX:
            free = []
            rows.append(free)
        (rows[-1] if free is None else free).append(bar)
    return rows


def _draw_fault(sheet: Sheet, bar: _Bar, y: float) -> Iterator[Element]:
    first = bar.faults[0]
    injected = any(fault.injected for fault in bar.faults)
    beyond = any(fault.beyond for fault in bar.faults)
    description = "\n".join(describe(fault) for fault in bar.faults[:5])
    if len(bar.faults) > 5:
        description += f"\nand {len(bar.faults) - 5} more"
    colour = f"var(--{family(first.kind)})"
    place = {"x": bar.left, "y": y, "width": bar.right - bar.left, "height": FAULT_BAR}
    shape = node("rect", node("title", description), rx=2, **place)
    shape.set("style", f"fill: {colour}; stroke: {'var(--ink)' if beyond else colour}")
    yield shape
    if not injected:
        yield node("rect", fill=sheet.pattern("cross"), pointer_events="none", **place)
    text = "" if not injected else _inside(bar, beyond)
    if text and bar.right - bar.left > 6.2 * len(text) + 5:
        yield node("text", text, x=bar.left + 3, y=y + 10.6, class_="on")


def _inside(bar: _Bar, beyond: bool) -> str:
    targets = ",".join(map(str, sorted({t for fault in bar.faults for t in fault.targets})))
    return targets + ("!" if beyond else "")


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


# -- below the faults -----------------------------------------------------------------------------


def _outages(sheet: Sheet, windows: Sequence[Window], y: float) -> float:
    if not windows:
        return y
    sheet.label(y + 11, "no acks")
    for window in windows:
        left, right = sheet.x(window.begin_s), sheet.x(window.end_s)
        box = node("rect", node("title", window.text), x=left, y=y, height=FAULT_BAR)
        box.set("width", shorten(max(right - left, FAULT_BAR_WIDTH_MIN)))
        box.set("style", "fill: var(--fail)")
        sheet.put(box)
        text = seconds(window.end_s - window.begin_s)
        if right - left > 6.2 * len(text) + 5:
            sheet.put(node("text", text, x=left + 3, y=y + 10.6, class_="on"))
    return y + FAULT_ROW


def _new_leaders(sheet: Sheet, digest: Digest, y: float) -> float:
    """Draw a mark at each time when a consumer received the first record of a leader epoch."""
    if not digest.new_leaders:
        return y
    sheet.label(y + 11, "new leaders")
    places: dict[int, list[str]] = {}
    for at_s, partition, epoch in digest.new_leaders:
        description = f"{partition}: epoch {epoch} at {clock(at_s)}"
        places.setdefault(int(sheet.x(at_s) / 2), []).append(description)
    for place, seen in places.items():
        text = "\n".join(seen[:8]) + (f"\nand {len(seen) - 8} more" if seen[8:] else "")
        mark = node("path", node("title", text), d=f"M{place * 2} {y + 2:.0f}l4 10h-8z")
        mark.set("style", "fill: var(--faint)")
        sheet.put(mark)
    return y + FAULT_ROW


def _appends(sheet: Sheet, run: Sequence[Bin], top: float, bottom: float) -> None:
    """Draw stacked bars of appends per second: ok, info, fail from bottom to top."""
    rates = [{t: b.counts.appends[t] / b.width_s for t in ("ok", "info", "fail")} for b in run]
    limit, step = scale_of(max(sum(rate.values()) for rate in rates))
    height = (bottom - top) / limit
    sheet.label(top + 12, "appends/s")
    for line in range(round(limit / step) + 1):
        y = bottom - line * step * height
        sheet.behind(node("path", d=f"M{LEFT} {y:.0f}H{RIGHT}", class_="grid"))
        if line > 0 and y > top + 20:
            text = node("text", f"{line * step:,g}", x=LEFT - 8, y=y + 4, class_="faint")
            text.set("text-anchor", "end")
            sheet.put(text)
    at = [0.0] * len(run)
    for outcome in ("ok", "info", "fail"):
        shape = []
        for number, one in enumerate(run):
            tall = rates[number][outcome] * height
            if tall > 0:
                left, right = sheet.x(one.begin_s), sheet.x(one.begin_s + one.width_s)
                low = bottom - at[number]
                at[number] += max(tall, 1.0)
                width = max(right - left - 0.4, 0.6)
                shape.append(
                    f"M{left:.1f} {low:.1f}h{width:.1f}v{-max(tall, 1.0):.1f}h-{width:.1f}z"
                )
        sheet.put(*_filled(sheet, "".join(shape), outcome))
    texts = [
        f"{one['ok']:,} appends ok, {one['info']:,} info, {one['fail']:,} fail; {acked:,} records"
        for one, acked in ((b.counts.appends, b.counts.acked) for b in run)
    ]
    sheet.hover(run, texts, top, bottom)


def _filled(sheet: Sheet, path: str, outcome: str) -> Iterator[Element]:
    if path:
        yield node("path", d=path, style=f"fill: var(--{outcome})")
        if outcome != "ok":
            kind = "hatch" if outcome == "info" else "cross"
            yield node("path", d=path, fill=sheet.pattern(kind), pointer_events="none")


def _legend(sheet: Sheet) -> Iterator[tuple[Element, str]]:
    for outcome, kind, text in (
        ("ok", "", "ok"),
        ("info", "hatch", "info: outcome unknown"),
        ("fail", "cross", "fail: no effect"),
        ("other", "", "fault, with its brokers"),
        ("other", "cross", "not injected"),
    ):
        sample = node("g", node("rect", width=14, height=10, style=f"fill: var(--{outcome})"))
        if kind:
            sample.append(node("rect", width=14, height=10, fill=sheet.pattern(kind)))
        yield sample, text
    yield node("rect", width=14, height=10, class_="outage"), "no acknowledgement"
