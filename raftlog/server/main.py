"""The broker process: logging, signals, exit status. The only module that ends a process.

Importing this module does not import the broker: ``preload`` does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import resource
import signal
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.config.broker import check_exposure
from raftlog.disk import Disk, OsDisk
from raftlog.errors import RaftlogError, StorageFailedError
from raftlog.failpoints import VARIABLE, FailpointDisk, Failpoints
from raftlog.standard_streams import STDERR, occupy

if TYPE_CHECKING:
    from socket import socket

    from raftlog.server.broker import Broker, Surroundings
    from raftlog.server.http.app import HttpServer, MoreRoutes

logger = logging.getLogger("raftlog")

_M_TRIM_THRESHOLD: Final = -1  # of mallopt(3)
_M_MMAP_THRESHOLD: Final = -3
STATUS_REMOVED: Final = 4  # exit status of a broker that was decommissioned

# What every broker uses. Modules that others import need no entry; a test finds missing ones.
_MODULES: Final = (
    "cramjam",
    "ctypes",
    "encodings.idna",  # of host names
    "encodings.unicode_escape",
    "lz4.block",
    "lz4.frame",
    "msgpack",
    "numpy",
    "zstandard",
    "raftlog.clock",
    "raftlog.record.compaction",
    "raftlog.record.kafka_batch",
    "raftlog.server.broker",
    "raftlog.server.failpoints",
    "raftlog.server.connection",
    "raftlog.storage.compaction",
)
_HTTP_MODULES: Final = ("jinja2", "raftlog.server.http.app")  # 0.2 s of CPU and 5 MB
_SASL_MODULES: Final = ("raftlog.security.sasl",)  # 0.2 s of CPU and 9 MB
_TOKEN_MODULES: Final = ("raftlog.server.oauth",)  # requires the extra `security`

MakeApi: TypeAlias = "Callable[[Address, BrokerConfig], MoreRoutes]"


def preload(config: BrokerConfig | None = None) -> None:
    """Import all modules that a running broker may use, before it serves.

    An import by a running broker would hold its event loop, for 0.1 s with numpy, and would fail
    when it has no file descriptor left. For the same reason this is not done in a thread: the
    broker and the import would need file descriptors and modules at the same time.

    ``config``: import what a broker with these settings may use. Default: what any broker may use,
        for processes that brokers are forked from.

    Raises ``ImportError`` if a required dependency is not installed.
    """
    names = list(_MODULES)
    if sys.platform != "win32":
        names.append("uvloop")
    if config is None or config.http_listen or config.schema_registry_listen:
        names += _HTTP_MODULES
    if config is None or config.authentication_required:
        names += _SASL_MODULES
    for name in names:
        import_module(name)
    if config is None:
        with suppress(ImportError):  # a broker that is configured to use them reports it
            for name in _TOKEN_MODULES:
                import_module(name)


def run(
    config: BrokerConfig, make_api: MakeApi | None = None, workers: Sequence[Address] = ()
) -> int:
    """Run a broker until SIGTERM or SIGINT. Returns the exit status: 0, or 1 with the reason on
    stderr, or ``STATUS_REMOVED`` if the broker was decommissioned.

    ``make_api``: called with the settings and the address of the broker if it has an HTTP port;
    returns more of what the port serves. ``workers``: HTTP ports of the other brokers of this host,
    for which the port answers, too.
    """
    occupy()
    handler = LogWriter(STDERR)
    handler.setFormatter(formatter(config.logging_format))
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=config.logging_level.upper(), handlers=[handler])
    raise_file_limit()
    keep_freed_memory()
    preload(config)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(config, make_api, workers))
    except RaftlogError as error:
        _say(config, f"raftlog broker {config.id}: {error}")
        return 1
    finally:
        handler.flush()


async def _serve(config: BrokerConfig, make_api: MakeApi | None, workers: Sequence[Address]) -> int:
    from raftlog.clock import SystemClock
    from raftlog.server.broker import Broker
    from raftlog.server.connection import address_of, bind

    loop = asyncio.get_running_loop()
    stop, removed = asyncio.Event(), asyncio.Event()
    # guard: an exposed broker is secured
    check_exposure(config)
    disk, surroundings = world(os.environ, config)
    listening = bind(config.listen)
    kafka_listening = http_listening = registry_listening = None
    if config.kafka_listen is not None:
        kafka_listening = bind(config.kafka_listen, "--set kafka.listen=")
    if config.http_listen is not None:
        http_listening = bind(config.http_listen, "--set http.listen=")
    if config.schema_registry_listen is not None:
        registry_listening = bind(config.schema_registry_listen, "--set schema.registry.listen=")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, stop)
    broker = await Broker.start(
        config,
        clock=SystemClock(),
        disk=disk,
        on_fatal=_end_process,
        listening=[listening],
        kafka_listening=kafka_listening,
        surroundings=replace(surroundings, on_removed=partial(_on_removed, config, stop, removed)),
    )
    api = None
    if make_api is not None and http_listening is not None:
        api = make_api(reached_here(address_of(listening)), config)
    http = await _serve_http(broker, http_listening, registry_listening, api, workers)
    if kafka_listening is not None:
        kafka_address = address_of(kafka_listening)
        _say(config, f"raftlog broker {config.id} serves Kafka clients on {kafka_address}")
    long_lived = LongLivedObjects(lambda: broker.context.topics.partition_count)
    watching = loop.create_task(long_lived.watch())
    address = Address(config.listen.host, address_of(listening).port)
    announcing = loop.create_task(_announce(config, broker, address))
    await stop.wait()
    logger.info("broker stopping: broker=%d", config.id)
    watching.cancel()
    announcing.cancel()
    await broker.stop()
    for server in http:
        await server.stop()  # the last ones, so that /readyz reports the stop
    logger.info("broker stopped: broker=%d state=synced", config.id)
    return STATUS_REMOVED if removed.is_set() else 0


async def _serve_http(
    broker: Broker,
    listening: socket | None,
    for_registry: socket | None,
    api: MoreRoutes | None,
    workers: Sequence[Address],
) -> list[HttpServer]:
    """Serve the HTTP port, and that of the schema registry, as far as there are sockets."""
    if listening is None and for_registry is None:
        return []
    from raftlog.server.connection import address_of
    from raftlog.server.http.app import HttpServer

    config, servers = broker.context.config, []
    scheme = "https" if config.http_uses_tls else "http"
    if listening is not None:
        servers.append(await HttpServer.start(broker, listening, api, workers))
        _say(config, f"raftlog broker {config.id} serves {scheme}://{address_of(listening)}")
    if for_registry is not None:
        servers.append(await HttpServer.start_registry(broker, for_registry))
        where = f"{scheme}://{address_of(for_registry)}"
        _say(config, f"raftlog broker {config.id} serves its schema registry on {where}")
    return servers


async def _announce(config: BrokerConfig, broker: Broker, address: Address) -> None:
    """Say that the broker is ready, once its cluster counts it as live: only then can it store
    replicas of new topics.
    """
    _say(config, f"raftlog broker {config.id} listens on {address}")
    await broker.context.cluster.joined.wait()
    _say(config, f"raftlog broker {config.id} ready on {address}")


def world(environment: Mapping[str, str], config: BrokerConfig) -> tuple[Disk, Surroundings]:
    """Return the disk and the environment: the real ones, or with the configured failpoints.

    Raises ``InvalidConfigError`` for invalid failpoints.
    """
    from raftlog.server.broker import REAL

    points = Failpoints.from_environment(environment)
    if points is None:
        return OsDisk(), REAL
    logger.warning(
        "failpoints active: points=%s. This broker can crash, stall and fail on purpose. Unset %s "
        "in production",
        points.described,
        VARIABLE,
    )
    disk = FailpointDisk(OsDisk(), points.hit, config.data_dir, config.log_dirs)
    from raftlog.server import failpoints

    return disk, failpoints.surroundings(points.hit)


def reached_here(listening: Address) -> Address:
    """Return the address at which this process reaches its own socket."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared
    return Address(own.get(listening.host, listening.host), listening.port)


