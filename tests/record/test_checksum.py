"""The sums against published vectors, and what the chain takes in."""

from __future__ import annotations

import pytest

from raftlog.record import batch


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value of CRC-32C
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
    ],
)
def test_crc32c_is_castagnolis(data: bytes, crc: int) -> None:
    assert batch.crc32c(data) == crc


def test_crc32c_goes_on_from_a_crc() -> None:
    assert batch.crc32c(b"6789", batch.crc32c(b"12345")) == batch.crc32c(b"123456789")


def test_chain_is_xxh3_of_the_value_before_and_the_link() -> None:
    assert batch.chain_link(batch.CHAIN_START, b"") == 0xC77B3ABB6F87ACD9  # XXH3-64 of 8 zeros


def test_chain_depends_on_all_that_precedes() -> None:
    first, other = batch.chain_link(0, b"a"), batch.chain_link(0, b"b")
    assert first != other
    assert batch.chain_link(first, b"c") != batch.chain_link(other, b"c")
    assert batch.chain_link(first, b"c") != batch.chain_link(first, b"d")
