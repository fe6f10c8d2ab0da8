"""A watermark of free disk space as text, and what it comes to on a disk."""

from __future__ import annotations

import pytest

from raftlog.config import BrokerConfig
from raftlog.config.address import Watermark, parse_watermark
from raftlog.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("text", "disk_bytes", "free_bytes"),
    [
        ("5%", 1_000, 50),
        ("70", 1_000, 70),
        ("5%,70", 1_000, 50),
        ("70, 5%", 10_000, 70),
        ("0", 1_000, 0),
        ("0%,70", 1_000, 0),
    ],
)
def test_the_smaller_one_counts(text: str, disk_bytes: int, free_bytes: int) -> None:
    watermark = parse_watermark(text)
    assert watermark.free_bytes(disk_bytes) == free_bytes
    assert parse_watermark(str(watermark)) == watermark


@pytest.mark.parametrize(
    "text", ["", "%", "91%", "5%,6%", "1,2", "-1", "1.5%", "1 GiB", "²", "9" * 20, "9" * 19 + "9"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"disk\.watermark\.producers="):
        BrokerConfig.from_text({"disk.watermark.producers": text})


def test_none_is_no_watermark() -> None:
    assert Watermark().free_bytes(1_000) == 0
