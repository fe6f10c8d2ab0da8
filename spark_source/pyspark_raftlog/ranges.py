"""``read_range``: a part of a topic by partitions, offsets or time, as a DataFrame.

It sets options, and adds filters where options are not exact. ``create_view``: a topic in SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from xxhash import xxh3_64_hexdigest

from pyspark_raftlog.offsets import EARLIEST, LATEST
from pyspark_raftlog.options import SECURITY_SETTINGS, check_no_secrets
from pyspark_raftlog.schema import read_schema
from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.types import Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OffsetRange: TypeAlias = tuple[Offset | None, Offset | None]
Time: TypeAlias = datetime | int  # aware, or milliseconds since 1970

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def read_range(
    spark: SparkSession,
    topic: str,
    *,
    partitions: int | Iterable[int] | None = None,
    offsets: OffsetRange | Mapping[int, OffsetRange] | None = None,
    time: tuple[Time | None, Time | None] | None = None,
    late_ms: int = 0,
    bootstrap: str | None = None,
    columns: Iterable[str] | None = None,
    **options: object,
) -> DataFrame:
    """Return the records of ``topic`` in a range: ``load()`` of the format "raftlog".

    ``partitions``: partition numbers; default: all.
    ``offsets``: ``(first, end)``, end exclusive, None for the end of the log on that side; by
    partition, or the same for all ``partitions``, which are then required.
    ``time``: ``(first, end)`` likewise: the records with first <= timestamp < end. Aware datetimes,
        or milliseconds since 1970.
    ``late_ms``: with ``time``, maximum milliseconds by which records are out of order: the first
        record that is at least that much later than the end ends the search. Default: 0.
    ``bootstrap``: the option ``bootstrap.servers``.
    ``columns``: the columns of the result, in their order; default: all.
    ``options``: further options of the format, with underscores for dots, such as
        ``raftlog_client_id``; those of TLS and SASL as in Python: ``sasl_username``.

    Raises ``InvalidRequestError`` for an invalid range.
    """
    if offsets is not None and time is not None:
        raise InvalidRequestError("read_range takes offsets or time, not both: filter the result")
    if late_ms < 0:
        raise InvalidRequestError(f"read_range: late_ms={late_ms} is negative")
    names = None if columns is None else list(columns)
    texts = _texts(options, bootstrap)
    chosen = _partitions(partitions, offsets)
    if chosen is None:
        texts["subscribe"] = topic
    else:
        texts["assign"] = json.dumps({topic: chosen})
    conditions: list[str] = []
    if offsets is not None:
        texts |= _offset_options(topic, chosen, offsets)
    if time is not None:
        first_ms, end_ms = _times(time)
        if first_ms is not None:
            # No record is from before 1970, or from after the year 9999.
            texts["startingTimestamp"] = str(min(max(first_ms, 0), limits.TIMESTAMP_MS_MAX))
            texts.setdefault("startingOffsetsByTimestampStrategy", "latest")
            conditions.append(f"timestamp >= timestamp_millis({first_ms})")
        if end_ms is not None:
            if end_ms + late_ms <= limits.TIMESTAMP_MS_MAX:
                texts["endingTimestamp"] = str(max(end_ms + late_ms, 0))
            conditions.append(f"timestamp < timestamp_millis({end_ms})")
    if names is not None:
        has_time = "timestamp" in (name.lower() for name in names)
        needed = ["timestamp"] if conditions and not has_time else []
        texts["columns"] = ",".join(names + needed)
    found = spark.read.format("raftlog").options(**texts).load()
    for condition in conditions:
        found = found.where(condition)
    return found if names is None else found.select(*names)


def create_view(
    spark: SparkSession,
    name: str,
    topic: str,
    *,
    schema: str | None = None,
    bootstrap: str | None = None,
    columns: Iterable[str] | None = None,
    **options: object,
) -> None:
    """Create or replace a temporary view of ``topic``, with the records of the time of each query.

    ``CREATE TEMPORARY VIEW ... USING raftlog`` keeps the records of its first query: Spark plans
    such a view once. This one is of a table, which Spark plans for each query. So a table without
    data and options is created in the current database, if it does not exist: ``raftlog_topics``,
    or ``raftlog_<hash>`` for other columns than the usual ones.

    ``name``: of the view.
    ``schema``: as in ``spark.read.schema(...)``.
    ``bootstrap``: the option ``bootstrap.servers``.
    ``columns``: the columns of the view, in their order; default: all.
    ``options``: as for ``read_range``. They are in the text of the view: set a password in a
        profile.

    Raises ``InvalidRequestError`` for a secret among the options.
    """
    texts = _texts(options, bootstrap) | {"subscribe": topic}
    if columns is not None:
        texts["columns"] = ",".join(columns)
    check_no_secrets(texts)
    reader = spark.read.format("raftlog").options(**texts)
    found = (reader if schema is None else reader.schema(schema)).load().schema
    table = "raftlog_topics"
    if found != read_schema():
        table = f"raftlog_{xxh3_64_hexdigest(found.json().encode())}"
    if not spark.catalog.tableExists(table):
        spark.catalog.createTable(table, source="raftlog", schema=found)
    given = ", ".join(f"{_quoted(key)}={_quoted(text)}" for key, text in sorted(texts.items()))
    identifier = "`" + name.replace("`", "``") + "`"
    source = f"SELECT * FROM {table} WITH ({given})"  # noqa: S608 - names and texts are quoted
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {identifier} AS {source}")


def _quoted(text: str) -> str:
    """Return a string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _texts(options: Mapping[str, object], bootstrap: str | None) -> dict[str, str]:
    texts = {
        name if name in SECURITY_SETTINGS else name.replace("_", "."): _text(value)
        for name, value in options.items()
    }
    return texts if bootstrap is None else {**texts, "bootstrap.servers": bootstrap}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _partitions(
    partitions: int | Iterable[int] | None, offsets: OffsetRange | Mapping[int, OffsetRange] | None
) -> list[int] | None:
    if partitions is not None:
        return [partitions] if isinstance(partitions, int) else sorted(partitions)
    if isinstance(offsets, Mapping):
        return sorted(offsets)
    if offsets is not None:
        raise InvalidRequestError(
            "read_range: offsets need partitions. Set partitions, or pass a dict by partition: "
            "offsets={0: (100, 200)}"
        )
    return None


