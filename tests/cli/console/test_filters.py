"""Values as the pages show them."""

from __future__ import annotations

import pytest

from raftlog_cli.console import pages


def test_values() -> None:
    for shown, text in [
        (pages.number(1_234_567), "1,234,567"),
        (pages.number(None), pages.NOTHING),
        (pages.number(-1), pages.NOTHING),
        (pages.rate(0.25), "0.2"),
        (pages.rate(0), "0"),
        (pages.rate(1_234.5), "1,234"),
        (pages.rate(None), pages.NOTHING),
        (pages.size(1_023), "1023 B"),
        (pages.size(1_536), "1.5 KiB"),
        (pages.size(5 * 1024**4), "5.0 TiB"),
        (pages.size(5_000 * 1024**5), "5000.0 PiB"),
        (pages.size(-1), pages.NOTHING),
        (pages.time(0), "1970-01-01 00:00:00.000"),
        (pages.time(1_767_312_000_123), "2026-01-02 00:00:00.123"),
        (pages.time(-1), "-1"),
        (pages.time(1 << 62), str(1 << 62)),
        (pages.clock(1_767_312_000_123), "00:00:00 UTC"),
        (pages.duration(None), pages.NOTHING),
        (pages.duration(0.5), "0.5 s"),
        (pages.duration(90), "2 min"),
        (pages.duration(7_200), "2.0 h"),
        (pages.duration(200_000), "2.3 days"),
        (pages.readable("604800000", "retention.ms"), "7 days"),
        (pages.readable("86400000", "delete.retention.ms"), "1 day"),
        (pages.readable("90000000", "segment.ms"), "25 h"),
        (pages.readable("1073741824", "segment.bytes"), "1 GiB"),
        (pages.readable("-1", "retention.bytes"), "no limit"),
        (pages.readable(str(2**63 - 1), "max.compaction.lag.ms"), "no limit"),
        (pages.readable("999", "retention.ms"), "999 ms"),
        (pages.readable("0", "retention.bytes"), "0 bytes"),
        (pages.readable("90000", "retention.ms"), "90 s"),
        (pages.readable("1048588", "max.message.bytes"), "1 MiB"),
        (pages.brief("604800000", "retention.ms"), "7d"),
        (pages.brief("90000000", "segment.ms"), "25h"),
        (pages.brief("999", "segment.ms"), "999ms"),
        (pages.brief("1048588", "max.message.bytes"), "1048588B"),
        (pages.brief("1073741824", "segment.bytes"), "1GiB"),
        (pages.brief(str(2**63 - 1), "max.compaction.lag.ms"), str(2**63 - 1)),
        (pages.brief("-1", "retention.ms"), "-1"),
        (pages.brief("5000", "min.insync.replicas"), "5000"),
        (pages.exact("604800000", "retention.ms"), "604,800,000 ms"),
        (pages.exact("-1", "retention.bytes"), "-1 bytes"),
        (pages.exact("delete", "cleanup.policy"), "delete"),
        (pages.readable("5000", "min.insync.replicas"), ""),
        (pages.readable("", "retention.ms"), ""),
    ]:
        assert shown == text


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("7d", "retention.ms", "604800000"),
        ("1.5 h", "segment.ms", "5400000"),
        ("30MIN", "segment.ms", "1800000"),
        ("1gib", "segment.bytes", "1073741824"),
        ("2.5MiB", "max.message.bytes", "2621440"),
        ("604800000", "retention.ms", "604800000"),
        ("-1", "retention.ms", "-1"),
        ("1GiB", "retention.ms", "1GiB"),
        ("0.5ms", "retention.ms", "0.5ms"),
        ("7d", "min.insync.replicas", "7d"),
        ("9" * 99 + "d", "retention.ms", "9" * 99 + "d"),
        ("compact", "cleanup.policy", "compact"),
    ],
)
def test_forms_accept_units(text: str, setting: str, value: str) -> None:
    assert pages.in_units(text, setting) == value


@pytest.mark.parametrize(
    ("value", "largest", "width"), [(0, 9, 0), (1, 10_000, 1), (5, 10, 48), (None, 1, 0), (3, 0, 0)]
)
def test_a_bar_shows_all_that_is_not_nothing(value: int | None, largest: int, width: int) -> None:
    assert pages.bar(value, largest) == width
