"""The data source "raftlog": creates the readers and writers that Spark requests.

Spark creates one object for each ``load()`` and ``save()``, on the driver, and pickles it. So it
holds only the options' texts. Readers and writers are imported on first use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from pyspark_raftlog.options import SourceOptions

FORMAT = "raftlog"
# One of the properties that Spark passes in place of options while a table is being created.
_TABLES_PROVIDER = "provider"

logger = logging.getLogger("raftlog.spark")
_warned: set[str] = set()  # notices of stream writers that this process has logged


class RaftlogDataSource(DataSource):
    """The format "raftlog".

    spark.read.format("raftlog").option("bootstrap.servers", "broker-1:9100")
        .option("subscribe", "clicks").load()

    The options are those of ``pyspark_raftlog.options``. Errors are raftlog's own
    (``raftlog.errors``); Spark shows their text in one of its exceptions.
    """

    # Whether Spark has asked for the schema: it does for load() without a schema, not for a table.
    has_inferred = False

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The columns, from the options ``columns`` and ``includeHeaders``.

        Sends requests to the cluster for ``value=typed`` only. Spark does not call this if the user
        sets a schema. For
        ``CREATE TABLE ... USING raftlog`` without columns, Spark passes the table's properties in
        place of options: a table has all columns except ``headers``.
        """
        from pyspark_raftlog.options import SourceOptions, check_table
        from pyspark_raftlog.schema import check_arrow, read_schema
        from raftlog.errors import InvalidRequestError

        check_arrow()
        self.has_inferred = True  # pickled with the object
        if _TABLES_PROVIDER in self.options:
            check_table(self.options)
            return read_schema(None, include_headers=False)
        try:
            options = SourceOptions.parse(self.options, streaming=False)
        except InvalidRequestError:
            # Spark does not report whether this is a batch or a stream; their bounds differ.
            with suppress(InvalidRequestError):
                return _schema_of(SourceOptions.parse(self.options, streaming=True))
            raise
        return _schema_of(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_raftlog.options import SourceOptions
        from pyspark_raftlog.reader import BatchReader
        from pyspark_raftlog.schema import check_arrow

        check_arrow()
        self._check_secrets()
        options = SourceOptions.parse(self.options, streaming=False)
        _warn(options.notices)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        from pyspark_raftlog.options import SourceOptions
        from pyspark_raftlog.reader import StreamReader
        from pyspark_raftlog.schema import check_arrow

        check_arrow()
        self._check_secrets()
        options = SourceOptions.parse(self.options, streaming=True)
        return StreamReader(options, schema)

    def _check_secrets(self) -> None:
        """Refuse secrets in the options of a table: a view stores them in its text.

        A table has a schema, so Spark does not call ``schema``. It does not say whether the schema
        is a table's or one of ``.schema(...)``.
        """
        from pyspark_raftlog.options import check_no_secrets

        if not self.has_inferred:
            check_no_secrets(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_raftlog.options import SinkOptions
        from pyspark_raftlog.schema import check_arrow

        check_arrow()
        from pyspark_raftlog.transactional import TransactionalBatchWriter
        from pyspark_raftlog.writer import BatchWriter

        options = SinkOptions.parse(self.options, streaming=False)
        _warn(options.notices)
        if options.transactional:
            return TransactionalBatchWriter(options, schema, overwrite)
        return BatchWriter(options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from pyspark_raftlog.options import SinkOptions
        from pyspark_raftlog.schema import check_arrow

        check_arrow()
        from pyspark_raftlog.transactional import TransactionalStreamWriter
        from pyspark_raftlog.writer import StreamWriter

        options = SinkOptions.parse(self.options, streaming=True)
        _warn(notice for notice in options.notices if notice not in _warned)
        _warned.update(options.notices)  # Spark creates a writer for each batch
        if options.transactional:
            return TransactionalStreamWriter(options, schema, overwrite)
        return StreamWriter(options, schema, overwrite)


def _schema_of(options: SourceOptions) -> StructType:
    from pyspark_raftlog.schema import check_no_json, read_schema

    if options.typed_topic is not None:
        from pyspark_raftlog.clients import connection_of
        from pyspark_raftlog.typed import ReaderSchema, typed_schema

        connection = connection_of(options)
        latest = ReaderSchema.latest(connection, options.typed_topic)
        fields = latest.decoder(connection, null_on_error=False).schema
        return typed_schema(fields, options.columns, include_headers=options.include_headers)
    check_no_json(options.json)
    return read_schema(options.columns, include_headers=options.include_headers)


def _warn(notices: Iterable[str]) -> None:
    for notice in notices:
        logger.warning("%s", notice)


def register(spark: SparkSession) -> None:
    """Register the format "raftlog" with a session.

    Spark finds it automatically if raftlog is installed for the driver's Python, except if another
    ``pyspark_*`` package is broken.
    """
    spark.dataSource.register(RaftlogDataSource)
