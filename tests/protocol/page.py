"""Writes the tables of docs/reference/protocol.md: ``python -m tests.protocol.page``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from raftlog import errors
from raftlog.errors import (
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    RetriableError,
    StorageError,
)
from raftlog.protocol.api import APIS
from raftlog.protocol.connection import FIXED_BYTES, FRAME
from tests.golden import make_protocol

PATH: Final = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
BYTES_PER_LINE: Final = 16

WHAT_TO_DO: Final[dict[type[RaftlogError], str]] = {
    RetriableError: "nothing was done: back off, send it again",
    OutcomeUnknownError: "send it again only if that does no harm",
    RefusedError: "change the request",
    StorageError: "tell the broker's operator",
}


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def api_table() -> str:
    rows = [
        (
            str(api.number),
            f"`{api.name}`",
            f"{api.version_min} to {api.version_max}",
            f"`{api.request.__name__}`",
            "none" if api.one_way else f"`{api.response.__name__}`",
            "yes" if api.idempotent else "",
            "yes" if api.peer_only else "",
        )
        for api in APIS.values()
    ]
    columns = ("number", "name", "versions", "request", "response", "may repeat", "peers only")
    return table(columns, rows)


def error_table() -> str:
    rows = [
        (str(code), f"`{error.__name__}`", what_to_do(error))
        for code, error in sorted(errors.ERRORS_BY_CODE.items())
        if error is not RaftlogError
    ]
    return table(("code", "error", "what a client may do"), rows)


def what_to_do(error: type[RaftlogError]) -> str:
    return next(text for base, text in WHAT_TO_DO.items() if issubclass(error, base))


def example() -> str:
    entry = next(one for one in make_protocol.load()["apis"] if one["api"] == "produce")
    data = make_protocol.request_frame(entry)
    length, _, api, version, flags, correlation_id, header_length = FRAME.unpack_from(data)
    fields = [
        (4, "length", f"{length} bytes follow"),
        (2, "magic", '"RL"'),
        (2, "api", f"{api}, {APIS[api].name}"),
        (2, "version", str(version)),
        (2, "flags", str(flags)),
        (4, "correlation_id", f"{correlation_id:#010x}"),
        (4, "header_length", str(header_length)),
    ]
    lines = []
    position = 0
    for size, name, meaning in fields:
        lines.append(
            f"{position:04x}  {data[position : position + size].hex(' '):<12} {name:<15} {meaning}"
        )
        position += size
    assert position == FIXED_BYTES
    lines += ["", "header", *dump(data, position, position + header_length)]
    lines += ["", "attachment", *dump(data, position + header_length, len(data))]
    message = json.dumps(entry["request"])
    return (
        "```text\n" + "\n".join(lines) + "\n```\n\nThe header is\n\n```json\n" + message + "\n```\n"
    )


def dump(data: bytes, start: int, end: int) -> list[str]:
    """Lines as ``hexdump -C`` writes them."""
    lines = []
    for position in range(start, end, BYTES_PER_LINE):
        part = data[position : min(position + BYTES_PER_LINE, end)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{position:04x}  {part.hex(' '):<47}  |{text}|")
    return lines


def written(page: str) -> str:
    """``page`` with its generated parts made anew."""
    for name, text in (("apis", api_table()), ("errors", error_table()), ("example", example())):
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"
        before, mark, rest = page.partition(begin)
        assert mark, f"the page has lost its mark {begin}"
        _, mark, after = rest.partition(end)
        assert mark, f"the page has lost its mark {end}"
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    PATH.write_text(written(PATH.read_text(encoding="utf-8")), encoding="utf-8")
