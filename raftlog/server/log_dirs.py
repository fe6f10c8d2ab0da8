"""Log directories besides the data directory: each has its own threads, watch and watermarks.

So a disk that hangs or fills up affects the replicas on it only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from raftlog.config import BrokerConfig
from raftlog.server.disk_space import DiskSpace
from raftlog.server.disk_watch import DiskWatch
from raftlog.server.partition import HostServices
from raftlog.server.workers import Workers
from raftlog.storage.log_dirs import LogDir


class WatchedLogDir:
    """One log directory that is online at the start, and the services of its partitions."""

    def __init__(
        self, log_dir: LogDir, config: BrokerConfig, services: HostServices, workers: Workers
    ) -> None:
        """``workers``: threads for work on this directory only."""
        self.log_dir = log_dir
        self.workers = workers
        self.space = DiskSpace(
            producers=config.disk_watermark_producers,
            replication=config.disk_watermark_replication,
            what=f"the disk of {log_dir.path}",
        )
        self.watch = DiskWatch(
            services.loop,
            sync=workers,
            timeout_s=config.disk_stall_timeout_ms / 1_000,
            directory=log_dir.path,
        )
        self.services = replace(
            services, sync_workers=workers, disk=self.watch, space=self.space, log_dirs={}
        )
        log_dir.is_avoided = self._is_avoided

    def _is_avoided(self) -> bool:
        return self.watch.is_hung or bool(self.space.reason)


class LogDirMonitor:
    """All log directories besides the data directory.

    ``services``: those of the broker, with those of each directory.
    """

    def __init__(
        self,
        log_dirs: Iterable[LogDir],
        config: BrokerConfig,
        services: HostServices,
        workers: Mapping[str, Workers],
    ) -> None:
        """``log_dirs``: also those that failed at the start, which have no ``workers``."""
        self.log_dirs = tuple(log_dirs)
        self.watched = {
            each.id: WatchedLogDir(each, config, services, workers[each.id])
            for each in self.log_dirs
            if each.id in workers
        }
        by_id = {id_: each.services for id_, each in self.watched.items()}
        self.services = replace(services, log_dirs=by_id)

    def start(
        self,
        *,
        on_failed: Callable[[LogDir], None],
        on_hung: Callable[[LogDir], None],
        while_hung: Callable[[], None],
    ) -> None:
        """``on_failed``: called in any thread. ``on_hung``, ``while_hung``: see ``DiskWatch``."""
        for each in self.watched.values():
            each.log_dir.on_failed = on_failed
            each.watch.start(on_logs_hung=partial(on_hung, each.log_dir), while_hung=while_hung)

    def stop(self) -> None:
        for each in self.watched.values():
            each.watch.stop()

    def space(self, log_dir: LogDir) -> DiskSpace:
        watched = self.watched.get(log_dir.id)
        return DiskSpace() if watched is None or log_dir.failure else watched.space

    def is_hung(self, log_dir: LogDir) -> bool:
        watched = self.watched.get(log_dir.id)
        return watched is not None and not log_dir.failure and watched.watch.is_hung

    def problem(self, log_dir: LogDir) -> str:
        """Return why a directory does not work, or refuses growth; "" if neither."""
        if log_dir.failure:
            return log_dir.failure
        if self.is_hung(log_dir):
            return f"log directory {log_dir.path} completes no sync: check its disk (dmesg, SMART)"
        return self.space(log_dir).reason

    @property
    def quarantine_bytes(self) -> int:
        """Return the size of corrupt copies that are kept, in all these directories."""
        return sum(each.space.quarantine_bytes for each in self.watched.values())

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(filter(None, map(self.problem, self.log_dirs)))
