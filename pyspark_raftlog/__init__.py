"""Where Spark finds the format "raftlog" by itself: it imports every module named ``pyspark_*``.

Nothing but pyspark is imported here: a module of that name which fails to import keeps Spark from
finding any of the others' formats, too. What there is to do is in ``raftlog.spark_source.source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format "raftlog": see ``raftlog.spark_source.RaftlogDataSource``."""

    has_inferred = False  # as there

    @classmethod
    def name(cls) -> str:
        return "raftlog"

    def _source(self) -> DataSource:
        from raftlog.spark_source.source import RaftlogDataSource

        source = RaftlogDataSource(self.options)
        source.has_inferred = self.has_inferred
        return source

    def schema(self) -> StructType | str:
        self.has_inferred = True
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        return self._source().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source().writer(schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return self._source().streamWriter(schema, overwrite)
