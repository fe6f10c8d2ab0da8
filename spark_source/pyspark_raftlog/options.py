"""Options of reads and writes: text in, checked and immutable values out.

Pure: all checks that need no cluster are here, before any work. Every error names the option, its
value and the remedy. Names are those of the manual, case-insensitive. No option is ignored without
a message: it is used, rejected, or mentioned in ``notices``, which the caller logs.

    option                                      in a batch read    in a stream        in a write
    ------------------------------------------  -----------------  -----------------  ------------
    subscribe, subscribePattern, assign         exactly one        exactly one        refused
    startingOffsets, -Timestamp, -ByTimestamp   not latest         used (first run)   refused
    endingOffsets, -Timestamp, -ByTimestamp     not earliest       refused, as Kafka  refused
    startingOffsetsByTimestampStrategy          used               used               refused
    includeHeaders, columns                     used               used               refused
    minPartitions, maxRecordsPerPartition       used               used               refused
    max-, minOffsetsPerTrigger,                 noted              used               refused
      maxBytesPerTrigger, maxTriggerDelay
    failOnDataLoss, isolation                   used               used               refused
    batchMaxRows, batchMaxBytes                 used               used               refused
    fetchTimeoutMs, numRetries,                 used               used               refused
      retryIntervalMs
    groupId, commitOffsets                      noted              used               refused
    topic, codec, acks                          refused            refused            used
    allowDuplicates                             refused            refused            used
    idempotenceId, idempotenceVersion           refused            refused            batch only
    bootstrap.servers, raftlog.<setting>        used               used               used
    kafka.<setting>, also of raftlog            used               used               used
    kafka.<setting>, only of Kafka              refused            refused            refused
    path, and what Spark adds for itself        noted              noted              noted

"noted": the option has no effect, but its value is checked. Precedence of starting and ending
options: ``...Timestamp``, then ``...OffsetsByTimestamp``, then ``...Offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypedDict

from pyspark_raftlog.client_options import (
    CONNECTION_SETTINGS,
    Setting,
    Settings,
    parse_address_list,
    parse_settings,
)
from pyspark_raftlog.offsets import Bound
from pyspark_raftlog.option_names import check_names, notices
from pyspark_raftlog.option_values import Texts, choice, integer, shown
from pyspark_raftlog.planning import TASKS_MAX
from pyspark_raftlog.selection import (
    Assigned,
    Pattern,
    Selection,
    TimestampStrategy,
    Topics,
    parse_bounds,
    parse_selection,
    parse_strategy,
)
from raftlog import limits
from raftlog.client.settings import DAY_MS
from raftlog.errors import InvalidGroupError, InvalidRequestError, InvalidTopicError
from raftlog.record import CODEC_NAMES, Codec
from raftlog.types import check_group_id, check_not_internal, check_topic_name

BATCH_ROWS_DEFAULT: Final = 10_000
BATCH_ROWS_MAX: Final = limits.RECORDS_PER_BATCH_MAX
BATCH_BYTES_DEFAULT: Final = 4 * limits.MIB
BATCH_BYTES_MIN: Final = limits.KIB
BATCH_BYTES_MAX: Final = 256 * limits.MIB
FETCH_TIMEOUT_MS_DEFAULT: Final = 30_000
RETRIES_DEFAULT: Final = 3
RETRIES_MAX: Final = 1_000
RETRY_INTERVAL_MS_DEFAULT: Final = 100
RETRY_INTERVAL_MS_MAX: Final = 600_000
TRIGGER_DELAY_MS_DEFAULT: Final = 15 * 60_000
TRIGGER_BYTES_MAX: Final = 1 << 62
IDEMPOTENCE_ID_CHARS_MAX: Final = 200

__all__ = ["Assigned", "Pattern", "Selection", "SinkOptions", "SourceOptions", "Topics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options of a read. ``parse`` creates it; Spark sends it to the tasks.

    ``bootstrap``: ``host:port[,host:port]``. ``connection`` and ``reading``: the settings of the
    client that were set. ``starting`` and ``ending``: not resolved yet; ``ending`` of a stream is
    ``Word.LATEST``. ``columns``: names as written, None for all; ``schema`` checks them. None
    elsewhere: no limit. ``notices``: messages to log once.
    """

    streaming: bool
    bootstrap: str
    connection: Settings
    reading: Settings
    selection: Selection
    starting: Bound
    ending: Bound
    starting_option: str  # the option that ``starting`` comes from, for errors
    ending_option: str
    timestamp_strategy: TimestampStrategy
    include_headers: bool
    columns: tuple[str, ...] | None
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fail_on_data_loss: bool
    batch_max_rows: int
    batch_max_bytes: int
    fetch_timeout_ms: int
    retries: int
    retry_interval_ms: int
    group_id: str | None
    commit_offsets: bool
    notices: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Parse the options of a read. Raises ``InvalidRequestError``."""
        texts = Texts(options)
        check_names(texts, writing=False, streaming=streaming)
        settings = parse_settings(texts, writing=False)
        selection = parse_selection(texts)
        bounds = parse_bounds(texts, selection, streaming=streaming)
        isolation = texts.short("isolation")
        if isolation is not None:
            choice("isolation", isolation, ("committed",))
        return cls(
            streaming=streaming,
            bootstrap=parse_address_list(texts),
            connection=tuple(each for each in settings if each[0] in CONNECTION_SETTINGS),
            reading=tuple(each for each in settings if each[0] not in CONNECTION_SETTINGS),
            selection=selection,
            starting=bounds.starting,
            ending=bounds.ending,
            starting_option=bounds.starting_option,
            ending_option=bounds.ending_option,
            timestamp_strategy=parse_strategy(texts),
            include_headers=texts.flag("includeHeaders", False),
            columns=_columns(texts),
            min_partitions=texts.integer("minPartitions", 1, TASKS_MAX),
            max_records_per_partition=texts.integer("maxRecordsPerPartition", 1, limits.OFFSET_MAX),
            **_trigger_limits(texts),
            fail_on_data_loss=texts.flag("failOnDataLoss", True),
            batch_max_rows=_or(
                texts.integer("batchMaxRows", 1, BATCH_ROWS_MAX), BATCH_ROWS_DEFAULT
            ),
            batch_max_bytes=_or(
                texts.size("batchMaxBytes", BATCH_BYTES_MIN, BATCH_BYTES_MAX), BATCH_BYTES_DEFAULT
            ),
            fetch_timeout_ms=_or(
                texts.duration_ms("fetchTimeoutMs", 1, DAY_MS), FETCH_TIMEOUT_MS_DEFAULT
            ),
            retries=_or(texts.integer("numRetries", 0, RETRIES_MAX), RETRIES_DEFAULT),
            retry_interval_ms=_or(
                texts.duration_ms("retryIntervalMs", 0, RETRY_INTERVAL_MS_MAX),
                RETRY_INTERVAL_MS_DEFAULT,
            ),
            group_id=_group(texts),
            commit_offsets=texts.flag("commitOffsets", False),
            notices=notices(texts, writing=False, streaming=streaming),
        )

    def connection_settings(self) -> dict[str, Setting]:
        """Return keyword arguments for every client, also for ``Admin``."""
        return dict(self.connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of a write. ``parse`` creates it; Spark sends it to the tasks.

    ``topic``: of every row; None: the column ``topic`` of each row names it.
    ``idempotence_id`` and ``idempotence_version``: both or none; writes with the same pair are
    stored once. ``allow_duplicates``: continue if records of an earlier attempt were deleted, so
    that the task cannot determine which rows are stored.
    """

    streaming: bool
    bootstrap: str
    settings: Settings
    topic: str | None
    codec: Codec
    idempotence_id: str | None
    idempotence_version: int | None
    allow_duplicates: bool
    notices: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Parse the options of a write. Raises ``InvalidRequestError``, ``InvalidTopicError``."""
        texts = Texts(options)
        check_names(texts, writing=True, streaming=streaming)
        settings = parse_settings(texts, writing=True)
        codec = texts.short("codec")
        acks = texts.short("acks")
        if acks is not None and acks.lower() not in {"all", "-1"}:
            raise InvalidRequestError(
                f"{shown('acks', acks)}: only all is supported: exactly-once writes need every "
                "in-sync replica. Leave it out"
            )
        idempotence_id, version = _idempotence(texts, streaming=streaming)
        return cls(
            streaming=streaming,
            bootstrap=parse_address_list(texts),
            settings=settings,
            topic=_topic(texts),
            codec=Codec.ZSTD if codec is None else _codec(codec),
            idempotence_id=idempotence_id,
            idempotence_version=version,
            allow_duplicates=texts.flag("allowDuplicates", False),
            notices=notices(texts, writing=True, streaming=streaming),
        )

    @property
    def is_repeatable(self) -> bool:
        """Whether the write can be repeated under its name: a stream's batch, or by options."""
        return self.streaming or self.idempotence_id is not None

    @property
    def write_id(self) -> str | None:
        """Name of the write, equal for its repetitions; None without idempotence options."""
        if self.idempotence_id is None:
            return None
        return f"{self.idempotence_id}/{self.idempotence_version}"

    def producer_settings(self) -> dict[str, Setting]:
        """Return keyword arguments for a producer."""
        return dict(self.settings)