def _say(config: BrokerConfig, line: str) -> None:
    """Write a line to stderr, regardless of the log level, and as JSON if the log is JSON."""
    if config.logging_format == "json":
        record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, line, (), None)
        line = formatter(config.logging_format).format(record)
    say(line)


def _on_signal(number: int, stop: asyncio.Event) -> None:
    if stop.is_set():
        logger.warning("second signal, exiting now: signal=%s", signal.Signals(number).name)
        logging.shutdown()
        os._exit(1)
    stop.set()


def _on_removed(
    config: BrokerConfig, stop: asyncio.Event, removed: asyncio.Event, reason: str
) -> None:
    _say(config, f"raftlog broker {config.id} stops: {reason}")
    removed.set()
    stop.set()


def _end_process(_error: StorageFailedError) -> None:
    """End the process without cleanup: nothing more may be written or acknowledged.

    Connections end first: where a thread is stuck in a disk operation that cannot be interrupted,
    the kernel keeps the process, and all its open files, until that operation ends.
    """
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
    logging.shutdown()
    os._exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # not available on Windows

    return uvloop.new_event_loop


def raise_file_limit() -> None:
    """Raise the limit of open files: every partition and every connection uses some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS refuses an infinite one
            logger.warning("limit of open files: soft=%d hard=%d error=%s", soft, hard, error)
            return
    logger.info("limit of open files: RLIMIT_NOFILE=%d before=%d", hard, soft)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later batches. Without effect on other C libraries.

    By default, glibc returns freed memory to the system above twice the largest freed buffer: every
    batch of 1 MiB then takes its memory from the system again, page by page. See mallopt(3).
    """
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, limits.FREED_BYTES_KEPT_MAX)
        set_option(_M_MMAP_THRESHOLD, limits.HEAP_BUFFER_BYTES_MAX)


