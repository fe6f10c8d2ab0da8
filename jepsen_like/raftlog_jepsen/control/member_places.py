"""Separate networks for members of consumer groups, on the brokers' bridge. Requires Linux and
root.

Member N runs in the network namespace ``mN`` with the address 10.77.0.(100 + N), see
``namespaces``. Connections are blocked at the member's end: its neighbour table maps the broker to
an unused hardware address. Packets from the broker still arrive, but replies do not.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Final

from raftlog.config.address import Address
from raftlog_jepsen.control.namespaces import (
    BRIDGE,
    CONTROL,
    DEVICE,
    FOLDER,
    UNUSED_MAC,
    Namespaces,
    run,
    set_namespace,
)
from raftlog_jepsen.control.namespaces import run_all as _run_all

COUNT_MAX: Final = 100
PROBE_TIMEOUT_S: Final = 0.3
_SUBNET: Final = "10.77.0"
_FIRST: Final = 100


class MemberPlaces:
    """Networks of ``count`` members, for the duration of a ``with`` block.

    ``namespaces``: the brokers' networks, which must be closed later. ``addresses``: where brokers
    listen.
    """

    def __init__(
        self, namespaces: Namespaces, addresses: Mapping[int, Address], count: int
    ) -> None:
        if not 1 <= count <= COUNT_MAX:
            raise ValueError(f"cannot create namespaces for {count} members. Use 1 to {COUNT_MAX}")
        self._namespaces = namespaces
        self._addresses = addresses
        self._slots = range(1, count + 1)
        self._handles: dict[int, int] = {}
        self._cut: dict[int, list[int]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> MemberPlaces:
        """Create the networks. Raises ``OSError`` with the reason, after removing all that was
        created."""
        try:
            for slot in self._slots:
                self._make(slot)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def prefix(self, slot: int) -> tuple[str, ...]:
        """Return the command prefix that runs a command in the member's network."""
        return ("nsenter", f"--net={FOLDER / f'm{slot}'}")

    def cut(self, slot: int, brokers: Collection[int]) -> None:
        """Block packets from the member to these brokers."""
        # recorded first, so that a partial failure is undone too
        self._cut[slot] = [*self._cut.get(slot, ()), *brokers]
        self._point(slot, dict.fromkeys(brokers, UNUSED_MAC))

    def mend(self, slot: int) -> None:
        """Undo all cuts of the member."""
        brokers = set(self._cut.pop(slot, ()))
        self._point(slot, {broker: self._namespaces.mac(broker) for broker in brokers})

    def reaches(self, slot: int, broker: int) -> bool:
        """Return whether the broker accepts or refuses a TCP connection within 0.3 s, as
        observed."""
        try:
            set_namespace(self._handles[slot])
            probe = socket.socket()
        finally:
            self._namespaces.enter(CONTROL)
        with probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            try:
                address = self._addresses[broker]
                probe.connect((address.host, address.port))
            except ConnectionRefusedError:
                return True
            except OSError:
                return False
            return True

    def _point(self, slot: int, macs: Mapping[int, str]) -> None:
        """Set the hardware addresses of brokers in the member's neighbour table."""
        lines = [
            f"neigh replace {self._namespaces.address(broker)} lladdr {mac} nud permanent"
            f" dev {DEVICE}\n"
            for broker, mac in sorted(macs.items())
        ]
        if lines:
            _run_all([(("ip", "-n", f"m{slot}", "-batch", "-"), "".join(lines))])

    def _make(self, slot: int) -> None:
        name, port, address = f"m{slot}", f"w{slot}", f"{_SUBNET}.{_FIRST + slot}"
        run("ip", "netns", "add", name)
        self._stack.callback(run, "ip", "netns", "del", name)
        handle = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, handle)
        self._handles[slot] = handle
        run(
            "ip", "-batch", "-",
            stdin=f"link add {port} type veth peer name {DEVICE} netns {name}\n"
            f"link set {port} master {BRIDGE}\n"
            f"link set {port} up\n",
        )  # fmt: skip
        self._stack.callback(self._unplug, port)
        _run_all(
            [
                (
                    ("ip", "-n", name, "-batch", "-"),
                    f"link set lo up\naddr add {address}/24 dev {DEVICE}\nlink set {DEVICE} up\n",
                )
            ]
        )

    def _unplug(self, port: str) -> None:
        if port in {name for _, name in socket.if_nameindex()}:
            run("ip", "link", "del", port)
