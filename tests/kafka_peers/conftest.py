"""A cluster of three brokers for Kafka's clients and tools, and the record of what works.

``results.json`` has the outcome of every feature of every client: a complete run replaces it, a run
of some files changes what these have tested.
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
    config = session.config
    paths = [Path(word).resolve() for word in config.args]
    is_chosen = config.option.keyword or config.option.collectonly or "::" in "".join(config.args)
    if OUTCOMES and not is_chosen:
        is_complete = paths == [Path(__file__).parent]
        clients = {} if is_complete else json.loads(RESULTS.read_text())["clients"]
        date = datetime.now(UTC).date().isoformat()
        for name, found in OUTCOMES.items():
            before = clients.get(name, {"features": {}})["features"]
            clients[name] = {**found, "date": date, "features": {**before, **found["features"]}}
        results = {"python": platform.python_version(), "clients": clients}
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
