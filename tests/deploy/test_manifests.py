"""The files of deploy/ agree with the product: manifests, alerts and dashboards."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from raftlog.config import BrokerConfig
from raftlog.server.http.collect import METRICS
from raftlog_cli.main import root
from tests.tidy.sources import ROOT

# -- manifests -------------------------------------------------------------------------------------

# The files of deploy/ agree with the product: commands, settings, ports, names.


DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "systemd/raftlog.service").read_text()
CONTAINER = (DEPLOY / "container/Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
KUBERNETES = DEPLOY / "kubernetes"


def settings_of(arguments: list[str]) -> BrokerConfig:
    """The settings of a command line of `raftlog broker`, which has to be valid."""
    command = root.get_command(click.Context(root), "broker")
    assert command is not None
    here = [word for word in arguments if not word.startswith("--cluster-secret-file=")]
    values = command.make_context("broker", here).params
    given = {
        "id": values["broker_id"],
        "listen": values["listen"],
        "data.dir": values["data_dir"],
        "voters": values["voters"],
    }
    text = values["settings"] | {key: str(value) for key, value in given.items() if value}
    return BrokerConfig.from_text({"cluster.secret": "x" * 32, **text})


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def test_the_unit_starts_the_broker_and_gives_it_time_to_stop() -> None:
    lines = dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line and line[0] != "#")
    assert shlex.split(lines["ExecStart"])[1:3] == ["broker", "--config"]
    handover_s = BrokerConfig().controlled_shutdown_timeout_ms / 1_000
    assert int(lines["TimeoutStopSec"]) > 2 * handover_s
    assert lines["ProtectSystem"] == "strict"
    assert lines["StateDirectory"] == "raftlog"


@pytest.mark.integration
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_the_unit_is_hardened() -> None:
    path = str(DEPLOY / "systemd/raftlog.service")
    command = ["systemd-analyze", "security", "--offline=true", "--json=short", path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = json.loads(ran.stdout)
    exposure = sum(float(row["exposure"] or 0) for row in rows)
    assert rows
    assert exposure < 2.0, exposure


def test_the_container_runs_a_broker_without_privileges() -> None:
    lines = CONTAINER.replace("\\\n", " ").splitlines()
    instruction = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines if " " in line}
    entry, command = json.loads(instruction["ENTRYPOINT"]), json.loads(instruction["CMD"])
    assert entry == ["tini", "--", "raftlog", "broker"]
    config = settings_of(command)
    assert config.http_console_read_only
    assert f"http://{config.http_listen}/healthz" in instruction["HEALTHCHECK"]
    assert instruction["USER"] == "10001:10001"
    assert config.data_dir == instruction["VOLUME"] == instruction["WORKDIR"]


def test_compose_has_three_brokers_of_one_cluster() -> None:
    brokers = {name: s for name, s in COMPOSE["services"].items() if name.startswith("broker-")}
    configs = [settings_of(service["command"]) for service in brokers.values()]
    assert [config.id for config in configs] == [1, 2, 3]
    assert len({config.voters for config in configs}) == 1
    for name, config in zip(brokers, configs, strict=True):
        assert str(config.advertised_listen) == f"{name}:9100"
        assert dict(config.voters)[config.id].host == name
        assert brokers[name]["volumes"] == [f"{name}:{config.data_dir}"]
        assert name in COMPOSE["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in brokers[name]["ports"])
    scraped = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["job_name"] == "raftlog"  # that of the alert rules
    assert job["static_configs"][0]["targets"] == [f"{name}:9200" for name in brokers]
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "compose" / source).exists(), source


def faults_by_the_compose_specification(path: Path) -> str:
    """What its schema finds in a file; "" if that is nothing."""
    command = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr if ran.returncode else ""


def test_the_compose_specification_accepts_every_field(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="there is no check-jsonschema")
    path = DEPLOY / "compose/compose.yaml"
    assert faults_by_the_compose_specification(path) == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(path.read_text().replace("  restart: on-failure", "  restrat: on-failure"))
    assert "restrat" in faults_by_the_compose_specification(wrong)


def test_kubernetes_agrees_with_the_settings() -> None:
    text = (KUBERNETES / "broker.toml").read_text()
    config = BrokerConfig.from_toml(text)
    (stateful,) = documents("statefulset.yaml")
    spec = stateful["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == len(config.voters)
    hosts = [f"{stateful['metadata']['name']}-{n}.{spec['serviceName']}" for n in range(3)]
    assert [voter.address.host for voter in config.voters] == hosts
    assert {port["containerPort"] for port in container["ports"]} == {9100, 9200}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {config.data_dir, "/etc/raftlog/broker.toml", "/etc/raftlog/secret"} <= mounts
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    stop = container["lifecycle"]["preStop"]["exec"]["command"]
    assert stop[:2] == ["raftlog", "ready"]
    waits_s = int(stop[stop.index("--timeout") + 1])
    handover_s = config.controlled_shutdown_timeout_ms / 1_000
    assert pod["terminationGracePeriodSeconds"] > waits_s + 2 * handover_s
    assert container["securityContext"]["readOnlyRootFilesystem"]
    names = {service["metadata"]["name"] for service in documents("services.yaml")}
    assert {"raftlog", "raftlog-bootstrap", "raftlog-0", "raftlog-1", "raftlog-2"} == names
    (budget,) = documents("disruption-budget.yaml")
    assert budget["spec"]["maxUnavailable"] == 1
    listed = documents("kustomization.yaml")[0]["resources"]
    assert sorted(listed) == sorted(
        path.name for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml"
    )


def rendered() -> list[dict[str, Any]]:
    """What kustomize renders."""
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl")
    ran = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(ran.stdout))


@pytest.mark.integration
def test_prometheus_reaches_the_http_port() -> None:
    """Kustomize writes the labels of the brokers over those that a policy selects by."""
    (policy,) = [each for each in rendered() if each["kind"] == "NetworkPolicy"]
    (http,) = [rule for rule in policy["spec"]["ingress"] if "from" in rule]
    assert http["ports"] == [{"port": "http"}]
    (scraper,) = [source["podSelector"] for source in http["from"]]
    assert "prometheus" in str(scraper)
    assert "raftlog" not in str(scraper)


@pytest.mark.integration
def test_kubernetes_accepts_every_field_of_what_kustomize_renders() -> None:
    """By the schemas of Kubernetes, in which an unknown field is an error."""
    validate = pytest.importorskip("kubernetes_validate", reason="there is no kubernetes-validate")
    kinds = []
    for document in rendered():
        validate.validate(document, "1.30", strict=True)
        kinds.append(document["kind"])
    assert sorted(set(kinds)) == [
        *("ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet")
    ]


# -- monitoring ------------------------------------------------------------------------------------

# Alerts and dashboards name only what brokers export, and every alert has a runbook.


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


def test_what_alerts_of_the_disk_alerts_of_each_log_directory() -> None:
    text = " ".join(alert["expr"] for alert in ALERTS)
    of_disk, of_directories = (
        set(re.findall(rf"\braftlog_{which}_(\w+)", text)) for which in ("disk", "log_dir")
    )
    assert of_disk <= of_directories


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
