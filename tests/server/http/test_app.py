"""Paths of the HTTP port; expensive results are shared."""

from __future__ import annotations

import asyncio
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import StorageFailedError
from raftlog.server.http.app import DELAY_INTERVAL_SECONDS, Kept, LoopDelay
from tests.running import runs
from tests.server.cluster.fake import Scene, play
from tests.server.harness import FakeClock, batch_of, closed_by_peer
from tests.server.http.serving import Serving, serving
from tests.server.test_main import process


def test_health_and_readiness_are_text_and_json(http: Serving) -> None:
    assert http.get("/healthz") == (200, "ok\n")
    assert http.get("/readyz") == (200, "ready: yes\nrestart safe: yes\n")
    assert http.get("/readyz?restart")[0] == 200
    assert http.json("/readyz") == {
        "ready": True,
        "not_ready": [],
        "restart_safe": True,
        "not_safe": [],
    }


def test_a_broker_with_the_only_replica_is_ready_and_must_not_be_restarted(
    http: Serving,
) -> None:
    with http.broker.client() as client:
        client.create("t")
        client.produce("t", batch_of(b"a"))
    assert http.get("/readyz")[0] == 200
    status, text = http.get("/readyz?restart")
    assert status == 503
    assert "below min.insync.replicas: 1 (t:0)" in text
    assert http.json("/readyz")["restart_safe"] is False


def test_a_failed_broker_is_not_ready_and_says_why(http: Serving) -> None:
    broker = http.broker.broker

    def fail() -> None:
        broker.failure = StorageFailedError("the disk is gone")

    http.broker.call(fail)
    status, text = http.get("/readyz")
    assert status == 503
    assert "the disk is gone" in text

    def repair() -> None:
        broker.failure = None

    http.broker.call(repair)


class Ended:
    """Operations of a broker whose consensus has ended."""

    cluster_id = "c"

    def controller(self) -> int | None:
        raise KeyError("cluster")


def test_a_broker_that_stops_responds_until_its_end(http: Serving) -> None:
    context = http.broker.broker.context
    operations = context.operations

    def stop() -> None:
        context.is_stopping = True
        context.operations = cast(Any, Ended())

    http.broker.call(stop)
    status, text = http.get("/readyz")
    assert (status, "the broker is stopping" in text) == (503, True)
    assert http.metrics()["raftlog_controller",] == 0

    def go_on() -> None:
        context.is_stopping = False
        context.operations = operations

    http.broker.call(go_on)


def test_browsers_do_not_keep_responses(http: Serving) -> None:
    with urllib.request.urlopen(f"http://{http.address}/healthz", timeout=20) as response:
        assert response.headers.get_all("cache-control") == ["no-store"]


def test_other_paths_and_methods_are_refused(http: Serving) -> None:
    assert http.get("/metrics/x")[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert http.get("/metrics", method=method)[0] == 405


def test_results_are_kept_for_a_time_and_shared() -> None:
    async def test() -> None:
        now, calls, gate = [0.0], 0, asyncio.Event()

        async def work() -> int:
            nonlocal calls
            calls += 1
            await gate.wait()
            return calls

        kept = Kept(work, lambda: now[0])
        both = asyncio.gather(kept.get(), kept.get())
        await asyncio.sleep(0)
        gate.set()
        assert await both == [1, 1]
        now[0] = limits.METRICS_KEPT_S - 0.1
        assert await kept.get() == 1
        now[0] = limits.METRICS_KEPT_S
        assert await kept.get() == 2

    asyncio.run(test())


def test_an_error_is_not_kept_longer_than_a_result() -> None:
    async def test() -> None:
        now, results = [0.0], iter((ValueError("first"), None))

        async def work() -> str:
            if error := next(results):
                raise error
            return "second"

        kept = Kept(work, lambda: now[0])
        with pytest.raises(ValueError, match="first"):
            await kept.get()
        now[0] = limits.METRICS_KEPT_S
        assert await kept.get() == "second"

    asyncio.run(test())


# -- server ----------------------------------------------------------------------------------------
#
# A client of the HTTP port that is slow, broken or one of many takes nothing from the broker.


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
