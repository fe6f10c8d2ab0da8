"""``raftlog broker`` as a process: settings, refusals, ends, and several workers."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftlog.config import Address, BrokerConfig
from raftlog.errors import InvalidConfigError
from raftlog.testing import wait_until
from raftlog.testing.cluster import answers, free_port, free_ports, members
from raftlog_cli.workers import Supervisor, configs_of
from tests.cli.conftest import Raftlog

# -- broker ----------------------------------------------------------------------------------------

# ``raftlog broker`` as a process: settings from everywhere, clear refusals, clean ends.


Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def address() -> Address:
    return Address("127.0.0.1", free_port())


def ready(process: subprocess.Popen[bytes], address: Address) -> None:
    wait_until(lambda: answers(address) or process.poll() is not None, what="the broker's response")
    assert process.poll() is None


@pytest.mark.integration
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_it_serves_until_it_is_told_to_stop(
    spawn: Spawn, address: Address, tmp_path: Path, number: signal.Signals
) -> None:
    process = spawn("broker", "--listen", address, "--data-dir", tmp_path / "data")
    ready(process, address)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"ready on {address}".encode() in err


@pytest.mark.integration
def test_options_go_before_the_file(spawn: Spawn, address: Address, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('id = 7\nlisten = "127.0.0.1:1"\ndata.dir = "elsewhere"\n')
    process = spawn(
        "broker", "--config", config, "--listen", address, "--data-dir", tmp_path / "data"
    )
    ready(process, address)
    assert (tmp_path / "data").is_dir()


@pytest.mark.integration
def test_an_exposed_broker_says_how_to_secure_it(spawn: Spawn, tmp_path: Path) -> None:
    address = Address("0.0.0.0", free_port())
    exposed = ("broker", "--listen", address, "--data-dir", tmp_path / "data")
    _, err = spawn(*exposed).communicate(timeout=20)
    assert b"raftlog security init" in err
    ready(spawn(*exposed, "--insecure"), Address("127.0.0.1", address.port))


@pytest.mark.integration
def test_three_started_by_hand_find_each_other(spawn: Spawn, tmp_path: Path) -> None:
    addresses = {n: Address("127.0.0.1", port) for n, port in enumerate(free_ports(3), start=1)}
    voters = ",".join(f"{number}@{address}" for number, address in addresses.items())
    (tmp_path / "secret").write_text("known to all three")
    (tmp_path / "secret").chmod(0o600)
    for number, at in addresses.items():
        spawn(
            *("broker", "--id", number, "--listen", at, "--data-dir", tmp_path / str(number)),
            *("--voters", voters, "--cluster-secret-file", tmp_path / "secret"),
        )
    wait_until(
        lambda: all(members(address) == {1, 2, 3} for address in addresses.values()),
        timeout_s=30,
        what="all three",
    )


@pytest.mark.integration
def test_it_stops_when_its_starter_closes_standard_input(
    spawn: Spawn, address: Address, tmp_path: Path
) -> None:
    process = spawn(
        *("broker", "--stop-with-stdin", "--listen", address, "--data-dir", tmp_path / "data"),
        stdin=subprocess.PIPE,
    )
    ready(process, address)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=20) == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--listen", "9100"], 2, "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], 2, "port"),
        (["--id", "-1"], 2, "--id"),
        (["--voters", "1@127.0.0.1"], 2, "HOST:PORT"),
        (["--voters", "2@127.0.0.1:1,3@127.0.0.1:2"], 1, "does not contain this broker"),
        (["--voters", "1@127.0.0.1:1,2@127.0.0.1:2"], 1, "without a secret"),
        (["--cluster-secret-file", "/nowhere/secret"], 2, "/nowhere/secret"),
        (["--join", "127.0.0.1:1"], 1, "join without a secret"),
        (["--join", "127.0.0.1:0"], 2, "port"),
        (["--join", "127.0.0.1:1", "--voters", "1@127.0.0.1:1"], 1, "not both"),
        (["--config", "/nowhere/broker.toml"], 2, "/nowhere/broker.toml"),
        (["--set", "data.dir"], 2, "KEY=VALUE"),
        (["--workers", "2", "--stop-with-stdin"], 2, "not for --workers"),
        (["--set", "data.directory=x"], 1, "data.directory"),
        (["--set", "max.connections=many"], 1, "max.connections"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    raftlog: Raftlog, arguments: list[str], status: int, reason: str
) -> None:
    ran = raftlog("broker", *arguments)
    assert ran.status == status
    assert reason in ran.err


@pytest.mark.integration
def test_a_port_in_use_is_refused(spawn: Spawn, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = spawn("broker", "--listen", f"127.0.0.1:{port}", "--data-dir", tmp_path / "data")
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use".encode() in err
    assert b"Traceback" not in err


@pytest.mark.integration
def test_a_file_that_is_not_toml_is_refused(raftlog: Raftlog, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("id: 7\n")
    ran = raftlog("broker", "--config", config)
    assert ran.status == 1
    assert "not TOML" in ran.err


# -- workers ---------------------------------------------------------------------------------------

# ``raftlog broker --workers``: several brokers of one host, and who starts and stops them.


CONFIG = BrokerConfig.from_text(
    {
        "listen": "10.0.0.1:9100",
        "http.listen": "127.0.0.1:9200",
        "data.dir": "data",
        "log.dirs": "/d1,/d2",
        "voters": "1@10.0.0.1:9100,2@10.0.0.2:9100",
        "cluster.secret": "s" * 32,
        "max.connections": "300",
    }
)


def test_workers_join_on_the_next_ports_with_directories_of_their_own() -> None:
    first, second, third = configs_of(CONFIG, 3, "host-a")
    assert (first.listen, first.voters, first.join) == (CONFIG.listen, CONFIG.voters, ())
    assert [str(each.listen) for each in (second, third)] == ["10.0.0.1:9101", "10.0.0.1:9102"]
    assert (second.http_listen, second.voters) == (Address("127.0.0.1", 9201), ())
    assert second.join == (Address("10.0.0.1", 9100), Address("10.0.0.2", 9100))
    assert (second.data_dir, second.log_dirs) == (
        "data/workers/2",
        ("/d1/workers/2", "/d2/workers/2"),
    )
    assert third.data_dir == "data/workers/3"


def test_workers_share_the_host_and_its_limits() -> None:
    """Replicas go to different racks: one rack keeps those of a partition on different hosts."""
    configs = configs_of(CONFIG, 3, "host-a")
    assert {each.rack for each in configs} == {"host-a"}
    assert [each.max_connections for each in configs] == [100] * 3
    (named, _) = configs_of(BrokerConfig.from_text({"rack": "r1"}), 2, "host-a")
    assert named.rack == "r1"


def test_a_host_without_a_cluster_founds_one() -> None:
    first, second = configs_of(BrokerConfig.from_text({"listen": "127.0.0.1:9100"}), 2, "h")
    assert [voter.id for voter in first.voters] == [1]
    assert second.join == (Address("127.0.0.1", 9100),)


@pytest.mark.parametrize(
    ("count", "listen", "http"),
    [
        (2, "127.0.0.1:0", ""),
        (33, "127.0.0.1:9100", ""),
        (3, "127.0.0.1:65534", ""),
        (2, "127.0.0.1:9100", "127.0.0.1:0"),
        (2, "127.0.0.1:9100", "127.0.0.1:65535"),
    ],
)
def test_what_workers_cannot_have(count: int, listen: str, http: str) -> None:
    with pytest.raises(InvalidConfigError):
        configs_of(BrokerConfig.from_text({"listen": listen, "http.listen": http}), count)


def test_a_child_that_is_no_worker_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process inherits the children of the shell that it replaces; the first one, all orphans."""
    supervisor = Supervisor([], say=print)
    supervisor._pids = {7: 0}
    ended = [(5, 0), (7, 256), (0, 0)]
    monkeypatch.setattr(os, "waitpid", lambda _pid, _options: ended.pop(0))
    assert supervisor._ended() == [(0, 1)]


