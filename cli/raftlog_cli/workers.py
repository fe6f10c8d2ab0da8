"""Several brokers of one host in one command: ``raftlog broker --workers N``.

A broker is one event loop, which uses about one core. The workers are ordinary brokers: the first
has the configuration of the host; the others join its cluster, on the next ports and in their own
data directories below that of the first. All have one rack, the name of the host unless ``rack`` is
set, so that the replicas of a partition are on different hosts where there are enough.

The supervisor starts a worker again that has failed, after a pause. It stops the last one first,
each after its leaders have moved, and the first one at the end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import click

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.config.address import PORT_MAX
from raftlog.errors import InvalidConfigError, RaftlogError
from raftlog.server.main import STATUS_REMOVED

PAUSE_S_MIN: Final = 1.0  # before a worker that has failed is started again
PAUSE_S_MAX: Final = 30.0
SOUND_S: Final = 60.0  # a worker that has run for this time begins with the shortest pause again
DIRECTORY: Final = "workers"  # in the data directory
_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
_PR_SET_PDEATHSIG: Final = 1


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class _Workers(click.IntRange):
    """A number of workers, or ``auto``."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        return cores() if value == "auto" else super().convert(value, param, context)


WORKERS: Final = _Workers(1, limits.WORKERS_PER_HOST_MAX)


def configs_of(config: BrokerConfig, count: int, host: str = "") -> list[BrokerConfig]:
    """Return the settings of each worker. ``host``: name of the host, for the rack.

    Limits of connections and memory are those of the host: each worker has its share. Raises
    ``InvalidConfigError`` if a port is 0 or too high, or there are too many workers.
    """
    if count > limits.WORKERS_PER_HOST_MAX:
        raise InvalidConfigError(
            f"--workers {count} is over WORKERS_PER_HOST_MAX ({limits.WORKERS_PER_HOST_MAX})"
        )
    first = replace(
        config,
        rack=config.rack or host or socket.gethostname(),
        max_connections=max(config.max_connections // count, 1),
        queued_max_request_bytes=max(config.queued_max_request_bytes // count, limits.MIB),
        queued_max_response_bytes=max(config.queued_max_response_bytes // count, limits.MIB),
        log_cleaner_dedupe_buffer_size=max(
            config.log_cleaner_dedupe_buffer_size // count, limits.MIB
        ),
    )
    if not (first.voters or first.join):
        first = replace(first, voters=first.alone().voters)  # a cluster, which others can join
    others = tuple(voter.address for voter in config.voters if voter.id != config.id)
    near = config.advertised_listen or config.listen
    return [first, *(_worker(first, number, (near, *others)) for number in range(1, count))]


def _worker(first: BrokerConfig, number: int, join: tuple[Address, ...]) -> BrokerConfig:
    def of(address: Address | None) -> Address | None:
        if address is None:
            return None
        if not 0 < address.port <= PORT_MAX - number:
            raise InvalidConfigError(
                f"--workers: {address} leaves no port for worker {number + 1}: workers listen on "
                "the port and on the next ones"
            )
        return Address(address.host, address.port + number)

    own = f"{DIRECTORY}/{number + 1}"
    listen = of(first.listen)
    assert listen is not None
    return replace(
        first,
        listen=listen,
        advertised_listen=of(first.advertised_listen),
        kafka_listen=of(first.kafka_listen),
        kafka_advertised_listen=of(first.kafka_advertised_listen),
        http_listen=of(first.http_listen),
        schema_registry_listen=None,  # any broker serves the registry of the cluster
        data_dir=f"{first.data_dir}/{own}",
        log_dirs=tuple(f"{each}/{own}" for each in first.log_dirs),
        voters=(),
        bootstrap_without=(),
        admin_credentials_file="",
        join=(*join, *first.join),
    )


class Supervisor:
    """Runs workers until a signal. ``starts``: each runs a worker in a child, and returns its exit
    status.
    """

    def __init__(self, starts: Sequence[Callable[[], int]], *, say: Callable[[str], None]) -> None:
        self._starts = starts
        self._say = say
        self._pids: dict[int, int] = {}  # worker by process
        self._began = [0.0] * len(starts)
        self._pauses = [PAUSE_S_MIN] * len(starts)
        self._due: dict[int, float] = {}  # when a worker is started again

    def run(self) -> int:
        """Return the exit status of the first worker."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the kernel keeps no status
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number in range(len(self._starts)):
            self._start(number)
        while True:
            wait_s = min(self._due.values(), default=time.monotonic() + 60) - time.monotonic()
            found = signal.sigtimedwait(_SIGNALS, max(wait_s, 0.0))
            if found is not None and found.si_signo != signal.SIGCHLD:
                return self._stop()
            for number, status in self._ended():
                if number == 0 and (status == STATUS_REMOVED or self._is_early(0)):
                    self._stop()
                    return status
                if status == STATUS_REMOVED:
                    self._say(f"raftlog worker {number + 1} was decommissioned")
                else:
                    self._plan(number, f"raftlog worker {number + 1} ended with status {status}")
            for number, at in list(self._due.items()):
                if at <= time.monotonic():
                    del self._due[number]
                    self._start(number)

    def _start(self, number: int) -> None:
        self._began[number] = time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:  # for lack of memory or processes
            self._plan(number, f"cannot start raftlog worker {number + 1}: {error}")
            return
        if pid:
            self._pids[pid] = number
            return
        status = 1
        try:
            _end_with_parent()
            # Not SIGINT: Ctrl-C signals the whole process group, and the SIGTERM of the supervisor
            # would be a second signal, at which a broker exits at once.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - {signal.SIGINT})
            status = self._starts[number]()
        except RaftlogError as error:
            self._say(f"raftlog worker {number + 1}: {error}")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _ended(self) -> list[tuple[int, int]]:
        """Return the workers that have ended, and their exit statuses."""
        ended = []
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid in self._pids:  # else it is a child of the shell that this process replaced
                    ended.append((self._pids.pop(pid), os.waitstatus_to_exitcode(status)))
        return ended

    def _is_early(self, number: int) -> bool:
        return time.monotonic() - self._began[number] < PAUSE_S_MIN

    def _plan(self, number: int, why: str) -> None:
        """Start a worker that has failed again, after a pause."""
        if time.monotonic() - self._began[number] > SOUND_S:
            self._pauses[number] = PAUSE_S_MIN
        pause_s = self._pauses[number]
        self._pauses[number] = min(2 * pause_s, PAUSE_S_MAX)
        self._due[number] = time.monotonic() + pause_s
        self._say(f"{why}; it is started again in {pause_s:g} s")

    def _stop(self) -> int:
        """Stop the workers, the last one first. A second signal ends all of them at once."""
        first = 0
        for pid, number in sorted(self._pids.items(), key=lambda each: -each[1]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            status = self._wait(pid)
            if number == 0:
                first = status
        return first

    def _wait(self, pid: int) -> int:
        while True:
            with suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del self._pids[pid]
                    return os.waitstatus_to_exitcode(status)
            found = signal.sigtimedwait(_SIGNALS, 1.0)
            if found is not None and found.si_signo != signal.SIGCHLD:
                for other in self._pids:
                    with suppress(ProcessLookupError):
                        os.kill(other, signal.SIGTERM)


def _end_with_parent() -> None:
    """Stop the worker when the supervisor ends without stopping it, as after kill -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
