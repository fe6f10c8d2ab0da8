"""The checksums of a batch: CRC-32C of its bytes, and XXH3-64 as the hash chain of a log.

``batch`` specifies the bytes that they cover. The CRC detects corrupt bytes. The chain compares
logs: each value includes the one before it, so two logs with the same 8-byte value at an offset
contain the same batches up to there.
"""

from __future__ import annotations

import struct
from typing import Final

from fastcrc.crc32 import iscsi
from xxhash import xxh3_64_intdigest

crc32c: Final = iscsi
CHAIN_START: Final = 0  # the value before the first batch of a log

_PREVIOUS: Final = struct.Struct("<Q")


def chain_link(previous: int, link: bytes) -> int:
    """The value of a batch whose chained fields are ``link``, after a batch with ``previous``."""
    return xxh3_64_intdigest(_PREVIOUS.pack(previous) + link)
