"""Paths of the HTTP port; expensive results are shared."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import StorageFailedError
from raftlog.server.http.app import Kept
from tests.server.harness import batch_of
from tests.server.http.serving import Serving


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
