"""Switching a broker's failpoints from outside."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.failpoints import Failpoints, Hit, hits_path
from raftlog.testing.cluster import (
    FailpointSwitch,
    answers,
    check_free,
    describe_partition,
    free_port,
    free_ports,
    members,
    wait_until,
)


def test_the_environment_has_failpoints_read_the_file(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm(["*=note", "segment.*=crash # later"])
    made = Failpoints.from_environment(switch.environment)
    assert made is not None
    assert made.described.startswith("2 rules")


def test_arming_replaces_what_was_armed(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm(["*=note"])
    before = switch.path.stat().st_ino
    switch.arm(["*=crash"])
    assert switch.path.read_text() == "*=crash\n"
    assert switch.path.stat().st_ino != before, "another file took its place, whole"
    switch.disarm()
    assert switch.path.read_text() == ""


def test_hits_are_read_and_forgotten(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    assert switch.hits == []
    switch.forget_hits()
    hits_path(switch.path).write_text("7 segment.write.before crash *=crash # a b\n")
    assert switch.hits == [Hit(7, "segment.write.before", "crash", "*=crash # a b")]
    switch.forget_hits()
    assert switch.hits == []


# -- probes ----------------------------------------------------------------------------------------
#
# Looking from outside: ports that are free, silence that is no answer, waits that end.


PROBES = sys.modules["raftlog.testing.cluster"]  # of that name, the package has a function


def test_free_ports_are_different_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        check_free(Address("127.0.0.1", port))


@pytest.mark.integration
def test_another_process_does_not_get_a_port_that_this_one_has_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while no process listens on it: its broker may be about to start again."""
    port = free_port()
    find = (
        "import sys, raftlog.testing.cluster\n"
        "probes = sys.modules['raftlog.testing.cluster']\n"
        f"probes.PORTS = range({port}, {port + 1})\n"
        "print(probes.free_port())"
    )
    other = subprocess.run(
        [sys.executable, "-c", find], capture_output=True, text=True, check=False
    )
    assert f"no 1 free ports between {port}" in other.stderr
    monkeypatch.setattr(PROBES, "PORTS_RESERVED_MAX", 1)
    free_port()  # the reservation of the port is dropped, as the oldest
    monkeypatch.setattr(PROBES, "PORTS", range(port, port + 1))
    assert free_port() == port


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BrokerUnavailableError, match=f"127.0.0.1:{port}.*another port"):
            check_free(Address("127.0.0.1", port))
        monkeypatch.setattr(PROBES, "PORTS", range(port, port + 1))
        with pytest.raises(BrokerUnavailableError, match="no 1 free ports"):
            free_port()


def test_an_address_of_another_place_may_be_free_there() -> None:
    elsewhere = Address("192.0.2.1", 9100)  # of no machine: RFC 5737
    with pytest.raises(BrokerUnavailableError, match=r"192\.0\.2\.1:9100"):
        check_free(elsewhere)
    check_free(elsewhere, may_be_elsewhere=True)
    with socket.create_server(("127.0.0.1", 0)) as here:
        address = Address(*here.getsockname())
        with pytest.raises(BrokerUnavailableError, match="another port"):
            check_free(address, may_be_elsewhere=True)


def test_who_says_nothing_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROBES, "ANSWER_TIMEOUT_S", 0.01)
    with socket.create_server(("127.0.0.1", free_port())) as mute:
        address = Address(*mute.getsockname())
        assert not answers(address)
        assert members(address) == set()
        assert describe_partition(address, "t", 0) is None
    assert not answers(address)


def test_waiting_ends_when_it_is_so() -> None:
    looks = iter([False, False, True])
    wait_until(lambda: next(looks))
    assert next(looks, None) is None


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(TimeoutError, match="the moon: not within 0 s"):
        wait_until(lambda: False, timeout_s=0, what="the moon")


def test_a_limit_of_progress_counts_from_the_last_change(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(PROBES.time, "monotonic", lambda: now)
    stall = PROBES.Stall(5.0)
    found = []
    for value in (1, 1, 2, 2, 2):
        now += 3.0
        found.append(stall.has_come(value))
    assert found == [False, False, False, False, True]
    for _ in range(20):
        now += 3.0
        value += 1
        found.append(stall.has_come(value))
    assert found[-1], "it ends in any case"
    assert sum(found) <= 10
