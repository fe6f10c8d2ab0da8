"""The name of this folder, for programs that run in a clone: see ``pyspark_raftlog``."""

from __future__ import annotations

from pyspark_raftlog import (
    DataLossError,
    RaftlogDataSource,
    create_view,
    lag_of,
    read_range,
    register,
)

__all__ = ["DataLossError", "RaftlogDataSource", "create_view", "lag_of", "read_range", "register"]
