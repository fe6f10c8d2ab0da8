"""Parsers for the text of one option: whole numbers, sizes, durations, words and flags.

Pure. Every error names the option, its value, and the values that it accepts. Spark passes the
names of options in lower case; here they have the case of the manual.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from raftlog import limits
from raftlog.errors import InvalidRequestError

TEXT_CHARS_MAX: Final = limits.MIB  # of an option that is no list of offsets
DURATION_MS_MAX: Final = limits.WAIT_MS_MAX
_SHOWN_CHARS_MAX: Final = 200

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_WITH_UNIT: Final = re.compile(r"([0-9]{1,19})\s*([a-zA-Z]*)")
# Spark's own units, for durations (a number alone counts milliseconds) and for sizes (bytes).
_DURATION_MS: Final[Mapping[str, int]] = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZE_BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    "k": limits.KIB,
    "kb": limits.KIB,
    "m": limits.MIB,
    "mb": limits.MIB,
    "g": limits.GIB,
    "gb": limits.GIB,
    "t": 1024 * limits.GIB,
    "tb": 1024 * limits.GIB,
}
# Other names of options, of Kafka's connector and its producers, in lower case.
ALIASES: Final[Mapping[str, str]] = {
    "compression": "codec",
    "kafka.compression.type": "codec",
    "kafka.acks": "acks",
    "fetchoffset.numretries": "numretries",
    "fetchoffset.retryintervalms": "retryintervalms",
    "kafkaconsumer.polltimeoutms": "fetchtimeoutms",
}
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "false": False}


class Hidden(str):
    """A secret text. Its repr hides it, also inside the repr of values that contain it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"


class Texts:
    """Options by case-insensitive name. Spaces around their values are removed."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises ``InvalidRequestError`` for an option that has two values, by two names or in
        different case."""
        self._texts: dict[str, str] = {}
        for name, text in options.items():
            low = ALIASES.get(name.lower(), name.lower())
            if self._texts.setdefault(low, text.strip()) != text.strip():
                by = "by two names" if name.lower() in ALIASES else "in different case"
                raise InvalidRequestError(
                    f"option {name[:100]!r} is given twice, {by}: leave one out"
                )

    @property
    def names(self) -> list[str]:
        """The names of all options, in lower case, sorted."""
        return sorted(self._texts)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def get(self, name: str) -> str | None:
        """Return the text of an option; None if it is not set.

        Raises ``InvalidRequestError`` if the text is empty.
        """
        text = self._texts.get(name.lower())
        if text == "":
            raise InvalidRequestError(f"option {name} is empty: set a value, or leave it out")
        return text

    def short(self, name: str) -> str | None:
        """Return ``get(name)``, limited to TEXT_CHARS_MAX characters."""
        text = self.get(name)
        if text is not None and len(text) > TEXT_CHARS_MAX:
            raise InvalidRequestError(
                f"option {name} has {len(text)} characters: {TEXT_CHARS_MAX} are allowed"
            )
        return text

    def flag(self, name: str, default: bool) -> bool:
        """true or false, in any case."""
        text = self.short(name)
        return default if text is None else flag(name, text)

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number from ``least`` to ``most``; None if it is not set."""
        text = self.short(name)
        return None if text is None else integer(name, text, least, most)

    def size(self, name: str, least: int, most: int) -> int | None:
        """Return bytes. The text can have a unit of Spark's sizes: 512k, 4m, 1g (by 1024)."""
        text = self.short(name)
        if text is None:
            return None
        units = "bytes, or a number with k, m, g or t (by 1024) behind it"
        return _within(name, text, _with_unit(name, text, _SIZE_BYTES, units), least, most, "bytes")

    def duration_ms(self, name: str, least: int, most: int = DURATION_MS_MAX) -> int | None:
        """Return milliseconds. The text can have a unit of Spark: 500ms, 30s, 15m, 2h, 1d."""
        text = self.short(name)
        if text is None:
            return None
        units = "milliseconds, or a number with ms, s, m, h or d behind it"
        return _within(name, text, _with_unit(name, text, _DURATION_MS, units), least, most, "ms")


def flag(name: str, text: str) -> bool:
    """Parse true or false, in any case. Raises ``InvalidRequestError``."""
    value = _FLAGS.get(text.lower())
    if value is None:
        raise InvalidRequestError(f"{shown(name, text)}: it is true or false")
    return value


def integer(name: str, text: str, least: int, most: int) -> int:
    """Parse a whole number from ``least`` to ``most``. Raises ``InvalidRequestError``."""
    if not _INTEGER.fullmatch(text):
        raise InvalidRequestError(
            f"{shown(name, text)}: it is a whole number from {least} to {most}"
        )
    return _within(name, text, int(text), least, most, "")


def choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    """Return the word of ``choices`` that ``text`` is, in any case.

    Raises ``InvalidRequestError``.
    """
    for word in choices:
        if word.lower() == text.lower():
            return word
    raise InvalidRequestError(f"{shown(name, text)}: it is {' or '.join(choices)}")


def shown(name: str, text: str) -> str:
    """Return ``option name='text'`` for an error, truncated to _SHOWN_CHARS_MAX."""
    cut = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
    return f"option {name}={cut!r}"


def _with_unit(name: str, text: str, units: Mapping[str, int], what: str) -> int:
    match = _WITH_UNIT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidRequestError(f"{shown(name, text)}: it is a number of {what}")
    return int(match[1]) * unit


def _within(name: str, text: str, value: int, least: int, most: int, unit: str) -> int:
    if not least <= value <= most:
        behind = f" {unit}" if unit else ""
        raise InvalidRequestError(f"{shown(name, text)} is not from {least} to {most}{behind}")
    return value
