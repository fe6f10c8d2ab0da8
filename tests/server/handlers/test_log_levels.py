"""``describe_log_levels`` and ``alter_log_levels``: on the broker that is asked."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from raftlog.clock import SystemClock
from raftlog.errors import AccessDeniedError, InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol import cluster
from tests.server.harness import Client, running

NAME = "raftlog.server.connection"


def level(client: Client) -> cluster.LogLevel:
    answer = client.ask(apis.DESCRIBE_LOG_LEVELS, cluster.DescribeLogLevelsRequest())
    (found,) = [each for each in answer.levels if each.logger == NAME]
    assert isinstance(found, cluster.LogLevel)
    return found


def altering(*levels: str | None) -> cluster.AlterLogLevelsRequest:
    changes = [cluster.LogLevelChange(logger=NAME, level=each) for each in levels]
    return cluster.AlterLogLevelsRequest(changes=changes)


def test_a_level_is_changed_and_given_back(client: Client) -> None:
    before = level(client)
    try:
        client.ask(apis.ALTER_LOG_LEVELS, altering("error"))
        assert level(client) == cluster.LogLevel(logger=NAME, level="error", is_own=True)
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
