"""Arithmetic over packed little-endian integers, without an object per integer.

numpy processes long columns. ``struct`` is faster for short ones, and a program with small batches
only never loads numpy. Callers have checked that a column's length is a whole number of integers.
No function raises.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from raftlog.types import Buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

U32_BYTES: Final = 4
U64_BYTES: Final = 8
# Integers; below this number a loop is faster than a call into numpy. Clients work without numpy.
NUMPY_FROM: Final = 256 if find_spec("numpy") is not None else sys.maxsize


def u32(column: Buffer) -> Sequence[int]:
    """The unsigned 32-bit integers of ``column`` as Python's."""
    return struct.unpack(f"<{len(column) // U32_BYTES}I", column)


def u64(column: Buffer) -> Sequence[int]:
    """The unsigned 64-bit integers of ``column`` as Python's."""
    return struct.unpack(f"<{len(column) // U64_BYTES}Q", column)


def pack_u32(integers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(integers)}I", *integers)


def pack_u64(integers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(integers)}Q", *integers)


def u32_array(column: Buffer) -> npt.NDArray[np.uint32]:
    import numpy as np

    return np.frombuffer(column, "<u4")


def u64_array(column: Buffer) -> npt.NDArray[np.uint64]:
    import numpy as np

    return np.frombuffer(column, "<u8")


def total(column: Buffer) -> int:
    """The sum of unsigned 32-bit integers."""
    if len(column) < NUMPY_FROM * U32_BYTES:
        return sum(u32(column))
    return int(u32_array(column).sum(dtype="u8"))


def is_increasing(column: Buffer) -> bool:
    """Return whether unsigned 32-bit integers are strictly increasing."""
    if len(column) < NUMPY_FROM * U32_BYTES:
        return all(before < after for before, after in pairwise(u32(column)))
    array = u32_array(column)
    return bool((array[1:] > array[:-1]).all())


def last(column: Buffer) -> int:
    """Return the last of at least one unsigned 32-bit integer."""
    integer: int = struct.unpack_from("<I", column, len(column) - U32_BYTES)[0]
    return integer


def first_at_least(column: Buffer, bound: int) -> int:
    """Return the index of the first increasing unsigned 32-bit integer at or above ``bound``."""
    if len(column) < NUMPY_FROM * U32_BYTES:
        return bisect_left(u32(column), bound)
    return int(u32_array(column).searchsorted(bound))


def are_zero_at(column: Buffer, indexes: Buffer) -> bool:
    """Return whether the unsigned 32-bit integers at ``indexes`` (in range) are all 0."""
    if len(indexes) < NUMPY_FROM * U32_BYTES:
        return not any(
            struct.unpack_from("<I", column, index * U32_BYTES)[0] for index in u32(indexes)
        )
    return not u32_array(column)[u32_array(indexes)].any()


def highest_of(column: Buffer) -> int:
    """Return the highest of at least one unsigned 64-bit integer."""
    if len(column) < NUMPY_FROM * U64_BYTES:
        return max(u64(column))
    return int(u64_array(column).max())


def find_at_least(column: Buffer, bound: int) -> int:
    """Return the index of the first unsigned 64-bit integer at or above ``bound``; the count if
    there is none.
    """
    count = len(column) // U64_BYTES
    if count < NUMPY_FROM:
        found = (index for index, integer in enumerate(u64(column)) if integer >= bound)
        return next(found, count)
    is_found = u64_array(column) >= bound
    index = int(is_found.argmax())
    return index if is_found[index] else count


def splits_a_character(blob: Buffer, lengths: Buffer) -> bool:
    """Return whether an entry of ``blob`` (valid UTF-8 as a whole) starts inside a character."""
    if len(lengths) < NUMPY_FROM * U32_BYTES:
        view = memoryview(blob)
        return any(
            view[start] & 0xC0 == 0x80 for start in accumulate(u32(lengths)) if start < len(view)
        )
    import numpy as np

    starts: npt.NDArray[Any] = u32_array(lengths).cumsum(dtype="i8")
    octets = np.frombuffer(blob, "u1")
    firsts = octets[starts[starts < len(octets)]]
    return bool(((firsts & 0xC0) == 0x80).any())  # 0b10xxxxxx continues a character
