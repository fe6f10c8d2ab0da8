"""File format of a consensus journal: blocks, and detection of a torn last block.

``journal`` interprets the records in a block.

    "rj" 2 | length 4 | sequence 8 | blank sectors 4 | payload crc32c 4 | header crc32c 4 | "v1" 2 |
    payload: one msgpack array of records, then 0xff                                   little-endian

One block is one sync, and no block is written before the previous one is durable. So at most the
*last* block can be torn. No message depended on it, and it is truncated. All other invalid bytes
are corruption. A voter that has lost part of its state must not vote: the file is rejected.

Torn blocks and corruption are distinguished by sectors. A disk writes each sector of 512 bytes
completely or not at all. A sector of a grown file that was not written reads as zeros, or is past
the file's end. So a torn block lacks its end, or has a blank sector that was not written blank (the
header counts those that were). Header and payload start and end with bytes that are not 0. The
header has a separate checksum, so that a corrupt length does not look like a torn block.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog.disk import File
from raftlog.errors import DamagedJournalError
from raftlog.record.checksum import crc32c

SECTOR_BYTES: Final = 512
_HEADER: Final = struct.Struct("<2sIQIII2s")
HEADER_BYTES: Final = _HEADER.size
assert HEADER_BYTES == 28, "the module docstring shows another size"
_SUM_FROM: Final = HEADER_BYTES - 6  # the header checksum covers the bytes before it
_HEAD: Final = b"rj"
_TAIL: Final = b"v1"  # the version of the format
_END: Final = b"\xff"
PAYLOAD_BYTES_MAX: Final = (1 << 32) - 1

ADVICE: Final = (
    "This broker may have lost votes and entries that other brokers count. It does not start. "
    "If the bytes can be recovered from the disk, restore them. Otherwise delete the data "
    "directory of this broker and start it again: the other brokers restore its state. Do not "
    "restore an older copy"
)


class Header(NamedTuple):
    """Header of a block. ``blank_sectors``: the number of payload sectors written as zeros."""

    length: int
    sequence: int
    blank_sectors: int
    payload_crc: int


@dataclass(slots=True)
class Found:
    """Contents of a file: the payloads of its blocks up to ``end``. Torn bytes follow."""

    payloads: list[bytes] = field(default_factory=list)
    sequence: int = 0  # of the last block
    start: int = 0  # position of its first byte
    end: int = 0  # position after its last byte
    torn: str = ""  # reason why the bytes after ``end`` are torn; "" if there are none


def encode(payload: bytes, *, sequence: int, position: int) -> bytes:
    """Return the block with ``payload`` for byte ``position`` of the file."""
    body = payload + _END
    assert len(body) <= PAYLOAD_BYTES_MAX
    header = Header(
        length=len(body),
        sequence=sequence,
        blank_sectors=_blank_sectors(body, position + HEADER_BYTES),
        payload_crc=crc32c(body),
    )
    return _encode_header(header) + body


def _encode_header(header: Header) -> bytes:
    start = _HEADER.pack(_HEAD, *header, 0, b"")[:_SUM_FROM]
    return start + struct.pack("<I", crc32c(start)) + _TAIL


def decode_header(data: bytes, position: int) -> Header | None:
    """Return the header at ``position`` of ``data``; None if there is no valid one."""
    piece = data[position : position + HEADER_BYTES]
    if len(piece) < HEADER_BYTES:
        return None
    header = Header(*_HEADER.unpack(piece)[1:5])
    return header if piece == _encode_header(header) else None


def read(file: File) -> Found:
    """Read all blocks of ``file``. Raises ``DamagedJournalError``.

    The first block is never torn: the file is renamed to its name after that block was synced.
    """
    found, size = Found(), file.size()
    while found.end < size:
        _read_block(file, size, found)
        if found.torn:
            break
    if not found.payloads:
        raise damaged(file.path, 0, found.torn or "the file is empty")
    return found


def damaged(path: str, position: int, trouble: str) -> DamagedJournalError:
    """Return the error for corruption at a byte of a file, with advice."""
    return DamagedJournalError(f"{path} is corrupt at byte {position}: {trouble}. {ADVICE}")


def _read_block(file: File, size: int, found: Found) -> None:
    """Read the block at ``found.end``, or record why it is torn."""
    start = found.end
    piece = _pread(file, HEADER_BYTES, start)
    header = decode_header(piece, 0)
    if header is None:
        found.torn = _torn_header(file, size, found, piece)
        return
    if found.payloads and header.sequence != found.sequence + 1:
        trouble = f"found block {header.sequence}, expected block {found.sequence + 1}"
        raise damaged(file.path, start, trouble)
    body_start = start + HEADER_BYTES
    if header.length > size - body_start:
        found.torn = f"the file ends inside block {header.sequence}"
        return
    body = _pread(file, header.length, body_start)
    if crc32c(body) != header.payload_crc:
        is_last = body_start + header.length == size
        if is_last and _blank_sectors(body, body_start) > header.blank_sectors:
            found.torn = f"parts of block {header.sequence} were not written"
            return
        trouble = f"the checksum of block {header.sequence} does not match its bytes"
        raise damaged(file.path, start, trouble)
    found.payloads.append(body[: -len(_END)])
    found.sequence, found.start = header.sequence, start
    found.end = body_start + header.length


def _torn_header(file: File, size: int, found: Found, piece: bytes) -> str:
    """Return why the bytes at the position of a header are torn. Raises if they are corrupt."""
    start = found.end
    if len(piece) == HEADER_BYTES:
        later = _find_later(file, size, found)
        if later is not None:
            trouble = f"no block starts here, but block {later.sequence} follows later"
            raise damaged(file.path, start, trouble)
        if not any(_is_blank(part) for part in _sectors(piece, start)):
            raise damaged(file.path, start, "the checksum of the block's header does not match")
    return f"the header of block {found.sequence + 1} is incomplete"


def _find_later(file: File, size: int, found: Found) -> Header | None:
    """Return a block header after the invalid one, which is then not the last block."""
    rest = _pread(file, size - found.end, found.end)
    position = rest.find(_HEAD, 1)
    while position >= 0:
        header = decode_header(rest, position)
        if header is not None and header.sequence > found.sequence:
            return header
        position = rest.find(_HEAD, position + 1)
    return None


def _pread(file: File, size: int, position: int) -> bytes:
    try:
        return file.pread(size, position)
    except OSError as error:
        raise damaged(file.path, position, f"it cannot be read: {error}") from error


def _sectors(data: bytes, position: int) -> list[bytes]:
    """Split ``data``, from ``position`` of the file, at the sector boundaries of the file."""
    first = -position % SECTOR_BYTES or SECTOR_BYTES
    cuts = [0, *range(first, len(data), SECTOR_BYTES), len(data)]
    return [data[cuts[i] : cuts[i + 1]] for i in range(len(cuts) - 1)]


def _blank_sectors(body: bytes, position: int) -> int:
    """Return the number of payload sectors that are all zeros. The sector that the payload shares
    with its header is not counted: it was written if the header was.
    """
    parts = _sectors(body, position)
    return sum(map(_is_blank, parts[1:] if position % SECTOR_BYTES else parts))


def _is_blank(part: bytes) -> bool:
    return part.count(0) == len(part)
