"""The PySpark data source "raftlog": batch and streaming reads and writes of topics.

Names are imported on first use: importing this package needs neither pyarrow nor a broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from raftlog.spark_source.lag import lag_of
    from raftlog.spark_source.planning import DataLossError
    from raftlog.spark_source.ranges import read_range
    from raftlog.spark_source.source import RaftlogDataSource, register

__all__ = ["DataLossError", "RaftlogDataSource", "lag_of", "read_range", "register"]

_HOMES: Final = {
    "DataLossError": "raftlog.spark_source.planning",
    "RaftlogDataSource": "raftlog.spark_source.source",
    "lag_of": "raftlog.spark_source.lag",
    "read_range": "raftlog.spark_source.ranges",
    "register": "raftlog.spark_source.source",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'raftlog.spark_source' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