def _offset_options(
    topic: str, partitions: list[int] | None, offsets: OffsetRange | Mapping[int, OffsetRange]
) -> dict[str, str]:
    assert partitions is not None, "_partitions requires them with offsets"
    starts: dict[str, Offset] = {}
    ends: dict[str, Offset] = {}
    for number in partitions:
        first, end = offsets.get(number, (None, None)) if isinstance(offsets, Mapping) else offsets
        starts[str(number)] = EARLIEST if first is None else first
        ends[str(number)] = LATEST if end is None else end
    return {
        "startingOffsets": json.dumps({topic: starts}),
        "endingOffsets": json.dumps({topic: ends}),
    }


def _times(time: tuple[Time | None, Time | None]) -> tuple[int | None, int | None]:
    first, end = (None if each is None else _ms(each) for each in time)
    if first is not None and end is not None and first > end:
        raise InvalidRequestError(f"read_range: time={time!r} ends before it begins")
    return first, end


def _ms(time: Any) -> int:
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise InvalidRequestError(
            f"read_range: {time!r} is not a time: pass a datetime with a time zone, or "
            "milliseconds since 1970"
        )
    return ms_at_or_after(time)


def ms_at_or_after(time: datetime) -> int:
    """Return an aware ``time`` in milliseconds since 1970, rounded up."""
    return -((_EPOCH - time) // _MS)
