"""The protocol's golden bytes: ``protocol.json`` holds messages as text and the frames they make.

Bytes inside a message are base64 there.

A frame that changes is a wire format that changes: old clients and brokers will not understand it.
After adding a message, or on purpose, write the frames anew with
``python -m tests.golden.make_protocol``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.structs

from raftlog import errors
from raftlog.protocol import connection
from raftlog.protocol.api import APIS, Api
from raftlog.protocol.schema import Message
from raftlog.types import Buffer

PATH: Final = Path(__file__).with_name("protocol.json")
CORRELATION_ID: Final = 0x01020304


def load() -> dict[str, Any]:
    golden: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return golden


def api_named(name: str) -> Api:
    return next(api for api in APIS.values() if api.name == name)


def request_of(entry: dict[str, Any]) -> Message:
    return msgspec.convert(entry["request"], api_named(entry["api"]).request)


def response_of(entry: dict[str, Any]) -> Message:
    return msgspec.convert(entry["response"], api_named(entry["api"]).response)


def request_frame(entry: dict[str, Any]) -> bytes:
    return b"".join(
        connection.encode_request(
            api_named(entry["api"]).number,
            version=entry["version"],
            correlation_id=CORRELATION_ID,
            message=request_of(entry),
            attachment=_attachment(entry, "request_attachment"),
        )
    )


def response_frame(entry: dict[str, Any]) -> bytes:
    return b"".join(
        connection.encode_response(
            version=entry["version"],
            correlation_id=CORRELATION_ID,
            message=response_of(entry),
            attachment=_attachment(entry, "response_attachment"),
        )
    )


def failure_frame(entry: dict[str, Any]) -> bytes:
    error = errors.from_code(entry["code"], entry["message"])
    return b"".join(
        connection.encode_failure(version=0, correlation_id=CORRELATION_ID, error=error)
    )


def farewell_bytes(entry: dict[str, Any]) -> bytes:
    return connection.farewell(errors.FrameError(entry["message"]), entry["first_bytes"].encode())


def hex_lines(data: bytes) -> list[str]:
    """Hex, 32 bytes a line, so that a change shows as the lines that it touches."""
    return [data[position : position + 32].hex() for position in range(0, len(data), 32)]


def fields() -> dict[str, dict[str, Any]]:
    """Every message class, with its fields and their defaults.

    A field that has its default is left out on the wire, so a default that changes is a wire format
    that changes too.
    """
    return {
        message_type.__name__: {
            field.encode_name: _default(field) for field in msgspec.structs.fields(message_type)
        }
        for message_type in sorted(Message.__subclasses__(), key=lambda one: one.__name__)
        if message_type.__module__.startswith("raftlog.protocol.")
    }


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return {"default": field.default}
    if field.default_factory is not msgspec.NODEFAULT:
        return {"default": field.default_factory()}
    return "required"


def made(golden: dict[str, Any]) -> dict[str, Any]:
    """``golden`` with every frame made anew from its message."""
    return {
        "fields": fields(),
        "apis": [
            {**entry, "request_frame": hex_lines(request_frame(entry)), **_response(entry)}
            for entry in golden["apis"]
        ],
        "failures": [
            {**entry, "frame": hex_lines(failure_frame(entry))} for entry in golden["failures"]
        ],
        "farewells": [
            {**entry, "bytes": hex_lines(farewell_bytes(entry))} for entry in golden["farewells"]
        ],
    }


def _response(entry: dict[str, Any]) -> dict[str, Any]:
    """The response's frame; nothing for an API that is one way."""
    if api_named(entry["api"]).one_way:
        return {}
    return {"response_frame": hex_lines(response_frame(entry))}


def _attachment(entry: dict[str, Any], name: str) -> list[Buffer]:
    return [bytes.fromhex(part) for part in entry.get(name, [])]


def text(golden: dict[str, Any]) -> str:
    return json.dumps(golden, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(made(load())), encoding="utf-8")
