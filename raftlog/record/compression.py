"""Compression and decompression of payloads. Compressed bytes are not trusted.

``decompress`` gets the length in the batch's header. Before it allocates memory, it compares this
length with ``limits.BATCH_UNCOMPRESSED_BYTES_MAX``, with the highest compression ratio of the codec
and, for zstd, with the size in the frame. The result must have exactly that length, and the stream
must end where the batch ends. Otherwise it raises ``CorruptBatchError``.

The library of a codec is imported with the first batch that has this codec: most clients use one
codec or none. Brokers import all of them before they serve (``raftlog.server.main.preload``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from raftlog import limits
from raftlog.errors import CorruptBatchError, InvalidRequestError
from raftlog.types import Buffer

if TYPE_CHECKING:
    import zstandard


# -- pool ------------------------------------------------------------------------------------------
#
# Spare objects, for codecs whose state is expensive to create. No locks, no thread-local state.


T = TypeVar("T")


class Pool(Generic[T]):
    """Spare objects that are expensive to create and must not be used by two threads at once.

    An object in use is out of the pool, so no other thread can hold it. That needs no lock and no
    thread-local state: ``list.pop`` and ``list.append`` are atomic, and an empty pool only means
    that a new object is created.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._spares: list[T] = []

    def take(self) -> T:
        try:
            return self._spares.pop()
        except IndexError:
            return self._make()

    def give_back(self, spare: T, *, size_bytes: int) -> None:
        """Keep ``spare`` for the next caller, unless it has grown large or enough are kept."""
        if (
            size_bytes <= limits.CODEC_STATE_BYTES_MAX
            and len(self._spares) < limits.CODEC_STATES_KEPT_MAX
        ):
            self._spares.append(spare)


# -- compression -----------------------------------------------------------------------------------


