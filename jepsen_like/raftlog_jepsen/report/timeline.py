"""Picture of the complete run: phases, faults by kind, outages, appends per second. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from raftlog_jepsen.nemesis import registry
from raftlog_jepsen.report import markup
from raftlog_jepsen.report.canvas import (
    COLOURS,
    LEFT,
    RIGHT,
    Bin,
    Sheet,
    Window,
    bins,
    scale_of,
)
from raftlog_jepsen.report.digest import Digest, FaultSpan
from raftlog_jepsen.report.markup import node

ROW: Final = 20.0
BAR: Final = 14.0
CHART: Final = 110.0
BAR_WIDTH_MIN: Final = 3.0
SUB_ROWS_MAX: Final = 4  # of one kind; further overlapping faults share the last row
BARS_MAX: Final = 1_500  # with more faults, close faults share a bar
EFFECT_CHARS_MAX: Final = 200
FAMILIES: Final = {"power": "power", "crash-at": "process", "pause-inside": "process"}


def family(kind: str) -> str:
    """Return the group of a kind of fault, which determines its colour."""
    for group, kinds in registry.GROUPS.items():
        if kind in kinds and group != "all":
            return group if group in COLOURS else "other"
    return FAMILIES.get(kind, "other")


def timeline(digest: Digest, windows: Sequence[Window]) -> Element:
    """Draw the events from the first to the last entry of the history."""
    description = (
        f"{markup.counted(len(digest.faults), 'fault')} of "
        f"{markup.counted(len({fault.kind for fault in digest.faults}), 'kind')} in "
        f"{markup.seconds(digest.length_s)}, {markup.counted(len(windows), 'time')} without an "
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
        description = f"{phase.name}: {markup.clock(phase.begin_s)} to {markup.clock(phase.end_s)}"
        box = node("rect", node("title", description), x=left, y=y, width=right - left, height=BAR)
        box.set("style", "fill: var(--soft); stroke: var(--line)")
        sheet.put(box)
        if right - left > 6.6 * len(phase.name) + 6:
            text = node("text", phase.name, x=left + 4, y=y + 11, class_="faint")
            text.set("pointer-events", "none")
            sheet.put(text)
    return y + ROW


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
    apart = 1.0 if len(digest.faults) > BARS_MAX else -1.0
    for kind in sorted(kinds, key=lambda kind: (family(kind), kind)):
        sheet.label(y + 11, kind)
        rows = _pack(_bars(sheet, kinds[kind], apart))
        for row in rows:
            for bar in row:
                sheet.put(*_draw(sheet, bar, y))
            y += ROW if row is rows[-1] else BAR + 1
    return y


def _bars(sheet: Sheet, faults: Iterable[FaultSpan], apart: float) -> list[_Bar]:
    """Return a bar for each fault. Faults closer than ``apart`` share a bar if it is positive."""
    made: list[_Bar] = []
    for fault in faults:
        left = sheet.x(fault.begin_s)
        right = max(sheet.x(fault.end_s), left + BAR_WIDTH_MIN)
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


def _draw(sheet: Sheet, bar: _Bar, y: float) -> Iterator[Element]:
    first = bar.faults[0]
    injected = any(fault.injected for fault in bar.faults)
    beyond = any(fault.beyond for fault in bar.faults)
    description = "\n".join(describe(fault) for fault in bar.faults[:5])
    if len(bar.faults) > 5:
        description += f"\nand {len(bar.faults) - 5} more"
    colour = f"var(--{family(first.kind)})"
    place = {"x": bar.left, "y": y, "width": bar.right - bar.left, "height": BAR}
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
    when = f"{markup.clock(fault.begin_s)} to {markup.clock(fault.end_s)}"
    head = f"{fault.kind}{on}, {when}"
    if not fault.injected:
        return f"{head}, not injected: {markup.cut(fault.why, EFFECT_CHARS_MAX)}"
    seen = "; ".join(f"{name} {value}" for name, value in fault.effect.items())
    budget = ", beyond budget" if fault.beyond else ""
    return f"{head}{budget}" + (f"; {markup.cut(seen, EFFECT_CHARS_MAX)}" if seen else "")


# -- below the faults -----------------------------------------------------------------------------


def _outages(sheet: Sheet, windows: Sequence[Window], y: float) -> float:
    if not windows:
        return y
    sheet.label(y + 11, "no acks")
    for window in windows:
        left, right = sheet.x(window.begin_s), sheet.x(window.end_s)
        box = node("rect", node("title", window.text), x=left, y=y, height=BAR)
        box.set("width", markup.shorten(max(right - left, BAR_WIDTH_MIN)))
        box.set("style", "fill: var(--fail)")
        sheet.put(box)
        text = markup.seconds(window.end_s - window.begin_s)
        if right - left > 6.2 * len(text) + 5:
            sheet.put(node("text", text, x=left + 3, y=y + 10.6, class_="on"))
    return y + ROW


def _new_leaders(sheet: Sheet, digest: Digest, y: float) -> float:
    """Draw a mark at each time when a consumer received the first record of a leader epoch."""
    if not digest.new_leaders:
        return y
    sheet.label(y + 11, "new leaders")
    places: dict[int, list[str]] = {}
    for at_s, partition, epoch in digest.new_leaders:
        description = f"{partition}: epoch {epoch} at {markup.clock(at_s)}"
        places.setdefault(int(sheet.x(at_s) / 2), []).append(description)
    for place, seen in places.items():
        text = "\n".join(seen[:8]) + (f"\nand {len(seen) - 8} more" if seen[8:] else "")
        mark = node("path", node("title", text), d=f"M{place * 2} {y + 2:.0f}l4 10h-8z")
        mark.set("style", "fill: var(--faint)")
        sheet.put(mark)
    return y + ROW


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
