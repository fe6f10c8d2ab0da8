"""Backups in an object store: a server that speaks S3, from the packages of ``make nightly``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from raftlog.testing import cluster
from raftlog.testing.cluster import free_port
from tests.cli.conftest import Raftlog

boto3 = pytest.importorskip("boto3")
s3fs = pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")

pytestmark = [pytest.mark.integration, pytest.mark.nightly]
ACCESS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "eu-west-1"}


class Bucket(NamedTuple):
    """A bucket, and a client of its server."""

    client: Any
    name: str

    def names(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=self.name)
        return [each["Key"] for each in listed.get("Contents", [])]

    def put(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=name, Body=data)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The client of an S3 server with one bucket, which the environment selects for all clients."""
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    client = boto3.client("s3")
    files = Bucket(client, f"backups-{port}")  # the server's buckets belong to the process
    s3fs.S3FileSystem.clear_instance_cache()
    location = {"LocationConstraint": ACCESS["AWS_DEFAULT_REGION"]}
    client.create_bucket(Bucket=files.name, CreateBucketConfiguration=location)
    try:
        yield files
    finally:
        running.stop()


def test_a_backup_grows_is_verified_and_restored(
    files: Bucket, raftlog: Raftlog, topic: str
) -> None:
    url = f"s3://{files.name}/raftlog"
    for number, lines in enumerate((b"a\nb\n", b"c\n"), start=1):
        assert raftlog("produce", topic, "-p", 0, stdin=lines).status == 0
        made = raftlog("backup", "--to", url, "--topics", topic, "--json").json
        assert (made["topics"], made["offsets"]) == (1, len(lines) // 2)
        batches = [name for name in files.names() if name.endswith(".batches")]
        assert len(batches) == number
    assert "raftlog/backup.json" in files.names()
    assert raftlog("restore", "--from", url, "--verify").out.decode().splitlines() == [
        f"{topic}:0: offsets 0 to 3: ok",
        f"{topic}:1: offsets 0 to 0: ok",
    ]
    with cluster(brokers=1) as other:
        ran = raftlog("restore", "--from", url, "--bootstrap", other.bootstrap)
        assert ran.status == 0, ran.err
        tailed = raftlog("tail", topic, "-o", "earliest", "--bootstrap", other.bootstrap)
        assert tailed.out == b"a\nb\nc\n"
    files.put(batches[0], b"damaged")
    ran = raftlog("restore", "--from", url, "--verify", "--json")
    assert (ran.status, "bytes instead of" in ran.json_lines[0]["problem"]) == (1, True)


@pytest.mark.usefixtures("files")
def test_errors_of_the_store_are_one_line(
    raftlog: Raftlog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = raftlog("restore", "--from", "s3://no-such-bucket/x", "--verify")
    assert (ran.status, len(ran.err.splitlines())) == (1, 1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    for command in (
        ("restore", "--from", "s3://gone/x", "--verify"),
        ("backup", "--to", "s3://gone/x", "--topics", topic),
    ):
        ran = raftlog(*command)
        assert (ran.status, len(ran.err.splitlines())) == (1, 1), ran.err
        assert "s3://gone/x" in ran.err
