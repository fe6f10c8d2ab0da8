"""``raftlog broker --workers``: several brokers of one host, and who starts and stops them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.config import Address, BrokerConfig
from raftlog.errors import InvalidConfigError
from raftlog.testing.cluster import free_ports
from raftlog_cli.workers import configs_of

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


@pytest.mark.parametrize(("count", "listen"), [(2, "127.0.0.1:0"), (33, "127.0.0.1:9100")])
def test_what_workers_cannot_have(count: int, listen: str) -> None:
    with pytest.raises(InvalidConfigError):
        configs_of(BrokerConfig.from_text({"listen": listen}), count)


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
