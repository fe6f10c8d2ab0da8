"""The content of records, and a compact form of record sequences. Pure.

A record's value is the text of an integer that is unique in the run, a space, and padding.
The padding follows from the integer and its length. A record that was changed, or has the end of
another one, can therefore be distinguished from one that was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

from raftlog.testing.history.entries import STRANGE, Seen, Where

PADDING_MAX: Final = 1 << 20  # bytes
_VALUE_DIGITS_MAX: Final = 18  # more than any run can use
# Start positions of padding in the pool. A prime, so the padding of consecutive values differs.
_PLACES: Final = 4_093
_STEP: Final = 31
# Bytes. Half of each block is compressible. Do not change the pool: stored histories depend on it.
_BLOCK: Final = 4_096


def _pool(size: int) -> bytes:
    random = Random(1)
    blocks = (random.randbytes(_BLOCK) + random.randbytes(8) * (_BLOCK // 8) for _ in range(8))
    block = b"".join(blocks)
    return (block * (size // len(block) + 1))[:size]


_POOL: Final = _pool(PADDING_MAX + _PLACES)


def encode_value(value: int, padding: int) -> bytes:
    """Return the record for ``value`` (from 1) with ``padding`` bytes, up to ``PADDING_MAX``."""
    start = value * _STEP % _PLACES
    return b"%d " % value + _POOL[start : start + padding]


def decode_value(data: bytes | None) -> int:
    """Return the value that ``encode`` created this record for; ``STRANGE`` for other records."""
    head, space, padding = (data or b"").partition(b" ")
    if not space or not head.isdigit() or head.startswith(b"0") or len(head) > _VALUE_DIGITS_MAX:
        return STRANGE
    value = int(head)
    return value if _POOL.startswith(padding, value * _STEP % _PLACES) else STRANGE


def runs(records: Iterable[tuple[int, int, int]]) -> Iterator[Seen]:
    """Yield (offset, value, leader epoch) of each record as runs, in the given order.

    A run ends where the offset or the value does not increase by one, or the epoch changes.
    """
    first_offset = first_value = epoch = count = 0
    next_offset, next_value = -1, -1
    for offset, value, its_epoch in records:
        if value == next_value and offset == next_offset and its_epoch == epoch:
            count += 1
        else:
            if count:
                yield first_offset, count, first_value, epoch
            first_offset, first_value, epoch, count = offset, value, its_epoch, 1
            if value == STRANGE:  # no run continues after it
                next_offset = next_value = STRANGE - 1
                continue
        next_offset = offset + 1
        next_value = value + 1
    if count:
        yield first_offset, count, first_value, epoch


def joined(runs: Iterable[Seen]) -> Iterator[Seen]:
    """Yield the same runs, with adjacent ones merged."""
    open_run: Seen | None = None
    for run in runs:
        if open_run is not None:
            offset, count, value, epoch = open_run
            if (
                value != STRANGE
                and run[3] == epoch
                and run[0] == offset + count
                and run[2] == value + count
            ):
                open_run = offset, count + run[1], value, epoch
                continue
            yield open_run
        open_run = run
    if open_run is not None:
        yield open_run


def places(parts: Iterable[Where]) -> list[Where]:
    """Return the same parts of an append, with adjacent ones merged."""
    found: list[Where] = []
    for value, count, offset in parts:
        if found:
            first, length, at = found[-1]
            if value == first + length and offset == at + length:
                found[-1] = first, length + count, at
                continue
        found.append((value, count, offset))
    return found
