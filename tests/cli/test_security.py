"""``raftlog security init``, and the TLS options of every command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raftlog.client import profiles
from raftlog.config import Address
from raftlog.testing import BrokerProcess
from raftlog.testing.certificates import Certificates
from raftlog.testing.cluster import free_port
from tests.cli.conftest import Raftlog


def test_it_prints_the_settings_of_brokers_and_clients(raftlog: Raftlog, tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    made = raftlog("security", "init", directory, "--hosts", "log1.example.com,10.0.0.1", "--json")
    files = Certificates(directory)
    credentials = directory / "admin.credentials"
    assert made.json["broker"] == files.broker_settings() | {
        "authentication.required": "true",
        "admin.credentials.file": str(credentials),
    }
    assert made.json["environment"] == {"RAFTLOG_PROFILE": str(directory / "admin.toml")}
    profile = profiles.load(str(directory / "admin.toml"))
    assert profile["bootstrap"] == "log1.example.com:9100,10.0.0.1:9100"
    assert f"admin:{profile['sasl_password']}" == credentials.read_text().strip()
    printed = raftlog("security", "init", directory)
    assert printed.status == 0
    assert f'tls.key.file = "{files.broker_key}"' in printed.out.decode()


def test_each_broker_gets_a_certificate_of_its_own(raftlog: Raftlog, tmp_path: Path) -> None:
    made = raftlog("security", "init", tmp_path, "--brokers", "1,7", "--json")
    files = Certificates(tmp_path)
    assert made.json["brokers"].keys() == {"1", "7"}
    assert made.json["brokers"]["7"]["tls.certificate.file"] == str(tmp_path / "broker-7.pem")
    assert made.json["brokers"]["7"]["tls.broker.id.required"] == "true"
    assert files.of_broker(1)[1].stat().st_mode & 0o777 == 0o600
    assert not files.broker.exists()
    printed = raftlog("security", "init", tmp_path, "--brokers", "7")
    assert "Settings of broker 7:" in printed.out.decode()
    assert raftlog("security", "init", tmp_path, "--brokers", "1,1").status == 2


def test_no_host_is_wrong_usage(raftlog: Raftlog, tmp_path: Path) -> None:
    assert raftlog("security", "init", tmp_path, "--hosts", ",").status == 2


@pytest.mark.integration
def test_options_and_the_environment_select_tls(
    raftlog: Raftlog,
    tmp_path: Path,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = BrokerProcess(
        id=1,
        address=Address("127.0.0.1", free_port()),
        data_dir=tmp_path / "broker",
        settings=certificates.broker_settings(),
    )
    broker.start()
    try:
        monkeypatch.setenv("RAFTLOG_BOOTSTRAP", str(broker.address))
        options = ("--security-protocol", "SSL", "--ssl-cafile", certificates.ca)
        assert raftlog("topic", "create", "t", *options).status == 0
        assert "RAFTLOG_SSL_CAFILE" not in os.environ, "options count for their command only"
        for name, value in certificates.environment().items():
            monkeypatch.setenv(name, value)
        assert raftlog("produce", "t", stdin=b"hello\n").status == 0
        assert raftlog("tail", "t", "-o", "earliest", "-n", 1).out == b"hello\n"
        refused = raftlog("topic", "list", "--security-protocol", "PLAINTEXT")
        assert refused.status == 1
        assert "requires TLS" in refused.err
        assert os.environ["RAFTLOG_SECURITY_PROTOCOL"] == "SSL", "it is set again afterwards"
    finally:
        broker.kill()
