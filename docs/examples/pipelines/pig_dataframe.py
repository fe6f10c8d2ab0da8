"""Pig's LOAD, FILTER, GROUP, FOREACH: a topic as a DataFrame of Polars, without a cluster."""

import polars as pl

import raftlog

log = raftlog.scan("access-log", value="text", columns=["value"]).to_polars(lazy=True)  # LOAD
fields = log.select(
    path=pl.col("value").str.extract(r'"\S+ (\S+)'),
    status=pl.col("value").str.extract(r'" (\d+) ').cast(pl.Int32),
)
found = (
    fields.filter(pl.col("status") == 404)  # FILTER
    .group_by("path")  # GROUP
    .agg(requests=pl.len())  # FOREACH ... GENERATE
    .sort("requests", "path", descending=[True, False])  # ORDER
    .head(5)  # LIMIT
)
for path, requests in found.collect().rows():  # DUMP
    print(path, requests)