# -- log lines -------------------------------------------------------------------------------------
#
# Format of a broker's log lines: UTC time, level, logger, message; or JSON.
#
# Every line is formatted here, so untrusted text is escaped here: a control character, such as a
# newline in a client id, becomes an escape sequence, and one event is one line. ``RepeatFilter``
# limits how many lines one message of the code can write. ``LogWriter`` writes them in a thread:
# neither the reader of stderr nor its file system can hold up a broker.


# C0 and C1 controls, line and paragraph separators, and characters that reverse the direction of
# text.
_CONTROLS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def escaped(text: str) -> str:
    """``text`` with control characters as escapes, such as ``\\n``."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


class RepeatFilter(logging.Filter):
    """Drops lines of a message beyond ``LOG_REPEATS_MAX`` per ``LOG_REPEATS_INTERVAL_S``.

    Lines have the same message if one call in the code wrote them, with any arguments: an
    event that occurs for each of 10,000 partitions or connections does not fill the disk. The last
    line before a gap announces it, and the first one after it has the number of dropped lines.
    Debug lines are not limited.
    """

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        key = (record.name, str(record.msg))
        window = self._windows.get(key)
        if window is None or abs(record.created - window.start_s) >= limits.LOG_REPEATS_INTERVAL_S:
            if len(self._windows) >= limits.LOG_MESSAGES_MAX:
                self._windows.clear()
            dropped = 0 if window is None else window.count - limits.LOG_REPEATS_MAX
            window = self._windows[key] = _Window(record.created)
            if dropped > 0:
                record.repeats = f"{dropped} lines of this kind were omitted before"
        window.count += 1
        if window.count == limits.LOG_REPEATS_MAX:
            record.repeats = (
                f"further lines of this kind are omitted for {limits.LOG_REPEATS_INTERVAL_S} s"
            )
        return window.count <= limits.LOG_REPEATS_MAX


class _Window:
    __slots__ = ("count", "start_s")

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.count = 0


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor in a thread. A call never waits for the reader: lines are
    dropped while ``LOG_WAITING_BYTES_MAX`` wait, or if they cannot be written, such as to a full
    file system. The next line that is written announces how many. ``dropped``: all of them.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.dropped = 0
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # of the waiting lines
        self._announced = 0  # dropped lines that a written line has announced
        self._changed = threading.Condition()
        self._is_writing = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a wrong call of the logger must not end its caller
            self.handleError(record)
        else:
            self.write(line)

    def write(self, line: str) -> None:
        """Write a line, without the level filter."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._bytes + len(data) > limits.LOG_WAITING_BYTES_MAX:
                self.dropped += 1
                return
            self._lines.append(data)
            self._bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="raftlog-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, for ``LOG_FLUSH_S`` at most."""
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._lines or self._is_writing), limits.LOG_FLUSH_S
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                line = self._lines.popleft()
                self._bytes -= len(line)
                self._is_writing = True
                missing = self.dropped - self._announced
            if missing:
                line = b"(%d log lines were dropped: stderr could not take them)\n" % missing + line
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:  # EPIPE, ENOSPC: there is no other place to report it
                with self._changed:
                    self.dropped += 1
            else:
                self._announced += missing


