"""The broker as a process: what it says, how it ends, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from raftlog import limits
from raftlog.config import Address, BrokerConfig, parse_address
from raftlog.disk import OsDisk
from raftlog.errors import ConnectionLostError, InvalidTopicError
from raftlog.failpoints import VARIABLE, FailpointDisk
from raftlog.memory_transport import MemoryTransport, join
from raftlog.protocol import api as apis
from raftlog.protocol.connection import ClientConnectionState, Request, Response
from raftlog.protocol.peer import PeerPingRequest, RaftRequest
from raftlog.protocol.records import MetadataRequest, MetadataResponse
from raftlog.server.broker import REAL
from raftlog.server.connection import Connection, Connections, ConnectionServices, address_of, bind
from raftlog.server.failpoints import FailpointConnection, FailpointConnector, surroundings
from raftlog.server.main import (
    CHANGE_PARTITIONS,
    LogWriter,
    LongLivedObjects,
    RepeatFilter,
    formatter,
    raise_file_limit,
    reached_here,
    world,
)
from raftlog.server.metrics import Counters
from raftlog.server.peers import PeerChannel, SocketPeerConnector
from raftlog.server.scheduling import ResponseBudget, Turns, Workers
from raftlog.testing import fork_server
from tests.client.virtual import VirtualLoop
from tests.server.harness import TIMEOUT_S, Client, batch_of
from tests.server.peers.test_links import Peer

PROGRAM = """
import sys
from raftlog.config import BrokerConfig
from raftlog.server.main import (run)
sys.exit(run(BrokerConfig.from_text(dict(pair.split("=", 1) for pair in sys.argv[1:]))))
"""
FAILING_PROGRAM = (
    """
import sys
from raftlog.server import main
from tests.server.harness import FaultyDisk
disk = FaultyDisk()
disk.faults.sync_error = 5
main.OsDisk = lambda: disk
"""
    + PROGRAM
)
ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A broker process, from its first line to its exit status.

    A fork of the fork server, as a test needs no new interpreter, unless it asks for one by a
    program or a prefix; tests of ``raftlog broker`` start that command as users do.
    """

    def __init__(
        self,
        data_dir: Path,
        program: str = "",
        prefix: Sequence[str] = (),
        **settings: str,
    ) -> None:
        pairs = {"id": "1", "data.dir": str(data_dir), "listen": "127.0.0.1:0", **settings}
        values = [f"{key}={value}" for key, value in pairs.items()]
        read, write = os.pipe()
        self._stderr = open(read)  # noqa: SIM115 - by ``close``
        self._process: subprocess.Popen[bytes] | fork_server.ForkedProcess
        try:
            if program or prefix or not fork_server.can_fork(os.environ):
                self._process = subprocess.Popen(
                    [*prefix, sys.executable, "-c", program or PROGRAM, *values],
                    stderr=write,
                    env={**os.environ, **fork_server.python_path(ROOT)},
                )
            else:
                options = [word for value in values for word in ("--set", value)]
                self._process = fork_server.fork(["broker", *options], os.environ, write)
        finally:
            os.close(write)
        self.said: list[str] = []

    def address(self) -> Address:
        """Wait for the ready line; the address in it."""
        for line in self._stderr:
            self.said.append(line)
            if " ready on " in line:
                return parse_address(line.rpartition(" ")[2])
        raise AssertionError("".join(self.said))

    def first_line(self) -> str:
        self.said.append(self._stderr.readline())
        return self.said[0]

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def end(self) -> int:
        """Wait for the end; the exit status."""
        self.said += self._stderr
        return self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        with self._stderr, self._process.stdin or nullcontext():
            if self._process.poll() is None:
                self.signal(signal.SIGKILL)
                self._process.wait()


@contextlib.contextmanager
def process(
    data_dir: Path, program: str = "", prefix: Sequence[str] = (), **settings: str
) -> Iterator[Process]:
    running = Process(data_dir, program, prefix, **settings)
    try:
        yield running
    finally:
        running.close()


def refusal(data_dir: Path, prefix: Sequence[str] = (), **settings: str) -> str:
    """What a broker says that cannot start: one line, no traceback."""
    with process(data_dir, prefix=prefix, **settings) as broken:
        assert broken.end() == 1
        lines = [line for line in broken.said if line.startswith("raftlog broker")]
        assert len(lines) == 1, broken.said
        assert "Traceback" not in "".join(broken.said)
        return lines[0]


