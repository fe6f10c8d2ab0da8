"""The partitions of the keys of an Arrow array: ``key_hash`` for all keys at a time.

MurmurHash2 of 32 bits (Austin Appleby, public domain, MurmurHash2.cpp) processes a key four bytes
at a time. Here each step processes one word of all keys. Keys are sorted by their number of words,
longest first, so that the keys with a word left are always a prefix of the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from murmurhash2 import murmurhash2

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.record.arrow_encoder import octets_of
from raftlog.record.key_hash import KAFKA_SEED, POSITIVE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

NO_PARTITION: Final = -1  # of a record without a key

_M: Final = 0x5BD1E995
_WORD: Final = 4
_LONG: Final = 256  # bytes; longer keys, of which there are few, are hashed one by one
_ROWS: Final = 8_192  # at a time: intermediate results fit into the processor's cache


def partitions_of_arrow(keys: pa.Array | pa.ChunkedArray, count: int) -> npt.NDArray[np.int64]:
    """Return the partition of each key among ``count``, as ``partition_of_key``; -1 for a null.

    ``keys``: an array of bytes or text (hashed as UTF-8). Raises ``InvalidRequestError`` if
    ``count`` is out of range, and ``TypeError`` for an array of another type.
    """
    import numpy as np

    if not 1 <= count <= limits.PARTITIONS_PER_TOPIC_MAX:
        raise InvalidRequestError(
            f"{count} partitions: a topic has 1 to {limits.PARTITIONS_PER_TOPIC_MAX}"
        )
    octets = octets_of(keys, "key")
    if octets is None:
        return np.full(len(keys), NO_PARTITION, np.int64)
    ends, blob, nulls = octets
    found = np.empty(len(ends) - 1, np.uint32)
    for first in range(0, len(found), _ROWS):
        some = ends[first : first + _ROWS + 1]
        found[first : first + _ROWS] = _hashes(blob[int(some[0]) : int(some[-1])], some - some[0])
    found &= np.uint32(POSITIVE)
    found %= np.uint32(count)
    partitions = found.astype(np.int64)
    if nulls is not None:
        partitions[nulls] = NO_PARTITION
    return partitions


def _hashes(blob: npt.NDArray[np.uint8], ends: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the hash of each entry of ``blob``. ``ends``: a 0, then the end of each entry."""
    import numpy as np

    lengths = ends[1:] - ends[:-1]
    longest = int(lengths.max())
    if longest == lengths.min() and longest % _WORD == 0 and 0 < longest <= _LONG:
        words = np.frombuffer(blob.tobytes(), "<u4").reshape(len(lengths), longest // _WORD)
        hashes = np.full(len(lengths), KAFKA_SEED ^ longest, np.uint32)
        for column in words.T:
            _mix(hashes, column * np.uint32(_M))
        return _finish(hashes)
    if longest > _LONG:
        return _hashes_with_long(blob, ends, lengths)
    return _hashes_of_any(blob, ends[:-1], lengths)


def _hashes_with_long(
    blob: npt.NDArray[np.uint8], ends: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> npt.NDArray[np.uint32]:
    import numpy as np

    hashes = np.empty(len(lengths), np.uint32)
    is_long = lengths > _LONG
    short = np.flatnonzero(~is_long)
    if len(short):
        hashes[short] = _hashes_of_any(blob, ends[short], lengths[short])
    octets = blob.data
    for row in np.flatnonzero(is_long).tolist():
        key = bytes(octets[int(ends[row]) : int(ends[row + 1])])
        hashes[row] = murmurhash2(key, KAFKA_SEED)
    return hashes


def _hashes_of_any(
    blob: npt.NDArray[np.uint8], starts: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> npt.NDArray[np.uint32]:
    """Return the hashes of entries of different lengths, none of them long."""
    import numpy as np

    order = np.argsort(-lengths.astype(np.int16), kind="stable")  # a radix sort, the longest first
    lengths = lengths[order].astype(np.uint32)
    at = starts[order].astype(np.int64)
    padded = np.zeros(len(blob) + _WORD, np.uint8)
    padded[: len(blob)] = blob
    # The four bytes from each byte on, as a word.
    words = np.ndarray(len(blob) + 1, "<u4", padded, strides=(1,))
    hashes = np.uint32(KAFKA_SEED) ^ lengths
    counts = lengths // np.uint32(_WORD)
    has_more = np.searchsorted(-counts.astype(np.int16), -np.arange(int(counts[0])), side="left")
    for still in has_more.tolist():  # how many have a word of this number
        _mix(hashes[:still], words[at[:still]] * np.uint32(_M))
        at[:still] += _WORD
    left = lengths % np.uint32(_WORD)
    rows = np.flatnonzero(left)
    mask = (np.uint32(1) << (left[rows] * np.uint32(8))) - np.uint32(1)
    hashes[rows] = (hashes[rows] ^ (words[at[rows]] & mask)) * np.uint32(_M)
    result = np.empty_like(hashes)
    result[order] = _finish(hashes)
    return result


def _mix(hashes: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> None:
    """One round, in place. ``words``: the entries' next ones, multiplied once; written to."""
    import numpy as np

    words ^= words >> np.uint32(24)
    words *= np.uint32(_M)
    hashes *= np.uint32(_M)
    hashes ^= words


def _finish(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    import numpy as np

    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes
