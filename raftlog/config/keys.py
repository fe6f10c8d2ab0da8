"""Definition of a setting (name, default, range, help), and the parser of a table of settings.

``topic`` and ``broker`` define the settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from raftlog.errors import InvalidConfigError

T = TypeVar("T")
DAY_MS: Final = 86_400_000
INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ConfigKey(Generic[T]):
    """One setting. ``parse`` turns text into a value or raises ``ValueError`` with the reason."""

    name: str
    default: T
    parse: Callable[[str], T]
    accepts: str  # for texts: the range or the choices, with the unit
    help: str
    show: Callable[[T], str] = str  # the inverse of ``parse``, except for secrets
    choices: tuple[str, ...] = ()  # all texts that ``parse`` returns, if they are few

    @property
    def is_secret(self) -> bool:
        """Whether messages, dumps and logs must not contain the value."""
        return self.show is hidden

    @property
    def field(self) -> str:
        """Name of the dataclass field with the value."""
        return self.name.replace(".", "_")


HIDDEN: Final = "(hidden)"


def hidden(value: str) -> str:
    """Return the text that a dump shows in place of a secret; empty without a secret."""
    return HIDDEN if value else ""


_NUMBER: Final = re.compile(r"\s*[+-]?[0-9](_?[0-9]){0,99}\s*", re.ASCII)


def _integer(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse_integer(text: str) -> int:
        value = int(text, 10) if _NUMBER.fullmatch(text) else None
        if value is None:
            raise ValueError("not a whole number")
        if not minimum <= value <= maximum:
            raise ValueError(f"{value} is not between {minimum} and {maximum}")
        return value

    return parse_integer


def _choice(*choices: str) -> Callable[[str], str]:
    def parse_choice(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse_choice


def number(
    name: str, default: int, minimum: int, maximum: int, unit: str, text: str
) -> ConfigKey[int]:
    bounds = f"{unit}, {minimum} to {'2^63-1' if maximum == INT64_MAX else maximum}"
    return ConfigKey(name, default, _integer(minimum, maximum), bounds.strip(", "), text)


def word(name: str, default: str, choices: tuple[str, ...], text: str) -> ConfigKey[str]:
    accepts = " or ".join(choices)
    return ConfigKey(name, default, _choice(*choices), accepts, text, choices=choices)


def parse(
    keys: tuple[ConfigKey[Any], ...], overrides: Mapping[str, str], *, what: str
) -> dict[str, Any]:
    """Return ``overrides`` as field names and typed values.

    Raises ``InvalidConfigError`` with the unknown key, or the invalid value and the accepted ones.
    """
    by_name = {key.name: key for key in keys}
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        key = by_name.get(name)
        if key is None:
            raise InvalidConfigError(
                f"{name[:100]!r} is not a {what} setting. Settings: {', '.join(sorted(by_name))}"
            )
        try:
            values[key.field] = key.parse(text)
        except ValueError as error:
            shown = hidden(text) if key.is_secret else text[:100]
            raise InvalidConfigError(
                f"{name}={shown} is refused ({error}). Accepted: {key.accepts}"
            ) from error
    return values
