"""Map of keys to their newest offset, in a fixed amount of memory. A numpy hash table, no I/O.

The map stores a 128-bit xxh3 hash of each key, computed with a secret seed. The probability that
two of a billion keys collide is 1 in 10^21, and producers cannot construct collisions. The keys
themselves are not stored, so the memory per key does not depend on its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

Hashes: TypeAlias = npt.NDArray[np.uint64]  # two columns
Offsets: TypeAlias = npt.NDArray[np.int64]

_SLOT_BYTES: Final = 24  # two halves of the hash, and the offset; 0 marks an empty slot
_FULL_PARTS: Final = (3, 4)  # maximum share of used slots; above it, lookups take too many steps
KEY_BYTES: Final = _SLOT_BYTES * _FULL_PARTS[1] // _FULL_PARTS[0]


def hash_keys(keys: Iterable[bytes], *, seed: int) -> Hashes:
    """Return the hashes of ``keys``, one row for each key. ``seed``: 64 bits."""
    digests = b"".join(map(xxh3_128_digest, keys, repeat(seed)))
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


class OffsetMap:
    """Newest offset of each key. Allocates 32 bytes per key of capacity at creation.

    Open addressing with double hashing (Knuth, TAOCP 3, 6.4, algorithm D). The number of slots is
    prime, so that the probe sequence of a key visits every slot. Thousands of keys are looked up
    together: one probe step of all keys is one array operation, and keys that are found are removed
    from the operation.
    """

    def __init__(self, keys_max: int) -> None:
        """``keys_max``: capacity in keys, at least 1."""
        self.keys_max = keys_max
        self._count = 0
        slots = prime_from(keys_max * _FULL_PARTS[1] // _FULL_PARTS[0] + 1)
        self._slots = np.zeros((slots, 3), np.uint64)

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return self._slots.nbytes

    @property
    def room(self) -> int:
        """Remaining capacity in keys."""
        return self.keys_max - self._count

    def put(self, hashes: Hashes, offsets: Offsets) -> None:
        """Add keys with ascending offsets. Offsets must also ascend from call to call.

        ``room`` must be at least the number of keys, even if the map already has some of them.
        """
        assert len(hashes) <= self.room
        slots, (position, step) = self._slots, self._probe(hashes)
        hashes, stored = np.ascontiguousarray(hashes), offsets.astype(np.uint64) + np.uint64(1)
        while len(hashes):
            is_free = slots[position, 2] == 0
            if is_free.any():
                # If several keys write the same slot, the last one wins. The others detect this and
                # probe the next slot.
                free = position[is_free]
                slots[free, 0], slots[free, 1] = hashes[is_free, 0], hashes[is_free, 1]
                slots[free, 2] = 1
                self._count += len(np.unique(free))
            found = slots[position]
            is_mine = (found[:, 0] == hashes[:, 0]) & (found[:, 1] == hashes[:, 1])
            slots[position[is_mine], 2] = stored[is_mine]  # the last offset is the newest
            left = ~is_mine
            hashes, stored, step = hashes[left], stored[left], step[left]
            position = (position[left] + step) % np.uint64(len(slots))

    def newest(self, hashes: Hashes) -> Offsets:
        """Return the newest offset of each key; -1 for an unknown key."""
        slots, (position, step) = self._slots, self._probe(hashes)
        result = np.full(len(hashes), -1, np.int64)
        rows = np.arange(len(hashes))
        while len(rows):
            found = slots[position]
            is_mine = (found[:, 0] == hashes[:, 0]) & (found[:, 1] == hashes[:, 1])
            is_known = found[:, 2] != 0
            hits = is_mine & is_known
            result[rows[hits]] = found[hits, 2].astype(np.int64) - 1
            left = is_known & ~is_mine
            rows, hashes, step = rows[left], hashes[left], step[left]
            position = (position[left] + step) % np.uint64(len(slots))
        return result

    def _probe(self, hashes: Hashes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the first slot and the probe step of each key."""
        count = np.uint64(len(self._slots))
        return hashes[:, 0] % count, hashes[:, 1] % (count - np.uint64(1)) + np.uint64(1)


def prime_from(number: int) -> int:
    """Return the smallest prime that is at least ``number`` (2 or more)."""
    while not _is_prime(number):
        number += 1
    return number


def _is_prime(number: int) -> bool:
    """Test by trial division: about 20,000 divisions for the largest possible map."""
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
