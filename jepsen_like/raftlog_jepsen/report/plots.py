"""Pictures of throughput and latency over the run, with the time axis of the timeline. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from raftlog_jepsen.report import markup
from raftlog_jepsen.report.canvas import LEFT, RIGHT, Bin, Sheet, Window, bins, scale_of
from raftlog_jepsen.report.digest import Digest, quantile_s
from raftlog_jepsen.report.markup import node

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
        f"{markup.counted(b.counts.acked, 'record')} acknowledged, {b.counts.read:,} read"
        for b in run
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
    return f"{value:g} s" if value >= 1 else markup.seconds(value)


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
    return markup.seconds(max(one.counts.longest_ns for one in run) / 1e9)


def _describe(one: Bin) -> str:
    parts = [
        f"{text} {markup.seconds(value)}"
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
