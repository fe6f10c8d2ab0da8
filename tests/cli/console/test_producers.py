"""The pages of producers and of transactions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raftlog import Admin, Producer
from raftlog.client.administration.transactions import TransactionListing
from raftlog.client.descriptions import ProducerDescription, ProducerPage
from raftlog.errors import InvalidRequestError, TransactionAbortedError
from raftlog.testing import Cluster
from raftlog_cli.console.pages import Pages, producers, transactions
from tests.cli.console.conftest import Browser
from tests.cli.console.test_app import ATTRIBUTE, check
from tests.cli.console.test_pages import text_of

# -- producers -------------------------------------------------------------------------------------

# The page of producers: of a fake cluster, and of a real one.


class Known:
    """An admin client that knows ``total`` producers."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.asked: list[Any] = []

    def describe_producers(
        self, topic: str, partitions: list[int] | None, *, skip: int, limit: int
    ) -> ProducerPage:
        self.asked.append((topic, partitions, skip))
        rows = tuple(
            ProducerDescription(0, number, "idempotent", 0, 1, 2, 3, "committed")
            for number in range(skip, min(skip + limit, self.total))
        )
        return ProducerPage(rows, skip, self.total, {3: "no leader", 1: "no leader"})


def shown(admin: Known, **parameters: str) -> dict[str, Any]:
    unused: Any = [None] * 4
    pages = Pages(cast(Admin, admin), *unused, make_producer=unused[0], is_secured=False)
    return producers(pages, {"name": "t", **parameters})


def test_pages_are_requested_one_at_a_time() -> None:
    admin = Known(250)
    found = shown(admin, page="2", partition="4")
    page = found["page"]
    assert (page.number, page.pages, page.first, page.last, page.total) == (2, 3, 101, 200, 250)
    assert page.address(3) == "/topics/t/producers?partition=4&page=3"
    assert [number for number, _ in found["problems"]] == [1, 3]
    assert admin.asked == [("t", [4], 100)]


def test_a_number_beyond_the_last_page_shows_the_last_one() -> None:
    for number in ("9", "999999999"):
        page = shown(Known(250), page=number)["page"]
        assert (page.number, len(page.rows)) == (3, 50)
    page = shown(Known(0), page="2")["page"]
    assert (page.number, page.total, list(page.rows)) == (1, 0, [])


def test_a_partition_is_a_number() -> None:
    with pytest.raises(InvalidRequestError, match=r"^partition: "):
        shown(Known(1), partition="x")


@pytest.mark.integration
def test_producers_of_a_topic_and_of_a_partition(
    browser: Browser, topic: str, bootstrap: str, broker: Cluster
) -> None:
    path = f"/topics/{topic}/producers"
    assert "No idempotent or named producer has written here" in text_of(browser.get(path))
    with Producer(bootstrap) as producer:
        for partition in (0, 1, 1):
            producer.send(topic, b"v", partition=partition).result(30)
    html = browser.get(path)
    check(html)
    text = text_of(html)
    assert "2 producers" in text
    assert " idempotent 0 1 1 20" in text  # epoch, last sequence, last offset, time
    assert "committed" in text
    assert f'href="/topics/{topic}/records/1/1"' in html
    assert "1 producer " in text_of(browser.get(f"{path}?partition=0"))
    for where in (f"/topics/{topic}", f"/topics/{topic}/partitions/0"):
        assert f'href="{path}' in browser.get(where)
    browser.get(f"{path}?partition=9", 404)
    browser.get("/topics/no-such/producers", 404)
    check(browser.get(f"{path}?partition={ATTRIBUTE}", 400))


# -- transactions ----------------------------------------------------------------------------------

# The pages of transactions: of a fake cluster, and of a real one.


class Listed:
    """An admin client that knows these transactional IDs, by the time when they began."""

    def __init__(self, **started_ms: int | None) -> None:
        self._rows = [
            TransactionListing(name, "ongoing" if began else "empty", 1, 0, 60_000, began, 1)
            for name, began in started_ms.items()
        ]

    def list_transactions(self) -> list[TransactionListing]:
        return self._rows


def test_the_transaction_that_has_been_open_for_longest_is_the_first() -> None:
    unused: Any = [None] * 4
    admin = cast(Admin, Listed(at_rest=None, late=2_000, early=1_000, other=None))
    pages = Pages(admin, *unused, make_producer=unused[0], is_secured=False)
    found = transactions(pages, {})
    names = [row.transactional_id for row in found["page"].rows]
    assert (names, found["open"]) == (["early", "late", "at_rest", "other"], 2)
    searched = transactions(pages, {"q": "AR"})
    assert [row.transactional_id for row in searched["page"].rows] == ["early"]


@pytest.mark.integration
def test_an_open_transaction_is_shown_and_aborted(
    browser: Browser, topic: str, bootstrap: str
) -> None:
    name = "console & job"
    page = "/transaction?id=console%20%26%20job"
    producer = Producer(bootstrap, transactional_id=name)
    txn = producer.transaction()
    with producer:
        txn.__enter__().send(topic, b"v", partition=1).result(30)
        listed = browser.get("/transactions")
        check(listed)
        assert f'href="{page}"' in listed
        shown = browser.get(page)
        check(shown)
        assert f"{topic} 1" in text_of(shown)
        assert browser.post("/transaction/abort", id=name)[0] == 303
        with pytest.raises(TransactionAbortedError):
            txn.__exit__(None, None, None)
    assert "Abort the transaction" not in browser.get(page)
    browser.get("/transaction?id=nobody", 404)
