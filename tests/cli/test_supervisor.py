"""Tests of raftlog_cli.up."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError, DataDirectoryError, RefusedError
from raftlog.testing import wait_until
from raftlog.testing.cluster import answers, local_cluster, members
from raftlog_cli import up
from raftlog_cli.up import (
    Supervisor,
    choose_addresses,
    choose_http,
    choose_workers,
    founders_of,
    recorded_addresses,
    request_add,
    request_start,
)

# -- cluster file ----------------------------------------------------------------------------------


@pytest.fixture
def last_run(tmp_path: Path) -> dict[int, Address]:
    """What a run with three brokers has left in ``tmp_path``."""
    cluster = local_cluster(tmp_path, brokers=3)
    up.write_cluster_file(tmp_path, cluster)
    return {broker.id: broker.address for broker in cluster.brokers}


def test_what_is_written_is_what_is_read(tmp_path: Path, last_run: dict[int, Address]) -> None:
    assert recorded_addresses(tmp_path) == last_run
    record = json.loads((tmp_path / "cluster.json").read_bytes())
    assert record["bootstrap"] == ",".join(map(str, last_run.values()))
    assert record["brokers"][1] == {
        "id": 2,
        "pid": None,
        "address": str(last_run[2]),
        "data_dir": str(tmp_path / "broker-2"),
        "http": None,
    }


def test_a_new_directory_gets_three_from_9100_on(tmp_path: Path) -> None:
    chosen = choose_addresses(tmp_path, brokers=None, port=None)
    assert chosen == {n: Address("127.0.0.1", 9099 + n) for n in (1, 2, 3)}


def test_a_port_is_the_first_of_all(tmp_path: Path) -> None:
    chosen = choose_addresses(tmp_path, brokers=2, port=7000)
    assert chosen == {1: Address("127.0.0.1", 7000), 2: Address("127.0.0.1", 7001)}
    free = choose_addresses(tmp_path, brokers=4, port=0)
    assert len({address.port for address in free.values()}) == 4
    with pytest.raises(RefusedError, match="3 brokers need ports 65534 to 65536"):
        choose_addresses(tmp_path, brokers=3, port=65_534)


def test_a_directory_keeps_its_number_and_its_ports(
    tmp_path: Path, last_run: dict[int, Address]
) -> None:
    assert choose_addresses(tmp_path, brokers=None, port=None) == last_run
    assert choose_addresses(tmp_path, brokers=3, port=None) == last_run
    moved = choose_addresses(tmp_path, brokers=None, port=7000)
    assert [address.port for address in moved.values()] == [7000, 7001, 7002]
    for other in (1, 5):
        with pytest.raises(RefusedError, match=rf"3 brokers, not of {other}: omit --brokers"):
            choose_addresses(tmp_path, brokers=other, port=None)


def test_a_directory_without_a_record_counts_by_its_brokers(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1.log").touch()
    assert list(choose_addresses(tmp_path, brokers=None, port=None)) == [1]
    with pytest.raises(RefusedError, match="contains a cluster of 1 broker, not of 3"):
        choose_addresses(tmp_path, brokers=3, port=None)


@pytest.mark.parametrize("text", ["{}", "not JSON", '{"brokers": [{"id": 1, "address": "x"}]}'])
def test_an_unreadable_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(DataDirectoryError, match=r"cluster\.json"):
        choose_addresses(tmp_path, brokers=None, port=None, workers=choose_workers(tmp_path, None))


def test_an_http_port_is_kept_while_it_is_free(tmp_path: Path) -> None:
    addresses = choose_addresses(tmp_path, brokers=2, port=0)
    cluster = local_cluster(tmp_path, addresses=addresses)
    last = choose_http(tmp_path, addresses)
    for broker in cluster.brokers:
        broker.settings = {**broker.settings, "http.listen": str(last[broker.id])}
    up.write_cluster_file(tmp_path, cluster)
    assert choose_http(tmp_path, addresses) == last
    with socket.create_server(last[1]):
        others = choose_http(tmp_path, addresses)
    assert others[2] == last[2]
    assert others[1] not in {last[1], *addresses.values()}


# -- workers ---------------------------------------------------------------------------------------


def test_workers_share_the_rack_of_their_host_and_have_one_founder(tmp_path: Path) -> None:
    addresses = choose_addresses(tmp_path, brokers=3, port=7000, workers=2)
    supervisor = Supervisor(tmp_path, addresses=addresses, restart=False, note=print, workers=2)
    brokers = supervisor.cluster.brokers
    racks = [broker.settings["rack"] for broker in brokers]
    assert racks == ["host-1", "host-1", "host-2", "host-2", "host-3", "host-3"]
    assert [broker.id for broker in brokers if "voters" in broker.settings] == [1, 3, 5]
    assert all("join" in broker.settings for broker in brokers if "voters" not in broker.settings)
    supervisor.stop()


def test_workers_without_brokers_are_those_of_one_host(tmp_path: Path) -> None:
    assert list(choose_addresses(tmp_path, brokers=None, port=0, workers=4)) == [1, 2, 3, 4]
    with pytest.raises(RefusedError, match="64 brokers are over BROKERS_PER_CLUSTER_MAX"):
        choose_addresses(tmp_path, brokers=2, port=0, workers=32)


def test_a_directory_keeps_its_number_of_workers(tmp_path: Path) -> None:
    addresses = choose_addresses(tmp_path, brokers=1, port=0, workers=2)
    up.write_cluster_file(tmp_path, local_cluster(tmp_path, addresses=addresses), 2)
    assert choose_workers(tmp_path, None) == choose_workers(tmp_path, 2) == 2
    with pytest.raises(RefusedError, match="2 brokers on each host, not of 3: omit --workers"):
        choose_workers(tmp_path, 3)


# -- founders --------------------------------------------------------------------------------------


ONE: Final = {1: Address("127.0.0.1", 7000)}


def test_a_new_broker_alone_is_a_cluster_that_others_can_join(tmp_path: Path) -> None:
    assert founders_of(tmp_path, ONE) == ONE


def test_a_single_broker_of_an_earlier_release_becomes_one(tmp_path: Path) -> None:
    home = tmp_path / "broker-1"
    home.mkdir()
    (home / "identity").touch()
    assert founders_of(tmp_path, ONE) == ONE
    up.write_cluster_file(tmp_path, local_cluster(tmp_path, addresses=ONE))
    assert founders_of(tmp_path, ONE) == ONE


Supervise = Callable[..., Supervisor]


@pytest.fixture
def notes() -> list[str]:
    return []


def make(
    directory: Path, notes: list[str], *, brokers: int = 1, restart: bool = False
) -> Supervisor:
    addresses = choose_addresses(directory, brokers=brokers, port=0)
    return Supervisor(directory, addresses=addresses, restart=restart, note=notes.append)


@pytest.fixture
def supervise(tmp_path: Path, notes: list[str]) -> Iterator[Supervise]:
    """``supervise()``: a started supervisor of ``tmp_path``, running in a thread."""
    stopping = threading.Event()
    started: list[Supervisor] = []
    with ThreadPoolExecutor(1) as executor:

        def start(*, brokers: int = 1, restart: bool = False) -> Supervisor:
            supervisor = make(tmp_path, notes, brokers=brokers, restart=restart)
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
    broker = supervise().cluster.brokers[0]
    http = recorded_addresses(tmp_path, "http")[1]
    assert recorded(tmp_path) == {
        "bootstrap": str(broker.address),
        "environment": {},
        "voters": f"1@{broker.address}",
        "workers": 1,
        "brokers": [
            {
                "id": 1,
                "pid": broker.pid,
                "address": str(broker.address),
                "data_dir": str(tmp_path / "broker-1"),
                "http": f"http://{http}",
            }
        ],
    }
    assert recorded_addresses(tmp_path) == {1: broker.address}


@pytest.mark.integration
def test_a_killed_broker_stays_down_until_it_is_asked_for(
    supervise: Supervise, tmp_path: Path, notes: list[str]
) -> None:
    broker = supervise().cluster.brokers[0]
    broker.kill()
    wait_until(lambda: recorded_pid(tmp_path) is None, what="a record of the death")
    assert notes[0] == "broker 1 has ended: signal 9, Killed. Start it: raftlog up --start 1"
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
    supervise()
    with pytest.raises(DataDirectoryError, match="another `raftlog up` runs"):
        make(tmp_path, [])


def test_nobody_starts_a_broker_where_nothing_runs(tmp_path: Path) -> None:
    entry = {"id": 1, "pid": None, "address": "127.0.0.1:9", "data_dir": "x"}
    record = {"bootstrap": "127.0.0.1:9", "brokers": [entry]}
    (tmp_path / "cluster.json").write_text(json.dumps(record))
    with pytest.raises(RefusedError, match="no `raftlog up` runs"):
        request_start(tmp_path, 1)
    with pytest.raises(RefusedError, match="no broker 2; it has: 1"):
        request_start(tmp_path, 2)


@pytest.mark.parametrize("request_", [request_start, request_add])
def test_a_directory_without_a_cluster_is_named(
    tmp_path: Path, request_: Callable[[Path, int], object]
) -> None:
    with pytest.raises(RefusedError, match=f"{tmp_path} has no cluster .* with --data-dir"):
        request_(tmp_path, 1)


@pytest.mark.integration
def test_one_of_three_that_is_killed_is_asked_for_and_joins_again(
    supervise: Supervise, tmp_path: Path, notes: list[str]
) -> None:
    cluster = supervise(brokers=3).cluster
    assert [entry["id"] for entry in recorded(tmp_path)["brokers"]] == [1, 2, 3]
    cluster.broker(2).kill()
    wait_until(lambda: len(notes) == 1, what="a note of the death")
    assert recorded(tmp_path)["bootstrap"] == cluster.bootstrap
    cluster.wipe(2)
    address = request_start(tmp_path, 2)
    wait_until(lambda: members(address) == {1, 2, 3}, timeout_s=30, what="all three")


def found(directory: Path) -> None:
    """Start a new cluster of three in ``directory``, and stop it."""
    founding = make(directory, [], brokers=3)
    founding.start()
    founding.stop()


def block(data_dir: Path) -> None:
    """Have the broker of ``data_dir`` fail when it starts."""
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.write_text("in the way of the data directory")


@pytest.mark.integration
def test_a_minority_that_cannot_start_is_noted_and_the_rest_serves(
    supervise: Supervise, tmp_path: Path, notes: list[str]
) -> None:
    found(tmp_path)
    block(tmp_path / "broker-2")
    cluster = supervise(brokers=3).cluster
    assert "broker 2 ended with status 1" in notes[0]
    assert [broker.running for broker in cluster.brokers] == [True, False, True]
    assert members(cluster.broker(1).address) == {1, 3}
    assert recorded(tmp_path)["brokers"][1]["pid"] is None


@pytest.mark.integration
@pytest.mark.parametrize("is_new", [True, False])
def test_a_majority_that_cannot_start_ends_it_and_in_a_new_cluster_one(
    tmp_path: Path, is_new: bool
) -> None:
    if not is_new:
        found(tmp_path)
        block(tmp_path / "broker-2")
    block(tmp_path / "broker-3")
    supervisor = make(tmp_path, [], brokers=3)
    with pytest.raises(BrokerUnavailableError, match="broker 3 ended"):
        supervisor.start()
    assert not any(broker.running for broker in supervisor.cluster.brokers)
    assert [entry["pid"] for entry in recorded(tmp_path)["brokers"]] == [None, None, None]


def test_a_port_in_use_leaves_no_record(tmp_path: Path) -> None:
    supervisor = make(tmp_path, [], brokers=2)
    with (
        socket.create_server(supervisor.cluster.broker(2).address),
        pytest.raises(BrokerUnavailableError, match="Pass another port with --port"),
    ):
        supervisor.start()
    assert not (tmp_path / "cluster.json").exists()
    make(tmp_path, [])  # and the directory is free


def test_a_file_that_looks_like_a_request_does_not_end_the_brokers(tmp_path: Path) -> None:
    supervisor = make(tmp_path, [])
    for name in ("add-ons", "add-4~"):
        (tmp_path / name).touch()
        supervisor._add(tmp_path / name)
        assert (tmp_path / name).exists()
    assert [broker.id for broker in supervisor.cluster.brokers] == [1]


@pytest.mark.integration
def test_a_broker_whose_port_was_taken_does_not_end_the_others(
    supervise: Supervise, tmp_path: Path, notes: list[str]
) -> None:
    broker = supervise(restart=True).cluster.brokers[0]
    broker.kill()
    with socket.create_server(broker.address):
        wait_until(lambda: any("cannot start" in note for note in notes), what="a note")
    wait_until(lambda: answers(broker.address), timeout_s=30, what="the start after all")
