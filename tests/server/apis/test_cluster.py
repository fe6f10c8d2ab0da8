"""``describe_cluster``, ``transfer_leader`` and ``recover_cluster``: who waits for whom. And
``verify_copy``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import AccessDeniedError, LeaderNotAvailableError
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    CancelDecommissionRequest,
    ClusterStateRequest,
    ClusterStateResponse,
    DecommissionRequest,
    DescribeClusterRequest,
    DescribeEventsRequest,
    EventStatus,
    GroupReport,
    ProposeRequest,
    ReassignRequest,
    RecoverClusterRequest,
    ReserveBrokerIdRequest,
    ReviveRequest,
    ReviveResponse,
    SurveyRequest,
    SurveyResponse,
    TransferLeaderRequest,
    VerifyCopyRequest,
    VerifyCopyResponse,
)
from raftlog.protocol.connection import Request
from raftlog.replication.cluster_commands import Event
from raftlog.server.administration import Administration
from raftlog.server.apis import cluster
from raftlog.server.context import BrokerContext
from raftlog.server.partition import EventLog
from tests.running import runs
from tests.server.cluster.fake import FakeReply, Scene, play
from tests.server.harness import Client, RunningBroker, batch_of


class FakeOperations:
    """Answers with what it was asked; a change takes as long as the test says."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.going_on: list[asyncio.Future[None]] = []
        self._loop = loop

    def describe(self, request: Any) -> Generator[None, Any, Any]:
        yield None
        return ("described", request)

    async def transfer_leader(self, request: Any) -> Any:
        return await self._changed("moved", request)

    async def reassign(self, request: Any) -> Any:
        return await self._changed("reassigned", request)

    async def recover(self, request: Any) -> Any:
        return await self._changed("recovered", request)

    async def _changed(self, what: str, request: Any) -> Any:
        future: asyncio.Future[None] = self._loop.create_future()
        self.going_on.append(future)
        await future
        return what, request


class Asking:
    def __init__(self, s: Scene) -> None:
        self.operations = FakeOperations(s.loop)
        self.context = cast(
            BrokerContext,
            SimpleNamespace(
                operations=self.operations,
                administration=Administration(s.loop),
                check_operator=lambda _connection, _what: None,
            ),
        )

    def ask(self, handler: Any, message: Any) -> FakeReply:
        reply = FakeReply()
        request = cast(Request, SimpleNamespace(message=message))
        for _ in handler(self.context, request, reply.as_reply) or ():
            pass
        return reply


@runs(play)
async def test_a_description_waits_for_nobody(s: Scene) -> None:
    a = Asking(s)
    a.ask(cluster.handle_recover, RecoverClusterRequest())
    message = DescribeClusterRequest()
    reply = a.ask(cluster.handle_describe, message)
    assert reply.answers[0][0] == ("described", message)
    await s.come_to_rest()
    assert len(a.operations.going_on) == 1


@runs(play)
async def test_moves_of_leadership_take_turns_with_other_changes(s: Scene) -> None:
    a = Asking(s)
    move = TransferLeaderRequest(topic="t", partition=0)
    first, second = (a.ask(cluster.handle_transfer_leader, move) for _ in range(2))
    await s.come_to_rest()
    assert len(a.operations.going_on) == 1
    a.operations.going_on[0].set_result(None)
    await s.come_to_rest()
    assert first.answers[0][0] == ("moved", move)
    assert not second.answers


@runs(play)
async def test_moves_of_replicas_take_turns_with_other_changes(s: Scene) -> None:
    a = Asking(s)
    move = ReassignRequest(topic="t", cancel=True)
    first, second = (a.ask(cluster.handle_reassign, move) for _ in range(2))
    await s.come_to_rest()
    a.operations.going_on[0].set_result(None)
    await s.come_to_rest()
    assert first.answers[0][0] == ("reassigned", move)
    assert not second.answers


@runs(play)
async def test_the_way_out_of_a_loss_waits_for_no_change_that_waits_for_it(s: Scene) -> None:
    a = Asking(s)
    recover = RecoverClusterRequest()
    stuck = a.ask(cluster.handle_transfer_leader, TransferLeaderRequest(topic="t", partition=0))
    reply = a.ask(cluster.handle_recover, recover)
    await s.come_to_rest()
    a.operations.going_on[1].set_result(None)
    await s.come_to_rest()
    assert reply.answers[0][0] == ("recovered", recover)
    assert not stuck.answers


