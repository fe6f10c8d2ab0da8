"""Principals: the identity that a connection has proved, as access rules name it."""

from __future__ import annotations

from typing import Final, Self

import msgspec

from raftlog import limits
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
        """Return the principal of its text, such as ``User:alice``.

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


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
