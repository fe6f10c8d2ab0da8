"""docs/reference/protocol.md says what the code does."""

from __future__ import annotations

import re

from raftlog import limits
from raftlog.config import BROKER_KEYS
from tests.protocol import page

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
