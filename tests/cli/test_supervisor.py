"""The keeper of ``raftlog up``: ``cluster.json`` stays true, and brokers come back when asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli.supervisor import Supervisor, recorded_addresses, request_start
from raftlog.errors import DataDirectoryError, RefusedError, UnsupportedFeatureError
from raftlog.testing import wait_until
from raftlog.testing.cluster import answers

Supervise = Callable[..., Supervisor]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def supervise(tmp_path: Path, notes: list[str]) -> Iterator[Supervise]:
    """``supervise(restart=...)``: a started supervisor of ``tmp_path``, running in a thread."""
    stopping = threading.Event()
    started: list[Supervisor] = []
    with ThreadPoolExecutor(1) as executor:

        def start(*, restart: bool) -> Supervisor:
            supervisor = Supervisor(tmp_path, brokers=1, port=0, restart=restart, note=notes.append)
            supervisor.start()
            executor.submit(supervisor.run, stopping)
            started.append(supervisor)
            return supervisor

        yield start
        stopping.set()
    for supervisor in started:
        supervisor.stop()


def recorded(directory: Path) -> Any:
    return json.loads((directory / "cluster.json").read_bytes())


def recorded_pid(directory: Path) -> int | None:
    pid: int | None = recorded(directory)["brokers"][0]["pid"]
    return pid


@pytest.mark.integration
def test_the_record_names_what_runs(supervise: Supervise, tmp_path: Path) -> None:
    broker = supervise(restart=False).cluster.brokers[0]
    assert recorded(tmp_path) == {
        "bootstrap": str(broker.address),
        "brokers": [
            {
                "id": 1,
                "pid": broker.pid,
                "address": str(broker.address),
                "data_dir": str(tmp_path / "broker-1"),
            }
        ],
    }
    assert recorded_addresses(tmp_path) == {1: broker.address}


@pytest.mark.integration
def test_a_killed_broker_stays_down_until_it_is_asked_for(
    supervise: Supervise, tmp_path: Path, notes: list[str]
) -> None:
    broker = supervise(restart=False).cluster.brokers[0]
    broker.kill()
    wait_until(lambda: recorded_pid(tmp_path) is None, what="a record of the death")
    assert "broker 1 has ended" in notes[0]
    assert request_start(tmp_path, 1) == broker.address
    assert answers(broker.address)
    wait_until(lambda: recorded_pid(tmp_path) == broker.pid, what="a record of the new process")
    assert not (tmp_path / "start-1").exists()


@pytest.mark.integration
def test_with_restart_a_killed_broker_comes_back(supervise: Supervise, tmp_path: Path) -> None:
    broker = supervise(restart=True).cluster.brokers[0]
    first = broker.pid
    broker.kill()
    wait_until(lambda: recorded_pid(tmp_path) not in {first, None}, what="a new process")
    wait_until(lambda: answers(broker.address), what="its answer")


@pytest.mark.integration
def test_a_directory_has_one_supervisor(supervise: Supervise, tmp_path: Path) -> None:
    supervise(restart=False)
    with pytest.raises(DataDirectoryError, match="another `raftlog up` runs"):
        Supervisor(tmp_path, brokers=1, port=0, restart=False, note=print)


def test_nobody_starts_a_broker_where_nothing_runs(tmp_path: Path) -> None:
    entry = {"id": 1, "pid": None, "address": "127.0.0.1:9", "data_dir": "x"}
    record = {"bootstrap": "127.0.0.1:9", "brokers": [entry]}
    (tmp_path / "cluster.json").write_text(json.dumps(record))
    with pytest.raises(RefusedError, match="no `raftlog up` runs"):
        request_start(tmp_path, 1)
    with pytest.raises(RefusedError, match="no broker 2; it has: 1"):
        request_start(tmp_path, 2)


def test_an_unreadable_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(DataDirectoryError, match=r"cluster\.json"):
        recorded_addresses(tmp_path)


def test_more_brokers_than_one_come_with_replication(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="replication"):
        Supervisor(tmp_path, brokers=3, port=0, restart=False, note=print)
