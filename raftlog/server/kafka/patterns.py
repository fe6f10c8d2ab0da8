"""Subscriptions by regular expression (KIP-848), evaluated by RE2 as in Kafka.

RE2 takes time in proportion to the length of a name, and bounded memory, for every expression (Cox:
"Regular Expression Matching in the Wild", 2010). The time of Python's ``re`` can be exponential.
``google-re2`` is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from raftlog import limits
from raftlog.install import install_command
from raftlog.server.turns import ITEMS_PER_STEP

try:
    import re2
except ImportError:
    re2 = None


def matching(
    pattern: str, names: Iterable[str], is_visible: Callable[[str], bool]
) -> Generator[None, Any, set[str]]:
    """Return the visible names that match ``pattern`` as a whole; some in each step.

    Raises ``ValueError`` with a text for the client: not an expression of RE2, too long or too
    large, or RE2 is not installed.
    """
    if re2 is None:
        raise ValueError(
            "this broker cannot evaluate regular expressions: google-re2 is not installed "
            f"({install_command('regex')}). Subscribe to topic names, or set group.protocol=classic"
        )
    if len(pattern) > limits.SUBSCRIPTION_PATTERN_CHARS_MAX:
        raise ValueError(
            f"a subscription of {len(pattern)} characters: the maximum is "
            f"{limits.SUBSCRIPTION_PATTERN_CHARS_MAX}"
        )
    options = re2.Options()
    options.max_mem = limits.SUBSCRIPTION_PATTERN_BYTES_MAX
    options.log_errors = False
    patterns = re2.Set.FullMatchSet(options)
    try:
        patterns.Add(pattern)
        patterns.Compile()
    except re2.error as error:
        text = error.args[0]
        why = text.decode(errors="replace") if isinstance(text, bytes) else text
        raise ValueError(f"not a regular expression of RE2: {str(why)[:200]}") from error
    found: set[str] = set()
    for count, name in enumerate(names, 1):
        if patterns.Match(name) and is_visible(name):
            found.add(name)
        if not count % ITEMS_PER_STEP:
            yield None
    return found
