"""The HTTP port: its paths, the port of a whole host, and the schema registry."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from raftlog import limits
from raftlog.config import Address
from raftlog.errors import StorageFailedError
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import SchemaRegistryRequest, SchemaRegistryResponse
from raftlog.server.broker import Broker
from raftlog.server.http.app import (
    DELAY_INTERVAL_SECONDS,
    Answer,
    Host,
    Kept,
    LoopDelay,
    ask_http,
    make_registry_app,
    merge_metrics,
    schema_routes,
)
from raftlog.server.http.collect import Readiness
from tests.running import runs
from tests.server.cluster.fake import Scene, play
from tests.server.harness import TIMEOUT_S, FakeClock, batch_of, closed_by_peer
from tests.server.http.serving import Serving, serving
from tests.server.test_main import process

# -- paths -----------------------------------------------------------------------------------------

# Paths of the HTTP port; expensive results are shared.


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


# -- several workers -------------------------------------------------------------------------------

# The HTTP port of the first worker, which answers for all of its host.


OTHERS = [Address("127.0.0.1", 9201), Address("127.0.0.1", 9202)]
OWN = """\
# HELP raftlog_ready Whether the broker is ready.
# TYPE raftlog_ready gauge
raftlog_ready 1.0
# HELP raftlog_records_total Records.
# TYPE raftlog_records_total counter
raftlog_records_total{topic="a b"} 3.0
"""
OTHER = OWN.replace("1.0", "0.0").replace("3.0", "4.0")


def host(**texts: Answer) -> Host:
    """Two workers that answer with ``texts``, by path and number, such as ``healthz_2``."""

    def ask(address: Address, path: str, _accept: str) -> Answer:
        return texts[f"{path[1:]}_{address.port - 9_199}"]

    return Host(OTHERS, ask)


def test_a_host_is_healthy_if_all_workers_are() -> None:
    well, ill = Answer(200, "ok\n"), Answer(0, "its HTTP port does not answer: refused")
    assert asyncio.run(host(healthz_2=well, healthz_3=well).ailing()) == []
    ailing = asyncio.run(host(healthz_2=well, healthz_3=ill).ailing())
    assert ailing == ["worker 3: its HTTP port does not answer: refused"]


def test_a_host_is_ready_if_all_workers_are() -> None:
    own = Readiness((), ("t:0 below min.insync.replicas",))
    noted = Answer(503, '{"not_ready": ["no disk"], "not_safe": ["u:1"]}')
    lost = Answer(0, "its HTTP port does not answer: refused")
    found = asyncio.run(host(readyz_2=noted, readyz_3=lost).readiness(own))
    assert found.not_ready == (
        "worker 2: no disk",
        "worker 3: its HTTP port does not answer: refused",
    )
    assert found.not_safe == ("t:0 below min.insync.replicas", "worker 2: u:1")


def test_each_family_of_metrics_is_told_once_with_the_samples_of_all_workers() -> None:
    families = list(text_string_to_metric_families(merge_metrics({1: OWN, 2: OTHER})))
    assert [family.name for family in families] == ["raftlog_ready", "raftlog_records"]
    found = {
        (sample.name, sample.labels["worker"], sample.labels.get("topic")): sample.value
        for family in families
        for sample in family.samples
    }
    assert found == {
        ("raftlog_ready", "1", None): 1.0,
        ("raftlog_ready", "2", None): 0.0,
        ("raftlog_records_total", "1", "a b"): 3.0,
        ("raftlog_records_total", "2", "a b"): 4.0,
    }


@pytest.mark.parametrize(
    ("answer", "is_up"),
    [
        (Answer(0, "its HTTP port does not answer: refused"), 0.0),
        (Answer(401, "this broker requires authentication"), 1.0),
    ],
)
def test_a_worker_without_an_answer_is_down(answer: Answer, is_up: float) -> None:
    """One that keeps its metrics for users is not."""
    text = asyncio.run(host(metrics_2=Answer(200, OTHER), metrics_3=answer).metrics(OWN))
    assert 'raftlog_ready{worker="3"}' not in text
    up = {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "raftlog_worker_up"
    }
    assert up == {"1": 1.0, "2": 1.0, "3": is_up}


def test_a_port_at_which_nobody_listens_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("0.0.0.0", free.getsockname()[1])
    status, text = ask_http(address, "/healthz", "text/plain")
    assert (status, text.startswith("its HTTP port does not answer: ")) == (0, True)


def test_another_program_at_the_port_of_a_worker_is_no_answer() -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4_096)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        address = Address("127.0.0.1", server.getsockname()[1])
        status, text = ask_http(address, "/healthz", "text/plain")
        thread.join()
    assert (status, text.startswith("its HTTP port does not answer: ")) == (0, True)


# -- the schema registry ---------------------------------------------------------------------------

# The schema registry on the HTTP port: requests become calls, and the state is that of the log.


def send(
    http: Serving, request: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Send "METHOD /path". Returns the status, the headers and the content of the response."""
    method, _, path = request.partition(" ")
    sent = urllib.request.Request(
        f"http://{http.address}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/vnd.schemaregistry.v1+json", **headers},
        method=method,
    )
    try:
        with urllib.request.urlopen(sent, timeout=TIMEOUT_S) as response:
            return response.status, dict(response.headers), json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.loads(error.read())


