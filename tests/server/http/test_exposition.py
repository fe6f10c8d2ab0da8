"""The text of metrics, read back by the parsers of its two formats."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from raftlog.server.http.collect import Values, render
from raftlog.server.metrics import Durations


def some_values() -> Values:
    durations = Durations()
    for seconds in (0.0001, 0.3, 99.0):
        durations.observe(seconds)
    values = Values()
    values.put("raftlog_log_bytes", 7, 'a"b\\\n')
    values.put("raftlog_produced_bytes_total", 8)
    values.put_durations("raftlog_request_seconds", durations, "produce")
    return values


def test_both_formats_have_the_values() -> None:
    for accept, parse, kind in (
        ("application/openmetrics-text; version=1.0.0", parse_openmetrics, "openmetrics"),
        ("", parse_text, "text/plain"),
    ):
        body, content_type = render(some_values(), accept)
        assert kind in content_type
        found = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in parse(body.decode())
            for sample in family.samples
        }
        assert found["raftlog_log_bytes", ("topic", 'a"b\\\n')] == 7
        assert found["raftlog_produced_bytes_total",] == 8
        name, api = "raftlog_request_seconds", ("api", "produce")
        assert found[f"{name}_count", api] == 3
        assert found[f"{name}_sum", api] == 99.3001
        assert found[f"{name}_bucket", api, ("le", "0.5")] == 2
        assert found[f"{name}_bucket", api, ("le", "+Inf")] == 3
        assert any(key[0] == "process_resident_memory_bytes" for key in found)
