"""Transactions of raftlog's own protocol: one broker, request by request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.errors import (
    CoordinatorLoadingError,
    InvalidProducerMappingError,
    InvalidRequestError,
    NotCoordinatorError,
    ProducerFencedError,
    RaftlogError,
    UnknownTopicError,
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
    OffsetFetchRequest,
    OffsetToCommit,
    PartitionName,
    TransactionOffsetCommitRequest,
)
from raftlog.protocol.schema import Message
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
