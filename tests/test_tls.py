"""TLS contexts: which files are accepted, and what the errors of connections advise."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from raftlog import tls
from raftlog.errors import InvalidConfigError, RaftlogError
from raftlog.testing.certificates import Certificates


@pytest.mark.parametrize(
    ("mode", "is_accepted"), [(0o600, True), (0o640, True), (0o604, False), (0o602, False)]
)
def test_only_the_owner_and_the_group_may_use_a_key(
    tmp_path: Path, mode: int, is_accepted: bool
) -> None:
    key = tmp_path / "key"
    key.touch()
    key.chmod(mode)
    if is_accepted:
        tls.check_private(str(key))
    else:
        with pytest.raises(InvalidConfigError, match=f"has the mode {mode:04o}.*chmod 600"):
            tls.check_private(str(key))


def test_files_that_cannot_be_used_are_named(tmp_path: Path, certificates: Certificates) -> None:
    missing, junk = tmp_path / "missing.pem", tmp_path / "junk.pem"
    junk.write_text("junk")
    certificate, key = str(certificates.broker), str(certificates.broker_key)
    for path, why in ((missing, "cannot be read: No such file"), (junk, "cannot be used for TLS")):
        with pytest.raises(InvalidConfigError, match=f"{path.name}.* {why}"):
            tls.client_context(ca=str(path))
        with pytest.raises(InvalidConfigError, match=f"{path.name}.* {why}"):
            tls.server_context(certificate=str(path), key=key)
    with pytest.raises(InvalidConfigError, match=r"missing\.pem cannot be read"):
        tls.server_context(certificate=certificate, key=str(missing))
    with pytest.raises(InvalidConfigError, match="KEY_VALUES_MISMATCH"):
        tls.server_context(certificate=certificate, key=str(certificates.client_key))


def test_a_key_with_a_password_is_refused_without_a_prompt(
    tmp_path: Path, certificates: Certificates
) -> None:
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(certificates.broker_key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.touch(mode=0o600)
    secret = form.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, secret))
    with pytest.raises(InvalidConfigError, match="key without a password"):
        tls.server_context(certificate=str(certificates.broker), key=str(locked))


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("WRONG_VERSION_NUMBER", "Set security_protocol='PLAINTEXT'"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "Set ssl_certfile and ssl_keyfile"),
        ("TLSV1_ALERT_UNKNOWN_CA", "Set ssl_certfile and ssl_keyfile"),
        ("NO_SHARED_CIPHER", "TLS failed: NO_SHARED_CIPHER"),
    ],
)
def test_an_error_comes_with_advice(reason: str, advice: str) -> None:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    assert advice in tls.explain(error)


def test_other_errors_are_not_explained() -> None:
    assert tls.explain(None) == tls.explain(RaftlogError("x")) == ""
    assert tls.explain(ssl.SSLError(1, "odd")).startswith("TLS failed")
