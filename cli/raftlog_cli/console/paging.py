"""Pages of long lists, and their URLs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

ROWS: Final = 50  # of a page
PARTITION_ROWS: Final = 100  # of a page of partitions, or what is about one

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """``rows`` of page ``number``, from 1 to ``pages``; each has ``size`` rows at most. ``total``:
    rows of all pages.
    """

    rows: Sequence[T]
    number: int
    size: int
    total: int
    path: str
    parameters: Mapping[str, str]

    @property
    def pages(self) -> int:
        return pages_of(self.total, self.size)

    @property
    def first(self) -> int:
        """The number of the first row, from 1; 0 without rows."""
        return (self.number - 1) * self.size + 1 if self.rows else 0

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
    number = min(number_of(parameters), pages_of(len(rows), size))
    shown = rows[(number - 1) * size : number * size]
    return Page(shown, number, size, len(rows), path, parameters)


def number_of(parameters: Mapping[str, str]) -> int:
    """Return the number ``page`` in ``parameters``; 1 if it is missing or no number."""
    text = parameters.get("page", "")
    wanted = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1
    return max(wanted, 1)


def fetched(
    fetch: Callable[[int], T],
    total_of: Callable[[T], int],
    size: int,
    parameters: Mapping[str, str],
) -> tuple[int, T]:
    """Fetch the page with the number ``page`` in ``parameters``, or the last one if it is beyond.

    ``fetch``: returns a page by its number, from 1. ``total_of``: the rows of all pages, by one of
    them. Returns the number of the page, and the page.
    """
    number = number_of(parameters)
    found = fetch(number)
    last = pages_of(total_of(found), size)
    return (number, found) if number <= last else (last, fetch(last))


def pages_of(total: int, size: int) -> int:
    return max(-(-total // size), 1)
