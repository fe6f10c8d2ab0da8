"""``survey`` and ``revive``: passed on to the broker's recovery, and answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from raftlog.errors import LeaderNotAvailableError
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    GroupReport,
    ReviveRequest,
    ReviveResponse,
    SurveyRequest,
    SurveyResponse,
)
from raftlog.protocol.connection import Request
from raftlog.server.administration import Administration
from raftlog.server.apis import cluster
from raftlog.server.context import BrokerContext
from tests.running import runs
from tests.server.cluster.paper import PaperReply, Scene, play


class PaperRecovery:
    def __init__(self) -> None:
        self.revived: list[ReviveRequest] = []

    async def survey(self, groups: list[str]) -> list[GroupReport]:
        return [GroupReport(group=group) for group in groups]

    async def revive(self, request: ReviveRequest) -> None:
        if request.generation:
            raise LeaderNotAvailableError("it changed meanwhile")
        self.revived.append(request)


def ask(s: Scene, handler: Any, message: Any) -> tuple[PaperReply, PaperRecovery]:
    paper, reply = PaperRecovery(), PaperReply()
    context = SimpleNamespace(
        clustered=lambda: SimpleNamespace(recovery=paper), administration=Administration(s.loop)
    )
    request = cast(Request, SimpleNamespace(message=message))
    handler(cast(BrokerContext, context), request, reply.as_reply)
    return reply, paper


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
    reply, paper = ask(s, cluster.handle_revive, request)
    await asyncio.sleep(0.01)
    assert reply.answers == [(ReviveResponse(), ())]
    assert paper.revived == [request]
    reply, _ = ask(s, cluster.handle_revive, ReviveRequest(group="a", generation=1))
    await asyncio.sleep(0.01)
    (failure,) = reply.errors
    assert isinstance(failure, LeaderNotAvailableError)


def test_both_are_for_brokers_only() -> None:
    assert apis.SURVEY.peer_only
    assert apis.REVIVE.peer_only
