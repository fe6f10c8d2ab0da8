"""Failures by source address: limited, forgiven, and bounded in memory."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.security.credentials import FailureLimit

MOST = limits.AUTHENTICATION_FAILURES_MAX


def failed(count: int, host: str = "10.0.0.1", at: float = 0.0) -> FailureLimit:
    failures = FailureLimit()
    for _ in range(count):
        failures.note(host, at)
    return failures


def test_an_address_may_fail_some_times() -> None:
    assert not failed(MOST - 1).is_reached("10.0.0.1", 0.0)
    assert failed(MOST).is_reached("10.0.0.1", 0.0)
    assert not failed(MOST).is_reached("10.0.0.2", 0.0), "each address counts for itself"


def test_failures_are_forgiven_with_time() -> None:
    failures = failed(MOST)
    assert not failures.is_reached("10.0.0.1", limits.AUTHENTICATION_FAILURE_S)
    failures.note("10.0.0.1", limits.AUTHENTICATION_FAILURE_S)
    assert failures.is_reached("10.0.0.1", limits.AUTHENTICATION_FAILURE_S)
    assert not failures.is_reached("10.0.0.1", 1_000.0)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("local", "local", True),
    ],
)
def test_addresses_of_one_host_count_together(one: str, other: str, is_same: bool) -> None:
    assert failed(MOST, one).is_reached(other, 0.0) is is_same


def test_a_bounded_number_of_addresses_is_remembered() -> None:
    failures = failed(MOST, "first")
    for number in range(limits.FAILING_ADDRESSES_MAX):
        failures.note(f"h{number}", 0.0)
    assert not failures.is_reached("first", 0.0)
