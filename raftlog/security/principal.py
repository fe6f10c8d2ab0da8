"""Principals: identities of authenticated connections, as access rules contain them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec

from raftlog import limits
from raftlog.config.principal_rules import PrincipalRule, apply_rules
from raftlog.errors import InvalidRequestError

USER: Final = "User"


class Principal(msgspec.Struct, frozen=True):
    """Kind and name of an identity, as in Kafka: ``User:alice``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a principal, such as ``User:alice``.

        Raises ``InvalidRequestError`` if the kind is not ``User``, or the name is empty, too long
        or contains a control character.
        """
        kind, colon, name = text.partition(":")
        if not colon or kind != USER:
            raise InvalidRequestError(
                f"{text[: limits.PRINCIPAL_NAME_CHARS_MAX]!r} is not a principal. Write "
                "User:NAME, such as User:alice"
            )
        return cls(kind, check_name(name))


def check_name(name: str) -> str:
    """Return the name of a user if it is valid.

    Raises ``InvalidRequestError`` if it is empty, longer than ``PRINCIPAL_NAME_CHARS_MAX`` or
    contains a control character.
    """
    if not 1 <= len(name) <= limits.PRINCIPAL_NAME_CHARS_MAX:
        raise InvalidRequestError(
            f"the name of the user has {len(name)} characters. Use 1 to "
            f"{limits.PRINCIPAL_NAME_CHARS_MAX}"
        )
    if not name.isprintable():
        raise InvalidRequestError(
            f"the name of the user {name!r} contains a control character. Use printable characters"
        )
    return name


def of_certificate(
    certificate: Mapping[str, Any], rules: tuple[PrincipalRule, ...] = ()
) -> Principal | None:
    """Return the principal of a verified client certificate: the first common name of its subject,
    or with ``rules`` the result of the rules for its distinguished name.

    ``certificate``: as returned by ``ssl.SSLObject.getpeercert``. Returns None if there is no such
    name, or if it is invalid.
    """
    subject = certificate.get("subject", ())
    name: str | None
    if rules:
        full = distinguished_name(subject)
        is_short = len(full) <= limits.CERTIFICATE_NAME_CHARS_MAX
        name = apply_rules(rules, full) if is_short else None
    else:
        pairs = (pair for names in subject for pair in names)
        name = next((value for kind, value in pairs if kind == "commonName"), None)
    try:
        return None if name is None else Principal(USER, check_name(name))
    except InvalidRequestError:
        return None


_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_SPECIAL: Final = re.compile(r'([,+"\\<>;=])|^([ #])|( )$')


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a subject as text (RFC 2253), the last name first, such as ``CN=alice,O=Example``."""
    return ",".join(
        "+".join(
            f"{_SHORT.get(kind, kind)}={_SPECIAL.sub(lambda m: chr(92) + m[0], value)}"
            for kind, value in names
        )
        for names in reversed(list(subject))
    )


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
