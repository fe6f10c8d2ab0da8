"""The display of `raftlog top` from a description, and the command at a real terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from raftlog.client.administration.groups import GroupDescription, PartitionLag
from raftlog.client.descriptions import ClusterDescription
from raftlog_cli.output import printable
from raftlog_cli.overview import Overview, Sample, overview
from raftlog_cli.top import number, render, screen, without_internal
from tests.cli.conftest import Raftlog
from tests.cli.test_health import DOWN, GONE, SHORT, UP, WELL

NOW_MS = 45_296_000  # 12:34:56


def described(cluster: ClusterDescription, *names: str) -> Overview:
    before = replace(cluster, partitions=tuple(
        replace(part, high_watermark=0) for part in cluster.partitions
    ))  # fmt: skip
    groups = [
        GroupDescription(
            name, "stable", 1, "", 1, (), (PartitionLag("t", 0, 0, lag=1_500, lag_seconds=2.5),)
        )
        for name in names
    ]
    return overview(Sample(2.0, cluster), Sample(0.0, before), groups)


def printed(display: RenderableType, console: Console | None = None) -> str:
    console = console or Console(file=io.StringIO(), width=110, force_terminal=False)
    console.print(display)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(cluster: ClusterDescription, *names: str, rows_max: int = 20) -> str:
    return printed(render(described(cluster, *names), rows_max=rows_max, now_ms=NOW_MS))


def test_tables_fit_without_folding() -> None:
    cluster = ClusterDescription("c", (UP,), 1, (replace(WELL, topic="t" * 200),))
    for width in (40, 60, 80):
        console = Console(file=io.StringIO(), width=width, force_terminal=False)
        overview_ = described(cluster, "g" * 200)
        display = render(overview_, rows_max=20, now_ms=NOW_MS, width=width)
        text = printed(display, console)
        assert max(map(len, text.splitlines())) <= width
        headings = [line.split() for line in text.splitlines() if line.startswith(" topic ")]
        assert headings[0][-1] == "state"
        assert "ok" in text
    assert "not shown: partitions, records, no leader (--wide" in " ".join(words(text))


def test_internal_topics_are_hidden_unless_they_have_a_problem() -> None:
    for partition, names in ((WELL, {"t"}), (GONE, {"t", "__consumer_offsets"})):
        internal = replace(partition, topic="__consumer_offsets", topic_id="o")
        found = described(ClusterDescription("c", (UP, DOWN), 1, (WELL, internal)))
        assert {row.name for row in without_internal(found).topics} == names


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_the_display_of_a_healthy_cluster() -> None:
    text = shown(ClusterDescription("c", (UP,), 1, (WELL,)), "billing")
    assert words(text)[0] == (
        "12:34:56 UTC healthy brokers 1/1 controller 1 topics 1 partitions 1 5.0 records/s"
    )
    for line in ("1 h:9100 up 1 1 controller", "t 1 10 5.0 0 0 ok", "billing stable 0 1,500 2.5"):
        assert line in words(text)
    assert "!" not in text


def test_the_display_says_what_is_wrong_and_what_to_do() -> None:
    text = shown(ClusterDescription("c", (UP, DOWN), None, (WELL, SHORT, GONE)))
    joined = " ".join(words(text))
    assert "degraded brokers 1/2 controller none" in joined
    assert "! The cluster has no controller" in joined
    assert "raftlog explain partition t:2 has the reason." in joined
    assert "! Broker 2 (h:9101) does not respond: connection refused. Start it." in joined
    assert "2 h:9101 down" in joined
    assert "t 3 30 10 2 1 unavailable" in joined


def test_a_broker_that_is_removed_is_shown() -> None:
    text = shown(ClusterDescription("c", (UP, replace(DOWN, live=True, draining=True)), 1, (WELL,)))
    assert "2 h:9101 draining" in " ".join(words(text))


def test_an_empty_cluster_says_how_to_begin() -> None:
    assert "raftlog topic create NAME" in shown(ClusterDescription("c", (UP,), 1, ()))


def test_long_lists_end_where_the_terminal_does() -> None:
    topics = [replace(WELL, topic=f"t{n:03}", topic_id=str(n)) for n in range(50)]
    text = shown(ClusterDescription("c", (UP,), 1, tuple(topics)), *map(str, range(40)), rows_max=9)
    assert "44 more topics" in text
    assert "37 more groups" in text


@pytest.mark.parametrize("size", [(100, 40), (80, 24), (40, 10)])
def test_a_live_display_fits_the_terminal(size: tuple[int, int]) -> None:
    width, height = size
    topics = [replace(WELL, topic=f"{n:02}" * 40, topic_id=str(n)) for n in range(50)]
    cluster = ClusterDescription("c", (UP, DOWN), None, (*topics, SHORT, GONE))
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    display = screen(console, described(cluster, "g" * 90), now_ms=NOW_MS, footer="q quit")
    lines = printed(display, console).splitlines()
    assert len(lines) == height
    assert lines[-1].rstrip() == "q quit"
    assert "degraded" in lines[0]
    if height == 40:
        assert " more topics" in "".join(lines)


def test_names_are_neither_markup_nor_escape_sequences() -> None:
    text = shown(ClusterDescription("c", (UP,), 1, (WELL,)), "[bold]x[/bold]")
    assert "[bold]x[/bold]" in text
    assert printable("a\x1b[2Jb") == "a\N{REPLACEMENT CHARACTER}[2Jb"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.2"), (9.96, "10.0"), (1e6, "1,000,000")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.integration
def test_once_prints_what_there_is(raftlog: Raftlog, topic: str) -> None:
    found = raftlog("top", "--once", "--interval", 0.5, "--json").json
    assert found["ok"] is True
    assert topic in {row["name"] for row in found["topic_rows"]}
    assert found["records_per_second"] == 0
    assert topic in raftlog("top", "--once", "--interval", 0.5).out.decode()


# Opening a terminal without having one makes it the one whose keys send signals.
TAKES_ITS_TERMINAL = (
    "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
    "from raftlog_cli.main import main; main()"
)


@contextmanager
def at_a_terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command with a pseudo-terminal, and the other end of that."""
    other_end, own = pty.openpty()
    termios.tcsetwinsize(own, (40, 200))
    process = subprocess.Popen(
        [sys.executable, "-c", TAKES_ITS_TERMINAL, *arguments],
        stdin=own,
        stdout=own,
        stderr=own,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"},
    )
    os.close(own)
    try:
        yield process, other_end
    finally:
        process.kill()
        process.wait()
        os.close(other_end)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Everything that the command writes until ``wanted``, or its end."""
    found, deadline = b"", time.monotonic() + 30
    while wanted not in found:
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert ready, found
        with suppress(OSError):  # the process has closed its end
            if chunk := os.read(terminal, 65_536):
                found += chunk
                continue
        break
    return found


ALTERNATE_SCREEN, FIRST_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.mark.integration
@pytest.mark.parametrize(("key", "status"), [(b"\x03", 130), (b"q", 0)], ids=["ctrl-c", "q"])
def test_a_key_ends_it_and_restores_the_terminal(bootstrap: str, key: bytes, status: int) -> None:
    with at_a_terminal("top", "--interval", "0.5") as (process, terminal):
        text = read_until(terminal, b"q quit")
        assert ALTERNATE_SCREEN in text
        assert b"healthy" in text
        os.write(terminal, b"s")
        read_until(terminal, b"order: rate")
        os.write(terminal, key)
        text = read_until(terminal, FIRST_SCREEN)
        assert process.wait(30) == status
        assert b"Traceback" not in text
        assert termios.tcgetattr(terminal)[3] & termios.ICANON
