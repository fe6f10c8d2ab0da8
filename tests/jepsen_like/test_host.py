"""A host says what its broker's process does, by the system's word and the broker's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import BrokerProcess, wait_until
from raftlog.testing.cluster import free_port
from raftlog_jepsen import cluster
from raftlog_jepsen.cluster import Exit, Host, how_it_ended, state_of

pytestmark = pytest.mark.integration

# What a broker does as far as a host is concerned; ARGS: what it does then.
BUILD = """
import os, signal, sys, threading
sys.stderr.write(os.environ["SAYS"])
sys.stderr.flush()
if os.environ["THEN"] == "wait":
    threading.Thread(target=sys.stdin.read).start()
    sys.stdin.read()
sys.exit(int(os.environ["THEN"]))
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """One whose broker says and does what its environment tells it to."""
    package = tmp_path / "build" / "raftlog"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(BUILD)
    address = Address("127.0.0.1", free_port())
    process = BrokerProcess(7, address, tmp_path / "data", source=tmp_path / "build")
    made = Host(process, address, environment={"SAYS": "hello\n", "THEN": "wait"})
    yield made
    process.kill()


def test_it_is_ready_when_its_broker_says_so(host: Host) -> None:
    host.environment["SAYS"] = "raftlog broker 7 ready on 127.0.0.1:1\n"
    host.spawn()
    host.wait_ready()
    assert host.state() == "running"
    assert (host.id, host.prefix, host.broker_pid) == (7, (), host.process.pid)
    host.process.kill()
    assert host.state() == "gone"
    host.environment["SAYS"] = "not yet\n"
    host.spawn()
    with pytest.raises(BrokerUnavailableError, match="broker 7 is not ready after 0 s"):
        host.wait_ready(timeout_s=0)  # what it said the last time does not count


def test_one_that_ends_instead_has_its_last_words_told(host: Host) -> None:
    host.environment |= {"SAYS": "raftlog broker 7: no luck\n", "THEN": "1"}
    host.may_exit = True
    host.spawn()
    with pytest.raises(BrokerUnavailableError, match=r"broker 7 ended with status 1: .*no luck"):
        host.wait_ready()
    (found,) = host.exits
    assert found.expected
    host.may_exit = False
    host.environment["THEN"] = "2"
    host.spawn()
    wait_until(lambda: not host.process.running, what="the end")
    assert (
        str(host.exits[1]) == "broker 7 ended unexpectedly with status 2: raftlog broker 7: no luck"
    )
    assert not host.exits[1].expected
    assert host.exits[1].monotonic_ns > host.exits[0].monotonic_ns


def test_a_broker_whose_threads_all_stand_still_is_stopped(host: Host) -> None:
    host.spawn()
    wait_until(lambda: "hello" in host.process.last_words(), what="the broker's start")
    host.process.pause()
    wait_until(lambda: host.state() == "stopped", what="every thread's stop")
    host.process.resume()
    wait_until(lambda: host.state() == "running", what="its going on")


def test_a_process_that_nobody_waited_for_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: state_of(process.pid) == "gone", what="a zombie")
    process.wait()
    assert state_of(process.pid) == "gone"
    assert state_of(os.getpid()) == "running"
    monkeypatch.setattr(cluster, "PROC", Path("/no/such/place"))
    assert state_of(os.getpid()) == "unknown"


def test_ends_in_words() -> None:
    assert how_it_ended(-signal.SIGKILL) == "signal 9"
    assert how_it_ended(3) == "status 3"
    assert how_it_ended(None) == "no end"
    assert str(Exit(1, -11, "oops", False, 0)) == "broker 1 ended unexpectedly with signal 11: oops"