@pytest.mark.integration
def test_a_supervisor_notices_workers_although_its_parent_ignored_sigchld() -> None:
    """An ignored SIGCHLD is inherited. The kernel then keeps no status of a child: a worker that
    failed was never started again, and a stop never ended.
    """
    code = (
        "import signal; from raftlog_cli.workers import Supervisor\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "print(Supervisor([lambda: 3], say=print).run())"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, timeout=20).stdout == b"3\n"


@pytest.mark.integration
def test_ctrl_c_reaches_workers_through_their_supervisor() -> None:
    """A terminal sends it to each process of the group. Workers took the supervisor's SIGTERM for a
    second signal, and exited before their leaders had moved.
    """
    code = (
        "import os, signal; from raftlog_cli.workers import Supervisor\n"
        "def work():\n"
        "    read, write = os.pipe()\n"
        "    for each in (signal.SIGINT, signal.SIGTERM):\n"
        "        signal.signal(each, lambda number, _frame: os.write(write, bytes([number])))\n"
        "    print('ready', flush=True)\n"
        "    return os.read(read, 1)[0]\n"
        "print(Supervisor([work], say=print).run())"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"ready\n"
        os.killpg(host.pid, signal.SIGINT)
        assert int(host.stdout.read()) == signal.SIGTERM


def test_a_worker_that_cannot_be_forked_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    supervisor = Supervisor([lambda: 0] * 2, say=said.append)

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    supervisor._start(1)
    assert list(supervisor._due) == [1]
    (line,) = said
    assert "cannot start raftlog worker 2" in line
    assert "Resource temporarily unavailable" in line


@pytest.mark.integration
def test_a_worker_that_dies_is_started_again_and_all_stop_together(tmp_path: Path) -> None:
    first, http = neighbours(), neighbours()
    while abs(http - first) < 2:
        http = neighbours()
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o600)
    command = [sys.executable, "-m", "raftlog", "broker", "--workers", "2", "--id", "1"]
    command += ["--listen", f"127.0.0.1:{first}", "--data-dir", str(tmp_path / "data")]
    command += ["--cluster-secret-file", str(secret), "--set", f"http.listen=127.0.0.1:{http}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as host:
        assert host.stderr is not None
        try:
            lines = iter(host.stderr)
            ready = {line.split()[2] for line in lines_until(lines, "ready on", 2)}
            assert ready == {"1", "2"}
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=30) as noted:
                metrics = noted.read().decode()
            assert 'raftlog_worker_up{worker="2"} 1' in metrics
            assert 'raftlog_ready{worker="2"} 1.0' in metrics
            children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
            os.kill(int(children[1]), signal.SIGKILL)
            (said,) = lines_until(lines, "started again", 1)
            assert re.search(r"worker 2 ended with status -9", said)
            lines_until(lines, "ready on", 1)
            host.send_signal(signal.SIGTERM)
            stopped = lines_until(lines, "broker stopped", 2)
            assert ["broker=2" in line for line in stopped] == [True, False]
            assert host.wait(30) == 0
        finally:
            host.kill()


def neighbours() -> int:
    """The first of two ports that are free now."""
    while True:
        (port,) = free_ports(1)
        with socket.socket() as other:
            try:
                other.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
        return port


def lines_until(lines: Iterator[str], text: str, count: int) -> list[str]:
    """Up to ``count`` lines with the text; fewer when the process has ended."""
    found: list[str] = []
    for line in lines:
        if text in line:
            found.append(line)
            if len(found) == count:
                break
    return found