# -- single options --------------------------------------------------------------------------------


class _TriggerLimits(TypedDict):
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int


def _trigger_limits(texts: Texts) -> _TriggerLimits:
    most = texts.integer("maxOffsetsPerTrigger", 1, limits.OFFSET_MAX)
    bytes_most = texts.size("maxBytesPerTrigger", 1, TRIGGER_BYTES_MAX)
    least = texts.integer("minOffsetsPerTrigger", 1, limits.OFFSET_MAX)
    if most is not None and bytes_most is not None:
        raise InvalidRequestError(
            "options maxOffsetsPerTrigger and maxBytesPerTrigger exclude each other: leave one out"
        )
    if most is not None and least is not None and least > most:
        raise InvalidRequestError(
            f"option minOffsetsPerTrigger={least} is higher than maxOffsetsPerTrigger={most}: no "
            "batch could have that number. Lower it"
        )
    delay_ms = texts.duration_ms("maxTriggerDelay", 0)
    return {
        "max_offsets_per_trigger": most,
        "max_bytes_per_trigger": bytes_most,
        "min_offsets_per_trigger": least,
        "max_trigger_delay_ms": _or(delay_ms, TRIGGER_DELAY_MS_DEFAULT),
    }


def _columns(texts: Texts) -> tuple[str, ...] | None:
    text = texts.short("columns")
    if text is None:
        return None
    names = tuple(name for name in map(str.strip, text.split(",")) if name)
    if not names:
        raise InvalidRequestError(
            f"{shown('columns', text)} names no column: name some, as in offset,key,value"
        )
    return names