class Load:
    """A producer that writes numbered records, some in flight, until its connection ends."""

    def __init__(self, address: Address, *, in_flight: int = 20) -> None:
        self.acknowledged: dict[int, bytes] = {}  # by offset
        self.sent = 0
        self._client = Client(address)
        self._in_flight = in_flight
        self._enough = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        waiting: list[tuple[int, bytes]] = []
        with contextlib.suppress(OSError, AssertionError):  # the broker has gone
            while True:
                while len(waiting) < self._in_flight:
                    value = b"record %d" % self.sent
                    waiting.append((self._client.send_batch("t", batch_of(value)), value))
                    self.sent += 1
                id_, value = waiting.pop(0)
                self.acknowledged[self._client.produced(id_).base_offset] = value
                self._enough.release()

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self._enough.acquire(timeout=TIMEOUT_S)

    def finish(self) -> None:
        self._thread.join(TIMEOUT_S)
        self._client.close()


def stored(address: Address) -> list[bytes]:
    with Client(address) as client:
        end = client.offset("t", "latest").offset
        values: list[bytes] = []
        while len(values) < end:
            values += client.fetch("t", len(values))[1]
        return values


@pytest.mark.integration
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_under_load_nothing_acknowledged_is_lost(
    tmp_path: Path, how: signal.Signals
) -> None:
    with process(tmp_path) as first:
        address = first.address()
        with Client(address) as client:
            client.create("t")
        load = Load(address)
        load.wait_for(200)
        first.signal(how)
        status = first.end()
        load.finish()
        assert status == (-signal.SIGKILL if how is signal.SIGKILL else 0), first.said
    with process(tmp_path) as second:
        values = stored(second.address())
        assert load.acknowledged.items() <= dict(enumerate(values)).items()
        assert len(load.acknowledged) <= len(values) <= load.sent
        assert len(set(values)) == len(values)


@pytest.mark.integration
def test_it_says_where_it_listens_and_that_it_stopped(tmp_path: Path) -> None:
    with process(tmp_path, id="3") as broker:
        address = broker.address()
        assert broker.said[-1] == f"raftlog broker 3 ready on {address}\n"
        broker.signal(signal.SIGTERM)
        assert broker.end() == 0
        assert "broker stopped: broker=3" in broker.said[-1]


@pytest.mark.integration
def test_numpy_is_imported_before_the_first_records_come(tmp_path: Path) -> None:
    """The import takes 0.1 s of CPU time, in which the event loop would do nothing else."""
    with process(tmp_path) as broker:
        broker.address()
        assert "numpy" in Path(f"/proc/{broker.pid}/maps").read_text()


@pytest.mark.integration
def test_with_logs_in_json_every_line_is_json(tmp_path: Path) -> None:
    with process(tmp_path / "data", **{"logging.format": "json", "logging.level": "error"}) as one:
        listens = json.loads(one.first_line())
        assert " listens on " in listens["message"]
        one.signal(signal.SIGTERM)
        assert one.end() == 0
        assert all(json.loads(line) for line in one.said)


@pytest.mark.integration
def test_a_port_in_use(tmp_path: Path) -> None:
    with contextlib.closing(bind(Address("127.0.0.1", 0))) as taken:
        address = address_of(taken)
        line = refusal(tmp_path, listen=str(address))
        assert f"port {address.port}" in line
        assert "--listen" in line
        line = refusal(tmp_path, **{"http.listen": str(address)})
        assert f"port {address.port}" in line
        assert "--set http.listen=127.0.0.1:0" in line


@pytest.mark.integration
def test_a_data_directory_that_is_in_use(tmp_path: Path) -> None:
    with process(tmp_path) as first:
        first.address()
        assert "in use" in refusal(tmp_path)


@pytest.mark.integration
def test_a_data_directory_of_another_broker(tmp_path: Path) -> None:
    with process(tmp_path, id="2") as first:
        first.address()
        first.signal(signal.SIGTERM)
        assert first.end() == 0
    assert "belongs to broker id 2" in refusal(tmp_path)


