"""A watermark of free disk space: a part of the disk, a number of bytes, or the smaller of both."""

from __future__ import annotations

from typing import Final, NamedTuple

from raftlog.config.keys import INT64_MAX

PERCENT_MAX: Final = 90


class Watermark(NamedTuple):
    """``percent`` of the disk and ``size_bytes``; None: only the other one applies."""

    percent: int | None = None
    size_bytes: int | None = None

    def free_bytes(self, disk_bytes: int) -> int:
        """Return the free bytes that a disk of ``disk_bytes`` must have; 0 for no watermark."""
        limits = [] if self.percent is None else [disk_bytes * self.percent // 100]
        limits += [] if self.size_bytes is None else [self.size_bytes]
        return min(limits, default=0)

    def __str__(self) -> str:
        parts = [] if self.percent is None else [f"{self.percent}%"]
        parts += [] if self.size_bytes is None else [str(self.size_bytes)]
        return ",".join(parts)


def parse_watermark(text: str) -> Watermark:
    """Parse ``5%``, ``1073741824``, or both with a comma. Raises ``ValueError``."""
    percent, size_bytes = None, None
    for part in (part.strip() for part in text.split(",")):
        number = part.removesuffix("%")
        if not (number.isascii() and number.isdigit() and len(number) <= 19):
            raise ValueError(f"{part!r} is not a percentage or a number of bytes")
        if part != number:
            if percent is not None or int(number) > PERCENT_MAX:
                raise ValueError(f"more than one percentage, or more than {PERCENT_MAX}%")
            percent = int(number)
        else:
            if size_bytes is not None or int(number) > INT64_MAX:
                raise ValueError("more than one number of bytes, or a number above 2^63-1")
            size_bytes = int(number)
    return Watermark(percent, size_bytes)
