r"""How ``raftlog tail`` writes a record: the FMT grammar, and JSON for ``produce --jsonl``. Pure.

    %t topic    %p partition        %o offset   %e leader epoch
    %k key      %v value            %h headers  %T timestamp (ms)
    %% percent  \n newline          \t tab      \r carriage return
    \0 zero     \\ backslash        \xHH a byte

A newline follows each record unless FMT ends in one, or in ``\c``. Keys and values are written as
they are, byte for byte; what is null is written as nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from raftlog.types import ConsumerRecord, Headers

Formatter: TypeAlias = Callable[[ConsumerRecord], bytes]

DEFAULT_FORMAT: Final = "%v"

_TOKEN: Final = re.compile(r"%.|\\x[0-9a-fA-F]{2}|\\.|[%\\]$|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _headers(headers: Headers) -> bytes:
    return b",".join(key.encode() + b"=" + (value or b"") for key, value in headers)


_FIELDS: Final[dict[str, Formatter]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": lambda record: _headers(record.headers),
    "e": lambda record: b"%d" % record.leader_epoch,
}


def _literal(data: bytes) -> Formatter:
    return lambda _record: data


def compile_format(text: str) -> Formatter:
    """A function that writes one record; ``ValueError`` names what is not in the grammar."""
    ends_bare = text.endswith("\\c") and not text.endswith("\\\\c")
    tokens = _TOKEN.findall(text.removesuffix("\\c") if ends_bare else text)
    parts = [_part(token) for token in tokens]
    if not ends_bare and (not tokens or tokens[-1] != "\\n") and not text.endswith("\n"):
        parts.append(_literal(b"\n"))
    return lambda record: b"".join([part(record) for part in parts])


def _part(token: str) -> Formatter:
    if token[0] not in "%\\":
        return _literal(token.encode())
    if token == "%%":
        return _literal(b"%")
    if token[0] == "%" and token[1:] in _FIELDS:
        return _FIELDS[token[1:]]
    if token.startswith("\\x"):
        return _literal(bytes.fromhex(token[2:])) if len(token) == 4 else _refuse(token)
    if token[0] == "\\" and token[1:] in _ESCAPES:
        return _literal(_ESCAPES[token[1:]])
    return _refuse(token)


def _refuse(token: str) -> Formatter:
    raise ValueError(
        f"{token!r} is not in the format's grammar: "
        r"%t %p %o %k %v %T %h %e %% \n \t \r \0 \\ \xHH"
    )


def format_values(record: ConsumerRecord) -> bytes:
    """What ``compile_format("%v")`` gives, without the detours: most tails are this one."""
    return (record.value or b"") + b"\n"


# -- JSON
# -----------------------------------------------------------------------------------------------


def bytes_to_json(data: bytes | None) -> Any:
    """UTF-8 text as a string, other bytes as ``{"base64": ...}``, null as null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_from_json(value: Any) -> bytes | None:
    """The inverse of ``bytes_to_json``; raises ``ValueError`` with the reason."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError('write text as a string, other bytes as {"base64": "..."}, nothing as null')


def format_json(record: ConsumerRecord) -> bytes:
    """One JSON object and a newline."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
        "headers": [[key, bytes_to_json(value)] for key, value in record.headers],
        "timestamp_ms": record.timestamp_ms,
        "leader_epoch": record.leader_epoch,
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
