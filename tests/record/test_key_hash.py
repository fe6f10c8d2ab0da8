"""Golden values of Kafka's own tests; ``tests/client/test_settings.py`` has the hash by hand."""

from __future__ import annotations

import pytest

from raftlog.record.key_hash import POSITIVE, partition_of_key


@pytest.mark.parametrize(
    ("key", "digest"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)]
)
def test_keys_land_where_kafka_puts_them(key: bytes, digest: int) -> None:
    for count in (1, 7, 10_000):
        assert partition_of_key(key, count) == (digest & POSITIVE) % count
