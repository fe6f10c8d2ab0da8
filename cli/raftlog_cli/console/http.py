"""``/api/v1`` of a broker's HTTP port: the JSON that commands print with ``--json``. Read-only.

Client threads in the broker process query the cluster. The event loop of the broker neither decodes
nor encodes these responses, which may list thousands of partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from raftlog import Admin, limits
from raftlog.errors import (
    AccessDeniedError,
    GroupNotEmptyError,
    InvalidRequestError,
    RaftlogError,
    RefusedError,
    TopicExistsError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTransactionError,
    UnknownUserError,
    UserExistsError,
)
from raftlog_cli import output, overview
from raftlog_cli.cluster import parse_since
from raftlog_cli.group import group_to_json
from raftlog_cli.topic import producers_to_json, topic_rows

PREFIX: Final = "/api/v1"
# Returns the JSON value of one path, from an admin client and the parameters of the request.
Describe = Callable[[Admin, Request], Any]


def _cluster(admin: Admin, _request: Request) -> Any:
    return overview.summary(admin.summarize_cluster())


def _brokers(admin: Admin, _request: Request) -> Any:
    return overview.broker_rows(admin.summarize_cluster())


def _features(admin: Admin, _request: Request) -> Any:
    return asdict(admin.describe_features())


def _topics(admin: Admin, _request: Request) -> Any:
    return admin.list_topics()


def _topic(admin: Admin, request: Request) -> Any:
    asked = request.query_params
    start, count = whole(asked, "start", 0), whole(asked, "limit", limits.HTTP_PARTITIONS_MAX)
    if not 1 <= count <= limits.HTTP_PARTITIONS_MAX:
        raise InvalidRequestError(f"limit: {count} is not from 1 to {limits.HTTP_PARTITIONS_MAX}")
    return topic_rows(admin, [request.path_params["name"]], range(start, start + count))[0]


def _producers(admin: Admin, request: Request) -> Any:
    name, asked = request.path_params["name"], request.query_params
    page = admin.describe_producers(
        name,
        [whole(asked, "partition", 0)] if asked.get("partition") else None,
        skip=whole(asked, "skip", 0),
        limit=whole(asked, "limit", limits.LISTED_PRODUCERS_MAX),
    )
    return producers_to_json(name, page)


def _groups(admin: Admin, _request: Request) -> Any:
    return [asdict(row) for row in admin.list_groups()]


def _group(admin: Admin, request: Request) -> Any:
    (described,) = admin.describe_groups([request.path_params["name"]])
    return group_to_json(described, members=True, partitions=True)


def _events(admin: Admin, request: Request) -> Any:
    try:
        since_ms = parse_since(request.query_params.get("since", "0"))
    except ValueError as error:
        raise InvalidRequestError(f"since: {error}") from error
    return [asdict(event) for event in admin.describe_events(since_ms)]


PATHS: Final[dict[str, Describe]] = {
    "/cluster": _cluster,
    "/brokers": _brokers,
    "/features": _features,
    "/topics": _topics,
    "/topics/{name}": _topic,
    "/topics/{name}/producers": _producers,
    "/groups": _groups,
    "/groups/{name:path}": _group,
    "/events": _events,
}


class HttpApi:
    """Routes of ``/api/v1``. One request is served at a time, to bound the load on the cluster."""

    def __init__(
        self, admin_of: Callable[[Request], Admin], check_host: Callable[[Request], None]
    ) -> None:
        """``admin_of``: returns the client for a request, in a thread. The caller closes it.
        ``check_host``: raises the response to a request that is refused.
        """
        self._admin_of = admin_of
        self._check_host = check_host
        self._turn = asyncio.Lock()

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(PREFIX + path, self._endpoint(work)) for path, work in PATHS.items()]

    def _endpoint(self, describe: Describe) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            self._check_host(request)
            async with self._turn:
                status, body = await asyncio.to_thread(self._result, describe, request)
            return Response(body, status, media_type="application/json")

        return respond

    def _result(self, describe: Describe, request: Request) -> tuple[int, str]:
        try:
            return 200, output.to_json(describe(self._admin_of(request), request)) + "\n"
        except RaftlogError as error:
            body = {"error": type(error).__name__, "message": str(error)}
            return status_of(error), output.to_json(body) + "\n"


NOT_FOUND: Final = (
    *(UnknownTopicError, UnknownPartitionError, UnknownGroupError),
    *(UnknownTransactionError, UnknownUserError),
)


def status_of(error: RaftlogError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, NOT_FOUND):
        return 404
    if isinstance(error, TopicExistsError | GroupNotEmptyError | UserExistsError):
        return 409
    if isinstance(error, AccessDeniedError):
        return 403
    return 400 if isinstance(error, RefusedError) else 503


# -- http parameters -------------------------------------------------------------------------------
#
# Values of queries and forms of HTTP requests. Pure.


ChoiceT = TypeVar("ChoiceT", bound=str)


def whole(values: Mapping[str, str], name: str, default: int) -> int:
    """Parse a whole number. Raises ``InvalidRequestError`` with the name of the field."""
    text = values.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidRequestError(f"{name}: {text[:40]!r} is not a whole number from 0")
    return int(text)


def choice(values: Mapping[str, str], name: str, choices: tuple[ChoiceT, ...]) -> ChoiceT:
    """Return one of ``choices``; the first one if the field is empty.

    Raises ``InvalidRequestError`` with the name of the field.
    """
    text = values.get(name, "") or choices[0]
    for each in choices:
        if each == text:
            return each
    raise InvalidRequestError(f"{name}: {text[:40]!r} is not one of {', '.join(choices)}")
