"""One setting: its name, default, range and help, and how a table of them reads text.

Nothing here knows which settings there are (``topic`` and ``broker`` do) or where the text came
from.
"""

from __future__ import annotations

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
    accepts: str  # for people: the range or the choices, with the unit
    help: str
    show: Callable[[T], str] = str  # the opposite of ``parse``, except for secrets

    @property
    def is_secret(self) -> bool:
        """Whether the value is to stay out of messages, dumps and logs."""
        return self.show is hidden

    @property
    def field(self) -> str:
        """The name of the dataclass field that holds it."""
        return self.name.replace(".", "_")


HIDDEN: Final = "(hidden)"


def hidden(value: str) -> str:
    """Text that a dump shows in place of a secret; empty without a secret."""
    return HIDDEN if value else ""


def _integer(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse_integer(text: str) -> int:
        value = int(text, 10)
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
    return ConfigKey(name, default, _choice(*choices), " or ".join(choices), text)


def parse(
    keys: tuple[ConfigKey[Any], ...], overrides: Mapping[str, str], *, what: str
) -> dict[str, Any]:
    """``overrides`` as field names and typed values.

    Raises ``InvalidConfigError`` that names an unknown key, or a bad value and what is accepted.
    """
    by_name = {key.name: key for key in keys}
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        key = by_name.get(name)
        if key is None:
            raise InvalidConfigError(
                f"{name[:100]!r} is not a {what} setting; there are: {', '.join(sorted(by_name))}"
            )
        try:
            values[key.field] = key.parse(text)
        except ValueError as error:
            shown = hidden(text) if key.is_secret else text[:100]
            raise InvalidConfigError(
                f"{name}={shown} is refused ({error}); it takes {key.accepts}"
            ) from error
    return values
