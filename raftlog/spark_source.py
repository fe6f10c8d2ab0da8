"""Former name of ``pyspark_raftlog``, for one release."""

from __future__ import annotations

from pyspark_raftlog import DataLossError, RaftlogDataSource, lag_of, read_range, register

__all__ = ["DataLossError", "RaftlogDataSource", "lag_of", "read_range", "register"]
