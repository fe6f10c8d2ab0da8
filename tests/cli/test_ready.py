"""`raftlog ready`: waits, and says why a broker is not ready."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from raftlog.testing.cluster import free_port
from tests.cli.conftest import Raftlog

NOT_READY = json.dumps(
    {"ready": False, "not_ready": ["replicas lag"], "restart_safe": False, "not_safe": ["alone"]}
).encode()
READY = b'{"ready": true, "not_ready": [], "restart_safe": true, "not_safe": []}'


class Broker(HTTPServer):
    """Responds to /readyz with each of ``bodies`` in turn, and then with the last one."""

    bodies: list[bytes]
    asked: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: Broker

    def do_GET(self) -> None:
        bodies = self.server.bodies
        body = bodies.pop(0) if len(bodies) > 1 else bodies[0]
        self.server.asked.append(self.path)
        self.send_response(200 if body == READY else 503)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def broker() -> Iterator[Broker]:
    server = Broker(("127.0.0.1", 0), _Handler)
    server.bodies, server.asked = [READY], []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker.server_port}"


def test_it_waits_until_the_broker_is_ready(
    broker: Broker, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_cli.broker.INTERVAL_S", 0.01)
    broker.bodies = [NOT_READY, NOT_READY, READY]
    ran = raftlog("ready", url(broker))
    assert (ran.status, ran.out.decode()) == (0, f"{url(broker)} is ready\n")
    assert broker.asked == ["/readyz"] * 3
    assert raftlog("ready", url(broker) + "/", "--restart", "--json").json["restart_safe"] is True
    assert broker.asked[-1] == "/readyz?restart"


def test_it_ends_with_the_reasons(broker: Broker, raftlog: Raftlog) -> None:
    broker.bodies = [NOT_READY]
    ran = raftlog("ready", url(broker), "--restart", "--timeout", 0)
    assert (ran.status, "not safe to restart: replicas lag; alone" in ran.err) == (1, True)
    broker.bodies = [b"not a broker"]
    ran = raftlog("ready", url(broker), "--timeout", 0)
    assert (ran.status, "Check that this is the http.listen of a broker" in ran.err) == (1, True)
    ran = raftlog("ready", f"http://127.0.0.1:{free_port()}", "--timeout", 0)
    assert (ran.status, "refused" in ran.err) == (1, True)
    assert raftlog("ready", "127.0.0.1:9200").status == 2
