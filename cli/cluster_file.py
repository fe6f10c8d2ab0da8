"""``cluster.json`` in the directory of a local cluster: what runs where, and how many there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from raftlog.config import Address, parse_address
from raftlog.disk import OsDisk
from raftlog.errors import DataDirectoryError, RefusedError
from raftlog.testing import Cluster
from raftlog.testing.probes import HOST, free_ports

CLUSTER_FILE: Final = "cluster.json"
BROKERS_DEFAULT: Final = 3
PORT_DEFAULT: Final = 9100
PORT_MAX: Final = 65_535


def describe(cluster: Cluster) -> dict[str, Any]:
    """What the file holds. The pid of a broker that is down is null."""
    return {
        "bootstrap": cluster.bootstrap,
        "brokers": [
            {
                "id": broker.id,
                "pid": broker.pid,
                "address": str(broker.address),
                "data_dir": str(broker.data_dir),
            }
            for broker in cluster.brokers
        ],
    }


def write(directory: Path, cluster: Cluster) -> None:
    """Say in ``directory`` what runs now. The file is whole at any time."""
    text = json.dumps(describe(cluster), indent=2) + "\n"
    OsDisk().write_atomic(str(directory / CLUSTER_FILE), text.encode())


def recorded_addresses(directory: Path) -> dict[int, Address]:
    """Broker id -> address, as the last run in ``directory`` left them."""
    path = directory / CLUSTER_FILE
    if not path.exists():
        return {}
    try:
        brokers = json.loads(path.read_bytes())["brokers"]
        return {int(entry["id"]): parse_address(entry["address"]) for entry in brokers}
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(f"{path} cannot be read ({error!r}): remove it") from error


def choose_addresses(
    directory: Path, *, brokers: int | None, port: int | None
) -> dict[int, Address]:
    """Broker id -> address for the next run in ``directory``.

    ``brokers`` of None: as many as ``directory`` has, or 3. ``port`` of None: the ports of the last
    run, or those from 9100 on; 0: free ones; else those from ``port`` on.

    Raises ``RefusedError`` if the directory has another number of brokers, or ports run out.
    """
    last = recorded_addresses(directory)
    held = len(last) or len(list(directory.glob("broker-*/")))
    count = brokers or held or BROKERS_DEFAULT
    if held and count != held:
        raise RefusedError(
            f"{directory} holds a cluster of {held} broker{'s' * (held > 1)}, not of {count}: "
            "leave --brokers out to resume it, or give another --data-dir"
        )
    if port is None and last:
        return last
    first = PORT_DEFAULT if port is None else port
    if first + count - 1 > PORT_MAX:
        raise RefusedError(f"{count} brokers need ports {first} to {first + count - 1}")
    ports = free_ports(count) if first == 0 else range(first, first + count)
    return {number: Address(HOST, port) for number, port in enumerate(ports, start=1)}
