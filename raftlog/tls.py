"""TLS contexts of brokers and clients from certificate files, and the errors of TLS connections.

The `ssl` module (OpenSSL) does the work. TLS 1.2 (RFC 5246) and 1.3 (RFC 8446) are supported; both
sides select 1.3 if they can.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Mapping
from typing import Any, Final

from raftlog.errors import AccessDeniedError, InvalidConfigError

MIN_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

# Alerts of a peer that rejected the certificate of this side, or received none.
_ABOUT_MY_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "EXPIRED")
# The peer sent bytes that are not TLS.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
# Results of the verification of a certificate (X509_V_ERR_… of OpenSSL).
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)
_BROKER_URI: Final = "raftlog:broker:"
_FLIGHTS_MAX: Final = 3  # of each side in a handshake (RFC 5246 section 7.3, RFC 8446 section 2)


def server_context(
    *,
    certificate: str,
    key: str,
    client_ca: str = "",
    is_optional: bool = False,
    min_version: str = "TLSv1.2",
    ciphers: str = "",
) -> ssl.SSLContext:
    """Return the context of a broker. Reads the files.

    ``client_ca``: file with the CA certificates of clients; empty: clients need no certificate.
    ``is_optional``: clients may connect without a certificate. One that they send must be valid.
    ``min_version``: a key of ``MIN_VERSIONS``.
    ``ciphers``: of TLS 1.2, as a list of OpenSSL (openssl-ciphers(1)); empty: Python's default.

    Raises ``InvalidConfigError`` if a file or ``ciphers`` cannot be used, or other users can read
    the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_ciphers(context, ciphers)
    context.minimum_version = MIN_VERSIONS[min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # TLS 1.2: expensive for a broker
    _load_certificate(context, certificate, key)
    if client_ca:
        _load(client_ca, lambda: context.load_verify_locations(client_ca))
        # guard: a broker with a client CA requires certificates
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return context


def client_context(
    *,
    ca: str = "",
    certificate: str = "",
    key: str = "",
    check_hostname: bool = True,
    ciphers: str = "",
) -> ssl.SSLContext:
    """Return the context of a client, or of a broker that connects to another one. Reads the files.

    ``ca``: file with the accepted CA certificates; empty: those of the operating system.
    ``certificate``: of the client, with ``key``; empty: none.
    ``check_hostname``: require that the certificate of the broker contains its host name.
    ``ciphers``: as of ``server_context``.

    Raises ``InvalidConfigError`` if a file or ``ciphers`` cannot be used, or other users can read
    the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_ciphers(context, ciphers)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # guard: clients check the host name of the broker
    context.check_hostname = check_hostname
    if ca:
        _load(ca, lambda: context.load_verify_locations(ca))
    else:
        context.load_default_certs()
    if certificate:
        _load_certificate(context, certificate, key)
    return context


def _set_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    if not ciphers:
        return
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError as error:
        raise InvalidConfigError(
            f"the ciphers {ciphers!r} contain none that OpenSSL knows for TLS 1.2. Set a list such "
            "as ECDHE+AESGCM:ECDHE+CHACHA20 (`openssl ciphers` prints the names)"
        ) from error


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    check_private(key)
    # Without a password, OpenSSL would ask for it on the terminal.
    _load(
        f"{certificate} with the key {key}",
        lambda: context.load_cert_chain(certificate, key, password=lambda: ""),
    )


def _load(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise InvalidConfigError(
            f"{what} cannot be used for TLS: {reason_of(error)}. Set files in PEM format, the "
            "key without a password, and the key of this certificate"
        ) from error
    except OSError as error:
        raise InvalidConfigError(f"{what} cannot be read: {error.strerror}") from error


def check_private(path: str) -> None:
    """Check that only the owner and the group can read and write the key file.

    Raises ``InvalidConfigError`` if other users can, or if the file is unavailable.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        raise InvalidConfigError(f"the key {path} cannot be read: {error.strerror}") from error
    # guard: a key that every user can read is rejected
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InvalidConfigError(
            f"the key {path} has the mode {mode:04o}: every user of this machine can read or "
            "change it. Run chmod 600 on it, and create a new key if other users could have read it"
        )


def broker_uri(broker_id: int) -> str:
    """Return the URI (a subjectAltName, RFC 5280 section 4.2.1.6) by which a certificate names a
    broker, such as ``raftlog:broker:1``.
    """
    return f"{_BROKER_URI}{broker_id}"


def check_broker_id(certificate: Mapping[str, Any] | None, broker_id: int) -> None:
    """Check that a verified certificate names the broker.

    ``certificate``: as returned by ``ssl.SSLObject.getpeercert``; None or empty: there is none.

    Raises ``AccessDeniedError``.
    """
    names = (certificate or {}).get("subjectAltName", ())
    found = [name for kind, name in names if kind == "URI" and name.startswith(_BROKER_URI)]
    if broker_uri(broker_id) not in found:
        if not certificate:
            what = "it sent no certificate"
        else:
            what = f"its certificate names {', '.join(found) or 'no broker'}"
        raise AccessDeniedError(
            f"the peer claims to be broker {broker_id}, but {what} (tls.broker.id.required). "
            f"Create a certificate with the subjectAltName URI:{broker_uri(broker_id)}: run "
            f"raftlog security init --brokers {broker_id}"
        )


def own_certificate(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Return the certificate of this broker after a handshake in memory, in which the server and
    the client verify each other. Both contexts have the certificate of the broker.

    Raises ``ssl.SSLError`` if one of them rejects it.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (dialling, answering) * _FLIGHTS_MAX:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return dialling.getpeercert() or {}


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's name of the reason, or the text of an error that is not OpenSSL's."""
    return getattr(error, "reason", None) or str(error)


def explain(error: BaseException | None, *, ca_setting: str = "ssl_cafile") -> str:
    """Return why a TLS connection failed and what to do; empty if the error is not about TLS.

    ``ca_setting``: the setting of this side with the accepted CA certificates.
    """
    if not isinstance(error, ssl.SSLError):
        return ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_rejection(error, ca_setting)
    reason = reason_of(error)
    if any(sign in reason for sign in _NO_TLS):
        return (
            "the broker does not use TLS on this port. Set security_protocol='PLAINTEXT', or "
            "configure tls.certificate.file on the broker"
        )
    if any(sign in reason for sign in _ABOUT_MY_CERTIFICATE):
        return (
            f"the broker rejected the certificate of this client ({reason}). Set ssl_certfile and "
            "ssl_keyfile to a certificate from the CA in tls.client.ca.file of the broker"
        )
    return f"TLS failed: {reason}"


def _explain_rejection(error: ssl.SSLCertVerificationError, ca_setting: str) -> str:
    what = f"the certificate of the broker is not valid: {error.verify_message}"
    if error.verify_code == _EXPIRED:
        return f"{what}. Install a new certificate on the broker"
    if error.verify_code in _OTHER_NAME:
        return (
            f"{what}. Connect to a host name in the certificate, or create a certificate with this "
            "host name (raftlog security init --hosts)"
        )
    return f"{what}. Set {ca_setting} to the certificate of the CA that signed it"
