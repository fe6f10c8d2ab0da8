"""``cluster.json``: whole, true, and what the next run goes by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raftlog.cli import cluster_file
from raftlog.cli.cluster_file import choose_addresses, recorded_addresses
from raftlog.config import Address
from raftlog.errors import DataDirectoryError, RefusedError
from raftlog.testing.cluster import local_cluster


@pytest.fixture
def recorded(tmp_path: Path) -> dict[int, Address]:
    """What a run with three brokers has left in ``tmp_path``."""
    cluster = local_cluster(tmp_path, brokers=3)
    cluster_file.write(tmp_path, cluster)
    return {broker.id: broker.address for broker in cluster.brokers}


def test_what_is_written_is_what_is_read(tmp_path: Path, recorded: dict[int, Address]) -> None:
    assert recorded_addresses(tmp_path) == recorded
    record = json.loads((tmp_path / "cluster.json").read_bytes())
    assert record["bootstrap"] == ",".join(map(str, recorded.values()))
    assert record["brokers"][1] == {
        "id": 2,
        "pid": None,
        "address": str(recorded[2]),
        "data_dir": str(tmp_path / "broker-2"),
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
    tmp_path: Path, recorded: dict[int, Address]
) -> None:
    assert choose_addresses(tmp_path, brokers=None, port=None) == recorded
    assert choose_addresses(tmp_path, brokers=3, port=None) == recorded
    moved = choose_addresses(tmp_path, brokers=None, port=7000)
    assert [address.port for address in moved.values()] == [7000, 7001, 7002]
    for other in (1, 5):
        with pytest.raises(RefusedError, match=rf"3 brokers, not of {other}: leave --brokers out"):
            choose_addresses(tmp_path, brokers=other, port=None)


def test_a_directory_without_a_record_counts_by_its_brokers(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1.log").touch()
    assert list(choose_addresses(tmp_path, brokers=None, port=None)) == [1]
    with pytest.raises(RefusedError, match="holds a cluster of 1 broker, not of 3"):
        choose_addresses(tmp_path, brokers=3, port=None)


@pytest.mark.parametrize("text", ["{}", "not JSON", '{"brokers": [{"id": 1, "address": "x"}]}'])
def test_an_unreadable_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(DataDirectoryError, match=r"cluster\.json"):
        recorded_addresses(tmp_path)
