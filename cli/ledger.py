"""What was acknowledged against what was found: the judge of ``raftlog demo``. Pure.

Every value sent is named by its place in the input. An acknowledgement says at which offset it is;
a value found at that offset has to be that value, byte for byte. Memory is 8 bytes a record, so
values are kept as 64-bit hashes; the SHA-256 of all of them in order, sent and found, settles the
rest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

from raftlog.types import Offset

_NOTHING: Final = 0  # no value is acknowledged at this offset


def _mark(value: bytes) -> int:
    return xxh3_64_intdigest(value) or 1


@dataclass(frozen=True)
class Verdict:
    """The comparison. ``duplicated``: found at an offset that no acknowledgement named."""

    acknowledged: int
    found: int
    lost: int
    duplicated: int
    in_order: bool
    identical: bool
    sha256: str

    @property
    def holds(self) -> bool:
        """Everything acknowledged is there, once, in order and as it was sent."""
        return not self.lost and not self.duplicated and self.in_order and self.identical


class Ledger:
    """One partition's account: acknowledgements in the order of sending, then what is found."""

    def __init__(self) -> None:
        self._acknowledged = array("Q")  # by offset: the mark of the value that should be there
        self._count = 0
        self._last_offset = -1
        self._in_order = True
        self._found = self._intact = self._extra = 0
        self._sent_digest = hashlib.sha256()
        self._found_digest = hashlib.sha256()

    def acknowledge(self, values: Sequence[bytes], offsets: Sequence[Offset]) -> None:
        """``values`` were acknowledged at ``offsets``, one each."""
        for value, offset in zip(values, offsets, strict=True):
            self._in_order = self._in_order and offset > self._last_offset
            self._last_offset = offset
            missing = offset + 1 - len(self._acknowledged)
            if missing > 0:
                self._acknowledged.extend([_NOTHING] * missing)
            self._acknowledged[offset] = _mark(value)
            self._sent_digest.update(value + b"\n")
        self._count += len(values)

    def find(self, offset: Offset, value: bytes | None) -> None:
        """``value`` was read at ``offset``. Call once per record, in the order of reading."""
        self._found += 1
        self._found_digest.update((value or b"") + b"\n")
        known = offset < len(self._acknowledged) and self._acknowledged[offset] != _NOTHING
        if not known:
            self._extra += 1
        elif value is not None and self._acknowledged[offset] == _mark(value):
            self._intact += 1
            self._acknowledged[offset] = _NOTHING  # found again, it counts as a duplicate

    def verdict(self) -> Verdict:
        found_digest = self._found_digest.hexdigest()
        return Verdict(
            acknowledged=self._count,
            found=self._found,
            lost=self._count - self._intact,
            duplicated=self._extra,
            in_order=self._in_order,
            identical=found_digest == self._sent_digest.hexdigest(),
            sha256=found_digest,
        )
