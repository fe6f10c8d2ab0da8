"""Requests and their handlers: failures, and outcomes of parts."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from raftlog.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    RaftlogError,
    ThrottledError,
    UnsupportedApiError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DeleteRecordsRequest,
    DescribeTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetQuery,
    ProducePartition,
    ProduceRequest,
    RecordsToDelete,
)
from raftlog.protocol.schema import Message
from raftlog.server import dispatch
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes, Reply, check_once
from raftlog.server.metrics import Counters
from tests.server.harness import Client, RunningBroker, batch_of

# -- handlers --------------------------------------------------------------------------------------

# A handler that fails hurts nobody but the one who asked.


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


# -- exchange --------------------------------------------------------------------------------------
#
# What a request names twice is refused before anything is done.


TWICE = [
    (apis.PRODUCE, ProduceRequest(acks=-1, partitions=[ProducePartition("t", 0, length=0)] * 2)),
    (apis.FETCH, FetchRequest(partitions=[FetchPartition("t", 0, offset=0)] * 2)),
    (apis.LIST_OFFSETS, ListOffsetsRequest(queries=[OffsetQuery("t", 0, at=5)] * 2)),
    (apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=[RecordsToDelete("t", 0, 0)] * 2)),
    (apis.DESCRIBE_TOPICS, DescribeTopicsRequest(topics=["t", "t"])),
    (apis.METADATA, MetadataRequest(topics=["t", "t"])),
]


@pytest.mark.parametrize(("api", "request_"), TWICE, ids=[api.name for api, _ in TWICE])
def test_what_is_named_twice_is_refused(client: Client, api: apis.Api, request_: Any) -> None:
    client.create("t")
    with pytest.raises(InvalidRequestError, match=f"{api.name} contains t.* twice"):
        client.ask(api, request_)


def test_a_time_and_an_end_may_be_asked_of_one_partition(client: Client) -> None:
    client.create("t")
    queries = [OffsetQuery("t", 0, at=at) for at in ("earliest", "latest", 5)]
    assert len(client.ask(apis.LIST_OFFSETS, ListOffsetsRequest(queries=queries)).answers) == 3


def test_each_name_once_is_fine() -> None:
    check_once("fetch", [])
    check_once("fetch", [("t", 0), ("t", 1), ("u", 0)])


# -- reply -----------------------------------------------------------------------------------------
#
# One answer to one request, whatever it is, and to whom it may no longer concern.


FETCH = FetchRequest(partitions=[FetchPartition(topic="t", partition=0, offset=0)])
PART = ProducePartition(topic="t", partition=0, length=3)


class FakeConnection:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.services = self.turns = self
        self.share_began = 0.0
        self.counters = Counters()
        self.meter = None
        self.peer = "somebody"
        self.is_closed = False

    def respond(self, request: Request, message: Message, attachment: Any = ()) -> None:
        self.done.append(("respond", message, *attachment))

    def refuse(self, request: Request, error: RaftlogError) -> None:
        self.done.append(("refuse", type(error)))

    def finish(self, request: Request) -> None:
        self.done.append(("finish",))

    def abort(self, reason: str) -> None:
        self.done.append(("abort",))


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


def reply_to(connection: FakeConnection, message: Message, attachment: bytes = b"") -> Reply:
    api = apis.FETCH if isinstance(message, FetchRequest) else apis.PRODUCE
    request = Request(api, 0, 1, message, memoryview(attachment))
    return Reply(cast(Connection, connection), request)


def produce(acks: Any) -> ProduceRequest:
    return ProduceRequest(acks=acks, partitions=[PART])


def test_an_answer_and_a_refusal(connection: FakeConnection) -> None:
    answer = FetchResponse(partitions=[])
    reply_to(connection, FETCH).send(answer, [b"ab", b"c"])
    reply_to(connection, FETCH).fail(InvalidRequestError("no"))
    assert connection.done == [("respond", answer, b"ab", b"c"), ("refuse", InvalidRequestError)]


def test_without_acks_success_is_silent_and_failure_hangs_up(connection: FakeConnection) -> None:
    reply_to(connection, produce(0)).none()
    reply_to(connection, produce(0)).fail(InvalidRequestError("no"))
    assert connection.done == [("finish",), ("finish",), ("abort",)]


def test_a_mistake_is_logged_counted_and_told(
    connection: FakeConnection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        reply_to(connection, FETCH).fail_by_mistake(ZeroDivisionError("a bug"))
    assert connection.done == [("refuse", OutcomeUnknownError)]
    assert connection.counters.mistakes == 1
    assert "a bug" in caplog.text


def test_the_attachment_is_not_kept(connection: FakeConnection) -> None:
    assert not reply_to(connection, produce(-1), b"abc").request.attachment


def test_it_knows_whether_anybody_waits(connection: FakeConnection) -> None:
    reply = reply_to(connection, FETCH)
    assert reply.is_wanted
    connection.is_closed = True
    assert not reply.is_wanted


# -- outcomes --------------------------------------------------------------------------------------

# Outcomes of the parts of a request.


def test_they_are_complete_once_in_order() -> None:
    found: list[list[str]] = []
    outcomes: Outcomes[str] = Outcomes(3, found.append)
    outcomes.resolve(2, "c")
    outcomes.resolve(0, "a")
    assert (found, outcomes.missing) == ([], [1])
    outcomes.resolve(1, "b")
    assert found == [["a", "b", "c"]]


def test_a_part_has_one_outcome() -> None:
    outcomes: Outcomes[str] = Outcomes(2, print)
    outcomes.resolve(0, "a")
    with pytest.raises(AssertionError):
        outcomes.resolve(0, "b")


def test_a_part_can_have_the_outcome_none() -> None:
    found: list[list[str | None]] = []
    outcomes: Outcomes[str | None] = Outcomes(2, found.append)
    outcomes.resolve(1, "b")
    outcomes.resolve(0, None)
    assert found == [[None, "b"]]


def test_without_parts_it_is_complete_at_once() -> None:
    found: list[list[str]] = []
    Outcomes(0, found.append)
    assert found == [[]]