def say(line: str) -> None:
    """Write a line to the log of this process, regardless of the level."""
    for writer in _writers():
        writer.write(line)


def dropped() -> int:
    """Return the number of log lines that this process could not write."""
    return sum(writer.dropped for writer in _writers())


def _writers() -> list[LogWriter]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]


class TextFormatter(logging.Formatter):
    """``2026-11-23T02:45:02.136Z INFO raftlog.server.broker: message``, and a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_time(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        if repeats := getattr(record, "repeats", ""):
            head += f" ({repeats})"
        if record.exc_info:
            head += "".join(f"\n  {line}" for line in self._traceback(record))
        return head

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        """Return the lines of the traceback. The text of an exception may be untrusted: it is
        escaped.
        """
        assert record.exc_info is not None
        lines = self.formatException(record.exc_info).split("\n")
        return [escaped(line) for line in lines]


class JsonFormatter(TextFormatter):
    """One JSON object per line: time, level, logger, message, and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": escaped(record.getMessage()),
        }
        if repeats := getattr(record, "repeats", ""):
            line["repeats"] = repeats
        if record.exc_info:
            line["traceback"] = "\n".join(self._traceback(record))
        return json.dumps(line, ensure_ascii=False)


def formatter(name: str) -> logging.Formatter:
    """The formatter for a value of the setting ``logging.format``."""
    return JsonFormatter() if name == "json" else TextFormatter()


def _time(record: logging.LogRecord) -> str:
    """Return the time in UTC, with milliseconds, in RFC 3339 format."""
    time = datetime.fromtimestamp(record.created, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- long lived ------------------------------------------------------------------------------------
#
# Keeps the objects of partitions out of garbage collections.
#
# A full collection visits every container object of the process, and holds the event loop for that
# time. Frozen objects (``gc.freeze``) are not visited. They are freed by their reference counts;
# cyclic garbage among them is freed after ``gc.unfreeze``.


CHANGE_PARTITIONS: Final = 200  # created or deleted since the objects were frozen
INTERVAL_SECONDS: Final = 1.0


class LongLivedObjects:
    """Freezes all objects at the start, and again after many partitions were created."""

    def __init__(
        self,
        partition_count: Callable[[], int],
        *,
        freeze: Callable[[], object] = gc.freeze,
        unfreeze: Callable[[], object] = gc.unfreeze,
    ) -> None:
        self._partition_count = partition_count
        self._freeze = freeze
        self._unfreeze = unfreeze
        self._frozen_at = partition_count()
        freeze()

    def update(self) -> None:
        """Freeze the objects of new partitions. Let the next full collection visit all objects, if
        many partitions were deleted.
        """
        count = self._partition_count()
        if count >= self._frozen_at + CHANGE_PARTITIONS:
            self._freeze()
        elif count <= self._frozen_at - CHANGE_PARTITIONS:
            self._unfreeze()
        else:
            return
        self._frozen_at = count

    async def watch(self) -> None:
        """Update once a second, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.update()
