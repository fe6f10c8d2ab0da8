"""HTML and SVG elements as trees, so that all texts are escaped. Pure.

Also formats numbers with their units.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, tostring

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
