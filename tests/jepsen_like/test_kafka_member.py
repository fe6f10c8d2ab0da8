"""The application of a member that is a Kafka client, as a process."""

from __future__ import annotations

import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.testing import cluster
from raftlog.testing.history import entries
from tests.jepsen_like.test_member import check_story, lines_of, settings


@pytest.mark.integration
def test_a_member_of_either_protocol_processes_commits_and_leaves() -> None:
    with cluster(1, settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            admin.create_topics([NewTopic("t", 1, 1)])
            for value in range(1, 101):
                producer.send("t", entries.encode_value(value, 10))
            producer.flush()
        for protocol, by_pattern in (("classic", True), ("consumer", False)):
            asked = settings(
                bootstrap=running.bootstrap,
                group=protocol,
                protocol=protocol,
                by_pattern=by_pattern,
                session_timeout_s=6.0,
            )
            check_story(lines_of(asked))
