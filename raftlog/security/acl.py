"""Access control lists: rules, and decisions whether an operation is allowed.

Kafka's model and semantics (KIP-11, KIP-290): without a rule, access is denied. A rule that denies
overrides all rules that allow. Pure.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.config.address import PrincipalRule, apply_rules
from raftlog.errors import InvalidRequestError

Permission: TypeAlias = Literal["ALLOW", "DENY"]
PatternType: TypeAlias = Literal["LITERAL", "PREFIXED"]
ResourceType: TypeAlias = Literal["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"]
Operation: TypeAlias = Literal[
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
]
RESOURCE_TYPES: Final[tuple[ResourceType, ...]] = get_args(ResourceType)
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)

ANY: Final = "*"  # any name, host or user
CLUSTER_NAME: Final = "kafka-cluster"  # the name of the one resource of type CLUSTER, as in Kafka

# Operations that a rule for a resource type can have.
OPERATIONS_OF: Final[dict[ResourceType, frozenset[Operation]]] = {
    "TOPIC": frozenset((
        "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
    )),
    "GROUP": frozenset(("ALL", "READ", "DELETE", "DESCRIBE")),
    "CLUSTER": frozenset((
        "ALL", "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS", "IDEMPOTENT_WRITE",
    )),
    "TRANSACTIONAL_ID": frozenset(("ALL", "WRITE", "DESCRIBE")),
}  # fmt: skip

# A rule that allows one of these operations also allows the key. Rules that deny imply nothing.
_IMPLIED_BY: Final[dict[Operation, tuple[Operation, ...]]] = {
    "DESCRIBE": ("READ", "WRITE", "DELETE", "ALTER"),
    "DESCRIBE_CONFIGS": ("ALTER_CONFIGS",),
}

# Longer than permitted names: `check` reports these with a clear error.
_PrincipalText = Annotated[str, Meta(max_length=2 * limits.PRINCIPAL_NAME_CHARS_MAX)]
_ResourceName = Annotated[str, Meta(max_length=2 * limits.ACL_RESOURCE_CHARS_MAX)]
_Host = Annotated[str, Meta(max_length=limits.HOST_CHARS_MAX)]


class Acl(msgspec.Struct, frozen=True, order=True):
    """One rule.

    ``principal``: ``User:NAME``, or ``User:*`` for all. ``resource_name``: a name, ``*`` for all
    names, or with ``PREFIXED`` the beginning of names. ``host``: the IP address of the client, or
    ``*`` for all.
    """

    principal: _PrincipalText
    operation: Operation
    resource_type: ResourceType
    resource_name: _ResourceName
    pattern_type: PatternType = "LITERAL"
    permission: Permission = "ALLOW"
    host: _Host = ANY

    def __str__(self) -> str:
        name = "" if self.resource_type == "CLUSTER" else f" {self.resource_name!r}"
        prefixed = " prefix" if self.pattern_type == "PREFIXED" else ""
        host = "" if self.host == ANY else f" from {self.host}"
        return (
            f"{self.permission} {self.principal} {self.operation} on "
            f"{self.resource_type}{prefixed}{name}{host}"
        )

    def checked(self) -> Self:
        """Return the rule with its host in canonical form.

        Raises ``InvalidRequestError`` if the rule could never apply: an operation that its resource
        type does not have, a name that no resource has, or a host that is not an address.
        """
        Principal.parse(self.principal)
        permitted = OPERATIONS_OF[self.resource_type]
        if self.operation not in permitted:
            raise InvalidRequestError(
                f"a {self.resource_type} has no operation {self.operation}. Use one of "
                f"{', '.join(sorted(permitted))}"
            )
        if not 1 <= len(self.resource_name) <= limits.ACL_RESOURCE_CHARS_MAX:
            raise InvalidRequestError(
                f"the resource name has {len(self.resource_name)} characters. Use 1 to "
                f"{limits.ACL_RESOURCE_CHARS_MAX}"
            )
        is_cluster = (self.resource_name, self.pattern_type) == (CLUSTER_NAME, "LITERAL")
        if self.resource_type == "CLUSTER" and not is_cluster:
            raise InvalidRequestError(
                f"the resource of type CLUSTER is {CLUSTER_NAME!r}, literal, not "
                f"{self.resource_name!r}"
            )
        return msgspec.structs.replace(self, host=canonical_host(self.host))


def canonical_host(host: str) -> str:
    """Return the shortest form of an IP address, or ``*``. Raises ``InvalidRequestError``."""
    if host == ANY:
        return host
    try:
        address = ip_address(host)
    except ValueError as error:
        raise InvalidRequestError(
            f"host {host!r} is not an IP address. Use the address of the client, such as "
            "10.0.0.1, or * for all"
        ) from error
    mapped = getattr(address, "ipv4_mapped", None)  # of an IPv4 client at an IPv6 socket
    return str(mapped or address)


class AclFilter(msgspec.Struct, frozen=True):
    """Selection of rules by equal fields; None matches every value (KIP-140).

    ``pattern_type``: ``MATCH`` selects the rules that apply to a resource named ``resource_name``:
    literal, prefixed and ``*`` (KIP-290).
    """

    principal: _PrincipalText | None = None
    operation: Operation | None = None
    resource_type: ResourceType | None = None
    resource_name: _ResourceName | None = None
    pattern_type: PatternType | Literal["MATCH"] | None = None
    permission: Permission | None = None
    host: _Host | None = None

    def selects(self, acl: Acl) -> bool:
        """Return whether the rule matches."""
        return (
            self.principal in (None, acl.principal)
            and self.operation in (None, acl.operation)
            and self.resource_type in (None, acl.resource_type)
            and self.permission in (None, acl.permission)
            and self.host in (None, acl.host)
            and self._selects_name(acl)
        )

    def _selects_name(self, acl: Acl) -> bool:
        if self.pattern_type != "MATCH":
            return self.pattern_type in (None, acl.pattern_type) and self.resource_name in (
                None,
                acl.resource_name,
            )
        return self.resource_name is None or applies_to(acl, self.resource_name)


def applies_to(acl: Acl, name: str) -> bool:
    """Return whether a rule applies to a resource of its type with this name."""
    if acl.pattern_type == "PREFIXED":
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, ANY)


class Decision(NamedTuple):
    """``acl``: the rule that decided; None for a super user, and if no rule applies."""

    is_allowed: bool
    acl: Acl | None = None
    is_super_user: bool = False

    def __str__(self) -> str:
        if self.is_super_user:
            return "super.users contains the principal"
        return "no rule applies" if self.acl is None else str(self.acl)


_UNNAMED: Final = "\U0010ffff"  # a name or end of a name that no rule contains
_NO_RULE: Final = Decision(is_allowed=False)
_SUPER_USER: Final = Decision(is_allowed=True, is_super_user=True)

_Key: TypeAlias = tuple[Permission, Operation, str]  # with the host
_Entry: TypeAlias = dict[_Key, Acl]  # rules of one principal and one pattern


class _Patterns:
    """Rules of one principal for one resource type, by pattern."""

    __slots__ = ("_counts", "_lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Entry] = {}
        self.prefixed: dict[str, _Entry] = {}
        self._lengths: list[int] = []  # of the prefixes, ascending, each once
        self._counts: dict[int, int] = {}  # of the prefixes, by length

    def add(self, acl: Acl) -> None:
        is_prefix, name = acl.pattern_type == "PREFIXED", acl.resource_name
        by_name = self.prefixed if is_prefix else self.literal
        if name not in by_name:
            by_name[name] = {}
            if is_prefix:
                count = self._counts[len(name)] = self._counts.get(len(name), 0) + 1
                if count == 1:
                    insort(self._lengths, len(name))
        by_name[name][acl.permission, acl.operation, acl.host] = acl

    def remove(self, acl: Acl) -> None:
        is_prefix, name = acl.pattern_type == "PREFIXED", acl.resource_name
        by_name = self.prefixed if is_prefix else self.literal
        del by_name[name][acl.permission, acl.operation, acl.host]
        if by_name[name]:
            return
        del by_name[name]
        if is_prefix:
            self._counts[len(name)] -= 1
            if not self._counts[len(name)]:
                self._lengths.remove(len(name))

    def entries(self, name: str) -> Iterator[_Entry]:
        """Return the rules that apply to a name. There is at most one prefix of each length."""
        literal = self.literal
        if name in literal:
            yield literal[name]
        if ANY in literal:
            yield literal[ANY]
        for length in self._lengths:
            if length > len(name):
                break
            entry = self.prefixed.get(name[:length])
            if entry is not None:
                yield entry


class Question:
    """Checks whether a principal at a host may do an operation, for many names of one type."""

    __slots__ = ("_allowing", "_denying", "_is_super_user", "_patterns")

    def __init__(
        self,
        patterns: list[_Patterns],
        operation: Operation,
        host: str,
        *,
        is_super_user: bool,
    ) -> None:
        self._patterns = patterns
        self._is_super_user = is_super_user
        hosts = (host, ANY)
        allowing: tuple[Operation, ...] = (operation, "ALL", *_IMPLIED_BY.get(operation, ()))
        denying: tuple[Operation, ...] = (operation, "ALL")
        self._denying: list[_Key] = [("DENY", op, at) for op in denying for at in hosts]
        self._allowing: list[_Key] = [("ALLOW", op, at) for op in allowing for at in hosts]

    def decide(self, name: str) -> Decision:
        """Return the decision for a resource, and the rule that it follows from."""
        if self._is_super_user:
            return _SUPER_USER
        allowed: Acl | None = None
        for patterns in self._patterns:
            for entry in patterns.entries(name):
                # guard: a rule that denies outweighs those that allow
                for key in self._denying:
                    if key in entry:
                        return Decision(is_allowed=False, acl=entry[key])
                if allowed is None:
                    for key in self._allowing:
                        if key in entry:
                            allowed = entry[key]
                            break
        return _NO_RULE if allowed is None else Decision(is_allowed=True, acl=allowed)

    def decide_any(self) -> Decision:
        """Return whether the operation is allowed on a resource of any name (KIP-679)."""
        if self._is_super_user:
            return _SUPER_USER
        for name in self._names_allowed():
            decision = self.decide(name)
            if decision.is_allowed:
                return decision
        return _NO_RULE

    def _names_allowed(self) -> Iterator[str]:
        """Yield a name for each rule that allows. For a rule for all names, this is a name that no
        other rule contains.
        """
        for patterns in self._patterns:
            for name, entry in patterns.literal.items():
                if any(key in entry for key in self._allowing):
                    yield _UNNAMED if name == ANY else name
            for prefix, entry in patterns.prefixed.items():
                if any(key in entry for key in self._allowing):
                    yield prefix
                    yield prefix + _UNNAMED


class Authorizer:
    """All rules, indexed. The cost of a decision does not depend on their number."""

    def __init__(self, super_users: Iterable[Principal] = ()) -> None:
        """``super_users``: are allowed every operation, regardless of rules."""
        self._super_users = frozenset(map(str, super_users))
        self._index: dict[tuple[str, ResourceType], _Patterns] = {}
        self._acls: set[Acl] = set()

    def __len__(self) -> int:
        return len(self._acls)

    def add(self, acl: Acl) -> None:
        """Add a rule, if it does not exist."""
        if acl in self._acls:
            return
        self._acls.add(acl)
        self._index.setdefault((acl.principal, acl.resource_type), _Patterns()).add(acl)

    def remove(self, acl: Acl) -> None:
        """Remove a rule, if it exists."""
        if acl not in self._acls:
            return
        self._acls.discard(acl)
        patterns = self._index[acl.principal, acl.resource_type]
        patterns.remove(acl)
        if not (patterns.literal or patterns.prefixed):
            del self._index[acl.principal, acl.resource_type]

    def question(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> Question:
        """Return the checks whether ``principal``, connected from the IP address ``host``, may do
        ``operation``.
        """
        subject = str(principal)
        found = (self._index.get((who, resource_type)) for who in (subject, f"{USER}:{ANY}"))
        return Question(
            [patterns for patterns in found if patterns is not None],
            operation,
            host,
            is_super_user=subject in self._super_users,
        )


# -- principal -------------------------------------------------------------------------------------
#
# Principals: identities of authenticated connections, as access rules contain them.


USER: Final = "User"


class Principal(msgspec.Struct, frozen=True):
    """Kind and name of an identity, as in Kafka: ``User:alice``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a principal, such as ``User:alice``.

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


