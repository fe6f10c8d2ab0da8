"""Keys of records, and which records are tombstones: both follow from the record's value. Pure.

In a compacted topic every record has a key, and some are tombstones: a key without a value. A
history does not contain either: the value and the number of keys of its partition determine the key
and whether it deletes. A record that returns with another key is therefore detected.

A few keys are frequent, most are rare: the last record of a rare key has to outlive thousands of
others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from raftlog.testing.history import values
from raftlog.testing.history.entries import STRANGE
from raftlog.types import Header, Headers

HOT: Final = 16  # keys that three quarters of all records have
HEADER: Final = "value"  # of a tombstone, which can store the value only here
_MASK: Final = (1 << 64) - 1
# Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (OOPSLA 2014), SplitMix64.
_ADD: Final = 0x9E3779B97F4A7C15
_STEPS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST: Final = 31
_HOT_BITS: Final = 3  # mask of two bits: three of four values are hot
_TOMBSTONE_SHIFT: Final = 2
_TOMBSTONE_BITS: Final = 7  # mask of three bits: one of eight
_KEY_SHIFT: Final = 8
_DIGITS_MAX: Final = 9

Ints = npt.NDArray[np.int64]


def _mixed(value: int) -> int:
    mixed = (value + _ADD) & _MASK
    for shift, factor in _STEPS:
        mixed = ((mixed ^ mixed >> shift) * factor) & _MASK
    return mixed ^ mixed >> _LAST


def key_of(value: int, keys: int) -> int:
    """Return the key of a value, 0 to ``keys`` - 1, in a partition with ``keys`` keys."""
    mixed = _mixed(value)
    return (mixed >> _KEY_SHIFT) % (min(HOT, keys) if mixed & _HOT_BITS else keys)


def is_tombstone(value: int) -> bool:
    """Return whether the record of this value deletes its key."""
    return (_mixed(value) >> _TOMBSTONE_SHIFT) & _TOMBSTONE_BITS == 0


def keys_of(column: Ints, keys: int) -> Ints:
    """Return ``key_of`` for a column of values."""
    mixed = _mixed_column(column)
    counts = np.where(mixed & np.uint64(_HOT_BITS), np.uint64(min(HOT, keys)), np.uint64(keys))
    return ((mixed >> np.uint64(_KEY_SHIFT)) % counts).astype(np.int64)


def are_tombstones(column: Ints) -> npt.NDArray[np.bool_]:
    """Return ``is_tombstone`` for a column of values."""
    mixed = _mixed_column(column)
    found: npt.NDArray[np.bool_] = (
        (mixed >> np.uint64(_TOMBSTONE_SHIFT)) & np.uint64(_TOMBSTONE_BITS)
    ) == 0
    return found


def _mixed_column(column: Ints) -> npt.NDArray[np.uint64]:
    mixed = column.astype(np.uint64) + np.uint64(_ADD)
    for shift, factor in _STEPS:
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return mixed ^ mixed >> np.uint64(_LAST)


# -- records ---------------------------------------------------------------------------------------


def encode(value: int, padding: int, keys: int) -> tuple[bytes, bytes | None, list[Header]]:
    """Return key, value and headers of the record for ``value``, of a partition with ``keys``
    keys."""
    key = b"%d/%d" % (key_of(value, keys), keys)
    if is_tombstone(value):
        return key, None, [(HEADER, b"%d" % value)]
    return key, values.encode_value(value, padding), []


def decode(key: bytes | None, record: bytes | None, headers: Headers) -> int:
    """Return the value that a record was created for; ``STRANGE`` for other records.

    A record without a key is one of ``values``.
    """
    if key is None:
        return values.decode_value(record)
    number, _, count = key.partition(b"/")
    if not (number.isdigit() and count.isdigit() and len(count) <= _DIGITS_MAX and int(count)):
        return STRANGE
    if record is None:
        said = dict(headers).get(HEADER) or b""
        value = values.decode_value(said + b" ")
    else:
        value = values.decode_value(record)
    if value == STRANGE or is_tombstone(value) != (record is None):
        return STRANGE
    return value if key == b"%d/%d" % (key_of(value, int(count)), int(count)) else STRANGE