@runs(play)
async def test_what_cannot_be_done_is_answered_with_why(s: Scene) -> None:
    a = Asking(s)
    error = LeaderNotAvailableError("nobody")
    reply = a.ask(cluster.handle_transfer_leader, TransferLeaderRequest(topic="t", partition=0))
    await s.come_to_rest()
    a.operations.going_on[0].set_exception(error)
    await s.come_to_rest()
    assert reply.errors == [error]


def verified(client: Client, start: int, end: int) -> VerifyCopyResponse:
    request = VerifyCopyRequest(topic="t", partition=0, start_offset=start, end_offset=end)
    answer: VerifyCopyResponse = client.ask(apis.VERIFY_COPY, request)
    return answer


def test_a_copy_is_verified_in_bounded_parts(
    client: Client, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VERIFIED_BYTES_MAX", 1)
    client.create("t")
    for _ in range(3):
        client.produce("t", batch_of(b"x" * 200_000))
    log = broker.broker.context.topics.host("t", 0).log
    first = verified(client, 0, 3)
    assert first == VerifyCopyResponse(log_start_offset=0, log_end_offset=3, reached=1)
    assert verified(client, 2, 3).reached == 3
    assert verified(client, 2, 3).chain == log.chain
    assert verified(client, 1, 1).chain == log.chain_at(1) != log.chain
    assert verified(client, 3, 9) == VerifyCopyResponse(
        log_start_offset=0, log_end_offset=3, reached=3
    )


def test_corruption_of_a_copy_is_reported_with_its_offset(
    client: Client, broker: RunningBroker
) -> None:
    client.create("t")
    for _ in range(3):
        client.produce("t", batch_of(b"x" * 100))
    log = broker.broker.context.topics.host("t", 0).log
    segment = next(Path(log.directory).glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    for _ in range(2):  # found, and then known
        found = verified(client, 0, 3)
        assert (found.reached, found.chain) == (1, None)
        assert "corrupt at offset 1" in found.damage


# -- events ----------------------------------------------------------------------------------------
#
# ``describe_events``: what the broker remembers since a time.


def answer(log: EventLog, since_ms: int) -> tuple[list[EventStatus], int]:
    """The events of the response, and the number of steps."""
    reply = FakeReply()
    context = cast(BrokerContext, SimpleNamespace(events=log))
    request = cast(Request, SimpleNamespace(message=DescribeEventsRequest(since_ms=since_ms)))
    steps = list(cluster.handle(context, request, reply.as_reply))
    response: Any = reply.answers[0][0]
    return response.events, len(steps)


def test_events_since_a_time_are_returned_whole() -> None:
    log = EventLog()
    log.add(Event("broker-fenced", "text", broker=3, version=8), 10)
    log.add(Event("leader-elected", "text", "t", 0, 2, 5, 9, "id"), 11)
    log.add(Event("isr-shrunk", "text", "t", 0, leader_epoch=5, version=10, topic_id="id"), 12)
    found, _ = answer(log, 11)
    assert [event.at_ms for event in found] == [11, 12]
    first, second = found
    assert (first.topic, first.topic_id, first.partition, first.broker) == ("t", "id", 0, 2)
    assert (first.leader_epoch, first.version) == (5, 9)
    assert second.broker is None
    (fenced, *_), _ = answer(log, 0)
    assert (fenced.topic, fenced.partition, fenced.broker) == ("", None, 3)


def test_many_events_are_read_in_steps() -> None:
    log = EventLog()
    for number in range(2 * cluster.EVENTS_PER_STEP):
        log.add(Event("isr-shrunk", "text"), number)
    found, steps = answer(log, 0)
    assert (len(found), steps) == (2 * cluster.EVENTS_PER_STEP, 2)


# -- membership ------------------------------------------------------------------------------------
#
# Who may ask for what: brokers for the state and with commands, operators for IDs and removals.


class Rig:
    """A broker with a secret, and one connection to it."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        state = ClusterStateResponse(cluster_id="c", version=3, has_vote=True)
        subscription = SimpleNamespace(
            serve=lambda _request, send: send(state, [b"state"]), propose=lambda request: request
        )
        operations = SimpleNamespace(
            reserve_broker_id=lambda: "an id",
            decommission=lambda request: request,
            cancel_decommission=lambda request: request,
        )
        self.context = SimpleNamespace(
            operator_secret=b"sesame",
            access=SimpleNamespace(is_enforced=False),
            operations=operations,
            cluster=SimpleNamespace(subscription=subscription),
            administration=SimpleNamespace(
                submit_at_once=lambda operation, _reply: self.begun.append(operation())
            ),
        )
        self.context.check_operator = lambda connection, what: BrokerContext.check_operator(
            cast(BrokerContext, self.context), connection, what
        )
        self.connection = SimpleNamespace(is_operator=False, peer_identity=None)

    def ask(self, handler: Any, message: Any) -> FakeReply:
        reply = FakeReply(connection=cast(Any, self.connection))
        request = cast(Request, SimpleNamespace(message=message))
        handler(cast(BrokerContext, self.context), request, reply.as_reply)
        return reply


def test_brokers_get_the_state_and_have_commands_proposed() -> None:
    rig = Rig()
    reply = rig.ask(cluster.handle_state, ClusterStateRequest(version=0, wait_ms=0))
    assert reply.answers[0][0].version == 3
    command = ProposeRequest(command=b"x")
    rig.ask(cluster.handle_propose, command)
    assert rig.begun == [command]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (cluster.handle_reserve_id, ReserveBrokerIdRequest()),
        (cluster.handle_decommission, DecommissionRequest(broker=3)),
        (cluster.handle_cancel_decommission, CancelDecommissionRequest(broker=3)),
    ],
)
def test_operators_prove_that_they_know_the_secret(handler: Any, message: Any) -> None:
    rig = Rig()
    with pytest.raises(AccessDeniedError, match="requires the cluster secret"):
        rig.ask(handler, message)
    assert rig.begun == []
    rig.connection.is_operator = True
    rig.ask(handler, message)
    assert len(rig.begun) == 1


# -- recovery --------------------------------------------------------------------------------------
#
# ``survey`` and ``revive``: passed on to the broker's recovery, and answered.


class FakeRecovery:
    def __init__(self) -> None:
        self.revived: list[ReviveRequest] = []

    async def survey(self, groups: list[str]) -> list[GroupReport]:
        return [GroupReport(group=group) for group in groups]

    async def revive(self, request: ReviveRequest) -> None:
        if request.generation:
            raise LeaderNotAvailableError("it changed meanwhile")
        self.revived.append(request)


def ask(s: Scene, handler: Any, message: Any) -> tuple[FakeReply, FakeRecovery]:
    fake, reply = FakeRecovery(), FakeReply()
    context = SimpleNamespace(
        cluster=SimpleNamespace(recovery=fake), administration=Administration(s.loop)
    )
    request = cast(Request, SimpleNamespace(message=message))
    handler(cast(BrokerContext, context), request, reply.as_reply)
    return reply, fake


@runs(play)
async def test_a_survey_is_answered(s: Scene) -> None:
    reply, _ = ask(s, cluster.handle_survey, SurveyRequest(groups=["a", "b"]))
    await asyncio.sleep(0.01)
    assert reply.answers == [
        (SurveyResponse(reports=[GroupReport(group="a"), GroupReport(group="b")]), ())
    ]


@runs(play)
async def test_a_revival_is_answered_when_it_is_done_or_failed(s: Scene) -> None:
    request = ReviveRequest(group="a", generation=0)
    reply, fake = ask(s, cluster.handle_revive, request)
    await asyncio.sleep(0.01)
    assert reply.answers == [(ReviveResponse(), ())]
    assert fake.revived == [request]
    reply, _ = ask(s, cluster.handle_revive, ReviveRequest(group="a", generation=1))
    await asyncio.sleep(0.01)
    (failure,) = reply.errors
    assert isinstance(failure, LeaderNotAvailableError)


def test_both_are_for_brokers_only() -> None:
    assert apis.SURVEY.peer_only
    assert apis.REVIVE.peer_only
