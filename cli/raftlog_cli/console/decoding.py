"""Bytes of records as text: JSON, MessagePack, Avro, text or hexadecimal. Bounded."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import msgspec

from raftlog import limits
from raftlog_cli.console.avro import Decoder, NotAvroError

AUTOMATIC: Final = "auto"
FORMATS: Final = (AUTOMATIC, "text", "json", "msgpack", "avro", "hex")
HEX_BYTES_MAX: Final = 2_048  # bytes of a hexadecimal dump
PREVIEW_CHARS: Final = 160

# Control characters, and characters that change the text direction.
# Lone surrogates too: no page can be encoded with them.
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# An escaped surrogate. A lone one is valid JSON (RFC 8259, 8.2), and msgspec rejects it.
_SURROGATE: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u([dD][89a-fA-F][0-9a-fA-F]{2})")
_MARKS: Final = [chr(code).encode() for code in range(0xE000, 0xE100)]  # private use
# What decoders raise for bytes that are in another format, or damaged.
_FAILURES: Final = (
    ValueError,
    RecursionError,
    OverflowError,
    ArithmeticError,
    msgspec.MsgspecError,
    msgpack.UnpackException,
)
# First bytes of MessagePack maps and arrays, which are invalid first bytes of UTF-8 text.
_MSGPACK_FIRST: Final = frozenset((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))


@dataclass(frozen=True, slots=True)
class Shown:
    """Decoded bytes. ``kind``: "null", "empty", or one of ``FORMATS``. ``is_cut``: truncated text.

    ``problem``: why the bytes are not in the requested format; "" if they are.
    """

    kind: str
    text: str
    size: int
    is_cut: bool = False
    problem: str = ""


def preview(text: str) -> str:
    """Return the first characters of a text on one line."""
    return " ".join(text[: 4 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]


def decode(
    data: bytes | None,
    wanted: str = AUTOMATIC,
    avro: Decoder | None = None,
    part: str = "value",
) -> Shown:
    """Return ``data`` as text. ``wanted``: one of ``FORMATS``.

    ``avro``: decoder of Avro; None: Avro is shown like other bytes. ``part``: "key" or "value".
    Decodes at most ``CONSOLE_VALUE_BYTES_MAX`` bytes. Bytes that are not in the format are returned
    as text if possible, otherwise in hexadecimal, with the problem.
    """
    if data is None:
        return Shown("null", "", 0)
    if not data:
        return Shown("empty", "", 0)
    size = len(data)
    if wanted == "hex":
        return _hex(data, "")
    is_cut = size > limits.CONSOLE_VALUE_BYTES_MAX
    problem = ""
    # With a schema of the operator for these bytes, "auto" is Avro.
    is_avro = avro is not None and wanted == AUTOMATIC and avro.recognizes(data, part)
    if avro is not None and (wanted == "avro" or is_avro):
        try:
            return Shown("avro", clean(_json_text(avro.decode(data, part))), size)
        except (NotAvroError, *_FAILURES) as error:
            problem = str(error)[:200] or type(error).__name__
    for kind, parse in (("json", _json), ("msgpack", _msgpack)):
        if wanted == kind or (wanted == AUTOMATIC and _may_be(kind, data)):
            if is_cut:
                problem = problem or f"too long to decode: {size:,} bytes"
                continue
            try:
                return Shown(kind, clean(parse(data)), size)
            except _FAILURES as error:
                if wanted == kind:
                    problem = f"not {kind}: {str(error)[:200] or type(error).__name__}"
    problem = problem if wanted != AUTOMATIC or is_avro else ""
    try:
        head = data[: limits.CONSOLE_VALUE_BYTES_MAX]
        text = head.decode() if not is_cut else _whole_characters(head)
    except UnicodeDecodeError as error:
        return _hex(data, problem or (f"not text: {error.reason}" if wanted == "text" else ""))
    return Shown("text", clean(text), size, is_cut, problem)


def clean(text: str) -> str:
    """Return ``text`` with control characters replaced."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _may_be(kind: str, data: bytes) -> bool:
    if kind == "json":
        return data.lstrip()[:1] in {b"{", b"["}
    return data[0] in _MSGPACK_FIRST


def _json(data: bytes) -> str:
    """Return the stored text with other white space: parsing it would round numbers, and drop
    names that occur twice.
    """
    mark = next((mark for mark in _MARKS if mark not in data), b"")
    hidden = _SURROGATE.sub(rb"\1" + mark + rb"\2", data) if mark else data
    text = msgspec.json.format(hidden, indent=2)
    return (text.replace(mark, b"\\u") if mark else text).decode()[: limits.CONSOLE_TEXT_MAX]


def _msgpack(data: bytes) -> str:
    return _json_text(_plain(msgpack.unpackb(data, strict_map_key=False, timestamp=0)))


def _json_text(value: Any) -> str:
    """Return JSON. Stops at the limit: the names of an Avro schema are repeated for each record."""
    parts, left = [], limits.CONSOLE_TEXT_MAX
    for part in json.JSONEncoder(ensure_ascii=False, indent=2, default=str).iterencode(value):
        parts.append(part[:left])
        left -= len(part)
        if left <= 0:
            break
    return "".join(parts)


def _plain(value: Any) -> Any:
    """Convert a MessagePack value to JSON. Bytes become hexadecimal, keys become strings."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(_plain(key)): _plain(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.hex() if isinstance(value, bytes) else value


def _whole_characters(head: bytes) -> str:
    """Decode bytes that may end inside a character."""
    for missing in range(4):
        try:
            return head[: len(head) - missing].decode()
        except UnicodeDecodeError as error:
            if error.start < len(head) - 4:
                raise
    return head.decode()


def _hex(data: bytes, problem: str) -> Shown:
    """Return lines with the offset, and 16 bytes in hexadecimal and as ASCII."""
    lines = []
    for start in range(0, min(len(data), HEX_BYTES_MAX), 16):
        row = data[start : start + 16]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {ascii_}")
    return Shown("hex", "\n".join(lines), len(data), len(data) > HEX_BYTES_MAX, problem)
