"""``/api/v1``: the same values as the commands print, from a real broker."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from raftlog import Admin, NewTopic, limits
from raftlog.client.administration.groups import GroupListing
from raftlog.testing import cluster
from raftlog.testing.cluster import free_port
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str]]:
    """Bootstrap, and the URL of the HTTP port."""
    http = f"127.0.0.1:{free_port()}"
    with cluster(brokers=1, settings={"http.listen": http}) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 2)])
        yield running.bootstrap, f"http://{http}/api/v1"


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            assert response.headers["content-type"] == "application/json"
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_every_path_has_what_its_command_prints(
    served: tuple[str, str], raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap, url = served
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", bootstrap)
    assert raftlog("produce", "t", "-p", 0, stdin=b"a\nb\n").status == 0
    ran = raftlog("tail", "t", "-o", "earliest", "-n", 1, "--group", "team/a")
    assert ran.out == b"a\n"
    for path, command in (
        ("cluster", ["cluster", "status"]),
        ("brokers", ["cluster", "brokers"]),
        ("features", ["cluster", "features"]),
        ("topics", ["topic", "list"]),
        ("topics/t", ["topic", "describe", "t"]),
        ("topics/t/producers", ["topic", "producers", "t"]),
        ("topics/t/producers?partition=1", ["topic", "producers", "t", "-p", 1]),
        ("topics/t/producers?skip=1&limit=1", ["topic", "producers", "t", "--skip=1", "--limit=1"]),
    ):
        assert get(f"{url}/{path}") == (200, raftlog(*command, "--json").json), path
    (listed,) = raftlog("group", "list", "--json").json  # with lags, which cost a request each
    assert get(f"{url}/groups") == (200, [{key: listed[key] for key in GroupListing.__slots__}])
    status, group = get(f"{url}/groups/team/a")
    printed = raftlog("group", "describe", "team/a", "--json").json
    for described in (group, printed):  # it grows with time
        described.pop("lag_seconds", None)
        for part in described["partitions"]:
            part.pop("lag_seconds")
    assert (status, group) == (200, printed)
    assert get(f"{url}/events")[0] == 200


def test_partitions_of_a_topic_are_listed_in_parts(
    served: tuple[str, str],
    raftlog: Raftlog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap, url = served
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", bootstrap)
    count = limits.HTTP_PARTITIONS_MAX + 5
    assert raftlog("topic", "create", "wide", "--partitions", count).status == 0

    def part(query: str = "") -> list[int]:
        status, topic = get(f"{url}/topics/wide{query}")
        assert (status, topic["partition_count"]) == (200, count)
        assert topic["config"]["cleanup.policy"] == "delete"
        return [each["partition"] for each in topic["partitions"]]

    assert part() == [*range(limits.HTTP_PARTITIONS_MAX)]
    assert part(f"?start={limits.HTTP_PARTITIONS_MAX}") == [*range(count - 5, count)]
    assert part("?start=7&limit=3") == [7, 8, 9]
    assert part("?start=99999") == []
    everything = raftlog("topic", "describe", "wide", "--json").json
    assert len(everything["partitions"]) == everything["partition_count"] == count
    assert (
        get(f"{url}/topics/wide?start=7&limit=3")[1]["partitions"] == everything["partitions"][7:10]
    )


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("topics/t?start=-1", 400, "InvalidRequestError"),
        ("topics/t?limit=0", 400, "InvalidRequestError"),
        (f"topics/t?limit={limits.HTTP_PARTITIONS_MAX + 1}", 400, "InvalidRequestError"),
        ("topics/no-such", 404, "UnknownTopicError"),
        ("groups/no-such", 404, "UnknownGroupError"),
        ("events?since=never", 400, "InvalidRequestError"),
        ("topics/t/producers?partition=x", 400, "InvalidRequestError"),
        ("topics/t/producers?partition=9", 404, "UnknownPartitionError"),
        ("topics/t/producers?limit=10001", 400, "InvalidRequestError"),
    ],
)
def test_an_error_is_json(served: tuple[str, str], path: str, status: int, error: str) -> None:
    code, body = get(f"{served[1]}/{path}")
    assert (code, body["error"]) == (status, error)
    assert body["message"]
