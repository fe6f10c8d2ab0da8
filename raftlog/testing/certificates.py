"""Development certificates: a CA, and certificates that it signs for brokers and clients.

X.509 certificates (RFC 5280) with ECDSA keys on P-256, by the `cryptography` package, which the
extra `security` installs.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raftlog import limits
from raftlog.clock import Clock, SystemClock
from raftlog.disk import OsDisk
from raftlog.errors import InvalidConfigError, InvalidRequestError
from raftlog.install import install_command
from raftlog.tls import broker_uri

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
DAYS_DEFAULT: Final = 365
CA_DAYS: Final = 3_650
CLOCK_SKEW: Final = dt.timedelta(minutes=5)  # a certificate is valid from this time before now


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of the files in one directory."""

    directory: Path

    @property
    def ca(self) -> Path:
        """Certificate of the CA."""
        return self.directory / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """Key of the CA. Neither brokers nor clients need it."""
        return self.directory / "ca.key"

    @property
    def broker(self) -> Path:
        """Certificate of all brokers; they also use it to connect to each other."""
        return self.directory / "broker.pem"

    @property
    def broker_key(self) -> Path:
        """Key of ``broker``."""
        return self.directory / "broker.key"

    def of_broker(self, broker_id: int) -> tuple[Path, Path]:
        """Return the certificate that names this broker, and its key."""
        stem = f"broker-{broker_id}"
        return self.directory / f"{stem}.pem", self.directory / f"{stem}.key"

    @property
    def client(self) -> Path:
        """Certificate of clients, for brokers with tls.client.ca.file."""
        return self.directory / "client.pem"

    @property
    def client_key(self) -> Path:
        """Key of ``client``."""
        return self.directory / "client.key"

    def broker_settings(self, broker_id: int | None = None) -> dict[str, str]:
        """Return the settings of a broker that uses these files.

        ``broker_id``: of the broker, if its certificate names it; None: it uses ``broker``.
        """
        named = {} if broker_id is None else {"tls.broker.id.required": "true"}
        own = (self.broker, self.broker_key) if broker_id is None else self.of_broker(broker_id)
        return {
            "tls.certificate.file": str(own[0]),
            "tls.key.file": str(own[1]),
            "tls.ca.file": str(self.ca),
            **named,
        }

    def environment(self) -> dict[str, str]:
        """Return the environment variables of clients that use these files."""
        return environment_of(self.broker_settings())


def environment_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of clients of a broker; empty if it is not secured.

    They contain the first user and its password if the settings name a file with them.
    """
    if "tls.certificate.file" not in settings:
        return {}
    found = {"RAFTLOG_SECURITY_PROTOCOL": "SSL"}
    if "admin.credentials.file" in settings:
        name, _, password = Path(settings["admin.credentials.file"]).read_text().partition(":")
        found = {
            "RAFTLOG_SECURITY_PROTOCOL": "SASL_SSL",
            "RAFTLOG_SASL_USERNAME": name,
            "RAFTLOG_SASL_PASSWORD": password.strip(),
        }
    if "tls.ca.file" in settings:
        found["RAFTLOG_SSL_CAFILE"] = settings["tls.ca.file"]
    return found


def create(
    directory: Path,
    *,
    hosts: Sequence[str] = LOCAL_HOSTS,
    brokers: Collection[int] = (),
    days: int = DAYS_DEFAULT,
    clock: Clock | None = None,
) -> Certificates:
    """Create the certificates of brokers and clients in ``directory``, and a CA if it has none.

    Existing certificates of these brokers and of clients are replaced; the CA is kept.

    ``hosts``: host names and IP addresses of the brokers.
    ``brokers``: IDs of brokers. Each gets a certificate that names it; none: all share one.
    ``days``: validity of the certificates. The CA is valid for ``CA_DAYS``.
    ``clock``: returns the time from which they are valid. Default: the clock of the system.

    Raises ``InvalidRequestError`` for a host that is not valid, or without `cryptography`, and
    ``InvalidConfigError`` if the CA of the directory cannot be used.
    """
    try:
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID as Use
    except ImportError as error:
        raise InvalidRequestError(
            "creating certificates requires the package `cryptography`. Run "
            f"{install_command('security')}"
        ) from error
    names = [_name(host) for host in hosts]
    files = Certificates(directory.resolve())
    files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = dt.datetime.fromtimestamp((clock or SystemClock()).wall_ms() // 1_000, dt.UTC)
    authority = _authority(files, now)
    issue = partial(_issue, authority, days=days)
    both = (Use.SERVER_AUTH, Use.CLIENT_AUTH)
    for broker in brokers:
        id_name = x509.UniformResourceIdentifier(broker_uri(broker))
        issue(f"raftlog broker {broker}", both, [*names, id_name], paths=files.of_broker(broker))
    if not brokers:
        issue("raftlog broker", both, names, paths=(files.broker, files.broker_key))
    client = (Use.CLIENT_AUTH,)
    issue("raftlog client", client, [], paths=(files.client, files.client_key))
    return files


def _name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host.isascii() or not 1 <= len(host) <= limits.HOST_CHARS_MAX or " " in host:
        raise InvalidRequestError(f"{host!r} is not a host name or an IP address")
    return x509.DNSName(host)


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    now: dt.datetime


def _authority(files: Certificates, now: dt.datetime) -> _Authority:
    """Return the CA of the directory. Creates it if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if files.ca.exists():
        try:
            key = load_pem_private_key(files.ca_key.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(files.ca.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise InvalidConfigError(
                f"the CA in {files.directory} cannot sign certificates: {error}. Restore ca.pem "
                "and ca.key, or select another directory"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidConfigError(f"{files.ca_key} was not created by `raftlog security init`")
        return _Authority(certificate, key, now)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("raftlog development CA")
    builder = (
        _builder(name, name, key.public_key(), now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    certificate = builder.sign(key, hashes.SHA256())
    _write(files.ca, files.ca_key, certificate, key)
    return _Authority(certificate, key, now)


def _issue(
    authority: _Authority,
    subject: str,
    uses: Sequence[x509.ObjectIdentifier],
    names: Sequence[x509.GeneralName],
    *,
    days: int,
    paths: tuple[Path, Path],
) -> None:
    """Sign a certificate, and write it with its new key. ``paths``: of the two."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    issuer, issuer_key = authority.certificate.subject, authority.key.public_key()
    builder = (
        _builder(_subject(subject), issuer, key.public_key(), authority.now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write(*paths, builder.sign(authority.key, hashes.SHA256()), key)


def _subject(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    days: int,
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + min(dt.timedelta(), dt.timedelta(days=days)) - CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    path: Path, key_path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Write a key, readable by its owner only, then its certificate. Each file is complete."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    draft = key_path.with_name(f"{key_path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    draft.rename(key_path)
    OsDisk().write_atomic(str(path), certificate.public_bytes(Encoding.PEM))
