"""Elements of HTML and SVG as trees, so that what comes from a history is always escaped. Pure.

Also how numbers are written for people, each with its unit.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, tostring

SVG_NAMESPACE: Final = "http://www.w3.org/2000/svg"
TEXT_CHARS_MAX: Final = 2_000  # of one text that a history brings along
_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Child = Element | str | None


def node(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """An element. ``class_`` is ``class``, other underscores are hyphens; ``None`` is left out."""
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), clean(shorten(value)))
    add(made, *children)
    return made


def add(parent: Element, *children: Child) -> Element:
    """Put ``children`` behind what ``parent`` has already; ``parent`` again."""
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
    """Without what no XML document may contain."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def shorten(value: str | float) -> str:
    """A coordinate with one decimal at most: pictures of many points stay small."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)


def cut(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """``text``, or its beginning and how much more there is."""
    left = len(text) - chars_max
    return text if left <= 0 else f"{text[:chars_max]} ... and {left:,} characters more"


def serialise(root: Element) -> str:
    """As XML that is HTML as well: no element closes itself."""
    return tostring(root, encoding="unicode", short_empty_elements=False)


# -- numbers --------------------------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """``1 kill``, ``2,000 kills``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def seconds(value: float) -> str:
    """A length of time: ``1.2 ms``, ``3.45 s``, ``2 min 5 s``, ``3 h 20 min``."""
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
    """A moment of the run: ``75.0 s``, from ten minutes on ``1:02:03``."""
    if value < 600:
        return f"{value:.1f} s"
    whole = int(value)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def size(count: float) -> str:
    """Bytes: ``512 B``, ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
