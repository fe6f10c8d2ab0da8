"""Pages of access rules and users. Brokers decide what the signed-in user may see and change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

from msgspec.structs import asdict

from raftlog.errors import InvalidRequestError, RaftlogError, RefusedError
from raftlog.security.acl import (
    ANY,
    CLUSTER_NAME,
    OPERATIONS,
    RESOURCE_TYPES,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from raftlog.security.principal import USER
from raftlog.security.quota import DEFAULT, QuotaEntity
from raftlog_cli.acl import UNKNOWN_HOST
from raftlog_cli.console.paging import ROWS, page_of
from raftlog_cli.http_parameters import choice
from raftlog_cli.quota import LIMITS, shown_limit

if TYPE_CHECKING:
    from raftlog_cli.console.pages import Pages

PATTERNS: Final[tuple[PatternType, ...]] = ("LITERAL", "PREFIXED")
PERMISSIONS: Final[tuple[Permission, ...]] = ("ALLOW", "DENY")
FIELDS: Final = tuple(AclFilter.__struct_fields__)
CHOICES: Final = {
    "operations": OPERATIONS,
    "resource_types": RESOURCE_TYPES,
    "patterns": PATTERNS,
    "permissions": PERMISSIONS,
}

T = TypeVar("T", bound=str)


def principal_of(text: str) -> str:
    """Return the principal of a user name; a text with a kind is kept."""
    text = text.strip()
    return text if not text or text.startswith(f"{USER}:") else f"{USER}:{text}"


def _optional(values: Mapping[str, str], name: str, choices: tuple[T, ...]) -> T | None:
    return choice(values, name, choices) if values.get(name) else None


# -- rules -----------------------------------------------------------------------------------------


def rules(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the rules that the form selects: rules that apply to the resource, if it is named."""
    name = parameters.get("resource_name", "").strip()
    selection = AclFilter(
        principal=principal_of(parameters.get("principal", "")) or None,
        operation=_optional(parameters, "operation", OPERATIONS),
        resource_type=_optional(parameters, "resource_type", RESOURCE_TYPES),
        resource_name=name or None,
        pattern_type="MATCH" if name else None,
        permission=_optional(parameters, "permission", PERMISSIONS),
        host=parameters.get("host", "").strip() or None,
    )
    found = pages.admin.describe_acls(selection)
    return {
        "page": page_of(found, ROWS, "/access", parameters),
        "fields": {each: parameters.get(each, "") for each in FIELDS},
        "is_filtered": selection != AclFilter(),
        **CHOICES,
    }


def new_rule(_pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    return {"principal": principal_of(parameters.get("principal", "")), **CHOICES}


def _rule_of(form: Mapping[str, str]) -> Acl:
    """Return the rule of a form. Raises ``InvalidRequestError``."""
    resource_type = choice(form, "resource_type", RESOURCE_TYPES)
    is_cluster = resource_type == "CLUSTER"
    return Acl(
        principal=principal_of(form.get("principal", "")),
        operation=choice(form, "operation", OPERATIONS),
        resource_type=resource_type,
        resource_name=CLUSTER_NAME if is_cluster else form.get("resource_name", "").strip(),
        pattern_type="LITERAL" if is_cluster else choice(form, "pattern_type", PATTERNS),
        permission=choice(form, "permission", PERMISSIONS),
        host=form.get("host", "").strip() or ANY,
    ).checked()


def create_rule(pages: Pages, form: Mapping[str, str]) -> str:
    """Create a rule. Returns the URL of the rules of its principal."""
    rule = _rule_of(form)
    pages.admin.create_acls([rule])
    return "/access?" + urlencode({"principal": rule.principal})


def delete_rule(pages: Pages, form: Mapping[str, str]) -> str:
    """Delete one rule, whose fields the form has. Returns the URL of the rules."""
    rule = _rule_of(form)
    if not pages.admin.delete_acls([AclFilter(**asdict(rule))]):
        raise InvalidRequestError(f"the rule {rule} does not exist: it was deleted before")
    return "/access"


def check_access(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the decision for a user and an operation; None without a user."""
    principal = principal_of(parameters.get("principal", ""))
    operation: Operation = choice(parameters, "operation", OPERATIONS[1:])
    resource_type: ResourceType = choice(parameters, "resource_type", RESOURCE_TYPES)
    name = parameters.get("resource_name", "").strip()
    if resource_type == "CLUSTER":
        name = CLUSTER_NAME
    host = parameters.get("host", "").strip()
    decision = None
    if principal and name:
        decision = pages.admin.check_acl(
            principal, operation, resource_type, name, host=host or UNKNOWN_HOST
        )
    return {
        "decision": decision,
        "principal": principal,
        "operation": operation,
        "resource_type": resource_type,
        "resource_name": name,
        "host": host,
        **CHOICES,
        "operations": OPERATIONS[1:],  # no client requests ALL
    }


# -- users -----------------------------------------------------------------------------------------


def users(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the users and their quotas. Nothing of a password is requested.

    ``problem``: why a cluster without authentication does not list users.
    """
    wanted, problem = parameters.get("q", "").lower(), ""
    try:
        listed = pages.admin.list_users()
    except RefusedError as error:
        if pages.is_secured:
            raise
        listed, problem = [], str(error)
    found = [user for user in listed if wanted in user.name.lower()]
    return {
        "page": page_of(found, ROWS, "/access/users", parameters),
        "quotas": _quotas(pages),
        "default": DEFAULT,
        "q": parameters.get("q", ""),
        "total": len(listed),
        "problem": problem,
    }


def _quotas(pages: Pages) -> dict[str, str]:
    """Return the quotas of users as texts; nothing if the signed-in user must not see quotas."""
    try:
        found = pages.admin.describe_quotas()
    except RaftlogError:
        return {}
    return {
        entity.user: ", ".join(
            f"{option} {shown_limit(quota[key])}"
            for option, (key, _) in LIMITS.items()
            if key in quota
        )
        for entity, quota in found.items()
        if entity.user is not None and entity == QuotaEntity(entity.user)
    }


def _password_of(form: Mapping[str, str]) -> str:
    password = form.get("password", "")
    if password != form.get("repeated", ""):
        raise InvalidRequestError("the two passwords are not equal. Go back, and enter them again")
    return password


def create_user(pages: Pages, form: Mapping[str, str]) -> str:
    pages.admin.create_user(form.get("user", "").strip(), _password_of(form))
    return "/access/users"


def rotate_user(pages: Pages, form: Mapping[str, str]) -> str:
    pages.admin.rotate_user(form.get("user", ""), _password_of(form))
    return "/access/users"


def delete_user(pages: Pages, form: Mapping[str, str]) -> str:
    """Delete a user. Its rules remain, as with ``raftlog user delete``."""
    pages.admin.delete_user(form.get("user", ""))
    return "/access/users"
