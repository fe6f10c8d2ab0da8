"""A handler that fails hurts nobody but the one who asked."""

from __future__ import annotations

import logging

import pytest

from raftlog.errors import OutcomeUnknownError, ThrottledError, UnsupportedApiError
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import ListOffsetsRequest, OffsetQuery
from raftlog.server import dispatch
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Reply
from tests.server.harness import Client, RunningBroker, batch_of

QUERY = ListOffsetsRequest(queries=[OffsetQuery(topic="t", partition=0, at="latest")])


def replace_handler(monkeypatch: pytest.MonkeyPatch, handler: dispatch.Handler | None) -> None:
    handlers = dict(dispatch.HANDLERS)
    del handlers[apis.LIST_OFFSETS.number]
    if handler is not None:
        handlers[apis.LIST_OFFSETS.number] = handler
    monkeypatch.setattr(dispatch, "HANDLERS", handlers)


def test_a_mistake_is_told_logged_and_counted(
    broker: RunningBroker,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(context: BrokerContext, request: Request, reply: Reply) -> None:
        raise KeyError("a bug")

    client.create("t")
    replace_handler(monkeypatch, fail)
    with caplog.at_level(logging.ERROR), pytest.raises(OutcomeUnknownError, match="KeyError"):
        client.ask(apis.LIST_OFFSETS, QUERY)
    assert broker.broker.context.counters.mistakes == 1
    assert "KeyError: 'a bug'" in caplog.text
    assert client.produce("t", batch_of(b"a")).base_offset == 0


def test_an_error_on_purpose_is_told_and_not_counted(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(context: BrokerContext, request: Request, reply: Reply) -> None:
        raise ThrottledError("not now")

    replace_handler(monkeypatch, refuse)
    with pytest.raises(ThrottledError, match="not now"):
        client.ask(apis.LIST_OFFSETS, QUERY)
    assert broker.broker.context.counters.mistakes == 0


def test_an_api_without_a_handler_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_handler(monkeypatch, None)
    with pytest.raises(UnsupportedApiError, match="list_offsets"):
        client.ask(apis.LIST_OFFSETS, QUERY)


def test_requests_are_counted(broker: RunningBroker, client: Client) -> None:
    client.create("t")
    for _ in range(2):
        client.offset("t", "latest")
    counted = broker.broker.context.counters.request_seconds
    assert sum(counted["list_offsets"].counts) == 2