@contextlib.contextmanager
def mounted(directory: Path, options: str) -> Iterator[Path]:
    """A small file system of its own, where the machine lets us have one."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.integration
def test_a_read_only_directory(tmp_path: Path) -> None:
    with mounted(tmp_path / "read-only", "ro") as directory:
        line = refusal(directory / "data")
        assert "cannot be written" in line
        assert "read-only" in line.lower()


# Root may write anywhere; without its capabilities it is a user like others.
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()


@pytest.mark.integration
def test_a_directory_without_permission(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert "cannot be written" in refusal(closed / "data", prefix=POWERLESS)


@pytest.mark.integration
def test_a_full_file_system(tmp_path: Path) -> None:
    """Producers are told, reads go on, and writes resume when there is room."""
    with mounted(tmp_path / "small", "size=4m") as directory, process(directory / "data") as broker:
        address = broker.address()
        ballast = directory / "ballast"
        with Client(address) as client:
            client.create("t")
            client.produce("t", batch_of(b"first"))
            ballast.write_bytes(bytes(3 << 20))
            batch = batch_of(b"x" * 50_000)
            answers = [client.produce("t", batch) for _ in range(40)]
            full = [answer.failure for answer in answers if answer.failure is not None]
            assert full
            assert all("no space" in failure.message for failure in full)
            kept = len(answers) - len(full) + 1
            assert client.offset("t", "latest").offset == kept
            assert client.fetch("t", 0, bytes_max=1)[1] == [b"first"]
            ballast.unlink()
            assert client.produce("t", batch).base_offset == kept
        broker.signal(signal.SIGTERM)
        assert broker.end() == 0, broker.said


@pytest.mark.integration
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with process(tmp_path) as broker:
        address = broker.address()
        with socket.create_connection(address) as lingering:
            # While the broker waits for this one to hang up, the second signal comes.
            broker.signal(signal.SIGTERM)
            lingering.settimeout(TIMEOUT_S)
            assert lingering.recv(1) == b""
            broker.signal(signal.SIGTERM)
            assert broker.end() == 1
            assert any("second signal" in line for line in broker.said)


@pytest.mark.integration
def test_a_failed_fsync_ends_the_process_and_answers_nobody(tmp_path: Path) -> None:
    with process(tmp_path, FAILING_PROGRAM) as broker:
        with Client(broker.address()) as client:
            client.create("t")
            client.send_batch("t", batch_of(b"a"))
            assert client.socket.recv(1) == b"", "an answer to what may be lost"
        assert broker.end() == 1
        last = broker.said[-1]
        for word in ("CRITICAL", "Input/output error", "another sync cannot verify", "topics/t/"):
            assert word in last
    with process(tmp_path) as again, Client(again.address()) as client:
        assert client.produce("t", batch_of(b"b")).failure is None


@pytest.mark.parametrize(
    ("listening", "here"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1")],
)
def test_a_broker_reaches_itself_where_it_listens(listening: str, here: str) -> None:
    assert reached_here(Address(listening, 9100)) == Address(here, 9100)


FAULTS_PROGRAM = """
import resource, sys
from raftlog.server.main import (keep_freed_memory)
if sys.argv[1] == "keep":
    keep_freed_memory()
