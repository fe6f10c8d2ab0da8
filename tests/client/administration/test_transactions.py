"""Transactions from outside: arguments, and lists that are whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog import limits
from raftlog.client.administration import transactions
from raftlog.errors import CoordinatorLoadingError, InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionListing,
)
from raftlog.types import TRANSACTIONS_TOPIC
from tests.client.test_cluster import cluster_of
from tests.client.world import FakeCluster, Peer, run
from tests.running import runs

REQUEST = transactions.listing_request(None, None, None)


def page(
    *names: str, after: int = -1, loading: int = 0, partition: int
) -> ListTransactionsResponse:
    listed = [
        TransactionListing(
            transactional_id=name, state="empty", producer_id=7, producer_epoch=0, timeout_ms=9
        )
        for name in names
    ]
    return ListTransactionsResponse(
        transactions=listed, after=after, loading=loading, partitions=[partition]
    )


@runs(run, brokers=2)
async def test_a_list_has_all_pages_of_all_coordinators(fake: FakeCluster) -> None:
    """One that is still loading is waited for, also if that begins after its first page."""
    fake.create(TRANSACTIONS_TOPIC, 2, leaders=[1, 2])
    loads = [1, 1]  # so many more times, for the first page of broker 1 and its second one
    asked: list[tuple[int, int]] = []

    def answer(broker_id: int, after: int) -> ListTransactionsResponse:
        asked.append((broker_id, after))
        if broker_id == 2:
            return page("c", partition=1)
        at = 0 if after < 0 else 1
        if loads[at]:
            loads[at] -= 1
            return page(loading=1, partition=0)
        return page("b", after=5, partition=0) if at == 0 else page("a", partition=0)

    def behave(peer: Peer, request: Request) -> None:
        assert isinstance(request.message, ListTransactionsRequest)
        peer.write(peer.state.reply(request, answer(peer.broker_id, request.message.after)))

    fake.always[apis.LIST_TRANSACTIONS] = behave
    cluster = cluster_of(fake)
    found = await transactions.list_transactions(cluster, REQUEST)
    assert [(row.transactional_id, row.coordinator) for row in found] == [
        ("a", 1),
        ("b", 1),
        ("c", 2),
    ]
    assert [after for broker, after in asked if broker == 1] == [-1, -1, 5, -1, 5]
    loads[1] = 1_000_000
    with pytest.raises(CoordinatorLoadingError, match="broker 1 is still loading"):
        await transactions.list_transactions(cluster, REQUEST)
    await cluster.close()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: transactions.transactional_ids("tx"), TypeError, r"Pass \['tx'\]"),
        (lambda: transactions.transactional_ids([7]), TypeError, "7 is not"),  # type: ignore[list-item]
        (lambda: transactions.transactional_ids([""]), InvalidRequestError, "1 to 1024"),
        (lambda: transactions.transactional_ids(["x" * 1_025]), InvalidRequestError, "not 1025"),
        (lambda: transactions.listing_request("empty", None, None), TypeError, r"\['empty'\]"),
        (lambda: transactions.listing_request(["x"], None, None), InvalidRequestError, "'x'"),
        (
            lambda: transactions.listing_request(None, [-1], None),
            InvalidRequestError,
            "producer_id",
        ),
        (
            lambda: transactions.listing_request(None, range(1_001), None),
            InvalidRequestError,
            str(limits.TRANSACTION_FILTERS_MAX),
        ),
        (lambda: transactions.listing_request(None, None, -1), InvalidRequestError, "min_duration"),
    ],
)
def test_a_wrong_argument_is_named(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()
