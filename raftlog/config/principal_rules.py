"""``ssl.principal.mapping.rules``: rules that map the name of a client certificate to a user.

Kafka's syntax (KIP-371): comma-separated rules. The first rule that matches the whole name applies.
``RULE:pattern/replacement/`` replaces it; with ``L`` or ``U`` at the end, the result is in lower or
upper case. ``$1`` in the replacement is a group of the pattern. ``DEFAULT`` keeps the name.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from raftlog import limits

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\Z)"
)
_GROUP: Final = re.compile(r"\\(.)|\$(\d)|\\")


class PrincipalRule(NamedTuple):
    """``text``: the rule as configured. ``pattern``: None for DEFAULT. ``replacement``: in the
    syntax of `re`. ``case``: "L", "U" or "".
    """

    text: str
    pattern: re.Pattern[str] | None
    replacement: str
    case: str


def parse_principal_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Return the rules; none for an empty text. Raises ``ValueError`` with the reason."""
    if len(text) > limits.PRINCIPAL_RULES_CHARS_MAX:
        raise ValueError(f"longer than {limits.PRINCIPAL_RULES_CHARS_MAX} characters")
    rules = []
    position = 0
    while position < len(text.rstrip()):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(f"{text[position : position + 40]!r} is not a rule")
        rules.append(_rule(found))
        position = found.end()
    return tuple(rules)


def _rule(found: re.Match[str]) -> PrincipalRule:
    text = found[0].strip().removesuffix(",").rstrip()
    if found["default"]:
        return PrincipalRule(text, None, "", "")
    try:
        pattern = re.compile(found["pattern"].replace(r"\/", "/"))
        replacement = _GROUP.sub(_python, found["replacement"])
        re.sub(pattern, replacement, "")
        _check_groups(pattern, found["replacement"])
    except (re.error, IndexError) as error:
        raise ValueError(f"{text!r}: {error}") from error
    return PrincipalRule(text, pattern, replacement, found["case"])


def _check_groups(pattern: re.Pattern[str], replacement: str) -> None:
    for group in re.findall(r"(?<!\\)\$(\d)", replacement):
        if int(group) > pattern.groups:
            raise IndexError(f"the pattern has {pattern.groups} groups, no group ${group}")


def _python(found: re.Match[str]) -> str:
    """Convert a replacement from Java's to Python's syntax."""
    if found[2] is not None:
        return rf"\g<{found[2]}>"
    return (found[1] or "\\").replace("\\", r"\\")


def apply_rules(rules: tuple[PrincipalRule, ...], name: str) -> str | None:
    """Return the name of the user for the name of a certificate; None if no rule matches."""
    for rule in rules:
        if rule.pattern is None:
            return name
        if rule.pattern.fullmatch(name):
            found = rule.pattern.sub(rule.replacement, name, count=1)
            return {"L": found.lower(), "U": found.upper()}.get(rule.case, found)
    return None


def show_principal_rules(rules: tuple[PrincipalRule, ...]) -> str:
    return ",".join(rule.text for rule in rules)
