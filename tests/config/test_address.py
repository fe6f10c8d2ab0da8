"""host:port: read, written, refused."""

from __future__ import annotations

import pytest

from raftlog.config import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9100", Address("127.0.0.1", 9100)),
        ("logs.example:0", Address("logs.example", 0)),
        ("[::1]:65535", Address("::1", 65_535)),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "HOST:PORT"),
        ("9100", "HOST:PORT"),
        (":9100", "HOST:PORT"),
        ("host:", "port number"),
        ("host:port", "port number"),
        ("host:-1", "port number"),
        ("host:65536", "port number"),
        ("host:٣", "port number"),
        ("::1:9100", "brackets"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("LocalHost", True), ("0.0.0.0", False), ("a", False)],
)
def test_loopback_addresses_are_known(host: str, is_loopback: bool) -> None:
    assert Address(host, 1).is_loopback == is_loopback
