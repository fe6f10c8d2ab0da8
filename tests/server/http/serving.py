"""A running broker with an HTTP port, and clients of it."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from raftlog.clock import SystemClock
from raftlog.config import Address
from raftlog.server.connection import address_of, bind
from raftlog.server.http.app import HttpServer
from tests.server.harness import TIMEOUT_S, RunningBroker, running


class Serving:
    """``broker`` and its port."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        listening = bind(Address("127.0.0.1", 0))
        self.address = address_of(listening)
        self.server = broker.await_(HttpServer.start(broker.broker, listening))

    def get(self, path: str, accept: str = "*/*", method: str = "GET") -> tuple[int, str]:
        """The status and the text of a response."""
        request = urllib.request.Request(
            f"http://{self.address}{path}", headers={"Accept": accept}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def json(self, path: str) -> Any:
        return json.loads(self.get(path, "application/json")[1])

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Name and values of labels -> value."""
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=TIMEOUT_S)


@contextlib.contextmanager
def serving(data_dir: Path) -> Iterator[Serving]:
    with running(data_dir, clock=SystemClock()) as broker:
        started = Serving(broker)
        try:
            yield started
        finally:
            broker.await_(started.server.stop())
