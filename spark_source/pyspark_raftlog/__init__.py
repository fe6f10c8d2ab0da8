"""The PySpark data source "raftlog": batch and streaming reads and writes of topics.

Spark finds the format by itself: it imports every module named ``pyspark_*`` at the start of a
session. So nothing but pyspark is imported here, and other names are imported on first use: a
module of that name that fails to import would also hide the formats of all others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_raftlog.offsets import lag_of
    from pyspark_raftlog.planning import DataLossError
    from pyspark_raftlog.ranges import create_view, read_range
    from pyspark_raftlog.source import RaftlogDataSource, register

__all__ = [
    "DataLossError",
    "DefaultSource",
    "RaftlogDataSource",
    "create_view",
    "lag_of",
    "read_range",
    "register",
]

_HOMES: Final = {
    "DataLossError": "pyspark_raftlog.planning",
    "RaftlogDataSource": "pyspark_raftlog.source",
    "create_view": "pyspark_raftlog.ranges",
    "lag_of": "pyspark_raftlog.offsets",
    "read_range": "pyspark_raftlog.ranges",
    "register": "pyspark_raftlog.source",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pyspark_raftlog' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class DefaultSource(DataSource):
    """The format "raftlog", as Spark finds it: see ``RaftlogDataSource``."""

    has_inferred = False  # as there

    @classmethod
    def name(cls) -> str:
        return "raftlog"

    def _source(self) -> DataSource:
        from pyspark_raftlog.source import RaftlogDataSource

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
