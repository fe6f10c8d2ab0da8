"""Record batches: bytes to and from records. Pure: no files, no sockets, no clock.

``batch`` specifies the header and ``payload`` the columns inside; together they define the format.
``kafka_batch`` checks, stores and returns the batches of Kafka's clients, and ``kafka_rows``
specifies their payload. ``codec`` converts between batches and Python values, ``arrow`` between
batches and Arrow arrays. ``key_hash`` computes the partition of a key. ``compression`` and
``kafka_compression`` do not depend on batches.

The names of ``arrow*`` and ``kafka_batch`` are imported at their first use: most clients never use
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.lazy import lazy_names
from raftlog.record.batch import (
    BATCH_START,
    BATCH_START_BYTES,
    COLUMNS,
    HEADER_BYTES,
    KAFKA_ROWS,
    LEADER_BYTES,
    BatchBody,
    BatchHeader,
    check,
    check_batches,
    check_length,
    layout_at,
    parse_header,
    producer_id_at,
    seal,
    split,
    split_checked,
    stamp,
    uncompressed_length_at,
    verify_chain,
)
from raftlog.record.codec import (
    RecordLists,
    decode_lists,
    decode_records,
    encode,
    find_timestamp,
    validate,
)
from raftlog.record.compression import CODEC_NAMES, Codec

if TYPE_CHECKING:
    from raftlog.record.arrow import arrow_schema, decode_arrow, encode_arrow, partitions_of_arrow
    from raftlog.record.kafka_batch import CheckedBatch, check_batch, to_kafka, to_stored

__all__ = [
    "BATCH_START",
    "BATCH_START_BYTES",
    "CODEC_NAMES",
    "COLUMNS",
    "HEADER_BYTES",
    "KAFKA_ROWS",
    "LEADER_BYTES",
    "BatchBody",
    "BatchHeader",
    "CheckedBatch",
    "Codec",
    "RecordLists",
    "arrow_schema",
    "check",
    "check_batch",
    "check_batches",
    "check_length",
    "decode_arrow",
    "decode_lists",
    "decode_records",
    "encode",
    "encode_arrow",
    "find_timestamp",
    "layout_at",
    "parse_header",
    "partitions_of_arrow",
    "producer_id_at",
    "seal",
    "split",
    "split_checked",
    "stamp",
    "to_kafka",
    "to_stored",
    "uncompressed_length_at",
    "validate",
    "verify_chain",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CheckedBatch": "raftlog.record.kafka_batch",
        "arrow_schema": "raftlog.record.arrow",
        "check_batch": "raftlog.record.kafka_batch",
        "decode_arrow": "raftlog.record.arrow",
        "encode_arrow": "raftlog.record.arrow",
        "partitions_of_arrow": "raftlog.record.arrow",
        "to_kafka": "raftlog.record.kafka_batch",
        "to_stored": "raftlog.record.kafka_batch",
    },
)