class Codec(IntEnum):
    """Compression codec of a payload: Kafka's numbers, as in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2  # only in batches of Kafka clients: see ``kafka_compression``
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Codec:
        """Return the codec called ``name`` (any case). Raises ``InvalidRequestError``."""
        codec = _BY_NAME.get(name.lower())
        if codec is None:
            raise InvalidRequestError(
                f"{name[:100]!r} is not a compression: use one of {', '.join(_BY_NAME)}"
            )
        return codec


# Those of raftlog's clients.
COLUMN_CODECS: Final = tuple(codec for codec in Codec if codec is not Codec.SNAPPY)
_BY_NAME: Final = {codec.name.lower(): codec for codec in COLUMN_CODECS}
CODEC_NAMES: Final = tuple(_BY_NAME)


# -- gzip ------------------------------------------------------------------------------------------

GZIP_WINDOW_BITS: Final = (
    31  # 15 for the largest window, 16 for a gzip header and trailer around it
)


def _compress_gzip(payload: Buffer, level: int) -> bytes:
    return zlib.compress(payload, level, GZIP_WINDOW_BITS)


def _decompress_gzip(data: Buffer, length: int) -> bytes:
    stream = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        # One byte more than the header's length detects a stream that is too long.
        payload = stream.decompress(data, length + 1)
    except zlib.error as error:
        raise CorruptBatchError(f"the payload is not a gzip stream: {error}") from error
    if len(payload) == length and not stream.eof:
        raise CorruptBatchError("the payload's gzip stream is cut short")
    if stream.unused_data:
        raise CorruptBatchError("bytes follow the payload's gzip stream")
    return payload


# -- lz4 -------------------------------------------------------------------------------------------

_LZ4_HIGH_LEVEL_MIN: Final = 3  # below it, as in the lz4 tool, the fast mode


def _compress_lz4(payload: Buffer, level: int) -> bytes:
    import lz4.block

    if level < _LZ4_HIGH_LEVEL_MIN:
        packed: bytes = lz4.block.compress(payload, store_size=False)
    else:
        packed = lz4.block.compress(
            payload, mode="high_compression", compression=level, store_size=False
        )
    return packed


def _decompress_lz4(data: Buffer, length: int) -> bytes:
    import lz4.block

    try:
        payload: bytes = lz4.block.decompress(data, uncompressed_size=length)
    except lz4.block.LZ4BlockError as error:
        raise CorruptBatchError(
            f"the payload is not an lz4 block of at most {length} bytes: {error}"
        ) from error
    return payload


# -- zstd ------------------------------------------------------------------------------------------

_compressors: Final[dict[int, Pool[zstandard.ZstdCompressor]]] = {}  # by level: 1 to 22


def _new_compressor(level: int) -> zstandard.ZstdCompressor:
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_content_size=True)


def _new_decompressor() -> zstandard.ZstdDecompressor:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=limits.BATCH_UNCOMPRESSED_BYTES_MAX)


_decompressors: Final = Pool(_new_decompressor)


def _compress_zstd(payload: Buffer, level: int) -> bytes:
    pool = _compressors.get(level)
    if pool is None:
        pool = _compressors.setdefault(level, Pool(partial(_new_compressor, level)))
    compressor = pool.take()
    packed = compressor.compress(payload)
    pool.give_back(compressor, size_bytes=compressor.memory_size())
    return packed


def _decompress_zstd(data: Buffer, length: int) -> bytes:
    import zstandard

    try:
        frame = zstandard.get_frame_parameters(data)
        # The library allocates the size in the frame, so that size is checked first. It is 2^64-1
        # for a frame without a size.
        if frame.content_size != length:
            raise CorruptBatchError(
                f"the payload's zstd frame does not specify the header's size of {length} bytes"
            )
        return unpack_zstd_frame(data, frame, length)
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"the payload is not one zstd frame: {error}") from error


def unpack_zstd_frame(data: Buffer, frame: zstandard.FrameParameters, size_max: int) -> bytes:
    """Decompress exactly one frame, of at most ``size_max`` bytes. ``frame``: its parameters.

    Raises ``CorruptBatchError`` if its window is over ``limits.BATCH_UNCOMPRESSED_BYTES_MAX``, and
    ``ZstdError``.
    """
    if frame.window_size > limits.BATCH_UNCOMPRESSED_BYTES_MAX:
        raise CorruptBatchError(
            f"the zstd frame asks for a window of {frame.window_size} bytes, over "
            f"{limits.BATCH_UNCOMPRESSED_BYTES_MAX}"
        )
    decompressor = _decompressors.take()
    payload = decompressor.decompress(data, max_output_size=size_max, allow_extra_data=False)
    _decompressors.give_back(decompressor, size_bytes=decompressor.memory_size())
    return payload


# -- the table -------------------------------------------------------------------------------------


class _Method(NamedTuple):
    compress: Callable[[Buffer, int], bytes]
    decompress: Callable[[Buffer, int], bytes]
    level_default: int
    levels: range
    ratio_max: int  # highest ratio of a valid stream; a higher one is refused before reading


_METHODS: Final = {
    # Compared with zlib's default of 6, level 1 takes a quarter of the time for 12 % more bytes.
    Codec.GZIP: _Method(_compress_gzip, _decompress_gzip, 1, range(1, 10), 1_032),
    Codec.LZ4: _Method(_compress_lz4, _decompress_lz4, 1, range(1, 13), 255),
    # A zstd block holds at most 128 KiB, and the shortest one that does takes 4 bytes.
    Codec.ZSTD: _Method(_compress_zstd, _decompress_zstd, 1, range(1, 23), 32 * limits.KIB),
}


def ratio_max(codec: Codec) -> int:
    """Return the highest decompression ratio of a valid stream of ``codec``."""
    return _METHODS[codec].ratio_max


def check_level(codec: Codec, level: int | None) -> None:
    """Raise ``InvalidRequestError`` unless ``codec`` has that ``level``. None means its default."""
    method = _METHODS.get(codec)
    if level is None or (method is not None and level in method.levels):
        return
    if method is None:
        raise InvalidRequestError(
            f"compression level {level} without a compression: choose "
            f"{', '.join(known.name.lower() for known in _METHODS)}, or leave the level out"
        )
    raise InvalidRequestError(
        f"{level} is not a level of {codec.name.lower()}: use {method.levels.start} (fastest) to "
        f"{method.levels.stop - 1} (smallest); the default is {method.level_default}"
    )


def compress(payload: bytes, codec: Codec, *, level: int | None = None) -> tuple[bytes, Codec]:
    """Compress ``payload``. Returns it and the codec used: NONE if it would not become smaller."""
    check_level(codec, level)
    method = _METHODS.get(codec)
    if method is None:
        return payload, Codec.NONE
    packed = method.compress(payload, method.level_default if level is None else level)
    if len(packed) >= len(payload):
        return payload, Codec.NONE
    return packed, codec


def decompress(data: Buffer, codec: Codec, *, uncompressed_length: int) -> Buffer:
    """Decompress a payload of exactly ``uncompressed_length`` bytes.

    Allocates at most that length and at most ``limits.BATCH_UNCOMPRESSED_BYTES_MAX``. Returns
    ``data`` itself without a codec. Raises ``CorruptBatchError``.
    """
    if not 0 < uncompressed_length <= limits.BATCH_UNCOMPRESSED_BYTES_MAX:
        raise CorruptBatchError(
            f"a payload of {uncompressed_length} bytes is not within 1 to "
            f"{limits.BATCH_UNCOMPRESSED_BYTES_MAX}"
        )
    method = _METHODS.get(codec)
    if method is None:
        payload = data
    else:
        if uncompressed_length > len(data) * method.ratio_max:
            raise CorruptBatchError(
                f"{len(data)} bytes of {codec.name.lower()} cannot hold {uncompressed_length}"
            )
        payload = method.decompress(data, uncompressed_length)
    if len(payload) != uncompressed_length:
        raise CorruptBatchError(
            f"the payload does not have the {uncompressed_length} bytes that its header specifies"
        )
    return payload
