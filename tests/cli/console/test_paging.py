"""Pages of long lists."""

from __future__ import annotations

import pytest

from raftlog_cli.console.pages import Page, number_of, page_of, pages_of


@pytest.mark.parametrize(
    ("text", "number", "first", "last"),
    [("", 1, 1, 10), ("3", 3, 21, 25), ("99", 3, 21, 25), ("0", 1, 1, 10), ("x", 1, 1, 10)],
)
def test_the_page_is_the_nearest_that_there_is(
    text: str, number: int, first: int, last: int
) -> None:
    page = page_of(range(1, 26), 10, "/x", {"page": text})
    assert (page.number, page.pages, page.total) == (number, 3, 25)
    assert (page.first, page.last, page.rows[0], page.rows[-1]) == (first, last, first, last)


def test_addresses_keep_the_parameters() -> None:
    page = page_of(range(25), 10, "/topics", {"q": "a&b", "sort": "", "page": "2"})
    assert page.address(3) == "/topics?q=a%26b&page=3"
    assert page.address(1) == "/topics?q=a%26b"
    assert page_of([], 10, "/t", {}).address(1) == "/t"


def test_an_empty_list_is_one_empty_page() -> None:
    page = page_of([], 10, "/x", {})
    assert (page.pages, page.first, page.last, list(page.rows)) == (1, 0, 0, [])


def test_a_page_of_rows_that_were_not_all_read() -> None:
    page = Page("de", 2, 3, 5, "/x", {"page": "2"})
    assert (page.pages, page.first, page.last, page.address(3)) == (2, 4, 5, "/x?page=3")
    assert [number_of({"page": text}) for text in ("2", "0", "x", "9" * 9)] == [
        2,
        1,
        1,
        999_999_999,
    ]
    assert [pages_of(total, 3) for total in (0, 3, 4)] == [1, 1, 2]
