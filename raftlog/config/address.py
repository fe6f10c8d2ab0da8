"""Addresses as text, ``host:port``. Host names are not resolved here."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final, NamedTuple

from raftlog import limits

PORT_MAX: Final = 65_535
# The brokers of `raftlog up`: with all three, clients can connect if one of them is down.
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9100,127.0.0.1:9101,127.0.0.1:9102"


class Address(NamedTuple):
    """Address of a broker. Port 0: the system assigns a free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach it. The only known name is localhost."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse comma-separated addresses; none for an empty text. Raises ``ValueError``."""
    addresses = tuple(map(parse_address, text.split(","))) if text.strip() else ()
    if len(addresses) > limits.BROKERS_PER_CLUSTER_MAX:
        raise ValueError(
            f"{len(addresses)} addresses exceed the limit of {limits.BROKERS_PER_CLUSTER_MAX}"
        )
    if any(address.port == 0 for address in addresses):
        raise ValueError("the port of a running broker must not be 0")
    return addresses


def parse_address(text: str) -> Address:
    """Parse ``host:port`` or ``[ipv6]:port``. Raises ``ValueError`` with the reason."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:9100")
    if not colon or not host:
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9100")
    if not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{port!r} in {text!r} is not a port number (0 to {PORT_MAX})")
    return Address(host, int(port))
