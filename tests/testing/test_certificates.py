"""Development certificates: what is in the files, and what is replaced when they are renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from raftlog import tls
from raftlog.errors import InvalidConfigError, InvalidRequestError
from raftlog.testing.certificates import create


def test_a_renewal_keeps_the_ca_and_replaces_all_else(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    every = (files.ca, files.ca_key, files.broker, files.broker_key, files.client, files.client_key)
    before = {path: path.read_bytes() for path in every}
    create(tmp_path / "tls")
    same = {path for path in every if path.read_bytes() == before[path]}
    assert same == {files.ca, files.ca_key}


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    for key in (files.ca_key, files.broker_key, files.client_key):
        assert key.stat().st_mode & 0o777 == 0o600
    assert files.directory.stat().st_mode & 0o777 == 0o700


def test_a_client_certificate_is_no_certificate_of_a_broker(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    server = tls.server_context(certificate=str(files.client), key=str(files.client_key))
    client = tls.client_context(ca=str(files.ca), check_hostname=False)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        one.do_handshake()


@pytest.mark.parametrize("host", ["", "a b", "b\u00fccher.example", "x" * 300])
def test_what_is_no_host_name_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a host name or an IP address"):
        create(tmp_path / "tls", hosts=[host])
    assert not (tmp_path / "tls").exists()


def test_a_ca_without_its_key_signs_nothing_and_stays(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    ca = files.ca.read_bytes()
    files.ca_key.unlink()
    with pytest.raises(InvalidConfigError, match=r"Restore ca\.pem and ca\.key"):
        create(tmp_path / "tls")
    assert files.ca.read_bytes() == ca
