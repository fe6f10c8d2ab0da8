"""A table of settings: text in, typed values out, and errors that name the setting."""

from __future__ import annotations

import pytest

from raftlog.config.keys import HIDDEN, INT64_MAX, ConfigKey, hidden, number, parse, word
from raftlog.errors import InvalidConfigError

KEYS = (
    number("size.bytes", 10, 1, 100, "bytes", "A size."),
    number("age.ms", 5, -1, INT64_MAX, "ms", "An age."),
    word("kind", "a", ("a", "b"), "A kind."),
)


def test_values_are_typed_and_named_as_fields() -> None:
    values = parse(KEYS, {"size.bytes": "7", "kind": "b"}, what="test")
    assert values == {"size_bytes": 7, "kind": "b"}


def refuse(text: str) -> str:
    raise ValueError("it is refused")


def test_a_secret_is_in_no_message() -> None:
    keys = (ConfigKey("secret", "", refuse, "text", "A secret.", show=hidden), KEYS[0])
    assert [key.is_secret for key in keys] == [True, False]
    with pytest.raises(InvalidConfigError) as caught:
        parse(keys, {"secret": "sesame"}, what="test")
    assert str(caught.value) == "secret=(hidden) is refused (it is refused). Accepted: text"


def test_a_dump_shows_that_there_is_a_secret() -> None:
    assert hidden("sesame") == HIDDEN
    assert hidden("") == ""


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("size", "1", "'size' is not a test setting. Settings: age.ms, kind, size.bytes"),
        ("size.bytes", "0", "size.bytes=0 .* 1 to 100"),
        ("size.bytes", "many", r"\(not a whole number\). Accepted: bytes, 1 to 100"),
        ("size.bytes", "1e3", "1 to 100"),
        ("age.ms", "-2", r"2\^63-1"),
        ("kind", "c", "a or b"),
    ],
)
def test_errors_name_the_setting_and_what_it_takes(name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        parse(KEYS, {name: text}, what="test")
