"""A broker as a process: it answers when it should, and only what was started here ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import BrokerProcess, wait_until
from raftlog.testing.cluster import answers, free_port

pytestmark = pytest.mark.integration

# A command that starts the broker as its child, and ignores SIGTERM meanwhile: as unshare does.
FORKING = ("sh", "-c", 'trap "" TERM; "$@"; exit $?', "sh")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("processes")
    process = BrokerProcess(1, Address("127.0.0.1", free_port()), directory / "broker-1")
    yield process
    process.kill()


@pytest.fixture
def broker(shared: BrokerProcess) -> BrokerProcess:
    """One that runs."""
    if not shared.running:
        shared.start()
    return shared


def test_a_killed_broker_is_gone_and_comes_back_at_the_same_address(broker: BrokerProcess) -> None:
    address, pid = broker.address, broker.pid
    broker.kill()
    assert not broker.running
    assert broker.pid is None
    assert not answers(address)
    broker.start()
    assert broker.address == address
    assert broker.pid != pid
    assert answers(address)


def test_a_stopped_broker_ends_in_peace(broker: BrokerProcess) -> None:
    broker.stop()
    assert not broker.running
    assert "state=synced" in broker.log_path.read_text()


def test_a_paused_broker_keeps_its_connections_and_goes_on_when_resumed(
    broker: BrokerProcess,
) -> None:
    broker.pause()
    assert broker.running
    assert broker.paused
    broker.resume()
    assert not broker.paused
    wait_until(lambda: answers(broker.address), what="the resumed broker's answer")


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill])
def test_a_paused_broker_can_be_ended(broker: BrokerProcess, end: object) -> None:
    broker.pause()
    assert callable(end)
    end(broker)
    assert not broker.running
    assert not broker.paused


def test_a_running_broker_is_not_started_twice(broker: BrokerProcess) -> None:
    with pytest.raises(ValueError, match="already running"):
        broker.spawn()


def test_an_address_in_use_is_refused(tmp_path: Path, broker: BrokerProcess) -> None:
    rival = BrokerProcess(id=2, address=broker.address, data_dir=tmp_path / "rival")
    with pytest.raises(BrokerUnavailableError, match=f"{broker.address}.*select another"):
        rival.start()
    assert broker.running


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, broker: BrokerProcess) -> None:
    rival = BrokerProcess(2, Address("127.0.0.1", free_port()), broker.data_dir)
    with pytest.raises(BrokerUnavailableError, match=r"ended with status 1: .*broker"):
        rival.start()
    assert broker.running


def test_a_broker_that_is_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    late = BrokerProcess(1, Address("127.0.0.1", free_port()), tmp_path / "late")
    with pytest.raises(BrokerUnavailableError, match="does not respond"):
        late.start(timeout_s=0)
    assert not late.running


def test_what_was_never_started_can_be_ended_in_any_way(tmp_path: Path) -> None:
    idle = BrokerProcess(
        id=1, address=Address("127.0.0.1", free_port()), data_dir=tmp_path / "idle"
    )
    idle.kill()
    idle.stop()
    idle.pause()
    assert not idle.paused
    assert idle.pid is None
    assert idle.last_words() == "(no output)"


def test_a_broker_ends_with_its_starter(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    starter = os.fork()
    if starter == 0:  # a starter that is killed without a chance to clean up
        started = BrokerProcess(1, Address("127.0.0.1", free_port()), tmp_path / "broker")
        started.spawn()
        os.write(write_end, str(started.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write_end)
    pid = int(os.read(read_end, 20))
    os.close(read_end)
    os.waitpid(starter, 0)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=20, what="the orphan's end")


def broker_in(directory: Path, **how: Any) -> BrokerProcess:
    return BrokerProcess(1, Address("127.0.0.1", free_port()), directory / "broker-1", **how)


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that runs as the child of another command."""
    process = broker_in(tmp_path, prefix=FORKING)
    process.start()
    yield process
    process.kill()


def is_stopped(pid: int | None) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_broker_may_run_under_another_command(wrapped: BrokerProcess) -> None:
    pid, broker_pid = wrapped.pid, wrapped.broker_pid
    assert pid is not None
    assert broker_pid is not None
    assert pid != broker_pid
    assert Path(f"/proc/{broker_pid}/cmdline").read_bytes().startswith(sys.executable.encode())
    wrapped.pause()
    wait_until(lambda: is_stopped(pid) and is_stopped(broker_pid), what="both are stopped")
    wrapped.resume()
    assert not is_stopped(broker_pid)
    wrapped.send_kill()
    wrapped.send_kill()
    wrapped.kill()
    assert not Path(f"/proc/{pid}").exists()
    assert wrapped.broker_pid is None
    assert wrapped.exit_status == -signal.SIGKILL
    wrapped.start()  # at the same address, and with the same data directory, at once


def test_a_broker_under_another_command_ends_in_peace(wrapped: BrokerProcess) -> None:
    wrapped.stop()
    assert wrapped.exit_status == 0
    assert wrapped.last_words().endswith("state=synced")


def test_without_a_prefix_the_broker_is_the_process(broker: BrokerProcess) -> None:
    assert broker.broker_pid == broker.pid


def test_it_is_seen_when_a_broker_ends_by_itself(tmp_path: Path) -> None:
    deaths: list[int] = []
    process = broker_in(tmp_path, on_death=deaths.append)
    for end in (BrokerProcess.kill, BrokerProcess.stop):
        process.start()
        assert process.exit_status is None
        end(process)
        assert not process.running
    assert deaths == []
    process.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSEGV)
    wait_until(lambda: not process.running, what="the end")
    assert deaths == [-signal.SIGSEGV]
    process.kill()
    assert process.exit_status == -signal.SIGSEGV
    assert deaths == [-signal.SIGSEGV]
    assert process.kills == 1


def test_a_broker_may_be_of_another_build(tmp_path: Path) -> None:
    build = tmp_path / "build" / "raftlog"
    build.mkdir(parents=True)
    (build / "__init__.py").touch()
    (build / "__main__.py").write_text("raise SystemExit('a broken build')")
    with pytest.raises(BrokerUnavailableError, match="ended with status 1: a broken build"):
        broker_in(tmp_path, source=tmp_path / "build").start()