def _group(texts: Texts) -> str | None:
    group = texts.short("groupId")
    if group is None:
        if texts.flag("commitOffsets", False):
            raise InvalidRequestError(
                "option commitOffsets=true needs groupId: the consumer group that lag tools show"
            )
        return None
    try:
        return check_group_id(group)
    except InvalidGroupError as error:
        raise InvalidRequestError(f"{shown('groupId', group)}: {error}") from error


def _topic(texts: Texts) -> str | None:
    topic = texts.short("topic")
    if topic is None:
        return None
    try:
        check_not_internal(check_topic_name(topic))
    except InvalidTopicError as error:
        raise InvalidRequestError(f"{shown('topic', topic)}: {error}") from error
    return topic


def _codec(text: str) -> Codec:
    return Codec[choice("codec", text, CODEC_NAMES).upper()]


def _idempotence(texts: Texts, *, streaming: bool) -> tuple[str | None, int | None]:
    name, version = texts.short("idempotenceId"), texts.short("idempotenceVersion")
    if name is None and version is None:
        return None, None
    if streaming:
        raise InvalidRequestError(
            "options idempotenceId and idempotenceVersion are for batch writes: a stream uses "
            "its query id and batch number instead. Leave them out"
        )
    if name is None or version is None:
        raise InvalidRequestError(
            "options idempotenceId and idempotenceVersion go together: the id names the writer, "
            "such as a job, the version counts its writes. Set both, or none"
        )
    if not (len(name) <= IDEMPOTENCE_ID_CHARS_MAX and name.isprintable()):
        raise InvalidRequestError(
            f"{shown('idempotenceId', name)}: it is 1 to {IDEMPOTENCE_ID_CHARS_MAX} printable "
            "characters"
        )
    return name, integer("idempotenceVersion", version, 0, limits.OFFSET_MAX)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
