"""Transactions of raftlog's own protocol: one broker, request by request."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from raftlog import Admin, Producer, limits
from raftlog.client import transactions as of_clients
from raftlog.client.administration.transactions import STATES
from raftlog.errors import (
    CoordinatorLoadingError,
    InvalidProducerMappingError,
    InvalidRequestError,
    InvalidTransactionStateError,
    NotCoordinatorError,
    ProducerFencedError,
    RaftlogError,
    TransactionAbortedError,
    UnknownTopicError,
    UnknownTransactionError,
    UnstableOffsetError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.records import (
    EndTransactionRequest,
    EndTransactionResponse,
    FetchedOffset,
    FindCoordinatorsRequest,
    FindTransactionCoordinatorsRequest,
    InitProducerIdResponse,
    InitTransactionsRequest,
    ListTransactionsRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    PartitionName,
    TransactionOffsetCommitRequest,
)
from raftlog.protocol.schema import Message
from raftlog.server.apis import transactions
from raftlog.server.apis.transactions import (
    ListedTransactions,
    WantedTransactions,
    list_transactions,
)
from raftlog.transactions import (
    STATUSES,
    TransactionSettings,
    TransactionShard,
    TransactionView,
)
from raftlog.types import OFFSETS_TOPIC
from tests.server.harness import Client, RunningBroker, running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running(tmp_path_factory.mktemp("transactions")) as broker:
        with broker.client() as client:
            assert client.create("t").failure is None
            find = FindTransactionCoordinatorsRequest(transactional_ids=["x", "y" * 2_000])
            asked = client.ask(apis.FIND_TRANSACTION_COORDINATORS, find).coordinators
            client.ask(apis.FIND_COORDINATORS, FindCoordinatorsRequest(groups=["g"]))
        found, refused = asked
        assert (found.group, found.failure) == ("x", None)
        assert isinstance(refused.failure.to_error(), InvalidRequestError)
        yield broker


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with broker.client() as client:
        yield client


def ask(client: Client, api: Api, message: Message) -> Message | RaftlogError:
    """The answer, or the error; a coordinator that is still loading is asked again."""
    while True:
        answer = client.answer(client.send(api, message)).message
        if not isinstance(answer, CoordinatorLoadingError | NotCoordinatorError):
            return answer


def begun(client: Client, name: str) -> tuple[int, int]:
    answer = ask(
        client,
        apis.INIT_TRANSACTIONS,
        InitTransactionsRequest(transactional_id=name, timeout_ms=60_000),
    )
    assert isinstance(answer, InitProducerIdResponse)
    return answer.producer_id, answer.producer_epoch


def ended(
    client: Client, name: str, identity: tuple[int, int], *, commit: bool = True
) -> tuple[int, int] | RaftlogError:
    answer = ask(
        client,
        apis.END_TRANSACTION,
        EndTransactionRequest(
            transactional_id=name,
            producer_id=identity[0],
            producer_epoch=identity[1],
            commit=commit,
        ),
    )
    if isinstance(answer, RaftlogError):
        return answer
    assert isinstance(answer, EndTransactionResponse)
    return answer.producer_id, answer.producer_epoch


def committed(client: Client, *, stable: bool) -> FetchedOffset:
    asked = OffsetFetchRequest(
        group="g", partitions=[PartitionName(topic="t", partition=0)], require_stable=stable
    )
    (found,) = client.ask(apis.OFFSET_FETCH, asked).offsets
    assert isinstance(found, FetchedOffset)
    return found


def test_offsets_follow_the_end_of_the_transaction(client: Client) -> None:
    identity = begun(client, "offsets")
    for commit, topic in ((True, "t"), (False, "t"), (True, "gone")):
        request = TransactionOffsetCommitRequest(
            transactional_id="offsets",
            producer_id=identity[0],
            producer_epoch=identity[1],
            group="g",
            offsets=[OffsetToCommit(topic=topic, partition=0, offset=5 if commit else 9)],
        )
        answer = ask(client, apis.TRANSACTION_OFFSET_COMMIT, request)
        assert not isinstance(answer, RaftlogError)
        (part,) = answer.partitions  # type: ignore[attr-defined]
        if topic == "gone":
            assert isinstance(part.failure.to_error(), UnknownTopicError)
            continue
        assert part.failure is None
        unstable = committed(client, stable=True).failure
        assert unstable is not None
        assert isinstance(unstable.to_error(), UnstableOffsetError)
        assert committed(client, stable=False).offset == (-1 if commit else 5)
        after = ended(client, "offsets", identity, commit=commit)
        assert after == (identity[0], identity[1] + 1)
        assert ended(client, "offsets", identity, commit=commit) == after, "it can be repeated"
        identity = identity[0], identity[1] + 1
        while committed(client, stable=True).failure is not None:
            pass  # the marker is on its way
        assert committed(client, stable=True).offset == 5


def test_a_newer_producer_fences(client: Client) -> None:
    old = begun(client, "fenced")
    new = begun(client, "fenced")
    assert (new[0], new[1]) == (old[0], old[1] + 1)
    assert isinstance(ended(client, "fenced", (old[0], old[1])), ProducerFencedError)
    assert isinstance(ended(client, "fenced", (old[0] ^ 1, 0)), InvalidProducerMappingError)


# -- operators


def began(client: Client, name: str) -> None:
    """Begin a transaction with the offset of a group."""
    identity = begun(client, name)
    request = TransactionOffsetCommitRequest(
        transactional_id=name,
        producer_id=identity[0],
        producer_epoch=identity[1],
        group="g",
        offsets=[OffsetToCommit(topic="t", partition=0, offset=5)],
    )
    answer = ask(client, apis.TRANSACTION_OFFSET_COMMIT, request)
    assert answer.partitions[0].failure is None  # type: ignore[union-attr]


@pytest.fixture
def admin(broker: RunningBroker) -> Iterator[Admin]:
    with Admin(str(broker.address)) as admin:
        yield admin


def test_transactions_are_listed_described_and_aborted(
    broker: RunningBroker, client: Client, admin: Admin
) -> None:
    began(client, "operated")
    (listed,) = [
        each
        for each in admin.list_transactions(states=["ongoing"])
        if each.transactional_id == "operated"
    ]
    assert (listed.timeout_ms, listed.producer_epoch, listed.coordinator) == (60_000, 0, 1)
    assert listed.started_ms == broker.clock.wall_ms()
    (found,) = admin.describe_transactions(["operated"])
    (part,) = found.partitions
    assert part.topic == OFFSETS_TOPIC
    fields = (field.name for field in dataclasses.fields(listed))
    assert all(getattr(found, field) == getattr(listed, field) for field in fields)

    admin.abort_transaction("operated")
    who = listed.producer_id, listed.producer_epoch
    assert isinstance(ended(client, "operated", who), TransactionAbortedError)
    while admin.describe_transactions(["operated"])[0].state == "prepare_abort":
        pass  # the marker is on its way
    (found,) = admin.describe_transactions(["operated"])
    assert (found.state, found.started_ms, found.partitions) == ("complete_abort", None, ())
    with pytest.raises(InvalidTransactionStateError, match="not open"):
        admin.abort_transaction("operated")
    for call in (admin.abort_transaction, lambda name: admin.describe_transactions([name])):
        with pytest.raises(UnknownTransactionError, match="absent"):
            call("absent")


def test_a_listing_has_pages_and_filters(
    client: Client, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"paged-{number}" for number in range(7)]
    for name in names:
        begun(client, name)
    began(client, names[3])
    monkeypatch.setattr(limits, "LISTED_TRANSACTIONS_MAX", 3)
    found = {each.transactional_id: each for each in admin.list_transactions()}
    assert [*found] == sorted(found)
    assert {*names} <= {*found}
    some = {found[name].producer_id for name in names[2:4]}
    for filters, expected in (
        ({"producer_ids": some}, names[2:4]),
        ({"producer_ids": some, "states": ["ongoing"]}, names[3:4]),
        ({"producer_ids": some, "min_duration_ms": 0}, names[3:4]),
        ({"producer_ids": some, "min_duration_ms": 3_600_000}, []),
    ):
        listed = admin.list_transactions(**filters)  # type: ignore[arg-type]
        assert [each.transactional_id for each in listed] == expected, filters
    with pytest.raises(InvalidRequestError, match=r"'dancing' .* ongoing"):
        admin.list_transactions(states=["dancing"])
    unknown = ask(client, apis.LIST_TRANSACTIONS, ListTransactionsRequest(states=["dancing"]))
    assert isinstance(unknown, InvalidRequestError)
    assert STATES == STATUSES


@pytest.mark.parametrize(
    ("started_ms", "open_for_ms", "is_wanted"),
    [(-1, -1, True), (-1, 0, False), (90, 10, True), (91, 10, False), (500, -1, True)],
)
def test_a_time_filter_needs_an_open_transaction(
    started_ms: int, open_for_ms: int, is_wanted: bool
) -> None:
    """The clock of a coordinator may be behind that of the last one."""
    view = TransactionView("x", "ongoing", 7, 0, 1_000, started_ms, ())
    assert WantedTransactions((), (), open_for_ms, now_ms=100).has(view) == is_wanted


class FakeShard:
    """A shard with one transactional id, and with another state from a question on."""

    def __init__(self, name: str, *, is_loaded: bool = True, is_replaced: bool = False) -> None:
        self.loaded = TransactionShard(TransactionSettings(), 1) if is_loaded else None
        self._is_replaced = is_replaced
        if self.loaded is not None:
            self.loaded.init(name, timeout_ms=1, new_id=7, now=0.0, now_ms=0)

    def ask(self, question: Any, done: Any, failed: Any) -> None:
        if self.loaded is None:
            failed(CoordinatorLoadingError("loads"))
        else:
            done(question(None if self._is_replaced else self.loaded))


def test_a_shard_without_its_state_counts_as_loading() -> None:
    shards = [FakeShard("a"), FakeShard("b", is_loaded=False), FakeShard("c", is_replaced=True)]
    wanted = WantedTransactions((), (), -1, 0)
    sent: list[ListedTransactions] = []
    steps = list_transactions(cast(Any, shards), wanted, sent.append)
    assert len(list(steps)) >= len(shards), "other requests may run between two shards"
    ((views, after, loading),) = sent
    assert "a" in [view.transactional_id for view in views]
    assert (after, loading) == (-1, 2)


def test_ids_with_one_position_are_on_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "crc32", lambda name: int(name[:1]))
    shard = FakeShard("1a")
    for name in ("1b", "2a", "1c", "3a"):
        assert shard.loaded is not None
        shard.loaded.init(name, timeout_ms=1, new_id=7, now=0.0, now_ms=0)
    wanted = WantedTransactions((), (), -1, 0)
    pages: list[ListedTransactions] = []
    after = -1
    while not pages or after >= 0:
        steps = list_transactions(cast(Any, [shard]), wanted, pages.append, after=after, count=2)
        list(steps)
        after = pages[-1].after
    assert [sorted(v.transactional_id for v in page.views) for page in pages] == [
        ["1a", "1b", "1c"],
        ["2a", "3a"],
    ]


def test_transactions_in_quick_succession_ask_no_coordinator(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third one is the first whose partitions were reserved."""
    client.create("quick", partitions=2)
    coordinator = broker.broker.context.transactions
    verify, asked = coordinator.verify, Counter[int]()

    def counted(name: str, producer_id: int, epoch: int, *arguments: Any, **more: Any) -> None:
        asked[epoch] += 1
        verify(name, producer_id, epoch, *arguments, **more)

    monkeypatch.setattr(coordinator, "verify", counted)
    for limit in ("RESERVE_WITHIN_S", "RESERVED_S"):
        monkeypatch.setattr(of_clients, limit, 60.0)
    with Producer(str(broker.address), transactional_id="quick") as producer:
        for _ in range(4):
            with producer.transaction() as txn:
                for partition in (0, 1):
                    txn.send("quick", b"v", partition=partition)
    assert asked == {0: 2, 1: 2}
