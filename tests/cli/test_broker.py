"""``raftlog broker`` as a process: settings from everywhere, clear refusals, clean ends."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.config import Address
from raftlog.testing import wait_until
from raftlog.testing.cluster import answers, free_port, free_ports, members
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration
Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def address() -> Address:
    return Address("127.0.0.1", free_port())


def ready(process: subprocess.Popen[bytes], address: Address) -> None:
    wait_until(lambda: answers(address) or process.poll() is not None, what="the broker's response")
    assert process.poll() is None


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


def test_options_go_before_the_file(spawn: Spawn, address: Address, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('id = 7\nlisten = "127.0.0.1:1"\ndata.dir = "elsewhere"\n')
    process = spawn(
        "broker", "--config", config, "--listen", address, "--data-dir", tmp_path / "data"
    )
    ready(process, address)
    assert (tmp_path / "data").is_dir()


def test_an_exposed_broker_says_how_to_secure_it(spawn: Spawn, tmp_path: Path) -> None:
    address = Address("0.0.0.0", free_port())
    exposed = ("broker", "--listen", address, "--data-dir", tmp_path / "data")
    _, err = spawn(*exposed).communicate(timeout=20)
    assert b"raftlog security init" in err
    ready(spawn(*exposed, "--insecure"), Address("127.0.0.1", address.port))


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


def test_a_port_in_use_is_refused(spawn: Spawn, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = spawn("broker", "--listen", f"127.0.0.1:{port}", "--data-dir", tmp_path / "data")
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use".encode() in err
    assert b"Traceback" not in err


def test_a_file_that_is_not_toml_is_refused(raftlog: Raftlog, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("id: 7\n")
    ran = raftlog("broker", "--config", config)
    assert ran.status == 1
    assert "not TOML" in ran.err
