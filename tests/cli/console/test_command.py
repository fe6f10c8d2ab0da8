"""`raftlog console`: which URL it finds."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.testing import cluster
from raftlog.testing.cluster import free_ports
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def served() -> Iterator[int]:
    """The HTTP port of a broker."""
    (port,) = free_ports(1)
    with cluster(brokers=1, settings={"http.listen": f"127.0.0.1:{port}"}):
        yield port


def test_the_url_of_a_broker_that_responds(
    served: int, raftlog: Raftlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    (down,) = free_ports(1)
    brokers = [
        {"id": n, "address": "127.0.0.1:1", "http": f"http://127.0.0.1:{port}"}
        for n, port in enumerate((down, served))
    ]
    (tmp_path / "cluster.json").write_text(json.dumps({"brokers": brokers}))
    url = f"http://127.0.0.1:{served}/"
    assert raftlog("console", "--data-dir", tmp_path, "--no-browser", "--json").json == {"url": url}
    assert opened == []
    ran = raftlog("console", "--url", url)
    assert (ran.status, ran.out.decode()) == (0, f"{url}\n")
    assert opened == [url]


def test_a_console_that_cannot_be_found(raftlog: Raftlog, tmp_path: Path) -> None:
    ran = raftlog("console", "--data-dir", tmp_path, "--no-browser")
    assert (ran.status, "Pass its --data-dir, or --url" in ran.err) == (1, True)
    (down,) = free_ports(1)
    ran = raftlog("console", "--url", f"http://127.0.0.1:{down}", "--no-browser")
    assert (ran.status, "no broker responds" in ran.err) == (1, True)
    assert raftlog("console", "--url", "file:///etc/passwd").status == 2
