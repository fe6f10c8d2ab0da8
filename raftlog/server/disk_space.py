"""Watermarks of free disk space, so that a broker refuses growth before its disk is full. Pure.

Below the first watermark, producers are refused, and replication continues: a leader with a fuller
disk than its followers transfers its leadership. Below the second one, followers copy nothing
either. Internal topics and the consensus journal are small, and a full cluster must still commit
offsets and elect leaders: they can use the rest. A level is left with hysteresis, so that retention
does not end and begin it with every segment. The idea is that of Elasticsearch's
``cluster.routing.allocation.disk.watermark`` (low, high and flood stage).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from raftlog.config.watermark import Watermark
from raftlog.errors import DiskFullError
from raftlog.types import TopicPartition, is_internal_topic

CHECK_SECONDS: Final = 1.0  # between two measurements of the free space
QUARANTINE_SECONDS: Final = 60.0  # between two measurements of the copies in quarantine
# A level is left at a multiple of its watermark, in percent.
RELEASE_PERCENT: Final = 120
NO_WATERMARK: Final = Watermark()
ADVICE: Final = (
    "Free disk space: lower retention.ms or retention.bytes, delete records or topics, or add "
    "brokers. `raftlog explain disk` shows what uses the space"
)


class SpaceLevel(IntEnum):
    """Restriction by the free space. A higher one includes the lower ones."""

    NORMAL = 0
    NO_PRODUCERS = 1
    READ_ONLY = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class DiskSpace:
    """The last measurement, and the level that follows. Bytes are -1 before the first one."""

    def __init__(
        self,
        *,
        producers: Watermark = NO_WATERMARK,
        replication: Watermark = NO_WATERMARK,
        what: str = "the disk",
    ) -> None:
        """``what``: the disk, in the reason."""
        self._what = what
        self.free_bytes = -1
        self.size_bytes = -1
        self.quarantine_bytes = 0  # of corrupt copies that are kept; measured less often
        self.level = SpaceLevel.NORMAL
        # The highest level first.
        self._watermarks = (
            (SpaceLevel.READ_ONLY, "disk.watermark.replication", replication),
            (SpaceLevel.NO_PRODUCERS, "disk.watermark.producers", producers),
        )

    def measured(self, *, free_bytes: int, size_bytes: int) -> bool:
        """Record a measurement. Returns whether the level changed."""
        self.free_bytes, self.size_bytes = free_bytes, size_bytes
        before, self.level = self.level, self._next_level()
        return self.level is not before

    def _next_level(self) -> SpaceLevel:
        for level, _name, watermark in self._watermarks:
            needed = self._needed(watermark, is_active=self.level >= level)
            if self.free_bytes < needed:
                return level
        return SpaceLevel.NORMAL

    def _needed(self, watermark: Watermark, *, is_active: bool) -> int:
        """Return the free bytes from which a level does not apply."""
        needed = watermark.free_bytes(self.size_bytes)
        return needed * RELEASE_PERCENT // 100 if is_active else needed

    def check_producer(self, where: TopicPartition) -> None:
        """Raise ``DiskFullError`` if producers may not append to this partition now."""
        self._check(SpaceLevel.NO_PRODUCERS, where)

    def check_replication(self, where: TopicPartition) -> None:
        """Raise ``DiskFullError`` if followers may not append to this partition now."""
        self._check(SpaceLevel.READ_ONLY, where)

    def _check(self, level: SpaceLevel, where: TopicPartition) -> None:
        if self.level >= level and not is_internal_topic(where.topic):
            raise DiskFullError(f"{where}: {self.reason}. {ADVICE}")

    @property
    def reason(self) -> str:
        """Why growth is refused, with the numbers; "" at the normal level."""
        for level, name, watermark in self._watermarks:
            if self.level is level:
                what = (
                    "writes are refused, and followers on this broker copy nothing"
                    if level is SpaceLevel.READ_ONLY
                    else "producers are refused"
                )
                end = self._needed(watermark, is_active=True)
                return (
                    f"{what}: {self.free_bytes:,} of {self.size_bytes:,} bytes of {self._what} are "
                    f"free, which is below {name}={watermark}, until {end:,} bytes are free"
                )
        return ""