def of_certificate(
    certificate: Mapping[str, Any], rules: tuple[PrincipalRule, ...] = ()
) -> Principal | None:
    """Return the principal of a verified client certificate: the first common name of its subject,
    or with ``rules`` the result of the rules for its distinguished name.

    ``certificate``: as returned by ``ssl.SSLObject.getpeercert``. Returns None if there is no such
    name, or if it is invalid.
    """
    subject = certificate.get("subject", ())
    name: str | None
    if rules:
        full = distinguished_name(subject)
        is_short = len(full) <= limits.CERTIFICATE_NAME_CHARS_MAX
        name = apply_rules(rules, full) if is_short else None
    else:
        pairs = (pair for names in subject for pair in names)
        name = next((value for kind, value in pairs if kind == "commonName"), None)
    try:
        return None if name is None else Principal(USER, check_name(name))
    except InvalidRequestError:
        return None


_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_SPECIAL: Final = re.compile(r'([,+"\\<>;=])|^([ #])|( )$')


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a subject as text (RFC 2253), the last name first, such as ``CN=alice,O=Example``."""
    return ",".join(
        "+".join(
            f"{_SHORT.get(kind, kind)}={_SPECIAL.sub(lambda m: chr(92) + m[0], value)}"
            for kind, value in names
        )
        for names in reversed(list(subject))
    )


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
