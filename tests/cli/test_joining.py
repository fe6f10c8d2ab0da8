"""The ID of a broker without one: that of its directory; else the default, or the cluster's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.config import Address, BrokerConfig
from raftlog.disk import OsDisk
from raftlog.errors import DataDirectoryError, InvalidConfigError, RaftlogError
from raftlog.storage import Store
from raftlog.testing.cluster import free_port
from raftlog_cli.broker import with_id


def test_a_directory_has_the_id_of_its_broker(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=str(tmp_path / "data"))
    assert with_id(config).id == 1, "a new broker alone"
    Store.open(OsDisk(), config.data_dir, broker_id=7).close()
    assert with_id(config).id == 7
    assert with_id(replace(config, join=(Address("127.0.0.1", 9),))).id == 7


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(b"nonsense")
    with pytest.raises(DataDirectoryError, match="identity cannot be read"):
        with_id(BrokerConfig(data_dir=str(tmp_path)))


def test_a_certificate_that_names_the_id_needs_the_id(tmp_path: Path) -> None:
    config = BrokerConfig(
        data_dir=str(tmp_path / "data"),
        join=(Address("127.0.0.1", free_port()),),
        cluster_secret="a secret of this test",
        tls_certificate_file="broker.pem",
        tls_key_file="broker.key",
        tls_ca_file="ca.pem",
        tls_broker_id_required=True,
    )
    with pytest.raises(InvalidConfigError, match=r"Set --id to the ID in the certificate"):
        with_id(config)


def test_without_a_broker_that_responds_there_is_no_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(
        data_dir=str(tmp_path / "data"),
        join=(Address("127.0.0.1", free_port()),),
        cluster_secret="a secret of this test",
    )
    monkeypatch.setattr("raftlog_cli.broker.TIMEOUT_MS", 100)
    with pytest.raises(RaftlogError):
        with_id(config)
