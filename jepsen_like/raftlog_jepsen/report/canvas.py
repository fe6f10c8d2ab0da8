"""Common parts of the pictures in a report: sheet, time axis, shading, legends and colours. Pure.

Colours are never the only distinction: each element also has a name, a pattern, or a title.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from raftlog_jepsen.report import markup
from raftlog_jepsen.report.digest import Digest, Second
from raftlog_jepsen.report.markup import add, node

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
        return f"{markup.clock(self.begin_s)} to {markup.clock(self.begin_s + self.width_s)}"


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
            xmlns=markup.SVG_NAMESPACE,
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
