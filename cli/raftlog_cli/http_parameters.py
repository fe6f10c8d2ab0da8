"""Values of queries and forms of HTTP requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from raftlog.errors import InvalidRequestError

ChoiceT = TypeVar("ChoiceT", bound=str)


def whole(values: Mapping[str, str], name: str, default: int) -> int:
    """Parse a whole number. Raises ``InvalidRequestError`` with the name of the field."""
    text = values.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidRequestError(f"{name}: {text[:40]!r} is not a whole number from 0")
    return int(text)


def choice(values: Mapping[str, str], name: str, choices: tuple[ChoiceT, ...]) -> ChoiceT:
    """Return one of ``choices``; the first one if the field is empty.

    Raises ``InvalidRequestError`` with the name of the field.
    """
    text = values.get(name, "") or choices[0]
    for each in choices:
        if each == text:
            return each
    raise InvalidRequestError(f"{name}: {text[:40]!r} is not one of {', '.join(choices)}")
