"""The pages of transactions: of a fake cluster, and of a real one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raftlog import Admin, Producer
from raftlog.client.administration.transactions import TransactionListing
from raftlog.errors import TransactionAbortedError
from raftlog_cli.console.pages import Pages, transactions
from tests.cli.console.conftest import Browser
from tests.cli.console.test_app import check
from tests.cli.console.test_pages import text_of


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
