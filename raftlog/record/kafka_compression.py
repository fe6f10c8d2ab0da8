"""Compression and decompression of the records section of Kafka's batches.

The formats differ from those of ``compression``: lz4 is a frame, a zstd frame need not contain its
size, and there is snappy, as one raw block or in the frame of snappy-java (xerial):

    82 "SNAPPY" 00 | version i32 BE = 1 | compatible i32 BE = 1 | blocks: length i32 BE, raw block

``decompress`` gets the highest size that the result may have. It compares the bound with the most
that the codec can reach from so few bytes, and with each size that the bytes themselves contain,
before it takes memory. The stream must end where the data ends. Everything else raises
``CorruptBatchError``.

Format sources: Kafka's ``CompressionType``, the lz4 frame format, RFC 8878 (zstd), RFC 1952 (gzip),
snappy's ``format_description.txt``, snappy-java's ``SnappyCodec``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import lz4.frame
import zstandard

from raftlog import limits
from raftlog.errors import CorruptBatchError, UnsupportedFeatureError
from raftlog.install import install_command
from raftlog.record import compression
from raftlog.record.compression import GZIP_WINDOW_BITS, Codec, unpack_zstd_frame
from raftlog.types import Buffer

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = struct.Struct(">8sii")
_XERIAL_VERSIONS: Final = (1, 1)  # clients disagree about others
_ZSTD_BLOCK_HEADER_BYTES: Final = 3
_ZSTD_BLOCK_SIZE_MAX: Final = 128 * limits.KIB
_ZSTD_CHECKSUM_BYTES: Final = 4
_ZSTD_REPEATED: Final = 1
_ZSTD_COMPRESSED: Final = 2
_BLOCK_LENGTH: Final = struct.Struct(">i")


def _gunzip(data: Buffer, size_max: int) -> bytes:
    stream = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        section = stream.decompress(data, size_max + 1)
    except zlib.error as error:
        raise CorruptBatchError(f"the records are not a gzip stream: {error}") from error
    _check_end(len(section), size_max, is_complete=stream.eof, has_more=bool(stream.unused_data))
    return section


def _unpack_lz4(data: Buffer, size_max: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        section: bytes = stream.decompress(data, max_length=size_max + 1)
    except RuntimeError as error:
        raise CorruptBatchError(f"the records are not an lz4 frame: {error}") from error
    _check_end(len(section), size_max, is_complete=stream.eof, has_more=bool(stream.unused_data))
    return section


def _check_end(size: int, size_max: int, *, is_complete: bool, has_more: bool) -> None:
    # guard: Kafka codecs: size of gzip and lz4
    if size > size_max:
        raise CorruptBatchError(f"the records have over {size_max} bytes uncompressed")
    # guard: Kafka codecs: a cut stream
    if not is_complete:
        raise CorruptBatchError("the compressed records are cut short")
    # guard: Kafka codecs: nothing follows a stream
    if has_more:
        raise CorruptBatchError("bytes follow the compressed records")


def _unpack_zstd(data: Buffer, size_max: int) -> bytes:
    try:
        frame = zstandard.get_frame_parameters(data)
        # The library allocates the size in the frame, or max_output_size without one.
        size = frame.content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            size = size_max = min(size_max, _zstd_size_max(data, frame.has_checksum))
        # guard: Kafka codecs: size of zstd
        if size > size_max:
            raise CorruptBatchError(
                f"the records' zstd frame has {size} bytes uncompressed, over {size_max}"
            )
        return unpack_zstd_frame(data, frame, size_max)
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"the records are not one zstd frame: {error}") from error


def _zstd_size_max(data: Buffer, has_checksum: bool) -> int:
    """Return the most bytes that the blocks of a frame without a size can have (RFC 8878, 3.1.1).

    Checks that the frame ends where ``data`` does: the library does so for other frames only.
    """
    view = memoryview(data)
    position, size_max, is_last = zstandard.frame_header_size(data), 0, False
    for _ in range(limits.CODEC_BLOCKS_MAX):
        header = int.from_bytes(view[position : position + _ZSTD_BLOCK_HEADER_BYTES], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        is_compressed, is_repeated = kind == _ZSTD_COMPRESSED, kind == _ZSTD_REPEATED
        size_max += _ZSTD_BLOCK_SIZE_MAX if is_compressed else size
        position += _ZSTD_BLOCK_HEADER_BYTES + (1 if is_repeated else size)
        if is_last or position >= len(view):
            break
    end = position + (_ZSTD_CHECKSUM_BYTES if has_checksum else 0)
    # guard: Kafka codecs: nothing follows a zstd frame without a size
    if not is_last or end != len(view):
        raise CorruptBatchError("the records' zstd frame does not end where the batch does")
    return size_max


def _unpack_snappy(data: Buffer, size_max: int) -> bytes:
    blocks = _snappy_blocks(data)
    try:
        import cramjam  # imported on first use: it delays the start of clients
    except ImportError as error:
        raise UnsupportedFeatureError(
            "reading records that are compressed with snappy needs cramjam. Run "
            f"{install_command('snappy')} ({error})"
        ) from error
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        # guard: Kafka codecs: size of snappy
        if sum(sizes) > size_max:
            raise CorruptBatchError(
                f"the records have {sum(sizes)} bytes uncompressed by snappy, over {size_max}"
            )
        for block, size in zip(blocks, sizes, strict=True):
            # The library allocates the size in the block.
            if size > len(block) * _SNAPPY_RATIO_MAX:
                raise CorruptBatchError(f"{len(block)} bytes of snappy cannot hold {size}")
        return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"the records are not snappy: {error}") from error


def _snappy_blocks(data: Buffer) -> list[memoryview]:
    """Return the raw blocks of ``data``: one block if it has no snappy-java frame."""
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return [view]
    if len(view) < _XERIAL_HEADER.size:
        raise CorruptBatchError("the header of the records' snappy blocks is cut short")
    versions = _XERIAL_HEADER.unpack_from(view)[1:]
    if versions != _XERIAL_VERSIONS:
        raise CorruptBatchError(f"the records' snappy blocks are of versions {versions}")
    blocks: list[memoryview] = []
    position = _XERIAL_HEADER.size
    while position < len(view):
        if len(blocks) == limits.CODEC_BLOCKS_MAX:
            raise CorruptBatchError(f"over {limits.CODEC_BLOCKS_MAX} snappy blocks in a batch")
        start = position + _BLOCK_LENGTH.size
        length = _BLOCK_LENGTH.unpack_from(view, position)[0] if start <= len(view) else -1
        if not 0 < length <= len(view) - start:
            raise CorruptBatchError(f"at byte {position}: no snappy block of {length} bytes")
        position = start + length
        blocks.append(view[start:position])
    return blocks


class _Method(NamedTuple):
    decompress: Callable[[Buffer, int], bytes]
    ratio_max: int  # highest decompression ratio of a valid stream


# A copy of 64 bytes takes 3.
_SNAPPY_RATIO_MAX: Final = 22
_METHODS: Final = {
    Codec.GZIP: _Method(_gunzip, compression.ratio_max(Codec.GZIP)),
    Codec.SNAPPY: _Method(_unpack_snappy, _SNAPPY_RATIO_MAX),
    Codec.LZ4: _Method(_unpack_lz4, compression.ratio_max(Codec.LZ4)),
    Codec.ZSTD: _Method(_unpack_zstd, compression.ratio_max(Codec.ZSTD)),
}


def decompress(data: Buffer, codec: Codec, *, size_max: int) -> Buffer:
    """Decompress a records section.

    ``data``: as in the batch. ``size_max``: the most bytes that the result may have. Returns
    ``data`` itself without a codec. Raises ``CorruptBatchError``.
    """
    method = _METHODS.get(codec)
    if method is None:
        if len(data) > size_max:
            raise CorruptBatchError(f"the records have {len(data)} bytes, over {size_max}")
        return data
    return method.decompress(data, min(size_max, len(data) * method.ratio_max))


def compress(section: bytes, codec: Codec) -> tuple[bytes, Codec]:
    """Compress a records section as Kafka's clients read it.

    Returns the bytes and the codec used: ``NONE`` if that would not make them smaller.
    """
    if codec is not Codec.LZ4:
        return compression.compress(section, codec)
    # Java's client reads frames of independent blocks only.
    packed: bytes = lz4.frame.compress(section, block_linked=False, store_size=False)
    return (packed, codec) if len(packed) < len(section) else (section, Codec.NONE)
