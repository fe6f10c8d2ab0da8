"""The recorded requests of Kafka's clients, of ``requests.json``."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Final, NamedTuple

from raftlog.kafka import api as apis

PATH: Final = Path(__file__).with_suffix(".json")
CONTROL_APIS: Final = frozenset((apis.SASL_HANDSHAKE.key, apis.SASL_AUTHENTICATE.key))


class Recorded(NamedTuple):
    """Requests of one client, as hexadecimal digits, and the ID that its topic had."""

    topic_id: str
    requests: list[str]


def api_and_version(frame: bytes) -> tuple[int, int]:
    key, version = struct.unpack_from(">hh", frame, 4)
    return key, version


def recorded() -> dict[str, Recorded]:
    """The requests of each client."""
    return {name: Recorded(**row) for name, row in json.loads(PATH.read_text()).items()}
