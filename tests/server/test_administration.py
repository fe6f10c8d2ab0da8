"""Changes to topics: in order, bounded, and none after the end."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    OutcomeUnknownError,
    RaftlogError,
    StorageFailedError,
    ThrottledError,
    TopicExistsError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicsResponse,
    TopicToCreate,
)
from raftlog.server.cluster import replicas
from raftlog.server.partition import Partition
from tests.server.harness import Client, FaultyFile, RunningBroker, error_of, only


def test_changes_happen_in_the_order_of_arrival(client: Client) -> None:
    create = CreateTopicsRequest(topics=[TopicToCreate(name="t")])
    delete = DeleteTopicsRequest(topics=["t"])
    sent = [
        client.send(apis.CREATE_TOPICS, create),
        client.send(apis.CREATE_TOPICS, create),
        client.send(apis.DELETE_TOPICS, delete),
        client.send(apis.CREATE_TOPICS, create),
    ]
    answers = [client.answer(id_).message for id_ in sent]
    results = [only(answer.results) for answer in answers if isinstance(answer, TopicsResponse)]
    assert [result.failure is None for result in results] == [True, False, True, True]
    assert isinstance(error_of(results[1]), TopicExistsError)


def test_the_loop_turns_while_partitions_are_created(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a request of the fuzzer: 100 partitions held it for 10 ms."""
    turns: list[int] = []  # partitions created in each turn of the loop
    loop = broker.broker.context.loop

    class Created(Partition):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            turns[-1] += 1

    def turn() -> None:
        turns.append(0)
        loop.call_soon(turn)

    monkeypatch.setattr(replicas, "Partition", Created)
    broker.call(turn)
    with broker.client() as client:
        client.create("wide", partitions=300)
    assert sum(turns) == 300
    assert max(turns) <= replicas.HOSTS_PER_TURN


def test_a_queue_that_is_full_says_so(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMIN_REQUESTS_PENDING_MAX", 3)
    gate = threading.Event()
    broker.broker._workers.admin.submit(gate.wait, lambda _result, _error: None)
    with broker.client() as client:
        topics = [TopicToCreate(name=name, partitions=1) for name in "abcd"]
        requests = [CreateTopicsRequest(topics=[topic]) for topic in topics]
        sent = [client.send(apis.CREATE_TOPICS, request) for request in requests[:3]]
        with pytest.raises(ThrottledError, match="ADMIN_REQUESTS_PENDING_MAX"):
            client.ask(apis.CREATE_TOPICS, requests[3])
        gate.set()
        for id_ in sent:
            client.answer(id_)
        client.ask(apis.CREATE_TOPICS, requests[3])


def test_work_takes_its_turn(broker: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    """It is told how that ended; also by a mistake, and when there are no turns any more."""
    administration = broker.broker.context.administration
    noted: list[RaftlogError | None] = []
    done: list[str] = []
    closed = BrokerUnavailableError("the broker stops")

    def work(name: str, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            done.append(name)
            if error is not None:
                raise error

        return run

    def submit() -> None:
        administration.submit_work(work("good"), noted.append)
        administration.submit_work(work("refused", TopicExistsError("t")), noted.append)
        administration.submit_work(work("mistaken", KeyError("a bug")), noted.append)

    broker.call(submit)
    broker.wait_until(lambda: len(noted) == 3)
    broker.call(lambda: administration.close(closed))
    broker.call(lambda: administration.submit_work(work("late"), noted.append))
    broker.wait_until(lambda: len(noted) == 4)
    assert done == ["good", "refused", "mistaken"]
    kinds = [None, TopicExistsError, OutcomeUnknownError, BrokerUnavailableError]
    assert [error and type(error) for error in noted] == kinds
    assert "KeyError: 'a bug'" in caplog.text


def test_a_failed_disk_ends_all_changes(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: FaultyFile) -> None:
        raise OSError(5, "Input/output error", file.path)

    monkeypatch.setattr(FaultyFile, "sync", fail)
    assert isinstance(error_of(client.create("t")), OutcomeUnknownError | ClusterNotReadyError)
    monkeypatch.undo()
    assert len(broker.fatal) == 1
    with pytest.raises(StorageFailedError):
        client.create("t")
    client.close()
    broker.expect_failed_stop()
