"""Values as the pages show them."""

from __future__ import annotations

import pytest

from raftlog_cli.console import filters


def test_values() -> None:
    for shown, text in [
        (filters.number(1_234_567), "1,234,567"),
        (filters.number(None), filters.NOTHING),
        (filters.number(-1), filters.NOTHING),
        (filters.rate(0.25), "0.2"),
        (filters.rate(0), "0"),
        (filters.rate(1_234.5), "1,234"),
        (filters.rate(None), filters.NOTHING),
        (filters.size(1_023), "1023 B"),
        (filters.size(1_536), "1.5 KiB"),
        (filters.size(5 * 1024**4), "5.0 TiB"),
        (filters.size(5_000 * 1024**5), "5000.0 PiB"),
        (filters.size(-1), filters.NOTHING),
        (filters.time(0), "1970-01-01 00:00:00.000"),
        (filters.time(1_767_312_000_123), "2026-01-02 00:00:00.123"),
        (filters.time(-1), "-1"),
        (filters.time(1 << 62), str(1 << 62)),
        (filters.clock(1_767_312_000_123), "00:00:00 UTC"),
        (filters.duration(None), filters.NOTHING),
        (filters.duration(0.5), "0.5 s"),
        (filters.duration(90), "2 min"),
        (filters.duration(7_200), "2.0 h"),
        (filters.duration(200_000), "2.3 days"),
        (filters.readable("604800000", "retention.ms"), "7 days"),
        (filters.readable("86400000", "delete.retention.ms"), "1 day"),
        (filters.readable("90000000", "segment.ms"), "25 h"),
        (filters.readable("1073741824", "segment.bytes"), "1 GiB"),
        (filters.readable("-1", "retention.bytes"), "no limit"),
        (filters.readable(str(2**63 - 1), "max.compaction.lag.ms"), "no limit"),
        (filters.readable("999", "retention.ms"), ""),
        (filters.readable("5000", "min.insync.replicas"), ""),
        (filters.readable("", "retention.ms"), ""),
    ]:
        assert shown == text


@pytest.mark.parametrize(
    ("value", "largest", "width"), [(0, 9, 0), (1, 10_000, 1), (5, 10, 48), (None, 1, 0), (3, 0, 0)]
)
def test_a_bar_shows_all_that_is_not_nothing(value: int | None, largest: int, width: int) -> None:
    assert filters.bar(value, largest) == width
