"""host:port: read, written, refused."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.config import Address, BrokerConfig, parse_address
from raftlog.config.address import Watermark, apply_rules, parse_principal_rules, parse_watermark
from raftlog.errors import InvalidConfigError


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


# -- principal rules -------------------------------------------------------------------------------
#
# Rules for names of certificates: which texts are rules.


@pytest.mark.parametrize(
    "text",
    ["", "DEFAULT", "RULE:a/b/", "RULE:a/b/L,DEFAULT", r"RULE:a\/b/c\/d/U,RULE:^x{1,2}$/$0/"],
)
def test_a_text_is_kept(text: str) -> None:
    config = BrokerConfig.from_text({"ssl.principal.mapping.rules": text})
    assert config.to_text()["ssl.principal.mapping.rules"] == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "default",
            "RULE:a/b",
            "RULE:a",
            "RULE:(/b/",
            "RULE:a/$1/",
            "RULE:a/b/X",
            "DEFAULT DEFAULT",
        ),
        "RULE:a/" + "b" * limits.PRINCIPAL_RULES_CHARS_MAX + "/",
    ],
)
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules"):
        BrokerConfig.from_text({"ssl.principal.mapping.rules": text})


def test_slashes_and_dollars_are_escaped() -> None:
    rules = parse_principal_rules(r"RULE:CN=a\/(b)/x\/$1\$1/")
    assert apply_rules(rules, "CN=a/b") == "x/b$1"


# -- watermark -------------------------------------------------------------------------------------
#
# A watermark of free disk space as text, and what it comes to on a disk.


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
