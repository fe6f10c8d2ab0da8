"""The golden batches: each ``batch-*.bin`` is a stored batch as this code once wrote it.

A batch that no longer decodes to these records is a format that changed: logs on disk could not be
read. Bytes of the uncompressed ones must be made again exactly; compressors may change what they
write, so the others are only read. After adding a case, write the missing files with
``python -m tests.golden.make_batches``; files that exist are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import cramjam
import numpy as np

from raftlog.record import LEADER_BYTES, Codec, encode, parse_header, seal, stamp
from raftlog.record.compaction import Rewriter, open_original
from raftlog.record.kafka_batch import KAFKA_HEADER_BYTES
from raftlog.types import Headers
from tests.record.kafka_batches import KafkaRecord, as_stored, kafka_batch, kafka_resealed

FOLDER: Final = Path(__file__).parent
TIME_MS: Final = 1_700_000_000_000


@dataclass(frozen=True)
class Case:
    """Records, how the producer encoded them, and what the leader stamped."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[Headers] | None = None
    timestamps_ms: int | list[int] = TIME_MS
    offset_deltas: list[int] | None = None
    codec: Codec = Codec.NONE
    producer: tuple[int, int, int] = (-1, -1, -1)
    base_offset: int = 0
    leader_epoch: int = 0
    append_timestamp_ms: int = TIME_MS + 5
    log_append_time: bool = False
    previous_chain: int = 0

    def encoded(self) -> bytes:
        """The batch as it is stored."""
        body = encode(
            self.values,
            keys=self.keys,
            headers=self.headers,
            timestamps_ms=self.timestamps_ms,
            offset_deltas=self.offset_deltas,
            codec=self.codec,
        )
        producer_id, producer_epoch, base_sequence = self.producer
        header = seal(
            body,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        section, _ = stamp(
            parse_header(header),
            base_offset=self.base_offset,
            leader_epoch=self.leader_epoch,
            append_timestamp_ms=self.append_timestamp_ms,
            log_append_time=self.log_append_time,
            previous_chain=self.previous_chain,
        )
        return section + header[LEADER_BYTES:] + body.payload

    @property
    def offsets(self) -> list[int]:
        deltas = self.offset_deltas or range(len(self.values))
        return [self.base_offset + delta for delta in deltas]

    @property
    def read_timestamps_ms(self) -> list[int]:
        """The timestamps that a reader sees."""
        if self.log_append_time:
            return [self.append_timestamp_ms] * len(self.values)
        if isinstance(self.timestamps_ms, int):
            return [self.timestamps_ms] * len(self.values)
        return self.timestamps_ms


@dataclass(frozen=True)
class RowsCase(Case):
    """Records as a Kafka client sends them, which a leader stores as they are."""

    is_raw_snappy: bool = False
    has_timestamps: bool = True

    def sent(self) -> bytes:
        """The batch of the Kafka client."""
        rows = zip(
            self.values,
            self.keys or repeat(None),
            repeat(self.timestamps_ms)
            if isinstance(self.timestamps_ms, int)
            else self.timestamps_ms,
            self.headers or repeat(()),
            strict=False,
        )
        codec = Codec.NONE if self.is_raw_snappy else self.codec
        sent = kafka_batch([KafkaRecord(*row) for row in rows], codec=codec, producer=self.producer)
        if self.is_raw_snappy:
            section = bytes(cramjam.snappy.compress_raw(sent[KAFKA_HEADER_BYTES:]))
            sent = kafka_resealed(sent, section, attributes=Codec.SNAPPY)
        if not self.has_timestamps:
            sent = kafka_resealed(sent, base_timestamp=-1, max_timestamp=-1)
        return sent

    def encoded(self) -> bytes:
        """The batch as it is stored."""
        return as_stored(
            self.sent(),
            base_offset=self.base_offset,
            leader_epoch=self.leader_epoch,
            append_timestamp_ms=self.append_timestamp_ms,
            log_append_time=self.log_append_time,
            previous_chain=self.previous_chain,
        )


@dataclass(frozen=True)
class CompactedCase:
    """What a broker leaves of a batch: the records of the rows ``kept``, and its producer."""

    original: Case
    kept: tuple[int, ...]

    def encoded(self) -> bytes:
        """The batch as it is stored."""
        mask = np.zeros(len(self.original.values), np.bool_)
        mask[list(self.kept)] = True
        rewriter = Rewriter(bytes_target=1)
        original = open_original(self.original.encoded())
        (batch,) = rewriter.add(original, mask, keeps_producer=True)
        return b"".join(map(bytes, batch.buffers))

    def of_kept(self, column: list[Any]) -> list[Any]:
        return [column[row] for row in self.kept]


RICH: Final[dict[str, Any]] = {
    "values": [b"one", None, b"", bytes(range(256)), *[b"page view %d" % n for n in range(40)]],
    "keys": [b"user-1", b"user-2", None, b"", *[b"user-%d" % (n % 7) for n in range(40)]],
    "headers": [
        (),
        (("trace", b"1"), ("trace", b"2"), ("null", None)),
        (("", b""),),
        (("\xfcber", b"\xff\x00"),),
        *[(("n", b"%d" % n),) if n % 4 == 0 else () for n in range(40)],
    ],
    "timestamps_ms": [TIME_MS + (n * 37) % 101 for n in range(44)],
    "producer": (81_985_529_216_486_895, 3, 2_147_483_640),
    "base_offset": 1_234_567_890_123,
    "leader_epoch": 7,
    "previous_chain": 0xFEDC_BA98_7654_3210,
}

CASES: Final = {
    "plain": Case([b"hello", b"world"]),
    "none": Case(**RICH),
    "gzip": Case(**RICH, codec=Codec.GZIP),
    "lz4": Case(**RICH, codec=Codec.LZ4),
    "zstd": Case(**RICH, codec=Codec.ZSTD),
    "sparse": Case(**RICH, offset_deltas=[n * n for n in range(44)]),
    "log-append-time": Case(**RICH, log_append_time=True),
    "nulls": Case([None, None, None], keys=[b"a", b"b", b"a"], timestamps_ms=[0, 0, 1]),
}

ROWS: Final = {
    "rows-plain": RowsCase([b"hello", b"world"]),
    "rows-none": RowsCase(**RICH),
    "rows-gzip": RowsCase(**RICH, codec=Codec.GZIP),
    "rows-snappy": RowsCase(**RICH, codec=Codec.SNAPPY, is_raw_snappy=True),
    "rows-snappy-blocks": RowsCase(**RICH, codec=Codec.SNAPPY),
    "rows-lz4": RowsCase(**RICH, codec=Codec.LZ4),
    "rows-zstd": RowsCase(**RICH, codec=Codec.ZSTD),
    "rows-log-append-time": RowsCase(**RICH, log_append_time=True),
    "rows-no-timestamps": RowsCase([b"a", None], has_timestamps=False, log_append_time=True),
}

COMPACTED: Final = {
    "compacted": CompactedCase(CASES["none"], (1, 2, 3, 7, 40)),
    "compacted-empty": CompactedCase(CASES["none"], ()),
    "compacted-zstd": CompactedCase(CASES["zstd"], tuple(range(0, 44, 2))),
    "compacted-rows": CompactedCase(ROWS["rows-none"], (1, 2, 3, 7, 40)),
}


def path_of(name: str) -> Path:
    return FOLDER / f"batch-{name}.bin"


def main() -> None:
    for name, case in (CASES | ROWS | COMPACTED).items():
        if not path_of(name).exists():
            path_of(name).write_bytes(case.encoded())


if __name__ == "__main__":
    main()
