"""Settings of a topic: Kafka's keys, with Kafka's meaning.

A setting is text in the protocol, in files and on the command line, and a typed field of a frozen
dataclass in the program. One table defines validation, defaults, text and docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from raftlog import limits
from raftlog.config.keys import DAY_MS, INT64_MAX, ConfigKey, number, parse, word
from raftlog.errors import InvalidConfigError

_POLICIES: Final = ("delete", "compact", "compact,delete")
SUBJECT_STRATEGIES: Final = ("topic", "record", "topic-record")


def _cleanup_policy(text: str) -> str:
    """Return one of ``_POLICIES``; the two policies can be in any order."""
    policy = ",".join(sorted({part.strip() for part in text.split(",")}))
    if policy not in _POLICIES:
        raise ValueError(f"{text[:100]!r} is not one of {'; '.join(_POLICIES)}")
    return policy


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{value} is not between 0 and 1")
    return value


TOPIC_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    ConfigKey(
        "cleanup.policy",
        "delete",
        _cleanup_policy,
        "delete, compact or compact,delete",
        "How old data is removed: by age and size (`delete`), all but the last record of each key "
        "(`compact`), or both.",
        choices=_POLICIES,
    ),
    word(
        "compression.type",
        "producer",
        ("producer",),
        "Brokers store batches as the producer compressed them.",
    ),
    number(
        "delete.retention.ms",
        DAY_MS,
        0,
        INT64_MAX,
        "ms",
        "With compaction: how long a tombstone (a record without a value) is kept after compaction "
        "has removed the records that it deletes. Consumers must read it within this time.",
    ),
    word(
        "flush.policy",
        "fsync",
        ("fsync", "os"),
        "`fsync`: an acknowledgement waits for fdatasync. `os`: it waits for the page cache only. "
        "Then a power cut of all in-sync replicas at once loses the acknowledged records that no "
        "operating system had written yet. `os` is refused for replication factor 1, which every "
        "topic of a broker without `voters` has.",
    ),
    number(
        "index.interval.bytes",
        4_096,
        0,
        limits.SEGMENT_BYTES_MAX,
        "bytes",
        "Bytes of log per index entry, at least.",
    ),
    number(
        "max.compaction.lag.ms",
        INT64_MAX,
        1,
        INT64_MAX,
        "ms",
        "With compaction: records older than this are compacted, independent of "
        "`min.cleanable.dirty.ratio`.",
    ),
    number(
        "max.message.bytes",
        limits.MIB + 12,
        1_024,
        limits.BATCH_BYTES_MAX,
        "bytes",
        "The largest batch, as stored (compressed, with its header).",
    ),
    number(
        "message.timestamp.after.max.ms",
        INT64_MAX,
        0,
        INT64_MAX,
        "ms",
        "How far a producer's timestamp may be ahead of the broker's clock.",
    ),
    number(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        0,
        INT64_MAX,
        "ms",
        "How far a producer's timestamp may be behind the broker's clock.",
    ),
    word(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Clock that sets the timestamps of records: the producer's (`CreateTime`) or the leader's "
        "(`LogAppendTime`).",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        0.5,
        _ratio,
        "a number from 0 to 1",
        "With compaction: compact the log if at least this part of it was never compacted.",
    ),
    number(
        "min.compaction.lag.ms",
        0,
        0,
        INT64_MAX,
        "ms",
        "With compaction: a record younger than this is kept, even if its key has a newer record.",
    ),
    number(
        "min.insync.replicas",
        0,
        0,
        limits.REPLICATION_FACTOR_MAX,
        "replicas",
        "Number of replicas that must store a record durably before it is committed. At most "
        "the replication factor; 0 means 2 from replication factor 3 on, else 1.",
    ),
    number(
        "retention.bytes",
        -1,
        -1,
        INT64_MAX,
        "bytes",
        "Delete the oldest segments while a partition is larger; -1 keeps all.",
    ),
    number(
        "retention.ms",
        7 * DAY_MS,
        -1,
        INT64_MAX,
        "ms",
        "Delete segments whose newest record is older; -1 keeps all.",
    ),
    word(
        "schema.subjects",
        "topic",
        SUBJECT_STRATEGIES,
        "The subject that `schema.validation` looks for: `topic`, TOPIC-value; `record`, the full "
        "name of the type; `topic-record`, TOPIC- and the full name. Kafka's tools can set it as "
        "`confluent.value.subject.name.strategy`.",
    ),
    word(
        "schema.subjects.keys",
        "topic",
        SUBJECT_STRATEGIES,
        "As `schema.subjects`, for `schema.validation.keys` and TOPIC-key. Kafka's tools can set "
        "it as `confluent.key.subject.name.strategy`.",
    ),
    word(
        "schema.validation",
        "none",
        ("none", "id", "full"),
        "What brokers check of the values of producers. `id`: each begins with a zero byte and the "
        "ID of a version of the subject TOPIC-value in the schema registry, or has it in the "
        "header `__value_schema_id`. `full`: also, it matches this schema. Records without a value "
        "pass. Kafka's tools can set it as `confluent.value.schema.validation`.",
    ),
    word(
        "schema.validation.keys",
        "none",
        ("none", "id", "full"),
        "As `schema.validation`, for keys: the subject TOPIC-key, the header `__key_schema_id`. "
        "Kafka's tools can set it as `confluent.key.schema.validation`.",
    ),
    number(
        "segment.bytes",
        limits.GIB,
        limits.SEGMENT_BYTES_MIN,
        limits.SEGMENT_BYTES_MAX,
        "bytes",
        "Start a new segment file at this size.",
    ),
    number(
        "segment.ms",
        7 * DAY_MS,
        1,
        INT64_MAX,
        "ms",
        "Start a new segment file at this age, even if it is small.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic; each field is the key of ``TOPIC_KEYS`` with ``.`` for ``_``."""

    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    delete_retention_ms: int = DAY_MS
    flush_policy: str = "fsync"
    index_interval_bytes: int = 4_096
    max_compaction_lag_ms: int = INT64_MAX
    max_message_bytes: int = limits.MIB + 12
    message_timestamp_after_max_ms: int = INT64_MAX
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 0
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    schema_subjects: str = "topic"
    schema_subjects_keys: str = "topic"
    schema_validation: str = "none"
    schema_validation_keys: str = "none"
    segment_bytes: int = limits.GIB
    segment_ms: int = 7 * DAY_MS

    @classmethod
    def from_text(cls, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings with ``overrides``. Raises ``InvalidConfigError``."""
        return cls(**parse(TOPIC_KEYS, overrides, what="topic"))

    @property
    def is_compacted(self) -> bool:
        """Whether only the last record of each key is kept. Then every record needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def has_schema(self) -> bool:
        """Whether the schemas of its records are checked."""
        return (self.schema_validation, self.schema_validation_keys) != ("none", "none")

    @property
    def segment_age_max_ms(self) -> int:
        """Maximum age of the active segment in ms. A compacted log must seal its segments within
        max.compaction.lag.ms, because only sealed segments are compacted."""
        if self.is_compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    def oldest_ms(self, now_ms: int) -> int:
        """Return the lowest timestamp that a producer may send at ``now_ms``."""
        if self.message_timestamp_type == "LogAppendTime":
            return 0
        return max(now_ms - self.message_timestamp_before_max_ms, 0)

    @property
    def is_deleted_by_age(self) -> bool:
        """Whether ``retention.ms`` and ``retention.bytes`` apply."""
        return "delete" in self.cleanup_policy

    def effective_min_isr(self, replication_factor: int) -> int:
        """Return ``min.insync.replicas``; for 0, the default for the replication factor."""
        return self.min_insync_replicas or (2 if replication_factor >= 3 else 1)

    def check_replication(self, replication_factor: int) -> None:
        """Raise ``InvalidConfigError`` if the settings require more replicas."""
        # guard: min.insync.replicas can be met
        if self.min_insync_replicas > replication_factor:
            raise InvalidConfigError(
                f"min.insync.replicas={self.min_insync_replicas} is more than the replication "
                f"factor, {replication_factor}: no record could be committed"
            )
        # guard: a single copy does not depend on the page cache
        if self.flush_policy == "os" and replication_factor == 1:
            raise InvalidConfigError(
                "flush.policy=os is refused for replication factor 1: a power cut would lose "
                "acknowledged records of which there is no other copy. Use flush.policy=fsync (the "
                "default), or a replication factor of 2 or more"
            )

    def to_text(self) -> dict[str, str]:
        """Return all keys and values as text."""
        return {key.name: str(getattr(self, key.field)) for key in TOPIC_KEYS}


assert [f.name for f in fields(TopicConfig)] == [key.field for key in TOPIC_KEYS]
assert all(getattr(TopicConfig(), key.field) == key.default for key in TOPIC_KEYS)
