"""The wire format as it was written down: bytes that must never change unnoticed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raftlog import limits
from raftlog.config import BROKER_KEYS
from raftlog.protocol import schema
from raftlog.protocol.api import APIS
from raftlog.protocol.connection import STATUS_OK, Frame, FrameReader
from tests.golden import make_protocol
from tests.protocol import page
from tests.protocol.link import deliver

GOLDEN = make_protocol.load()
CHANGED = (
    "the wire format changed: see the compatibility rules in docs/reference/protocol.md; when it "
    "is meant to, run `python -m tests.golden.make_protocol` and read what it changes"
)
ENTRIES = pytest.mark.parametrize("entry", GOLDEN["apis"], ids=lambda entry: entry["api"])
ANSWERED = pytest.mark.parametrize(
    "entry",
    [entry for entry in GOLDEN["apis"] if not make_protocol.api_named(entry["api"]).one_way],
    ids=lambda entry: entry["api"],
)


def test_every_api_has_its_golden_bytes() -> None:
    """In the table's order; behind them more of some, with fields that were added later."""
    names = [entry["api"] for entry in GOLDEN["apis"]]
    assert list(dict.fromkeys(names)) == [api.name for api in APIS.values()]


def test_messages_make_the_golden_bytes() -> None:
    assert make_protocol.made(GOLDEN) == GOLDEN, CHANGED


def test_the_file_is_as_the_script_writes_it() -> None:
    assert make_protocol.PATH.read_text(encoding="utf-8") == make_protocol.text(GOLDEN)


def parse(lines: list[str]) -> Frame:
    (frame,) = deliver(bytes.fromhex("".join(lines)), FrameReader())
    assert isinstance(frame, Frame)
    assert frame.correlation_id == make_protocol.CORRELATION_ID
    return frame


@ENTRIES
def test_golden_requests_are_read_as_what_they_say(entry: dict[str, Any]) -> None:
    api = make_protocol.api_named(entry["api"])
    frame = parse(entry["request_frame"])
    assert (frame.api_or_status, frame.version) == (api.number, entry["version"])
    assert schema.decode(frame.header, api.request) == make_protocol.request_of(entry)
    assert frame.attachment.hex() == "".join(entry.get("request_attachment", []))


@ANSWERED
def test_golden_responses_are_read_as_what_they_say(entry: dict[str, Any]) -> None:
    api = make_protocol.api_named(entry["api"])
    frame = parse(entry["response_frame"])
    assert (frame.api_or_status, frame.version) == (STATUS_OK, entry["version"])
    assert schema.decode(frame.header, api.response) == make_protocol.response_of(entry)
    assert frame.attachment.hex() == "".join(entry.get("response_attachment", []))


# -- page ------------------------------------------------------------------------------------------
#
# docs/reference/protocol.md says what the code does.


TEXT = page.PATH.read_text(encoding="utf-8")


def test_generated_parts_are_up_to_date() -> None:
    assert page.written(TEXT) == TEXT, "run `python -m tests.protocol.page`"


def test_the_drawing_is_the_one_beside_the_struct() -> None:
    drawn = re.findall(r"^ (?:0  |\| ).*$", TEXT, flags=re.MULTILINE)
    source = (page.PATH.parents[2] / "raftlog/protocol/connection.py").read_text(encoding="utf-8")
    assert len(drawn) == 4
    assert all(f"#  {line}\n" in source for line in drawn)


def test_names_of_limits_and_settings_exist() -> None:
    names = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", TEXT))
    assert names
    assert [name for name in names if not hasattr(limits, name)] == []
    settings = set(re.findall(r"`([a-z]+\.[a-z.]+\.bytes)`", TEXT))
    assert settings == {"socket.request.max.bytes", "queued.max.request.bytes"}
    assert settings <= {key.name for key in BROKER_KEYS}
