"""Calls of the schema registry over raftlog's protocol: with the connections and user of a client.

A call has the method, the path and the body of Confluent's HTTP interface
(``raftlog.registry.rest``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from raftlog.client.cluster import Cluster
from raftlog.client.connection import Answer
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    OutcomeUnknownError,
    RaftlogError,
    SchemaError,
    StorageError,
    UnsupportedFeatureError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import SchemaRegistryRequest, SchemaRegistryResponse

# What a status, or a code, of the registry is here. Others are a ``SchemaError``.
_ERRORS: Final[dict[int, type[RaftlogError]]] = {
    501: UnsupportedFeatureError,
    50001: StorageError,
    50002: OutcomeUnknownError,
    50003: BrokerUnavailableError,
}
_SUBJECT_DEPTH: Final = 2  # parts of a path that ends with a subject


async def call_registry(
    cluster: Cluster,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
) -> Any:
    """Return the content of the answer to a call. Repeats calls that may be repeated.

    Raises ``SchemaError`` with the code of the registry, and the errors of any request.
    """
    request = SchemaRegistryRequest(method=method, path=path, query=dict(query or {}))
    attachment = [] if body is None else [json.dumps(body).encode()]
    timeout_ms = cluster.settings.request_timeout_ms

    async def attempt() -> Answer:
        connection = await cluster.any_connection()
        return await connection.request(
            apis.SCHEMA_REGISTRY, request, attachment, timeout_ms=timeout_ms
        )

    answer = await cluster.persist(attempt, repeatable=method != "DELETE")
    assert isinstance(answer.message, SchemaRegistryResponse)
    text = bytes(answer.attachment).decode()
    if answer.message.status == 200:
        # A subject can have this name, too, as in /config/schema.
        is_text = method == "GET" and path.endswith("/schema") and path.count("/") > _SUBJECT_DEPTH
        return text if is_text else json.loads(text)
    content = json.loads(text)
    code, message = content["error_code"], content["message"]
    kind = _ERRORS.get(code)
    raise SchemaError(message, code) if kind is None else kind(message)


def path_of(*parts: object) -> str:
    """Return a path: each part is percent-encoded.

    Raises ``InvalidRequestError`` for text that UTF-8 does not have.
    """
    try:
        return "/" + "/".join(quote(str(part), safe="") for part in parts)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{error.object!r} has half of a surrogate pair, so it is no name in the schema "
            "registry. Use characters of UTF-8"
        ) from error