def test_ids_continue_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as http:
        status, headers, content = send(http, "POST /subjects/a%2Fb/versions", {"schema": '"int"'})
        assert (status, content) == (200, {"id": 1})
        assert headers["content-type"] == "application/vnd.schemaregistry.v1+json"
        assert send(http, "DELETE /subjects/a%2Fb")[2] == [1]
        assert send(http, "DELETE /subjects/a%2Fb?permanent=true")[2] == [1]
    with serving(tmp_path) as http:
        assert send(http, "POST /subjects/c/versions", {"schema": '"long"'})[2] == {"id": 2}
        assert send(http, "GET /subjects")[2] == ["c"]
        status, _, content = send(http, "GET /schemas/ids/1")
        assert (status, content["error_code"]) == (404, 40403)


def test_raftlogs_protocol_has_the_same_calls(http: Serving) -> None:
    request = SchemaRegistryRequest(method="GET", path="/subjects/none/versions", query={"a": "b"})
    with http.broker.client() as client:
        answer = client.ask(apis.SCHEMA_REGISTRY, request)
    assert isinstance(answer, SchemaRegistryResponse)
    assert answer.status == 404


def test_a_page_of_another_site_is_refused(http: Serving) -> None:
    status, _, content = send(http, "GET /subjects", origin="http://example.com")
    assert (status, content["error_code"]) == (403, 40301)
    assert send(http, "GET /subjects", origin=f"http://{http.address}")[0] == 200


def test_a_page_of_a_site_that_points_to_this_machine_is_refused(http: Serving) -> None:
    """DNS rebinding: the browser takes the registry for a part of the site."""
    site = {"host": "evil.example:9200", "origin": "http://evil.example:9200"}
    status, _, content = send(http, "POST /subjects/a/versions", {"schema": '"int"'}, **site)
    assert (status, content["error_code"]) == (403, 40301)
    assert send(http, "GET /subjects", host="evil.example:9200")[0] == 403
    assert send(http, "GET /subjects", host="localhost:9200")[0] == 200
    assert send(http, "GET /subjects", origin="http://[")[0] == 403


def test_a_body_has_a_limit(http: Serving, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "SCHEMA_REQUEST_BYTES_MAX", 5)
    assert send(http, "POST /subjects/a/versions", {"schema": '"int"'})[0] == 413


def test_a_client_that_goes_before_its_body_is_complete_is_no_error_of_the_broker() -> None:
    """Else uvicorn logs it with a traceback."""
    unused = cast(Any, None)
    context = SimpleNamespace(config=SimpleNamespace(authentication_required=False))
    broker = cast(Broker, SimpleNamespace(context=context))
    app = make_registry_app(broker, unused)
    received = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return received.pop(0)

    path = "/subjects/a/versions"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    asyncio.run(app(scope, receive, unused))
    assert not received


def test_an_address_that_others_reach_is_read_only(http: Serving) -> None:
    context = http.broker.broker.context
    client = TestClient(Starlette(routes=schema_routes(context, Address("0.0.0.0", 1))))
    refused = client.put("/config", json={"compatibility": "NONE"})
    assert refused.status_code == 403
    assert "schema.registry.listen" in refused.json()["message"]


def test_an_address_for_the_registry_serves_nothing_else(http: Serving) -> None:
    client = TestClient(make_registry_app(http.broker.broker, http.address))
    assert client.get("/").json() == {}
    assert client.get("/subjects", headers={"origin": "http://x"}).status_code == 403
    assert client.get("/metrics").status_code == 404
