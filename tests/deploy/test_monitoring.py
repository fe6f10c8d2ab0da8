"""Alerts and dashboards name only what brokers export, and every alert has a runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raftlog.server.http.collect import METRICS
from tests.tidy.sources import ROOT

PROMTOOL = shutil.which("promtool") or ""
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
RUNBOOKS = (ROOT / "docs/how-to/runbooks.md").read_text()
SUFFIXES = ("_bucket", "_sum", "_count")
# Series -> its labels, with those that Prometheus and its histograms add.
EXPORTED = {
    metric.name + suffix: {*metric.labels, "instance", "job", "le"}
    for metric in METRICS
    for suffix in (SUFFIXES if metric.kind == "histogram" else ("",))
}
OTHERS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
SELECTED = re.compile(r"\b(up|(?:raftlog|process)_[a-z_]+)\b(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")


def expressions() -> Iterator[tuple[str, str]]:
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for variable in dashboard["templating"]["list"]:
            yield f"{path.name}: {variable['name']}", variable["query"]
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]


def problems(expr: str) -> list[str]:
    found = []
    labels: set[str] = set()
    for name, selector in SELECTED.findall(expr):
        if name not in EXPORTED and name not in OTHERS:
            found.append(f"no broker exports {name}")
        known = EXPORTED.get(name, {"instance", "job"})
        labels |= known
        used = {part.partition("=")[0].strip("~! ") for part in selector.split(",") if part}
        found += [f"{name} has no label {label}" for label in sorted(used - known)]
    for listed in BY.findall(expr):
        found += [f"no label {n.strip()}" for n in listed.split(",") if n.strip() not in labels]
    return found


def test_every_series_that_is_named_is_exported() -> None:
    for where, expr in list(expressions()):
        assert not problems(expr), where
        assert expr.count("(") == expr.count(")"), where


@pytest.mark.parametrize(
    ("expr", "noted"),
    [
        ("raftlog_unknown > 0", "no broker exports raftlog_unknown"),
        ("rate(raftlog_fsync_seconds[1m])", "no broker exports raftlog_fsync_seconds"),
        ('raftlog_log_bytes{group="x"}', "raftlog_log_bytes has no label group"),
        ("sum by (topic) (raftlog_ready)", "no label topic"),
    ],
)
def test_a_series_or_a_label_that_is_not_exported_is_found(expr: str, noted: str) -> None:
    assert problems(expr) == [noted]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_has_a_runbook(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert alert["annotations"]["runbook"] == f"docs/how-to/runbooks.md#{name.lower()}"
    assert alert["labels"]["severity"] in {"critical", "warning"}
    _, _, section = RUNBOOKS.partition(f"\n## {name}\n")
    section = section.partition("\n## ")[0]
    for part in ("**Meaning.**", "**Look.**", "**Do.**"):
        assert part in section, name


def test_every_runbook_has_an_alert() -> None:
    sections = set(re.findall(r"^## (\w+)$", RUNBOOKS, re.MULTILINE))
    assert sections == {alert["alert"] for alert in ALERTS}


def test_dashboards_are_distinct() -> None:
    uids = [json.loads(path.read_text())["uid"] for path in DASHBOARDS]
    assert sorted(uids) == [f"raftlog-{path.stem}" for path in DASHBOARDS]


@pytest.mark.skipif(not PROMTOOL, reason="there is no promtool")
@pytest.mark.parametrize(
    ("kind", "path"),
    [("rules", FOLDER / "alerts.yml"), ("config", ROOT / "deploy/compose/prometheus.yml")],
)
def test_prometheus_accepts_the_files(kind: str, path: Path, tmp_path: Path) -> None:
    # The configuration names the rules by their place in the container.
    copy = tmp_path / path.name
    copy.write_text(
        path.read_text().replace("/etc/prometheus/alerts.yml", str(FOLDER / "alerts.yml"))
    )
    ran = subprocess.run(
        [PROMTOOL, "check", kind, str(copy)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SUCCESS" in ran.stdout
