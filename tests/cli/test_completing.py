"""Shell completion of names: those of a running cluster, or none, and never an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import click
import pytest

from raftlog import Producer
from raftlog_cli import completing
from raftlog_cli.tail import tail
from tests.cli.conftest import Raftlog


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def complete(
    names: completing.Complete, incomplete: str, bootstrap: str | None = None
) -> list[str]:
    context = click.Context(tail)
    context.params["bootstrap"] = bootstrap
    return names(context, tail.params[0], incomplete)


@pytest.mark.integration
def test_names_are_those_of_the_cluster(raftlog: Raftlog, bootstrap: str, topic: str) -> None:
    assert raftlog("tail", topic, "--group", f"group-{topic}").status == 0
    assert complete(completing.topics, topic, bootstrap) == [topic]
    assert complete(completing.topics, "__", bootstrap) == []
    assert complete(completing.partitions, topic) == [f"{topic}:0", f"{topic}:1"]
    assert complete(completing.groups, "group-" + topic) == [f"group-{topic}"]
    assert complete(completing.brokers, "") == ["1"]
    with (
        Producer(bootstrap, transactional_id=f"tx-{topic}") as producer,
        producer.transaction() as txn,
    ):
        txn.send(topic, b"a")
    assert complete(completing.transactional_ids, "tx-" + topic) == [f"tx-{topic}"]


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "no address"])
def test_without_a_cluster_there_are_no_names(
    capfd: pytest.CaptureFixture[str], bootstrap: str
) -> None:
    assert complete(completing.topics, "", bootstrap) == []
    assert capfd.readouterr() == ("", "")


def test_settings_are_those_of_topics() -> None:
    assert complete(completing.settings, "retention.m") == ["retention.ms"]
    assert complete(completing.assignments, "retention.m") == ["retention.ms="]
