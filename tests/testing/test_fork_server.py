"""Brokers as forks: the same as those of new interpreters, and the ends of all that takes part."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from raftlog.errors import BrokerUnavailableError
from raftlog.testing import fork_server, wait_until
from tests.testing.test_cluster import broker_in

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_fork_and_a_new_interpreter_are_the_same_broker(tmp_path: Path, can_fork: bool) -> None:
    """Environment, directory, files, process group, exit status and messages of both."""
    data, home = tmp_path / "data", tmp_path / "home"
    process = broker_in(data, home=home, can_fork=can_fork)
    process.start()
    try:
        assert process.pid is not None
        assert os.getpgid(process.pid) == process.pid
        assert os.readlink(f"/proc/{process.pid}/cwd") == os.getcwd()
        assert {link_of(process.pid, fd) for fd in (1, 2)} == {str(process.log_path)}
        assert link_of(process.pid, 0).startswith("pipe:")
        os.killpg(process.pid, signal.SIGINT)
        wait_until(lambda: not process.running, what="the end")
        assert process.exit_status == 0
        assert "state=synced" in process.log_path.read_text()
        process.environment = {"RAFTLOG_FAILPOINTS": "no-such-point=crash"}
        with pytest.raises(BrokerUnavailableError, match=r"status 1: raftlog broker 1: .*no-such"):
            process.start()
    finally:
        process.kill()
    assert {path.name for path in home.iterdir()} == {"broker-1.log", "broker-1.toml"}
    assert [path.name for path in data.iterdir()] == ["broker-1"]


def link_of(pid: int, fd: int) -> str:
    return os.readlink(f"/proc/{pid}/fd/{fd}")


@pytest.mark.parametrize(
    ("environment", "can_fork"),
    [
        ({"RAFTLOG_FAILPOINTS": "x"}, True),
        ({"LD_PRELOAD": "libfaketime.so"}, False),
        ({"PYTHONMALLOC": "debug"}, False),
        ({"RAFTLOG_TESTING_FORK": "0"}, False),
    ],
)
def test_what_a_process_reads_at_its_start_only_needs_a_new_one(
    environment: dict[str, str], can_fork: bool
) -> None:
    assert fork_server.can_fork({**os.environ, **environment}) == can_fork


def test_a_fork_server_that_was_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_server", fork_server._Server())  # others use the first one
    process = broker_in(tmp_path)
    process.start()
    try:
        (server,) = parents(process.pid)
        assert len(os.listdir(f"/proc/{server}/task")) == 1, "a fork copies one thread only"
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not process.running, what="the end of its broker")
        assert process.exit_status == -signal.SIGKILL
        process.start()
        assert parents(process.pid) != [server]
    finally:
        process.kill()
        fork_server._server._discard()


def parents(pid: int | None) -> list[int]:
    return [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])]


def test_a_process_is_waited_for_though_another_thread_polls_its_socket(tmp_path: Path) -> None:
    """A thread that polls keeps the kernel's file open, as a copy of the descriptor does."""
    process = broker_in(tmp_path)
    process.start()
    child = process._process
    assert isinstance(child, fork_server.ForkedProcess)
    copy = os.dup(child._exit_socket.fileno())
    try:
        process.send_kill()
        assert child.wait(60) == -signal.SIGKILL
        assert not Path(f"/proc/{child.pid}").exists(), "not even a zombie is left"
    finally:
        os.close(copy)
        process.kill()
