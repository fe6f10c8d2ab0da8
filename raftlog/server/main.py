"""The broker process: logging, signals, exit status. The only module that ends a process.

Importing this module does not import the broker: ``preload`` does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.config.broker import check_exposure
from raftlog.disk import Disk, OsDisk
from raftlog.errors import RaftlogError, StorageFailedError
from raftlog.failpoints import VARIABLE, FailpointDisk, Failpoints
from raftlog.server import log_lines
from raftlog.standard_streams import STDERR, occupy

if TYPE_CHECKING:
    from raftlog.server.broker import Broker, Surroundings
    from raftlog.server.http.app import MoreRoutes

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
    "raftlog.server.listener",
    "raftlog.server.long_lived",
    "raftlog.storage.cleaner",
)
_HTTP_MODULES: Final = ("jinja2", "raftlog.server.http.server")  # 0.2 s of CPU and 5 MB
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
    if config is None or config.http_listen is not None:
        names += _HTTP_MODULES
    if config is None or config.authentication_required:
        names += _SASL_MODULES
    for name in names:
        import_module(name)
    if config is None:
        with suppress(ImportError):  # a broker that is configured to use them reports it
            for name in _TOKEN_MODULES:
                import_module(name)


def run(config: BrokerConfig, make_api: MakeApi | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT. Returns the exit status: 0, or 1 with the reason on
    stderr, or ``STATUS_REMOVED`` if the broker was decommissioned.

    ``make_api``: called with the settings and the address of the broker if it has an HTTP port;
    returns more of what the port serves.
    """
    occupy()
    handler = log_lines.LogWriter(STDERR)
    handler.setFormatter(log_lines.formatter(config.logging_format))
    handler.addFilter(log_lines.RepeatFilter())
    logging.basicConfig(level=config.logging_level.upper(), handlers=[handler])
    raise_file_limit()
    keep_freed_memory()
    preload(config)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(config, make_api))
    except RaftlogError as error:
        _say(config, f"raftlog broker {config.id}: {error}")
        return 1
    finally:
        handler.flush()


async def _serve(config: BrokerConfig, make_api: MakeApi | None) -> int:
    from raftlog.clock import SystemClock
    from raftlog.server.broker import Broker
    from raftlog.server.listener import address_of, bind
    from raftlog.server.long_lived import LongLivedObjects

    loop = asyncio.get_running_loop()
    stop, removed = asyncio.Event(), asyncio.Event()
    check_exposure(config)
    disk, surroundings = world(os.environ, config)
    listening = bind(config.listen)
    kafka_listening = http_listening = None
    if config.kafka_listen is not None:
        kafka_listening = bind(config.kafka_listen, "--set kafka.listen=")
    if config.http_listen is not None:
        http_listening = bind(config.http_listen, "--set http.listen=")
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
    http = None
    if http_listening is not None:
        from raftlog.server.http.server import HttpServer

        api = None if make_api is None else make_api(reached_here(address_of(listening)), config)
        http = await HttpServer.start(broker, http_listening, api)
        scheme = "https" if config.http_uses_tls else "http"
        _say(config, f"raftlog broker {config.id} serves {scheme}://{address_of(http_listening)}")
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
    if http is not None:
        await http.stop()  # the last one, so that /readyz reports the stop
    logger.info("broker stopped: broker=%d state=synced", config.id)
    return STATUS_REMOVED if removed.is_set() else 0


async def _announce(config: BrokerConfig, broker: Broker, address: Address) -> None:
    """Say that the broker is ready, once its cluster counts it as live: only then can it store
    replicas of new topics.
    """
    cluster = broker.context.cluster
    if cluster is not None:
        _say(config, f"raftlog broker {config.id} listens on {address}")
        await cluster.joined.wait()
    _say(config, f"raftlog broker {config.id} ready on {address}")


def world(environment: Mapping[str, str], config: BrokerConfig) -> tuple[Disk, Surroundings]:
    """Return the disk and the environment: the real ones, or with the configured failpoints.

    Raises ``InvalidConfigError`` for invalid failpoints.
    """
    from raftlog.server import failpoints
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
    return disk, failpoints.surroundings(points.hit)


def reached_here(listening: Address) -> Address:
    """Return the address at which this process reaches its own socket."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared
    return Address(own.get(listening.host, listening.host), listening.port)


def _say(config: BrokerConfig, line: str) -> None:
    """Write a line to stderr, regardless of the log level, and as JSON if the log is JSON."""
    if config.logging_format == "json":
        record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, line, (), None)
        line = log_lines.formatter(config.logging_format).format(record)
    log_lines.say(line)


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