def work():
    buffers = [bytearray(1 << 20) for _ in range(4)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.integration
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these options")
def test_memory_of_batches_is_kept_for_the_next_ones() -> None:
    faults = {
        mode: int(subprocess.check_output([sys.executable, "-c", FAULTS_PROGRAM, mode], cwd=ROOT))
        for mode in ("keep", "return")
    }
    assert faults["keep"] < 1_000 < faults["return"], faults


def test_the_limit_of_open_files_is_raised_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    raised: list[object] = []
    monkeypatch.setattr("resource.getrlimit", lambda _what: (100, 200))
    monkeypatch.setattr("resource.setrlimit", lambda _what, pair: raised.append(pair))
    raise_file_limit()
    assert raised == [(200, 200)]
    assert "RLIMIT_NOFILE=200 before=100" in caplog.text


# -- log lines -------------------------------------------------------------------------------------
#
# Log lines: their format, and that nothing from outside can make two of one.


MS = 1_700_000_000_123


def record(message: str, *arguments: object, error: Exception | None = None) -> logging.LogRecord:
    trace = None
    if error is not None:
        try:
            raise error
        except type(error):
            trace = sys.exc_info()
    made = logging.LogRecord("raftlog.x", logging.WARNING, "x.py", 1, message, arguments, trace)
    made.created = MS / 1_000
    return made


def test_text_has_the_time_in_utc_the_level_and_the_logger() -> None:
    line = formatter("text").format(record("broker joined: broker=%d", 7))
    assert line == "2023-11-14T22:13:20.123Z WARNING raftlog.x: broker joined: broker=7"
    assert datetime.fromisoformat(line.partition(" ")[0]).utcoffset() == timedelta(0)


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x1b[2Jb", "a\u2028b", "a\x85b", "a\u202eb"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_one_event_is_one_line(text: str, form: str) -> None:
    line = formatter(form).format(record("client %s connected", text))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_other_text_stays_as_it_is() -> None:
    line = formatter("text").format(record("client %s", "zażółć 日本 \\n"))
    assert line.endswith("client zażółć 日本 \\n")


def test_a_traceback_cannot_pass_for_a_line() -> None:
    error = ValueError("bad\n2023-11-14T22:13:20.123Z INFO raftlog.x: all is well")
    first, *others = formatter("text").format(record("failed", error=error)).split("\n")
    assert first.endswith("WARNING raftlog.x: failed")
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in others)


def test_json() -> None:
    line = formatter("json").format(record("broker %d joined", 7, error=ValueError("because")))
    found = json.loads(line)
    assert found.pop("traceback").endswith("ValueError: because")
    assert found == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "logger": "raftlog.x",
        "message": "broker 7 joined",
    }


def test_lines_of_one_message_are_limited_and_the_omitted_ones_are_counted() -> None:
    limit, dropped = RepeatFilter(), 7
    lines = []

    def log(message: str, number: int, at_s: float) -> None:
        made = record(message, number)
        made.created += at_s
        if limit.filter(made):
            lines.append(json.loads(formatter("json").format(made)))

    for number in range(limits.LOG_REPEATS_MAX + dropped):
        log("broker joined: broker=%d", number, 1)
    log("broker left: broker=%d", 3, 2)
    assert len(lines) == limits.LOG_REPEATS_MAX + 1
    assert [line["message"] for line in lines if "repeats" in line] == ["broker joined: broker=99"]
    assert lines[-1] == {**lines[-1], "message": "broker left: broker=3"}
    log("broker joined: broker=%d", 5, 1 + limits.LOG_REPEATS_INTERVAL_S)
    assert lines[-1]["message"] == "broker joined: broker=5"
    assert lines[-1]["repeats"] == f"{dropped} lines of this kind were omitted before"


def test_debug_lines_are_not_limited_and_different_messages_stay_bounded() -> None:
    limit = RepeatFilter()
    made = record("x")
    made.levelno = logging.DEBUG
    assert all(limit.filter(made) for _ in range(2 * limits.LOG_REPEATS_MAX))
    for number in range(2 * limits.LOG_MESSAGES_MAX):
        assert limit.filter(record(f"text {number}"))
    assert len(limit._windows) <= limits.LOG_MESSAGES_MAX


def read_all(fd: int) -> list[str]:
    os.set_blocking(fd, False)
    parts: list[bytes] = []
    with suppress(BlockingIOError):
        while part := os.read(fd, 1 << 20):
            parts.append(part)
    return b"".join(parts).decode().splitlines()


