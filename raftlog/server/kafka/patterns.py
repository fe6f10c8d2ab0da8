"""Subscriptions by regular expression (KIP-848), evaluated by RE2 as in Kafka.

RE2 takes time in proportion to the length of a name, and bounded memory, for every expression (Cox:
"Regular Expression Matching in the Wild", 2010). The time of Python's ``re`` can be exponential.
``google-re2`` is an optional dependency. Without it, Python evaluates the common expressions, for
which it needs at most the square of the length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from raftlog import limits
from raftlog.install import install_command
from raftlog.server.turns import ITEMS_PER_STEP

try:
    import re2
except ImportError:
    re2 = None

# Parts of an expression that have the same meaning in RE2 and in Python. Only single characters
# are repeated without a limit; a group at most once.
_PART: Final = re.compile(
    r"""
    (?P<one> [A-Za-z0-9_ -] | \\[.dwDW_-] | \. | \[\^?(?:[A-Za-z0-9_.-])+\] )
        (?P<repeats> [*+]\?? | \?\?? )?
    | \((?:\?:)? | \)\?? | \| | \^ | \$
    """,
    re.VERBOSE,
)
_LAST: Final = ".*"  # at the end it is never tried again
TRIES_MAX: Final = 70_000  # of one name: takes 5 ms at most
NAMES_PER_STEP: Final = 1  # that Python matches


def matching(
    pattern: str, names: Iterable[str], is_visible: Callable[[str], bool]
) -> Generator[None, Any, set[str]]:
    """Return the visible names that match ``pattern`` as a whole; some in each step.

    Raises ``ValueError`` with a text for the client: not an expression of RE2, too long or too
    large, or one that requires RE2, which is not installed.
    """
    if len(pattern) > limits.SUBSCRIPTION_PATTERN_CHARS_MAX:
        raise ValueError(
            f"a subscription of {len(pattern)} characters: the maximum is "
            f"{limits.SUBSCRIPTION_PATTERN_CHARS_MAX}"
        )
    matches = _by_python(pattern) if re2 is None else _by_re2(pattern)
    found: set[str] = set()
    for count, name in enumerate(names, 1):
        if matches(name) and is_visible(name):
            found.add(name)
        if not count % (NAMES_PER_STEP if re2 is None else ITEMS_PER_STEP):
            yield None
    return found


def _by_re2(pattern: str) -> Callable[[str], object]:
    options = re2.Options()
    options.max_mem = limits.SUBSCRIPTION_PATTERN_BYTES_MAX
    options.log_errors = False
    patterns = re2.Set.FullMatchSet(options)
    try:
        re2.compile(pattern, options)  # its errors have the reason
        patterns.Add(pattern)
        patterns.Compile()
    except re2.error as error:
        text = error.args[0]
        why = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise _invalid(pattern, why) from error
    match: Callable[[str], object] = patterns.Match
    return match


def _by_python(pattern: str) -> Callable[[str], object]:
    if _tries(pattern) > TRIES_MAX:
        raise ValueError(
            f"SubscribedTopicRegex `{pattern[:200]}` cannot be evaluated by this broker, because "
            f"google-re2 is not installed ({install_command('regex')}). Use names, `.`, `[a-z]`, "
            "one group with `|`, and one or two repeats, or set group.protocol=classic"
        )
    try:
        return re.compile(pattern, re.ASCII).fullmatch
    except re.error as error:
        raise _invalid(pattern, str(error)) from error


def _tries(pattern: str) -> float:
    """Return how many ways of matching one name Python may try, at most; infinity for an
    expression that is not made of known parts.
    """
    rest = pattern.removesuffix("$").removesuffix(_LAST)
    tries, choices, at = 1.0, [1], 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            return math.inf
        text, repeats, at = part[0], part["repeats"], part.end()
        if repeats is not None and repeats[0] != "?":
            tries *= limits.TOPIC_NAME_CHARS_MAX
        elif text.endswith("?") and text != "(?:":
            tries *= 2
        if text.startswith("("):
            choices.append(1)
        elif text == "|":
            choices[-1] += 1
        elif text.startswith(")") and len(choices) > 1:
            tries *= choices.pop()
        if tries > TRIES_MAX:
            return tries
    return tries * choices[0]


def _invalid(pattern: str, why: str) -> ValueError:
    return ValueError(
        f"SubscribedTopicRegex `{pattern[:200]}` is not a valid regular expression: {why[:200]}."
    )
