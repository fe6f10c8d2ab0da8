"""Values as the text that Prometheus reads: OpenMetrics, or the older text format. Pure except for
the metrics of the process, which are read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from raftlog.server.http.series import METRICS, Metric, Values
from raftlog.server.metrics import BOUNDS_SECONDS

BUCKETS: Final = (*map(str, BOUNDS_SECONDS), "+Inf")


class _Values(Collector):
    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        """Return the metrics in the order of the table; those without a value are omitted."""
        for metric in METRICS:
            if metric.kind == "histogram":
                yield _histogram(metric, self._values)
            else:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.name, metric.help, labels=metric.labels)
                for sample in self._values.of(metric.name):
                    family.add_metric(sample.labels, sample.value)
                yield family


def _histogram(metric: Metric, values: Values) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for sample in values.histograms.get(metric.name, ()):
        buckets = list(zip(BUCKETS, map(float, accumulate(sample.counts)), strict=True))
        family.add_metric(sample.labels, buckets, sample.sum_seconds)
    return family


def render(values: Values, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type. ``accept``: header of the request; unknown or empty
    selects the older text format.
    """
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Values(values))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return encode(registry), content_type
