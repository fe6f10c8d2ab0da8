"""Requests of operators: who may send them, and levels of logs."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.clock import SystemClock
from raftlog.errors import AccessDeniedError, InvalidRequestError, UnsupportedFeatureError
from raftlog.protocol import api as apis
from raftlog.protocol import cluster as cluster_messages
from raftlog.protocol.connection import Request
from raftlog.protocol.peer import NONCE_BYTES, PROOF_BYTES
from raftlog.protocol.security import Asking, OperatorProveRequest, OperatorProveResponse
from raftlog.server.apis import cluster, security
from raftlog.server.context import BrokerContext
from tests.server.cluster.fake import FakeReply
from tests.server.harness import Client, running

# -- permission ------------------------------------------------------------------------------------

# Who may change the cluster: a connection that has proved it, where a secret is asked for.


SECRET = b"sesame"


class FakeContext:
    broker_id = 7
    operations = SimpleNamespace(cluster_id="c")
    entropy = bytes
    check_operator = BrokerContext.check_operator
    cluster_secret = b""

    def __init__(self, secret: bytes) -> None:
        self.operator_secret = secret
        self.access = SimpleNamespace(is_enforced=False)


class Rig:
    """A broker, and one connection to it."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.connection = SimpleNamespace(
            granting=None,
            is_operator=False,
            peer_identity=None,
            permit_long_requests=lambda: None,
        )
        self.context = cast(BrokerContext, FakeContext(secret))

    def ask(self, handler: Any, message: Any) -> Any:
        reply = FakeReply(connection=cast(Any, self.connection))
        handler(self.context, cast(Request, SimpleNamespace(message=message)), reply.as_reply)
        return reply.answers[0][0]

    def prove(self, secret: bytes = SECRET) -> Any:
        asking = Asking(secret, b"1" * NONCE_BYTES)
        hello = self.ask(security.handle_hello, asking.hello())
        return self.ask(security.handle_prove, asking.check(hello))

    def check(self) -> None:
        self.context.check_operator(cast(Any, self.connection), "recover_cluster")


def test_who_proves_it_is_an_operator_from_then_on() -> None:
    rig = Rig()
    with pytest.raises(AccessDeniedError, match="recover_cluster requires the cluster secret"):
        rig.check()
    assert rig.prove() == OperatorProveResponse()
    rig.check()


def test_another_secret_makes_no_operator() -> None:
    rig = Rig()
    with pytest.raises(AccessDeniedError):
        rig.prove(b"another")
    with pytest.raises(AccessDeniedError):
        rig.ask(security.handle_prove, OperatorProveRequest(proof=bytes(PROOF_BYTES)))
    with pytest.raises(AccessDeniedError, match="once"):
        rig.ask(security.handle_prove, OperatorProveRequest(proof=bytes(PROOF_BYTES)))
    with pytest.raises(AccessDeniedError):
        rig.check()


def test_another_broker_needs_no_proof_of_this_kind() -> None:
    rig = Rig()
    rig.connection.peer_identity = object()
    rig.check()


def test_without_a_secret_nothing_is_asked() -> None:
    rig = Rig(b"")
    rig.check()
    with pytest.raises(UnsupportedFeatureError, match="requires none"):
        rig.prove()


@pytest.mark.parametrize(
    "handler", [cluster.handle_recover, cluster.handle_transfer_leader, cluster.handle_reassign]
)
def test_what_changes_the_cluster_is_for_operators(handler: Any) -> None:
    with pytest.raises(AccessDeniedError, match="requires the cluster secret"):
        Rig().ask(handler, None)


# -- log levels ------------------------------------------------------------------------------------

# ``describe_log_levels`` and ``alter_log_levels``: on the broker that is asked.


NAME = "raftlog.server.connection"


def level(client: Client) -> cluster_messages.LogLevel:
    answer = client.ask(apis.DESCRIBE_LOG_LEVELS, cluster_messages.DescribeLogLevelsRequest())
    (found,) = [each for each in answer.levels if each.logger == NAME]
    assert isinstance(found, cluster_messages.LogLevel)
    return found


def altering(*levels: str | None) -> cluster_messages.AlterLogLevelsRequest:
    changes = [cluster_messages.LogLevelChange(logger=NAME, level=each) for each in levels]
    return cluster_messages.AlterLogLevelsRequest(changes=changes)


def test_a_level_is_changed_and_given_back(client: Client) -> None:
    before = level(client)
    try:
        client.ask(apis.ALTER_LOG_LEVELS, altering("error"))
        assert level(client) == cluster_messages.LogLevel(logger=NAME, level="error", is_own=True)
        with pytest.raises(InvalidRequestError):
            client.ask(apis.ALTER_LOG_LEVELS, altering("debug", "info"))
        client.ask(apis.ALTER_LOG_LEVELS, altering(None))
    finally:
        logging.getLogger(NAME).setLevel(logging.NOTSET)
    assert level(client) == before


def test_a_change_needs_the_cluster_secret(tmp_path: Path) -> None:
    with (
        running(tmp_path, clock=SystemClock(), cluster_secret="s" * 32) as broker,
        broker.client() as client,
    ):
        with pytest.raises(AccessDeniedError, match="requires the cluster secret"):
            client.ask(apis.ALTER_LOG_LEVELS, altering("error"))
        assert level(client).level != "error"
