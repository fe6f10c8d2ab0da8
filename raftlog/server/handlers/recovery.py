"""``survey`` and ``revive``: requests of the broker that runs a recovery for the operator."""

from __future__ import annotations

from typing import cast

from raftlog.protocol.connection import Request
from raftlog.protocol.recovery import (
    ReviveRequest,
    ReviveResponse,
    SurveyRequest,
    SurveyResponse,
)
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply


def handle_survey(context: BrokerContext, request: Request, reply: Reply) -> None:
    groups = cast(SurveyRequest, request.message).groups
    recovery = context.clustered().recovery

    async def survey() -> SurveyResponse:
        return SurveyResponse(reports=await recovery.survey(groups))

    context.administration.submit_at_once(survey, reply)


def handle_revive(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(ReviveRequest, request.message)
    recovery = context.clustered().recovery

    async def revive() -> ReviveResponse:
        await recovery.revive(message)
        return ReviveResponse()

    context.administration.submit_at_once(revive, reply)
