"""Pages of long lists, and their URLs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """``rows`` of page ``number``, from 1 to ``pages``. ``total``: rows of all pages."""

    rows: Sequence[T]
    number: int
    pages: int
    total: int
    first: int  # number of the first row, from 1; 0 without rows
    path: str
    parameters: Mapping[str, str]

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0

    def address(self, number: int) -> str:
        """Return the URL of another page with the same parameters."""
        changed = {**self.parameters, "page": str(number)}
        if number <= 1:
            del changed["page"]
        query = urlencode({name: value for name, value in changed.items() if value})
        return f"{self.path}?{query}" if query else self.path


def page_of(rows: Sequence[T], size: int, path: str, parameters: Mapping[str, str]) -> Page[T]:
    """Return the page with the number ``page`` in ``parameters``, or the nearest one."""
    pages = max(-(-len(rows) // size), 1)
    text = parameters.get("page", "")
    wanted = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1
    number = min(max(wanted, 1), pages)
    start = (number - 1) * size
    shown = rows[start : start + size]
    return Page(shown, number, pages, len(rows), start + 1 if shown else 0, path, parameters)
