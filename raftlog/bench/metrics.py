"""CPU time of metrics: per request with and without them, and of a scrape."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from raftlog import Producer
from raftlog.bench.figures import Figure, median_interval, new_topic, scratch
from raftlog.bench.metrics_broker import WITH, WITHOUT
from raftlog.errors import BrokerUnavailableError

SCRAPES: Final = 10
SCRAPE_INTERVAL_S: Final = 15  # of Prometheus, as in deploy/
WARM_UP_ROUNDS: Final = 50
BATCH_BYTES: Final = 1_024
VALUE: Final = b"x" * 900  # one fills a batch


class MeasuredBroker:
    """Broker in a separate process, whose metrics can be disabled."""

    def __init__(self, process: subprocess.Popen[str], bootstrap: str, http: str) -> None:
        self.bootstrap = bootstrap
        self.http = http
        self._process = process
        self.functions = 0  # number of functions that count

    def select(self, version: str) -> float:
        """Select a version. Returns the CPU time of the process until now, in seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(version + "\n")
        self._process.stdin.flush()
        words = self._process.stdout.readline().split()
        if not words:
            raise BrokerUnavailableError("the broker of the benchmark has failed")
        self.functions = int(words[1])
        return int(words[0]) / 1e9


@contextmanager
def measured_broker(directory: Path | None) -> Iterator[MeasuredBroker]:
    """Run a new broker."""
    with scratch(directory) as home:
        settings = {
            "data.dir": str(home / "data"),
            "listen": "127.0.0.1:0",
            "http.listen": "127.0.0.1:0",
            "logging.level": "error",
        }
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "raftlog.bench.metrics_broker"),
                *(f"{name}={value}" for name, value in settings.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield MeasuredBroker(process, *_addresses(process))
            finally:
                process.terminate()


def _addresses(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait until the broker is ready. Returns its address, and the URL of its HTTP port."""
    http = ""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if " serves http://" in line:
            http = line.split()[-1]
        if " ready on " in line:
            return line.split()[-1], http
    raise BrokerUnavailableError(f"the broker of the benchmark did not start: {''.join(said)}")


def metrics(directory: Path | None, *, pairs: int, count: int) -> Figure:
    """Measure ``pairs`` of rounds of ``count`` produce requests, alternately with and without
    metrics in one process, and then scrapes.

    Requests have one record, with several in flight. This is the least work per request, so the
    share of metrics is the greatest. Rounds are short, so other work on the machine affects both
    rounds of a pair. The cost is the median of the pairs' ratios, with its 95 % confidence
    interval.
    """
    ratios, with_seconds, without_seconds = [], [], []
    with (
        measured_broker(directory) as broker,
        new_topic(broker.bootstrap) as topic,
        Producer(broker.bootstrap, linger_ms=0, batch_bytes_max=BATCH_BYTES) as producer,
    ):

        def cpu_seconds(version: str) -> float:
            """Return the CPU time of the broker per request."""
            before = broker.select(version)
            for _ in range(count):
                producer.send(topic, VALUE)
            producer.flush()
            return (broker.select(version) - before) / count

        for version in (WITH, WITHOUT) * WARM_UP_ROUNDS:
            cpu_seconds(version)
        for number in range(pairs):
            order = (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH)
            seconds = {version: cpu_seconds(version) for version in order}
            with_seconds.append(seconds[WITH])
            without_seconds.append(seconds[WITHOUT])
            ratios.append(seconds[WITH] / seconds[WITHOUT])
        scrape_seconds = _scrape_seconds(broker)
    return _figure(ratios, with_seconds, without_seconds, scrape_seconds, count)


def _scrape_seconds(broker: MeasuredBroker) -> float:
    """Return the CPU time of one scrape. Waits a second between scrapes: results are cached."""
    before = broker.select(WITH)
    for _ in range(SCRAPES):
        with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as response:  # noqa: S310 - the broker above
            response.read()
        time.sleep(1.05)
    return (broker.select(WITH) - before) / SCRAPES


def _figure(
    ratios: list[float],
    with_seconds: list[float],
    without_seconds: list[float],
    scrape_seconds: float,
    count: int,
) -> Figure:
    cost = statistics.median(ratios) - 1
    low, high = (bound - 1 for bound in median_interval(ratios))
    with_us = statistics.median(with_seconds) * 1e6
    without_us = statistics.median(without_seconds) * 1e6
    scraping = scrape_seconds / SCRAPE_INTERVAL_S
    return Figure(
        {
            "name": "metrics",
            "pairs": len(ratios),
            "requests": count,
            "with_us": with_us,
            "without_us": without_us,
            "cost": cost,
            "cost_low": low,
            "cost_high": high,
            "scrape_ms": scrape_seconds * 1e3,
            "scraping_cost": scraping,
        },
        {
            "benchmark": "metrics",
            "pairs": f"{len(ratios)}",
            "CPU us/request": f"{with_us:.1f}",
            "without metrics": f"{without_us:.1f}",
            "cost": f"{cost:.2%}",
            "95 % interval": f"{low:.2%} to {high:.2%}",
            "scrape ms": f"{scrape_seconds * 1e3:.1f}",
            f"of a core, every {SCRAPE_INTERVAL_S} s": f"{scraping:.2%}",
        },
    )
