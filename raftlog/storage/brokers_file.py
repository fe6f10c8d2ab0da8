"""The file ``brokers`` of a data directory: last known addresses of the brokers of the cluster.

A broker that joined the cluster uses it to find the others at its next start. It is a hint: the
cluster state has the current addresses. A missing or corrupt file is empty.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftlog.config import Address, parse_address
from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_file


def _brokers_path(directory: str) -> str:
    return f"{directory}/brokers"


def read_brokers(disk: Disk, directory: str) -> dict[int, Address]:
    """Return the saved addresses by broker ID. Raises ``OSError``."""
    try:
        state = state_file.read(disk, _brokers_path(directory)) or {}
    except DamagedLogError:
        return {}
    return {int(broker): parse_address(text) for broker, text in state.items()}


def write_brokers(disk: Disk, directory: str, addresses: Mapping[int, Address]) -> None:
    """Save the addresses durably. On a full disk, the older ones stay. Raises ``OSError``."""
    state = {str(broker): str(address) for broker, address in addresses.items()}
    try:
        state_file.write(disk, _brokers_path(directory), state)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
