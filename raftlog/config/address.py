"""Addresses as text, ``host:port``. Host names are not resolved here."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.config.keys import INT64_MAX

PORT_MAX: Final = 65_535
# The brokers of `raftlog up`: with all three, clients can connect if one of them is down.
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9100,127.0.0.1:9101,127.0.0.1:9102"


class Address(NamedTuple):
    """Address of a broker. Port 0: the system assigns a free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach it. The only known name is localhost."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse comma-separated addresses; none for an empty text. Raises ``ValueError``."""
    addresses = tuple(map(parse_address, text.split(","))) if text.strip() else ()
    if len(addresses) > limits.BROKERS_PER_CLUSTER_MAX:
        raise ValueError(
            f"{len(addresses)} addresses exceed the limit of {limits.BROKERS_PER_CLUSTER_MAX}"
        )
    if any(address.port == 0 for address in addresses):
        raise ValueError("the port of a running broker must not be 0")
    return addresses


def parse_address(text: str) -> Address:
    """Parse ``host:port`` or ``[ipv6]:port``. Raises ``ValueError`` with the reason."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:9100")
    if not colon or not host:
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9100")
    if not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{port!r} in {text!r} is not a port number (0 to {PORT_MAX})")
    return Address(host, int(port))


# -- watermark -------------------------------------------------------------------------------------
#
# A watermark of free disk space: a part of the disk, a number of bytes, or the smaller of both.


PERCENT_MAX: Final = 90


class Watermark(NamedTuple):
    """``percent`` of the disk and ``size_bytes``; None: only the other one applies."""

    percent: int | None = None
    size_bytes: int | None = None

    def free_bytes(self, disk_bytes: int) -> int:
        """Return the free bytes that a disk of ``disk_bytes`` must have; 0 for no watermark."""
        limits = [] if self.percent is None else [disk_bytes * self.percent // 100]
        limits += [] if self.size_bytes is None else [self.size_bytes]
        return min(limits, default=0)

    def __str__(self) -> str:
        parts = [] if self.percent is None else [f"{self.percent}%"]
        parts += [] if self.size_bytes is None else [str(self.size_bytes)]
        return ",".join(parts)


def parse_watermark(text: str) -> Watermark:
    """Parse ``5%``, ``1073741824``, or both with a comma. Raises ``ValueError``."""
    percent, size_bytes = None, None
    for part in (part.strip() for part in text.split(",")):
        number = part.removesuffix("%")
        if not (number.isascii() and number.isdigit() and len(number) <= 19):
            raise ValueError(f"{part!r} is not a percentage or a number of bytes")
        if part != number:
            if percent is not None or int(number) > PERCENT_MAX:
                raise ValueError(f"more than one percentage, or more than {PERCENT_MAX}%")
            percent = int(number)
        else:
            if size_bytes is not None or int(number) > INT64_MAX:
                raise ValueError("more than one number of bytes, or a number above 2^63-1")
            size_bytes = int(number)
    return Watermark(percent, size_bytes)


# -- principal rules -------------------------------------------------------------------------------
#
# ``ssl.principal.mapping.rules``: rules that map the name of a client certificate to a user.
#
# Kafka's syntax (KIP-371): comma-separated rules. The first rule that matches the whole name
# applies. ``RULE:pattern/replacement/`` replaces it; with ``L`` or ``U`` at the end, the result is
# in lower or upper case. ``$1`` in the replacement is a group of the pattern. ``DEFAULT`` keeps the
# name.


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
        # guard: a rule matches the whole name of a certificate
        if rule.pattern.fullmatch(name):
            found = rule.pattern.sub(rule.replacement, name, count=1)
            return {"L": found.lower(), "U": found.upper()}.get(rule.case, found)
    return None


def show_principal_rules(rules: tuple[PrincipalRule, ...]) -> str:
    return ",".join(rule.text for rule in rules)
