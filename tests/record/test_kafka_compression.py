"""The codecs of Kafka's batches: what other libraries write is read, and bombs are not."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka import codec as aiokafka_codec

from raftlog import limits
from raftlog.errors import CorruptBatchError
from raftlog.record.compression import Codec
from raftlog.record.kafka_compression import compress, decompress
from tests.record.batches import ALL_CODECS

SECTION: Final = b"".join(b"page view %d, " % (n % 777) for n in range(9000))


def zstd_stream(data: bytes, **options: bool) -> bytes:
    """A frame without its size, as Java's client writes it."""
    stream = zstandard.ZstdCompressor(level=3, **options).compressobj()
    return stream.compress(data) + stream.flush()


def snappy_raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


WRITERS: Final[dict[str, tuple[Codec, Callable[[bytes], bytes]]]] = {
    "gzip": (Codec.GZIP, gzip.compress),
    "snappy": (Codec.SNAPPY, snappy_raw),
    "snappy-xerial": (Codec.SNAPPY, aiokafka_codec.snappy_encode),
    "lz4": (Codec.LZ4, lambda data: bytes(lz4.frame.compress(data, block_linked=False))),
    "lz4-no-size": (Codec.LZ4, lambda data: bytes(lz4.frame.compress(data, store_size=False))),
    "zstd": (Codec.ZSTD, zstandard.ZstdCompressor(level=1).compress),
    "zstd-stream": (Codec.ZSTD, zstd_stream),
    "zstd-stream-sum": (Codec.ZSTD, lambda data: zstd_stream(data, write_checksum=True)),
}
each_writer = pytest.mark.parametrize("name", WRITERS)


def refuses(data: bytes, codec: Codec, size_max: int = 1 << 20) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(data, codec, size_max=size_max)


@each_writer
@pytest.mark.parametrize("data", [SECTION, b"x", bytes(300_000)], ids=["text", "one", "zeros"])
def test_what_clients_write_is_read(name: str, data: bytes) -> None:
    codec, write = WRITERS[name]
    packed = write(data)
    assert decompress(packed, codec, size_max=len(data)) == data
    assert decompress(memoryview(packed), codec, size_max=1 << 26) == data


@each_writer
def test_a_size_over_the_bound_is_refused(name: str) -> None:
    codec, write = WRITERS[name]
    refuses(write(SECTION), codec, len(SECTION) - 1)


@each_writer
def test_a_cut_stream_is_refused(name: str) -> None:
    codec, write = WRITERS[name]
    packed = write(SECTION)
    for size in [*range(40), len(packed) // 2, *range(len(packed) - 20, len(packed))]:
        if name != "snappy-xerial" or size != 16:  # a frame without blocks
            refuses(packed[:size], codec)


@each_writer
def test_nothing_may_follow(name: str) -> None:
    codec, write = WRITERS[name]
    for tail in (b"\0", b"x" * 40, write(SECTION)):
        refuses(write(SECTION) + tail, codec)


@each_writer
def test_a_bomb_takes_no_more_than_the_bound(name: str) -> None:
    codec, write = WRITERS[name]
    packed = write(bytes(8 << 20))
    tracemalloc.start()
    try:
        refuses(packed, codec, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "packed",
    [
        b"\xff\xff\xff\xff\x0f",  # a block of 4 GiB
        b"\xff" * 6,
        b"\x80\x80\x04" + b"\0",  # 64 KiB in four bytes
    ],
)
def test_the_size_in_a_snappy_block_is_compared_before_memory_is_taken(packed: bytes) -> None:
    refuses(packed, Codec.SNAPPY, 1 << 26)


XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


@pytest.mark.parametrize(
    "packed",
    [
        XERIAL[:-1],
        b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 2, 3) + snappy_raw(b"x"),
        b"\x82SNAPPY\x00" + struct.pack(">iii", 2, 1, 3) + snappy_raw(b"x"),
        XERIAL + struct.pack(">i", -1),
        XERIAL + struct.pack(">i", 0),
        XERIAL + struct.pack(">i", 5) + b"\0",
        XERIAL + b"\0\0\0",
    ],
)
def test_forged_snappy_blocks_are_refused(packed: bytes) -> None:
    refuses(packed, Codec.SNAPPY)


def test_very_many_snappy_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    block = struct.pack(">i", 3) + snappy_raw(b"x")
    monkeypatch.setattr(limits, "CODEC_BLOCKS_MAX", 4)
    assert decompress(XERIAL + block * 4, Codec.SNAPPY, size_max=9) == b"xxxx"
    refuses(XERIAL + block * 5, Codec.SNAPPY)


def test_very_many_zstd_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstd_stream(bytes(range(256)) * 2048)  # four blocks, and an empty last one
    monkeypatch.setattr(limits, "CODEC_BLOCKS_MAX", 5)
    assert decompress(packed, Codec.ZSTD, size_max=1 << 20)
    monkeypatch.setattr(limits, "CODEC_BLOCKS_MAX", 4)
    refuses(packed, Codec.ZSTD)


def test_a_window_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstd_stream(SECTION)
    monkeypatch.setattr(limits, "BATCH_UNCOMPRESSED_BYTES_MAX", 1 << 16)
    refuses(packed, Codec.ZSTD)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_what_is_written_is_read_by_clients(codec: Codec) -> None:
    packed, used = compress(SECTION, codec)
    assert used is codec
    readers = {
        Codec.NONE: bytes,
        Codec.GZIP: aiokafka_codec.gzip_decode,
        Codec.LZ4: aiokafka_codec.lz4_decode,
        Codec.ZSTD: aiokafka_codec.zstd_decode,
    }
    assert readers[codec](packed) == SECTION
    assert compress(b"x", codec) == (b"x", Codec.NONE)


def test_lz4_frames_have_independent_blocks() -> None:
    packed, _ = compress(SECTION, Codec.LZ4)
    assert packed[4] & 0b0010_0000, "Java's client reads no other frames"
