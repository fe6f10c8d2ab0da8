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
from raftlog.errors import LeaderNotAvailableError
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    ReassignRequest,
    RecoverClusterRequest,
    TransferLeaderRequest,
    VerifyCopyRequest,
    VerifyCopyResponse,
)
from raftlog.protocol.connection import Request
from raftlog.server.administration import Administration
from raftlog.server.apis import cluster
from raftlog.server.context import BrokerContext
from tests.running import runs
from tests.server.cluster.paper import PaperReply, Scene, play
from tests.server.harness import Client, RunningBroker, batch_of


class PaperOperations:
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
        self.operations = PaperOperations(s.loop)
        self.context = cast(
            BrokerContext,
            SimpleNamespace(
                operations=self.operations,
                administration=Administration(s.loop),
                check_operator=lambda _connection, _what: None,
            ),
        )

    def ask(self, handler: Any, message: Any) -> PaperReply:
        reply = PaperReply()
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
