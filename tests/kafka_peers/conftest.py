"""A cluster of three brokers for Kafka's clients and tools, and the record of what works.

After a complete run, ``results.json`` has the outcome of every feature of every client.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog.testing.cluster import Cluster, cluster

RESULTS = Path(__file__).parent / "results.json"
OUTCOMES: dict[str, dict[str, Any]] = {}  # by client: its version, and outcomes by feature


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}
    directory = tmp_path_factory.mktemp("brokers")
    with cluster(3, directory=directory, with_relays=False, settings=settings) as running:
        yield running


@pytest.fixture
def bootstrap(brokers: Cluster) -> str:
    """All brokers run when a test begins."""
    brokers.start()
    return brokers.bootstrap


@pytest.fixture
def topic(request: pytest.FixtureRequest, bootstrap: str) -> str:
    """A new topic of two partitions, named after the test."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in request.node.name)
    with raftlog.Admin(bootstrap) as admin:
        admin.create_topics([raftlog.NewTopic(name, 2)])
    return name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    marker = item.get_closest_marker("feature")
    if marker is not None and (report.when == "call" or report.failed):
        name, version, feature = marker.args
        features = OUTCOMES.setdefault(name, {"version": version, "features": {}})["features"]
        works = features.get(feature, True) and report.passed
        features[feature] = works
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    is_complete = not session.config.option.keyword and not session.config.option.collectonly
    paths = [Path(word).resolve() for word in session.config.args]
    if OUTCOMES and is_complete and paths == [Path(__file__).parent]:
        results = {
            "date": datetime.now(UTC).date().isoformat(),
            "python": platform.python_version(),
            "clients": OUTCOMES,
        }
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
