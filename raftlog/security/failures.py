"""Failed attempts to authenticate, by source address: how many an address may have."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import NamedTuple

from raftlog import limits


class _Failures(NamedTuple):
    number: float  # at that time; decreases by 1 every AUTHENTICATION_FAILURE_S
    at_seconds: float


class FailureLimit:
    """Counts failures per address; forgives one each ``AUTHENTICATION_FAILURE_S``.

    An address of IPv6 counts with all of its /64 network, which one host can own. At most
    ``FAILING_ADDRESSES_MAX`` addresses are remembered, those that failed last.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def is_reached(self, host: str, now: float) -> bool:
        """Return whether the address has ``AUTHENTICATION_FAILURES_MAX`` unforgiven failures.

        ``now``: seconds, monotonic.
        """
        return self._count(_source(host), now) >= limits.AUTHENTICATION_FAILURES_MAX

    def note(self, host: str, now: float) -> None:
        """Count a failure."""
        source = _source(host)
        self._failures[source] = _Failures(self._count(source, now) + 1, now)
        self._failures.move_to_end(source)
        if len(self._failures) > limits.FAILING_ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def _count(self, source: str, now: float) -> float:
        found = self._failures.get(source)
        if found is None:
            return 0.0
        forgiven = (now - found.at_seconds) / limits.AUTHENTICATION_FAILURE_S
        return max(0.0, found.number - forgiven)


def _source(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
