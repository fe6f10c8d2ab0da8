"""The table of metrics: names that Prometheus users expect, and values of these only."""

from __future__ import annotations

import re

import pytest

from raftlog.server.http.collect import BY_NAME, METRICS, Values
from raftlog.server.metrics import Durations


def test_names_follow_the_conventions() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"raftlog_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_seconds") or metric.kind != "histogram", metric.name
        assert metric.help.endswith("."), metric.name
        assert "partition" not in metric.labels, "a topic may have 10,000"


def test_a_value_belongs_to_a_metric_and_has_its_labels() -> None:
    values = Values()
    values.put_all("raftlog_log_bytes", {"b": 2, "a": 1})
    assert [(sample.labels, sample.value) for sample in values.of("raftlog_log_bytes")] == [
        (("a",), 1.0),
        (("b",), 2.0),
    ]
    with pytest.raises(KeyError):
        values.put("raftlog_unknown", 1)
    with pytest.raises(AssertionError):
        values.put("raftlog_log_bytes", 1)
    with pytest.raises(AssertionError):
        values.put_durations("raftlog_log_bytes", Durations(), "a")
