"""The codecs of batches: raftlog's own, and those of Kafka's batches."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from aiokafka import codec as aiokafka_codec

from raftlog import limits
from raftlog.errors import CorruptBatchError, InvalidRequestError
from raftlog.record.compression import Codec, Pool, compress, decompress
from raftlog.record.kafka_compression import compress as kafka_compress
from raftlog.record.kafka_compression import decompress as kafka_decompress
from tests.record.batches import ALL_CODECS

# -- codecs ----------------------------------------------------------------------------------------

# The codecs: round trips, levels, and streams that lie about themselves.


CHANCE = random.Random(11)
PAYLOAD = b"".join(
    b'{"user": %d, "page": "/home/%d"}' % (CHANCE.randrange(1 << 30), row) for row in range(900)
)
PACKING = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
packing = pytest.mark.parametrize("codec", PACKING, ids=lambda codec: codec.name)
lz4_pack: Callable[..., bytes] = lz4.block.compress


def pack(codec: Codec, payload: bytes = PAYLOAD, level: int | None = None) -> bytes:
    packed, used = compress(payload, codec, level=level)
    assert used is codec
    return packed


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that Python's allocators gave out during ``call``."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refuses(data: bytes, codec: Codec, length: int) -> int:
    """Check that it is refused; the peak of the memory taken until then."""

    def attempt() -> None:
        with pytest.raises(CorruptBatchError):
            decompress(data, codec, uncompressed_length=length)

    return peak_bytes(attempt)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_round_trip(codec: Codec) -> None:
    packed, used = compress(PAYLOAD, codec)
    assert used is codec
    assert codec is Codec.NONE or len(packed) < len(PAYLOAD) // 2
    for data in (packed, bytearray(packed), memoryview(packed)):
        assert bytes(decompress(data, codec, uncompressed_length=len(PAYLOAD))) == PAYLOAD


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_what_does_not_shrink_is_left_as_it_is(codec: Codec) -> None:
    noise = random.Random(5).randbytes(2_000)
    assert compress(noise, codec) == (noise, Codec.NONE)


@packing
def test_every_level_works_and_others_are_refused(codec: Codec) -> None:
    levels = {Codec.GZIP: range(1, 10), Codec.LZ4: range(1, 13), Codec.ZSTD: range(1, 23)}[codec]
    for level in levels:
        packed = pack(codec, level=level)
        assert decompress(packed, codec, uncompressed_length=len(PAYLOAD)) == PAYLOAD
    for level in (0, -1, levels.stop, 1 << 40):
        with pytest.raises(
            InvalidRequestError, match=rf"{level} is not a level .* use 1 .* the def"
        ):
            compress(PAYLOAD, codec, level=level)
    assert len(pack(codec, level=levels[-1])) < len(pack(codec, level=1))
    assert pack(codec) == pack(codec, level=1)


def test_a_level_without_a_codec_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="choose gzip, lz4, zstd, or leave"):
        compress(PAYLOAD, Codec.NONE, level=1)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("none", Codec.NONE), ("gzip", Codec.GZIP), ("LZ4", Codec.LZ4), ("Zstd", Codec.ZSTD)],
)
def test_parse_knows_the_names(name: str, codec: Codec) -> None:
    assert Codec.parse(name) is codec


@pytest.mark.parametrize("name", ["", "snappy", "4", "z" * 10_000])
def test_parse_names_the_choices(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="use one of none, gzip, lz4, zstd") as caught:
        Codec.parse(name)
    assert len(str(caught.value)) < 300


@packing
@pytest.mark.parametrize("change", [-1, 1, -500, 5_000])
def test_a_lying_length_is_refused(codec: Codec, change: int) -> None:
    assert refuses(pack(codec), codec, len(PAYLOAD) + change) < 4 * len(PAYLOAD) + 64 * limits.KIB


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("length", [0, -1, limits.BATCH_UNCOMPRESSED_BYTES_MAX + 1, 1 << 32])
def test_a_length_over_the_limit_is_refused_before_memory_is_taken(
    codec: Codec, length: int
) -> None:
    assert refuses(PAYLOAD, codec, length) < 64 * limits.KIB


@packing
def test_a_length_no_stream_could_reach_is_refused_before_memory_is_taken(codec: Codec) -> None:
    packed = pack(codec, b"a" * 300)
    assert refuses(packed[:20], codec, limits.BATCH_UNCOMPRESSED_BYTES_MAX) < 64 * limits.KIB


@packing
def test_a_bomb_is_stopped_at_the_length_it_claims(codec: Codec) -> None:
    claimed = limits.MIB
    bomb = pack(codec, bytes(16 * limits.MIB))
    assert refuses(bomb, codec, claimed) < 3 * claimed


@packing
def test_the_densest_stream_is_within_the_ratio(codec: Codec) -> None:
    zeros = bytes(4 * limits.MIB)
    top = {Codec.GZIP: 9, Codec.LZ4: 12, Codec.ZSTD: 22}[codec]
    for level in (1, top):
        packed = pack(codec, zeros, level)
        assert decompress(packed, codec, uncompressed_length=len(zeros)) == zeros


@packing
@pytest.mark.parametrize("tail", [b"\0", b"x" * 40, None], ids=["a zero", "text", "itself"])
def test_nothing_may_follow_the_stream(codec: Codec, tail: bytes | None) -> None:
    packed = pack(codec)
    data = packed + (packed if tail is None else tail)
    refuses(data, codec, len(PAYLOAD))
    refuses(data, codec, 2 * len(PAYLOAD))


@packing
def test_a_cut_stream_is_refused(codec: Codec) -> None:
    packed = pack(codec)
    for size in [*range(40), len(packed) // 2, *range(len(packed) - 20, len(packed))]:
        refuses(packed[:size], codec, len(PAYLOAD))


@packing
def test_another_codecs_stream_is_refused(codec: Codec) -> None:
    for other in PACKING:
        if other is not codec:
            refuses(pack(other), codec, len(PAYLOAD))
    refuses(PAYLOAD, codec, len(PAYLOAD))


def test_gzip_payloads_are_what_gzip_reads_and_writes() -> None:
    assert gzip.decompress(pack(Codec.GZIP)) == PAYLOAD
    assert decompress(gzip.compress(PAYLOAD), Codec.GZIP, uncompressed_length=len(PAYLOAD))
    refuses(zlib.compress(PAYLOAD), Codec.GZIP, len(PAYLOAD))  # zlib's own container


@pytest.mark.parametrize("position", [-1, -5, 30])
def test_gzips_own_sums_are_checked(position: int) -> None:
    packed = bytearray(pack(Codec.GZIP))
    packed[position] ^= 1
    refuses(bytes(packed), Codec.GZIP, len(PAYLOAD))


def zstd_frame(**options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(PAYLOAD)


def test_a_zstd_frame_must_say_its_size() -> None:
    silent = zstd_frame(write_content_size=False)
    with pytest.raises(CorruptBatchError, match="does not specify"):
        decompress(silent, Codec.ZSTD, uncompressed_length=len(PAYLOAD))


def test_a_zstd_frame_with_a_checksum_is_read_and_checked() -> None:
    packed = bytearray(zstd_frame(write_checksum=True))
    assert decompress(packed, Codec.ZSTD, uncompressed_length=len(PAYLOAD)) == PAYLOAD
    packed[-1] ^= 1
    refuses(bytes(packed), Codec.ZSTD, len(PAYLOAD))


def test_a_skippable_zstd_frame_is_no_payload() -> None:
    skippable = struct.pack("<II", 0x184D2A50, 100) + bytes(100)
    refuses(skippable, Codec.ZSTD, 100)
    refuses(skippable + pack(Codec.ZSTD), Codec.ZSTD, len(PAYLOAD))


def test_a_zstd_frame_with_a_huge_window_is_refused_before_memory_is_taken() -> None:
    # Magic; a descriptor of a 4-byte content size; a window of 2^(10 + 21) bytes; the size.
    window = bytes([21 << 3])
    frame = b"\x28\xb5\x2f\xfd" + b"\x80" + window + struct.pack("<I", 1_000) + b"\x01\0\0"
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 31
    with pytest.raises(CorruptBatchError, match="window of 2147483648"):
        decompress(frame, Codec.ZSTD, uncompressed_length=1_000)
    assert refuses(frame, Codec.ZSTD, 1_000) < 64 * limits.KIB


def test_a_zstd_frame_that_needs_a_dictionary_is_refused() -> None:
    samples = [b"the same words in every sample %d" % row * 4 for row in range(200)]
    dictionary = zstandard.train_dictionary(1_024, samples)
    packed = zstandard.ZstdCompressor(dict_data=dictionary).compress(PAYLOAD)
    refuses(packed, Codec.ZSTD, len(PAYLOAD))


def test_lz4_takes_no_more_memory_than_the_length_claimed() -> None:
    claimed = 200 * len(pack(Codec.LZ4, bytes(100_000)))
    # The library's own buffer and the result that it is copied to.
    assert refuses(pack(Codec.LZ4, bytes(90_000)), Codec.LZ4, claimed) < 2 * claimed + limits.MIB


def test_an_lz4_block_with_its_size_in_front_is_refused() -> None:
    refuses(lz4_pack(PAYLOAD, store_size=True), Codec.LZ4, len(PAYLOAD))


def test_threads_do_not_share_a_compressor() -> None:
    chance = random.Random(7)
    payloads = [bytes(chance.choices(b"abcdef", k=chance.randrange(10, 90_000))) for _ in range(60)]

    def round_trip(payload: bytes) -> bool:
        packed, codec = compress(payload, Codec.ZSTD)
        return decompress(packed, codec, uncompressed_length=len(payload)) == payload

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trip, payloads))


# -- pool ------------------------------------------------------------------------------------------
#
# Tests of raftlog.record.compression.


def test_spares_are_kept_few_and_small() -> None:
    made: list[object] = []
    pool: Pool[object] = Pool(lambda: made.append(0) or object())
    spares = [pool.take() for _ in range(limits.CODEC_STATES_KEPT_MAX + 3)]
    for spare in spares:
        pool.give_back(spare, size_bytes=1)
    assert len({id(pool.take()) for _ in spares} & set(map(id, spares))) == (
        limits.CODEC_STATES_KEPT_MAX
    )
    made.clear()
    pool.give_back(object(), size_bytes=limits.CODEC_STATE_BYTES_MAX + 1)
    pool.take()
    assert made


# -- Kafka's codecs --------------------------------------------------------------------------------

# The codecs of Kafka's batches: what other libraries write is read, and bombs are not.


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


def kafka_refuses(data: bytes, codec: Codec, size_max: int = 1 << 20) -> None:
    with pytest.raises(CorruptBatchError):
        kafka_decompress(data, codec, size_max=size_max)


@each_writer
@pytest.mark.parametrize("data", [SECTION, b"x", bytes(300_000)], ids=["text", "one", "zeros"])
def test_what_clients_write_is_read(name: str, data: bytes) -> None:
    codec, write = WRITERS[name]
    packed = write(data)
    assert kafka_decompress(packed, codec, size_max=len(data)) == data
    assert kafka_decompress(memoryview(packed), codec, size_max=1 << 26) == data


@each_writer
def test_a_size_over_the_bound_is_refused(name: str) -> None:
    codec, write = WRITERS[name]
    kafka_refuses(write(SECTION), codec, len(SECTION) - 1)


@each_writer
def test_a_cut_kafka_stream_is_refused(name: str) -> None:
    codec, write = WRITERS[name]
    packed = write(SECTION)
    for size in [*range(40), len(packed) // 2, *range(len(packed) - 20, len(packed))]:
        if name != "snappy-xerial" or size != 16:  # a frame without blocks
            kafka_refuses(packed[:size], codec)


@each_writer
def test_nothing_may_follow(name: str) -> None:
    codec, write = WRITERS[name]
    for tail in (b"\0", b"x" * 40, write(SECTION)):
        kafka_refuses(write(SECTION) + tail, codec)


@each_writer
def test_a_bomb_takes_no_more_than_the_bound(name: str) -> None:
    codec, write = WRITERS[name]
    packed = write(bytes(8 << 20))
    tracemalloc.start()
    try:
        kafka_refuses(packed, codec, 1 << 20)
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
    kafka_refuses(packed, Codec.SNAPPY, 1 << 26)


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
    kafka_refuses(packed, Codec.SNAPPY)


def test_very_many_snappy_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    block = struct.pack(">i", 3) + snappy_raw(b"x")
    monkeypatch.setattr(limits, "CODEC_BLOCKS_MAX", 4)
    assert kafka_decompress(XERIAL + block * 4, Codec.SNAPPY, size_max=9) == b"xxxx"
    kafka_refuses(XERIAL + block * 5, Codec.SNAPPY)


def test_very_many_zstd_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstd_stream(bytes(range(256)) * 2048)  # four blocks, and an empty last one
    monkeypatch.setattr(limits, "CODEC_BLOCKS_MAX", 5)
    assert kafka_decompress(packed, Codec.ZSTD, size_max=1 << 20)
    monkeypatch.setattr(limits, "CODEC_BLOCKS_MAX", 4)
    kafka_refuses(packed, Codec.ZSTD)


def test_a_window_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstd_stream(SECTION)
    monkeypatch.setattr(limits, "BATCH_UNCOMPRESSED_BYTES_MAX", 1 << 16)
    kafka_refuses(packed, Codec.ZSTD)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_what_is_written_is_read_by_clients(codec: Codec) -> None:
    packed, used = kafka_compress(SECTION, codec)
    assert used is codec
    readers = {
        Codec.NONE: bytes,
        Codec.GZIP: aiokafka_codec.gzip_decode,
        Codec.LZ4: aiokafka_codec.lz4_decode,
        Codec.ZSTD: aiokafka_codec.zstd_decode,
    }
    assert readers[codec](packed) == SECTION
    assert kafka_compress(b"x", codec) == (b"x", Codec.NONE)


def test_lz4_frames_have_independent_blocks() -> None:
    packed, _ = kafka_compress(SECTION, Codec.LZ4)
    assert packed[4] & 0b0010_0000, "Java's client reads no other frames"
