"""The two sums that a batch carries: CRC-32C for its bits, XXH3-64 for its place in a log.

Nothing here knows what a batch looks like; ``batch`` says which bytes go in. The CRC answers "are
these the bytes that were written?". The chain answers "do these two logs hold the same batches up
to here?": each value takes in the one before it, so that 8 bytes speak for all that precedes.
"""

from __future__ import annotations

import struct
from typing import Final

from fastcrc.crc32 import iscsi as crc32c
from xxhash import xxh3_64_intdigest

__all__ = ["CHAIN_START", "chain", "crc32c"]

CHAIN_START: Final = 0  # the value before the first batch of a log

_PREVIOUS: Final = struct.Struct("<Q")


def chain(previous: int, link: bytes) -> int:
    """The value of a batch whose chained fields are ``link``, after a batch with ``previous``."""
    return xxh3_64_intdigest(_PREVIOUS.pack(previous) + link)
