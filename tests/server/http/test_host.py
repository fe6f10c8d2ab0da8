"""The HTTP port of the first worker, which answers for all of its host."""

from __future__ import annotations

import asyncio
import socket

from prometheus_client.parser import text_string_to_metric_families

from raftlog.config import Address
from raftlog.server.http.collect import Readiness
from raftlog.server.http.host import Answer, Host, ask_http, merge_metrics

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


def test_a_worker_without_an_answer_has_no_metrics_and_is_down() -> None:
    lost = Answer(401, "this broker requires authentication")
    text = asyncio.run(host(metrics_2=Answer(200, OTHER), metrics_3=lost).metrics(OWN))
    up = {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "raftlog_worker_up"
    }
    assert up == {"1": 1.0, "2": 1.0, "3": 0.0}


def test_a_port_at_which_nobody_listens_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("0.0.0.0", free.getsockname()[1])
    status, text = ask_http(address, "/healthz", "text/plain")
    assert (status, text.startswith("its HTTP port does not answer: ")) == (0, True)
