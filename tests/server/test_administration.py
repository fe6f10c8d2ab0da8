"""Changes to topics: in order, bounded, and none after the end."""

from __future__ import annotations

import threading

import pytest

from raftlog import limits
from raftlog.errors import StorageFailedError, ThrottledError, TopicExistsError
from raftlog.protocol import api as apis
from raftlog.protocol.produce import InitProducerIdRequest
from raftlog.protocol.topics import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicsResponse,
    TopicToCreate,
)
from tests.server.harness import Client, FaultyDisk, RunningBroker, error_of, only


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


def test_a_queue_that_is_full_says_so(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMIN_REQUESTS_PENDING_MAX", 3)
    gate = threading.Event()
    broker.broker._workers.admin.submit(gate.wait, lambda _result, _error: None)
    with broker.client() as client:
        sent = [client.send(apis.INIT_PRODUCER_ID, InitProducerIdRequest()) for _ in range(3)]
        with pytest.raises(ThrottledError, match="ADMIN_REQUESTS_PENDING_MAX"):
            client.ask(apis.INIT_PRODUCER_ID, InitProducerIdRequest())
        gate.set()
        for id_ in sent:
            client.answer(id_)
        client.ask(apis.INIT_PRODUCER_ID, InitProducerIdRequest())


def test_a_failed_disk_ends_all_changes(
    broker: RunningBroker, client: Client, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, data: bytes) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(disk, "write_atomic", fail)
    assert isinstance(error_of(client.create("t")), StorageFailedError)
    monkeypatch.undo()
    assert len(broker.fatal) == 1
    with pytest.raises(StorageFailedError):
        client.create("t")
    client.close()
    broker.expect_failed_stop()
