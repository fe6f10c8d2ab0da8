"""Checks of one field of a message, for the tests of each request family."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftlog.errors import InvalidRequestError
from raftlog.protocol import schema
from raftlog.protocol.schema import Message


def accepted(message_type: type[Message], fields: dict[str, Any]) -> Message:
    return schema.decode(msgspec.msgpack.encode(fields), message_type)


def refused(message_type: type[Message], fields: dict[str, Any], *, path: str) -> None:
    """``fields`` do not decode, and the error says that it is for ``path``."""
    with pytest.raises(InvalidRequestError) as caught:
        accepted(message_type, fields)
    assert path in str(caught.value)
