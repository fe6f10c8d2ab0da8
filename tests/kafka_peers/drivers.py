"""The Kafka clients that are tested: versions, features, and a driver program for each.

A driver has three commands. Records are lines of JSON with partition, key, value and headers.

    produce BOOTSTRAP TOPIC CODEC
        produces the records of the standard input as an idempotent producer. Writes a line with
        number, partition and offset for each acknowledged record.
    consume BOOTSTRAP TOPIC GROUP PROTOCOL COUNT
        subscribes as a member of a group, writes COUNT records with their offsets, commits exactly
        these and leaves.
    admin BOOTSTRAP TOPIC
        creates, changes, extends, describes and deletes a topic, and writes what it has seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from tests.kafka_peers.install import CACHE, HERE, JAVA_LIBRARY, version_in

TIMEOUT_S = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PROTOCOLS = ("classic", "consumer")


@dataclass(frozen=True)
class Client:
    """A client and what it has; features that it does not have are not tested."""

    name: str
    version: str
    command: tuple[str, ...]
    codecs: tuple[str, ...] = CODECS
    protocols: tuple[str, ...] = PROTOCOLS
    has_admin: bool = True

    def __str__(self) -> str:
        return self.name

    def start(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(CACHE / "js/node_modules"), "LC_ALL": "C.UTF-8"},
        )

    def run(self, *words: object, records: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Run a command of the driver with ``records`` as its input. Returns its output."""
        return finish(self.start(*words), records)


def finish(
    process: subprocess.Popen[str], records: Iterable[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Send the records, and return the lines that the driver writes until its end."""
    try:
        out, err = process.communicate("".join(map(as_line, records)), timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err[-4_000:]
    return [json.loads(line) for line in out.splitlines()]


def as_line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _python(name: str, **features: Any) -> Client:
    command = (sys.executable, "-W", "ignore", str(HERE / "python/peer.py"), name)
    return Client(name, version(name), command, **features)


CLIENTS = (
    Client(
        "Java client",
        version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<"),
        (
            "java",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{JAVA_LIBRARY}/*:{CACHE / 'java/peer'}",
            "Peer",
        ),
    ),
    Client("franz-go", version_in("go/go.mod", r"franz-go v(\S+)"), (str(CACHE / "go/peer"),)),
    Client(
        "kafkajs",
        version_in("js/package.json", r'"kafkajs": "(.*?)"'),
        ("node", str(HERE / "js/peer.js")),
        codecs=("none", "gzip"),  # the others are packages of third parties
        protocols=("classic",),
    ),
    _python("confluent-kafka"),
    _python("kafka-python", codecs=("none", "gzip", "lz4", "zstd"), protocols=("classic",)),
    _python("aiokafka", protocols=("classic",), has_admin=False),
)