def test_a_reader_that_stops_holds_nobody_up_and_learns_what_it_missed() -> None:
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4_096)
        writer = LogWriter(write)
        line = "x" * 10_000
        for _ in range(limits.LOG_WAITING_BYTES_MAX // len(line) + 10):
            writer.write(line)
        dropped = writer.dropped
        assert 5 <= dropped <= 12
        got: list[str] = []
        while not any("log lines were dropped" in each for each in got):
            got += read_all(read)
        assert f"({dropped} log lines were dropped: stderr could not take them)" in got
    finally:
        os.close(read)
        os.close(write)


def test_lines_for_a_full_file_system_are_dropped() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        writer = LogWriter(full.fileno())
        writer.write("lost")
        writer.flush()
        assert writer.dropped == 1


def test_a_line_is_written_before_the_process_ends() -> None:
    read, write = os.pipe()
    try:
        writer = LogWriter(write)
        writer.setFormatter(formatter("text"))
        writer.handle(record("the last %s", "word\udc80"))
        writer.flush()
        (line,) = read_all(read)
        assert line.endswith(r"raftlog.x: the last word\udc80")
    finally:
        os.close(read)
        os.close(write)


# -- long lived ------------------------------------------------------------------------------------
#
# Objects of partitions are frozen as they are created, and released as they are deleted.


def test_many_new_partitions_are_frozen_and_many_deleted_ones_are_released() -> None:
    calls: list[str] = []
    partitions = 10
    objects = LongLivedObjects(
        lambda: partitions,
        freeze=lambda: calls.append("freeze"),
        unfreeze=lambda: calls.append("unfreeze"),
    )
    assert calls == ["freeze"], "what was made at the start"
    for partitions, expected in (
        (10 + CHANGE_PARTITIONS - 1, []),
        (10 + CHANGE_PARTITIONS, ["freeze"]),
        (10 + CHANGE_PARTITIONS, []),
        (11, []),
        (10, ["unfreeze"]),
        (0, []),
    ):
        calls.clear()
        objects.update()
        assert calls == expected, partitions


# -- failpoints ------------------------------------------------------------------------------------
#
# Answers and requests are failpoints: before they leave, and once the system has them.


PING = PeerPingRequest(sent=1, broker_epoch=0)
METADATA = MetadataResponse(cluster_id="", brokers=[], topics=[])
ADDRESS = Address("127.0.0.1", 1)


class Points:
    """Keeps what was hit, with what had arrived at the other side by then, and fails one."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.hits: list[tuple[str, int]] = []
        self.arrived = lambda: 0

    def hit(self, site: str) -> None:
        self.hits.append((site, self.arrived()))
        if site == self.failing:
            raise OSError(errno.EIO, "no")


def run(test: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test)
    finally:
        loop.close()


# -- requests to peers -----------------------------------------------------------------------------


class MemoryConnector:
    """Joins a channel to a ``Peer``."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.transport: MemoryTransport

    async def connect(self, address: Address, protocol_factory: Any) -> asyncio.Transport:
        self.transport, _ = join(asyncio.get_running_loop(), protocol_factory(), self.peer)
        return self.transport


async def dialled(points: Points) -> tuple[PeerChannel, Peer, list[Exception]]:
    connector, lost = MemoryConnector(), []
    channel = PeerChannel(
        asyncio.get_running_loop(), lost.append, scratch=memoryview(bytearray(4_096))
    )
    await FailpointConnector(connector, points.hit).connect(ADDRESS, lambda: channel)
    points.arrived = lambda: len(connector.peer.requests)
    return channel, connector.peer, lost


def test_a_request_to_a_peer_is_a_failpoint_before_and_after() -> None:
    async def test() -> None:
        points = Points()
        channel, peer, _ = await dialled(points)
        answer = channel.request(apis.PEER_PING, PING)
        assert channel.send(apis.RAFT, RaftRequest(), (b"en", b"velope"))
        await asyncio.sleep(0.01)
        sites = [site for site, _ in points.hits]
        assert sorted(sites) == [f"peer.{api}.{moment}" for api in ("peer_ping", "raft")
                                 for moment in ("after", "before")]  # fmt: skip
        assert sites.index("peer.raft.before") < sites.index("peer.raft.after")
        assert [request.api.name for request in peer.requests] == ["peer_ping", "raft"]
        assert bytes(peer.requests[1].attachment) == b"envelope"
        assert channel.queued_bytes == 0
        assert not answer.done()

    run(test())


@pytest.mark.parametrize(("moment", "arrived"), [("before", 0), ("after", 1)])
def test_a_request_that_fails_takes_its_connection_along(moment: str, arrived: int) -> None:
    async def test() -> None:
        channel, peer, lost = await dialled(Points(f"peer.peer_ping.{moment}"))
        answer = channel.request(apis.PEER_PING, PING)
        await asyncio.sleep(0.01)
        assert len(peer.requests) <= arrived
        assert peer.lost
        assert len(lost) == 1
        with pytest.raises(ConnectionLostError):
            await answer

    run(test())


# -- answers ---------------------------------------------------------------------------------------


class FailpointsClient(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.state = ClientConnectionState()
        self.responses: list[Response] = []
        self.is_lost = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for event in self.state.received(nbytes):
            assert isinstance(event, Response)
            self.responses.append(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def connections_that(
    handle: Callable[[Connection, Request], None],
    make: Callable[[ConnectionServices], Connection] = Connection,
) -> Connections:
    """Connections whose requests ``handle`` answers."""
    loop = asyncio.get_running_loop()
    return Connections(
        BrokerConfig(),
        loop,
        responses=ResponseBudget(1 << 20),
        counters=Counters(),
        turns=Turns(loop, loop.time),
        workers=Workers(loop, count=0, name="none"),
        on_request=handle,
        on_kafka_request=lambda _connection, _request: None,
        on_lost=lambda _connection: None,
        make_connection=make,
    )


async def asked(points: Points, error: InvalidTopicError | None = None) -> FailpointsClient:
    """A client that has asked for metadata, and got it, or an error, if nothing came between."""

    def handle(connection: Connection, request: Request) -> None:
        if error is not None:
            connection.refuse(request, error)
        else:
            connection.respond(request, METADATA)

    connections = connections_that(handle, surroundings(points.hit).make_connection)
    client = FailpointsClient()
    points.arrived = lambda: len(client.responses)
    join(asyncio.get_running_loop(), client, connections.make())
    client.transport.writelines(client.state.send(apis.METADATA, MetadataRequest(topics=None))[1])
    await asyncio.sleep(0.01)
    connections.abort("it is over")
    return client


@pytest.mark.parametrize("error", [None, InvalidTopicError("no")])
def test_an_answer_is_a_failpoint_before_and_after(error: InvalidTopicError | None) -> None:
    async def test() -> None:
        points = Points()
        client = await asked(points, error)
        assert [site for site, _ in points.hits] == [
            "reply.metadata.before",
            "reply.metadata.after",
        ]
        assert len(client.responses) == 1

    run(test())


@pytest.mark.parametrize("error", [None, InvalidTopicError("no")])
def test_an_answer_that_fails_before_does_not_arrive(error: InvalidTopicError | None) -> None:
    async def test() -> None:
        points = Points("reply.metadata.before")
        client = await asked(points, error)
        assert len(points.hits) == 1
        assert client.is_lost
        assert client.responses == []

    run(test())


def test_an_answer_that_fails_after_takes_its_connection_along() -> None:
    async def test() -> None:
        points = Points("reply.metadata.after")
        client = await asked(points)
        assert len(points.hits) == 2
        assert client.is_lost

    run(test())


def test_after_means_that_the_system_has_it() -> None:
    """On the loop and the sockets of a broker: what dies there has answered."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    there: list[bool] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        both = asyncio.Event()

        def hit(_site: str) -> None:
            try:
                there.append(bool(theirs.recv(1 << 16, socket.MSG_PEEK)))
            except BlockingIOError:
                there.append(False)
            if len(there) == 2:
                both.set()

        connections = connections_that(lambda asking, request: asking.respond(request, METADATA))
        await loop.connect_accepted_socket(lambda: FailpointConnection(connections, hit=hit), ours)
        state = ClientConnectionState()
        theirs.sendall(b"".join(state.send(apis.METADATA, MetadataRequest(topics=None))[1]))
        await both.wait()
        connections.abort("it is over")

    with theirs, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
    assert there == [False, True]


# -- a broker that is started ----------------------------------------------------------------------


def test_unset_is_a_broker_with_nothing_in_its_way() -> None:
    disk, around = world({}, BrokerConfig())
    assert type(disk) is OsDisk
    assert around is REAL
    assert around.make_connection is Connection
    connector = SocketPeerConnector()
    assert around.around_connector(connector) is connector


def test_set_is_a_broker_on_failpoints() -> None:
    disk, around = world({VARIABLE: "segment.*=note"}, BrokerConfig())
    assert type(disk) is FailpointDisk
    assert type(around.around_connector(SocketPeerConnector())) is FailpointConnector
    assert around.make_connection is not Connection


@pytest.mark.integration
def test_a_broker_warns_that_failpoints_are_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"@{tmp_path}/failpoints")
    with process(tmp_path / "data") as broker:
        broker.address()
        assert f"failpoints active: points=0 rules, from {tmp_path}/failpoints." in "".join(
            broker.said
        )


@pytest.mark.integration
def test_a_broker_with_wrong_failpoints_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "segment.wrote.before=crash")
    assert "Similar names: segment.write.before" in refusal(tmp_path / "data")
    assert not (tmp_path / "data").exists()
