"""A client of the HTTP port that is slow, broken or one of many takes nothing from the broker."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.server.http.app import DELAY_INTERVAL_SECONDS, LoopDelay
from tests.running import runs
from tests.server.cluster.paper import Scene, play
from tests.server.harness import FakeClock, closed_by_peer
from tests.server.http.serving import Serving, serving
from tests.server.test_main import process

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


def test_a_connection_serves_one_request(http: Serving) -> None:
    with http.connect() as raw:
        raw.sendall((GET + b"\r\n") * 2)
        received = b""
        while data := raw.recv(65_536):
            received += data
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("sent", [b"", GET, GET + b"Content-Length: 9\r\n\r\nx"])
def test_a_slow_client_is_closed(
    http: Serving, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTION_S", 0.05)
    with http.connect() as raw:
        raw.sendall(sent)
        assert closed_by_peer(raw)


def test_a_header_has_a_limit(http: Serving) -> None:
    with http.connect() as raw:
        raw.sendall(GET + b"X: " + b"x" * (2 * limits.HTTP_HEADER_BYTES_MAX))
        assert raw.recv(65_536).startswith(b"HTTP/1.1 400")
        assert closed_by_peer(raw)


def test_bytes_that_are_not_http_are_refused(http: Serving) -> None:
    with http.connect() as raw:
        raw.sendall(b"\x00\xff\r\n\r\n")
        assert raw.recv(65_536).startswith(b"HTTP/1.1 400")


def test_connections_beyond_the_limit_are_closed_and_the_broker_serves(
    http: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 2)
    with ExitStack() as stack:
        held = [stack.enter_context(http.connect()) for _ in range(2)]
        for raw in held:  # both are accepted, and not complete
            raw.sendall(GET)
        http.broker.call(lambda: None)
        with http.connect() as one_too_many:
            assert closed_by_peer(one_too_many)
        with http.broker.client() as client:
            client.create("t")
        held[0].sendall(b"\r\n")
        assert held[0].recv(65_536).startswith(b"HTTP/1.1 200")
        assert closed_by_peer(held[0])
        assert http.get("/healthz")[0] == 200


def test_a_stop_ends_the_port(tmp_path: Path) -> None:
    with serving(tmp_path) as http:
        assert http.get("/healthz")[0] == 200
        address = http.address
    with pytest.raises(ConnectionRefusedError):
        Serving.connect(http)
    assert address.port


@pytest.mark.integration
def test_the_process_serves_its_port_and_stops(tmp_path: Path) -> None:
    settings = {"http.listen": "127.0.0.1:0"}
    with process(tmp_path / "data", **settings) as broker:
        broker.address()
        (line,) = [line for line in broker.said if "serves http://127.0.0.1:" in line]
        assert not line.rstrip().endswith(":0")
        broker.signal(15)
        assert broker.end() == 0


@runs(play)
async def test_a_late_timer_is_a_delay(s: Scene) -> None:
    clock = FakeClock(1_000_000)
    delay = LoopDelay(s.loop, clock)
    delay.start()
    clock.now_ms += 350
    await asyncio.sleep(DELAY_INTERVAL_SECONDS * 1.5)
    delay.stop()
    await asyncio.sleep(1)
    assert sum(delay.durations.counts) == 1
    assert delay.durations.sum_seconds == pytest.approx(0.25)
