"""``raftlog acl``: create, list, delete and check access rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import click
from msgspec.structs import asdict

from raftlog import Admin
from raftlog.security.acl import (
    ANY,
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    ResourceType,
)
from raftlog_cli import completing, options, output
from raftlog_cli.main import Commands

STATUS_DENIED: Final = 3
COLUMNS: Final = ("principal", "permission", "operation", "resource", "pattern", "name", "host")
UNKNOWN_HOST: Final = "0.0.0.0"  # no client has this address  # noqa: S104 - compared

Command = TypeVar("Command", bound=Callable[..., Any])


class Resource(NamedTuple):
    """Resource or name pattern that the options select."""

    type: ResourceType
    name: str
    pattern: PatternType


@click.group(cls=Commands)
def acl() -> None:
    """Create, list, delete and check access rules.

    \b
    Example:
      raftlog acl create --principal User:alice --operation READ --topic clicks
    """


def resource_options(command: Command) -> Command:
    """Add the options that select at most one resource, such as ``--topic`` and ``--group``."""
    for name, metavar, text in reversed(
        (
            ("--topic", "NAME", "A topic; * for all topics."),
            ("--topic-prefix", "PREFIX", "Topics whose names begin with this."),
            ("--group", "NAME", "A consumer group; * for all groups."),
            ("--group-prefix", "PREFIX", "Groups whose names begin with this."),
            ("--transactional-id", "NAME", "Name of a named or transactional producer."),
            ("--transactional-id-prefix", "PREFIX", "Producers whose names begin with this."),
        )
    ):
        complete = {"--topic": completing.topics, "--group": completing.groups}.get(name)
        option = click.option(name, metavar=metavar, shell_complete=complete, help=text)
        command = option(command)
    return click.option("--cluster", is_flag=True, help="The cluster itself.")(command)


def principal_option(*, required: bool) -> Callable[[Command], Command]:
    return click.option(
        "--principal",
        required=required,
        metavar="User:NAME",
        help="The user; User:* for all users.",
    )


def operation_option(**more: Any) -> Callable[[Command], Command]:
    return click.option(
        "--operation",
        type=click.Choice(OPERATIONS, case_sensitive=False),
        help="Operation. READ, WRITE, DELETE and ALTER include DESCRIBE.",
        **more,
    )


def resource_of(
    *,
    topic: str | None,
    topic_prefix: str | None,
    group: str | None,
    group_prefix: str | None,
    transactional_id: str | None,
    transactional_id_prefix: str | None,
    cluster: bool,
) -> Resource | None:
    """Return the resource of the options; None if there is none."""
    given: list[Resource] = [
        Resource(kind, name, pattern)
        for kind, name, pattern in cast(
            list[tuple[ResourceType, str | None, PatternType]],
            [
                ("TOPIC", topic, "LITERAL"),
                ("TOPIC", topic_prefix, "PREFIXED"),
                ("GROUP", group, "LITERAL"),
                ("GROUP", group_prefix, "PREFIXED"),
                ("TRANSACTIONAL_ID", transactional_id, "LITERAL"),
                ("TRANSACTIONAL_ID", transactional_id_prefix, "PREFIXED"),
                ("CLUSTER", CLUSTER_NAME if cluster else None, "LITERAL"),
            ],
        )
        if name is not None
    ]
    if len(given) > 1:
        raise click.UsageError("select one resource, for example with --topic or --group")
    return given[0] if given else None


def required_resource_of(**chosen: Any) -> Resource:
    """Return the resource of the options. Raises ``UsageError`` if there is none."""
    resource = resource_of(**chosen)
    if resource is None:
        raise click.UsageError(
            "name a resource: --topic, --topic-prefix, --group, --group-prefix, --cluster, "
            "--transactional-id or --transactional-id-prefix"
        )
    return resource


def row(rule: Acl) -> tuple[str, ...]:
    """Return a rule as a row of the table."""
    return (
        rule.principal,
        rule.permission,
        rule.operation,
        rule.resource_type,
        rule.pattern_type,
        rule.resource_name,
        rule.host,
    )


@acl.command()
@principal_option(required=True)
@operation_option(multiple=True, required=True)
@resource_options
@click.option(
    "--host", default=ANY, show_default=True, help="IP address of the client; * for all addresses."
)
@click.option("--deny", is_flag=True, help="Deny; this overrides all rules that allow.")
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def create(
    principal: str,
    operation: Sequence[Operation],
    host: str,
    deny: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
    **chosen: Any,
) -> None:
    """Allow or deny a user operations on a resource. An existing rule is kept.

    \b
    Example:
      raftlog acl create --principal User:alice --operation READ --topic clicks
      raftlog acl create --principal User:alice --operation READ --group-prefix alice-
      raftlog acl create --principal User:bob --operation ALL --topic-prefix bob. --host 10.0.0.1
    """
    resource = required_resource_of(**chosen)
    rules = [
        Acl(
            principal=principal,
            operation=each,
            resource_type=resource.type,
            resource_name=resource.name,
            pattern_type=resource.pattern,
            permission="DENY" if deny else "ALLOW",
            host=host,
        )
        for each in operation
    ]
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        admin.create_acls(rules)
    _print(rules, as_json=as_json)


def filter_options(command: Command) -> Command:
    """Add the options that select rules by their fields."""
    command = resource_options(command)
    command = operation_option()(command)
    command = click.option("--host", help="Rules for this address.")(command)
    command = click.option(
        "--permission",
        type=click.Choice(("ALLOW", "DENY"), case_sensitive=False),
        help="Only rules that allow, or only rules that deny.",
    )(command)
    return principal_option(required=False)(command)


def _filter(
    principal: str | None,
    operation: Operation | None,
    host: str | None,
    permission: Any,
    **chosen: Any,
) -> AclFilter:
    resource = resource_of(**chosen)
    return AclFilter(
        principal=principal,
        operation=operation,
        resource_type=None if resource is None else resource.type,
        resource_name=None if resource is None else resource.name,
        pattern_type=None if resource is None else resource.pattern,
        permission=permission,
        host=host,
    )


@acl.command(name="list")
@filter_options
@options.wide
@options.as_json
@options.bootstrap
def list_acls(as_json: bool, bootstrap: str, **chosen: Any) -> None:
    """List the rules, or those that the options select.

    \b
    Example:
      raftlog acl list --principal User:alice
    """
    with Admin(bootstrap) as admin:
        found = admin.describe_acls(_filter(**chosen))
    _print(found, as_json=as_json)


@acl.command()
@filter_options
@click.option("--all", "everything", is_flag=True, help="Delete all rules.")
@options.wide
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def delete(
    everything: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
    **chosen: Any,
) -> None:
    """Delete the rules that the options select, and print them.

    \b
    Example:
      raftlog acl delete --principal User:alice --topic clicks
    """
    selection = _filter(**chosen)
    if not everything and selection == AclFilter():
        raise click.UsageError("select the rules to delete, or pass --all")
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        gone = admin.delete_acls([selection])
    _print(gone, as_json=as_json)


@acl.command(short_help="Check whether an operation is allowed, and by which rule.")
@principal_option(required=True)
@operation_option(required=True)
@resource_options
@click.option(
    "--host",
    default=UNKNOWN_HOST,
    help="IP address of the client.  [default: an address that no rule contains]",
)
@options.as_json
@options.bootstrap
@click.pass_context
def check(
    context: click.Context,
    /,
    principal: str,
    operation: Operation,
    host: str,
    as_json: bool,
    bootstrap: str,
    **chosen: Any,
) -> None:
    """Check whether a user is allowed an operation, and print the rule that decides.

    Exit status: 0 allowed, 3 denied.

    \b
    Example:
      raftlog acl check --principal User:alice --operation READ --topic clicks --host 10.0.0.1
    """
    resource = required_resource_of(**chosen)
    if resource.pattern == "PREFIXED":
        raise click.UsageError("name one resource: a prefix selects several")
    with Admin(bootstrap) as admin:
        decision = admin.check_acl(principal, operation, resource.type, resource.name, host=host)
    value = {
        "allowed": decision.is_allowed,
        "rule": None if decision.acl is None else asdict(decision.acl),
        "super_user": decision.is_super_user,
        "enforced": decision.is_enforced,
    }
    word = "allowed" if decision.is_allowed else "denied"
    output.report(value, f"{word}: {decision.reason}", as_json=as_json)
    if not decision.is_enforced:
        output.note("note: the brokers do not require authentication, and enforce no rules")
    context.exit(0 if decision.is_allowed else STATUS_DENIED)


def _print(rules: Sequence[Acl], *, as_json: bool) -> None:
    if as_json:
        output.print_json([asdict(rule) for rule in rules])
        return
    output.print_table(COLUMNS, [row(rule) for rule in rules])
