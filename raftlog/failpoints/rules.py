"""Rules of ``RAFTLOG_FAILPOINTS``: their syntax, and when one acts.

    SITE=ACTION[@SKIP][xTIMES][%CHANCE]          several, with ; or a new line between them

- SITE: one of ``sites.SITES``, or a pattern with ``*`` or ``?`` that matches some of them.
- ACTION: ``crash`` (the process sends itself SIGKILL); ``stall(SECONDS)``, or ``stall(MIN..MAX)``
  for a random time per hit; ``fail(ERRNO)``, such as ``fail(EIO)``; ``note``, which only logs the
  first hit of each site.
- ``@3`` skips the first 3 hits; ``x2`` acts twice (default: ``crash`` once, the others without
  limit); ``%5`` acts at 5 of 100 hits. The text is the random seed: it selects the same hits in
  each run.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from random import Random
from typing import Final, Literal, TypeAlias, cast, get_args

from raftlog.errors import InvalidConfigError

ActionKind: TypeAlias = Literal["crash", "stall", "fail", "note"]
ACTIONS: Final = get_args(ActionKind)
_TAKES_ARGUMENT: Final = ("stall", "fail")

STALL_SECONDS_MAX: Final = 3_600.0
COUNT_MAX: Final = 1_000_000_000  # of hits, to skip or to act at
NEAR_MAX: Final = 3  # similar names in the error about an unknown one
ALLOWED: Final = (
    "SITE=ACTION[@SKIP][xTIMES][%CHANCE], where ACTION is crash, stall(SECONDS), "
    "stall(MIN..MAX), fail(ERRNO) or note; separate several rules with ;"
)

_RULE: Final = re.compile(
    r"(?P<site>[^=\s]+)\s*=\s*(?P<action>[a-z]+)(?:\((?P<argument>[^()]*)\))?"
    r"(?:@(?P<skip>[0-9]+))?(?:x(?P<times>[0-9]+))?(?:%(?P<chance>[0-9]+(?:\.[0-9]+)?))?"
)
_ERRNO: Final = {name: number for number, name in errno.errorcode.items()}


class Rule:
    """One rule and its hit counts. Not thread-safe: the owner holds a lock."""

    def __init__(
        self,
        text: str,
        site: str,
        action: ActionKind,
        *,
        seconds: tuple[float, float] = (0.0, 0.0),
        error: int = 0,
        skip: int = 0,
        times: float = math.inf,
        chance: float = 1.0,
    ) -> None:
        """``text``: the rule and its comment, as written. It identifies the rule."""
        self.text = text
        self.site = site
        self.action: Final = action
        self.error = error
        self.noted: set[str] = set()  # sites whose first hit was logged, for ``note``
        self._seconds = seconds
        self._skip = skip
        self._times = times
        self._chance = chance
        self._random = Random(text)  # noqa: S311 - seeded: repeatable

    def covers(self, site: str) -> bool:
        return fnmatchcase(site, self.site)

    def strikes(self) -> bool:
        """Count a hit. Returns whether the rule acts at it."""
        if self._skip > 0:
            self._skip -= 1
            return False
        if self._times <= 0 or (self._chance < 1.0 and self._random.random() >= self._chance):
            return False
        self._times -= 1
        return True

    def seconds(self) -> float:
        """Return the duration of this stall."""
        return self._random.uniform(*self._seconds)


def parse(text: str, *, sites: Collection[str]) -> list[Rule]:
    """Return the rules of a text; ``#`` starts a comment. Raises ``InvalidConfigError``."""
    return [_rule(whole, part, sites) for whole, part in _parts(text)]


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield for each rule the text with the comment, which identifies it, and the text to parse."""
    for line in text.splitlines():
        code, hash_mark, comment = line.partition("#")
        for part in code.split(";"):
            if part.strip():
                yield f"{part.strip()} {hash_mark}{comment}".strip(), part.strip()


def _rule(name: str, text: str, sites: Collection[str]) -> Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise InvalidConfigError(f"failpoint {text!r} is invalid. Write {ALLOWED}")
    site, action, argument = found["site"], found["action"], found["argument"]
    _check_site(site, sites)
    if action not in ACTIONS or (argument is None) is (action in _TAKES_ARGUMENT):
        raise InvalidConfigError(
            f"failpoint {text!r}: unknown action or wrong argument. Write {ALLOWED}"
        )
    skip, times = (_count(text, found[part]) for part in ("skip", "times"))
    if times == 0:
        raise InvalidConfigError(f"failpoint {text!r}: xTIMES must be at least 1")
    chance = 100.0 if found["chance"] is None else float(found["chance"])
    if not 0 < chance <= 100:
        raise InvalidConfigError(f"failpoint {text!r}: %CHANCE must be more than 0 and at most 100")
    return Rule(
        name,
        site,
        cast(ActionKind, action),
        seconds=_seconds(text, argument or "") if action == "stall" else (0.0, 0.0),
        error=_error(text, argument or "") if action == "fail" else 0,
        skip=skip or 0,
        times=times or (1 if action == "crash" else math.inf),
        chance=chance / 100.0,
    )


def _check_site(site: str, sites: Collection[str]) -> None:
    if any(fnmatchcase(known, site) for known in sites):
        return
    near = get_close_matches(site, sites, n=NEAR_MAX) or sorted(sites)[:NEAR_MAX]
    raise InvalidConfigError(
        f"no failpoint matches {site!r}. Similar names: {', '.join(near)} "
        "(raftlog.failpoints.SITES lists all names; * matches any part of a name)"
    )


def _count(text: str, digits: str | None) -> int | None:
    if digits is None:
        return None
    if len(digits) > len(str(COUNT_MAX)) or int(digits) > COUNT_MAX:
        raise InvalidConfigError(f"failpoint {text!r}: hits must be at most {COUNT_MAX}")
    return int(digits)


def _seconds(text: str, argument: str) -> tuple[float, float]:
    low, _, high = argument.partition("..")
    try:
        seconds = float(low), float(high or low)
    except ValueError:
        seconds = math.nan, math.nan
    if not 0.0 <= seconds[0] <= seconds[1] <= STALL_SECONDS_MAX:
        raise InvalidConfigError(
            f"failpoint {text!r}: invalid time. Write stall(SECONDS) or stall(MIN..MAX), with 0 to "
            f"{STALL_SECONDS_MAX:g} seconds"
        )
    return seconds


def _error(text: str, argument: str) -> int:
    number = _ERRNO.get(argument)
    if number is None:
        near = ", ".join(get_close_matches(argument, _ERRNO, n=NEAR_MAX) or ("EIO", "ENOSPC"))
        raise InvalidConfigError(
            f"failpoint {text!r}: unknown error. Write fail(ERRNO) with the name of an error, such "
            f"as {near}"
        )
    return number
