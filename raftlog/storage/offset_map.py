"""Keys to the newest offset of each, in a fixed amount of memory. Pure: a hash table in numpy.

A key is told by 128 bits of xxh3 with a seed that nobody else knows: that two of a billion keys
have the same is as likely as 1 in 10^21, and nobody can choose keys that do. So keys themselves are
not kept, and a key costs the same whatever its length.
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

_SLOT_BYTES: Final = 24  # two halves of the hash, and the offset; 0 stands for an empty slot
_FULL_PARTS: Final = (3, 4)  # of the slots; beyond that looking for a key takes too many steps
KEY_BYTES: Final = _SLOT_BYTES * _FULL_PARTS[1] // _FULL_PARTS[0]


def hash_keys(keys: Iterable[bytes], *, seed: int) -> Hashes:
    """The hashes of ``keys``, a row for each. ``seed``: 64 bits."""
    digests = b"".join(map(xxh3_128_digest, keys, repeat(seed)))
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


class OffsetMap:
    """The newest offset of each key. 32 bytes for each that it has room for, all taken at once.

    Open addressing with double hashing: a prime number of slots, so that the steps of any key come
    by all of them. Keys are looked for by the thousand: one step of all of them is one operation on
    arrays, and those that are found drop out (Knuth, TAOCP 3, 6.4, algorithm D).
    """

    def __init__(self, keys_max: int) -> None:
        """Room for ``keys_max`` keys, 1 or more."""
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
        """How many more keys there is room for."""
        return self.keys_max - self._count

    def put(self, hashes: Hashes, offsets: Offsets) -> None:
        """Note keys at offsets that ascend, from call to call as well.

        There has to be room for all of them (``room``), as if none were known yet.
        """
        assert len(hashes) <= self.room
        slots, (position, step) = self._slots, self._probe(hashes)
        hashes, stored = np.ascontiguousarray(hashes), offsets.astype(np.uint64) + np.uint64(1)
        while len(hashes):
            is_free = slots[position, 2] == 0
            if is_free.any():
                # Of several that want one slot the last gets it; the others see that and go on.
                free = position[is_free]
                slots[free, 0], slots[free, 1] = hashes[is_free, 0], hashes[is_free, 1]
                slots[free, 2] = 1
                self._count += len(np.unique(free))
            found = slots[position]
            is_mine = (found[:, 0] == hashes[:, 0]) & (found[:, 1] == hashes[:, 1])
            slots[position[is_mine], 2] = stored[is_mine]  # of several offsets the last: the newest
            left = ~is_mine
            hashes, stored, step = hashes[left], stored[left], step[left]
            position = (position[left] + step) % np.uint64(len(slots))

    def newest(self, hashes: Hashes) -> Offsets:
        """The newest offset of each key, -1 for one that was not noted."""
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
        """Where to look for each key first, and how far to go on from there."""
        count = np.uint64(len(self._slots))
        return hashes[:, 0] % count, hashes[:, 1] % (count - np.uint64(1)) + np.uint64(1)


def prime_from(number: int) -> int:
    """The smallest prime from ``number`` (2 or more) on."""
    while not _is_prime(number):
        number += 1
    return number


def _is_prime(number: int) -> bool:
    """By trial: some 20 000 divisions for the largest map that fits any machine."""
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
