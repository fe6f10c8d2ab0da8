"""Limit of failed authentication attempts by source address."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import NamedTuple

from raftlog import limits


class _Failures(NamedTuple):
    number: float  # at that time; decreases by 1 every AUTHENTICATION_FAILURE_S
    at_seconds: float


class FailureLimit:
    """Counts failures per address. The count decreases by 1 every ``AUTHENTICATION_FAILURE_S``.

    An IPv6 address counts as its /64 network, which one host can own. At most
    ``FAILING_ADDRESSES_MAX`` addresses are kept: those with the most recent failures.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def is_reached(self, host: str, now: float) -> bool:
        """Return whether the count of the address is ``AUTHENTICATION_FAILURES_MAX``.

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
