"""DescribeAcls, CreateAcls and DeleteAcls: access rules. Any broker accepts changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeVar

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.replication.cluster_commands import CreateAcls
from raftlog.security.acl import (
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests.access import delete_acls, select_acls
from raftlog.server.turns import Steps

T = TypeVar("T")

# Kafka's numbers. 1 is "any", in filters.
ANY: Final = 1
RESOURCE_TYPES: Final[Mapping[int, ResourceType]] = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
}
PATTERN_TYPES: Final[Mapping[int, PatternType]] = {3: "LITERAL", 4: "PREFIXED"}
MATCH: Final = 2  # a pattern type, in filters
PERMISSIONS: Final[Mapping[int, Permission]] = {2: "DENY", 3: "ALLOW"}
OPERATIONS_BY_NUMBER: Final[Mapping[int, Operation]] = dict(enumerate(OPERATIONS, start=2))

_TYPE_NUMBERS: Final = {name: number for number, name in RESOURCE_TYPES.items()}
_PATTERN_NUMBERS: Final = {name: number for number, name in PATTERN_TYPES.items()}
_PERMISSION_NUMBERS: Final = {name: number for number, name in PERMISSIONS.items()}
_OPERATION_NUMBERS: Final = {name: number for number, name in OPERATIONS_BY_NUMBER.items()}

_Described = codec.structs("response", api.DESCRIBE_ACLS.key)
_Created = codec.structs("response", api.CREATE_ACLS.key)
_Deleted = codec.structs("response", api.DELETE_ACLS.key)


class _DisabledError(RaftlogError):
    """The brokers enforce no rules: Kafka has a code for it."""


def _check_enforced(context: BrokerContext) -> None:
    if not context.access.is_enforced:
        raise _DisabledError(
            "the brokers enforce no access rules. Set authentication.required, or use `raftlog acl`"
        )


def _code(error: RaftlogError) -> int:
    if isinstance(error, _DisabledError):
        return errors.SECURITY_DISABLED
    return code_of(error, Place.ADMIN)


def _named(names: Mapping[int, T], number: int, what: str) -> T:
    name = names.get(number)
    if name is None:
        raise InvalidRequestError(f"unknown {what} {number}")
    return name


def _or_any(names: Mapping[int, T], number: int, what: str) -> T | None:
    return None if number == ANY else _named(names, number, what)


def _filter(message: Message) -> AclFilter:
    """Return the filter of a message. Raises ``InvalidRequestError``."""
    pattern: Any = "MATCH"
    if message.pattern_type_filter != MATCH:
        pattern = _or_any(PATTERN_TYPES, message.pattern_type_filter, "pattern type")
    return AclFilter(
        principal=message.principal_filter,
        operation=_or_any(OPERATIONS_BY_NUMBER, message.operation, "operation"),
        resource_type=_or_any(RESOURCE_TYPES, message.resource_type_filter, "resource type"),
        resource_name=message.resource_name_filter,
        pattern_type=pattern,
        permission=_or_any(PERMISSIONS, message.permission_type, "permission"),
        host=message.host_filter,
    )


def _check_count(reply: KafkaReply, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequestError(
            f"{count} items in a {reply.name} request; the maximum is {most}. Send several requests"
        )


# -- DescribeAcls ----------------------------------------------------------------------------------


def handle_describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the rules that a filter selects, by resource."""
    _check_enforced(context)
    found = yield from select_acls(context, [_filter(request.message)])
    found.sort(key=_resource)
    reply.send(
        _Described.root(
            error_message=None,
            resources=[
                _Described.DescribeAclsResource(
                    resource_type=_TYPE_NUMBERS[kind],
                    resource_name=name,
                    pattern_type=_PATTERN_NUMBERS[pattern],
                    acls=[_rule(_Described.AclDescription(), acl) for acl in acls],
                )
                for (kind, name, pattern), acls in groupby(found, key=_resource)
            ],
        )
    )


def refuse_describe(_request: KafkaRequest, error: RaftlogError) -> Message:
    return _Described.root(error_code=_code(error), error_message=error.wire_text)


def _resource(acl: Acl) -> tuple[ResourceType, str, PatternType]:
    return acl.resource_type, acl.resource_name, acl.pattern_type


def _rule(described: Message, acl: Acl) -> Message:
    described.principal, described.host = acl.principal, acl.host
    described.operation = _OPERATION_NUMBERS[acl.operation]
    described.permission_type = _PERMISSION_NUMBERS[acl.permission]
    return described


# -- CreateAcls ------------------------------------------------------------------------------------


def handle_create(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Add the rules that are valid. Each has a separate result."""
    _check_enforced(context)
    creations = request.message.creations
    _check_count(reply, len(creations), limits.ACLS_PER_REQUEST_MAX)
    made = [_created(creation) for creation in creations]
    valid = tuple(acl for acl in made if isinstance(acl, Acl))

    async def create() -> Message:
        failure: RaftlogError | None = None
        try:
            if valid:
                await context.access.authority.propose(CreateAcls(acls=valid))
        except RaftlogError as error:
            failure = error
        return _Created.root(
            results=[_result(failure if isinstance(acl, Acl) else acl) for acl in made]
        )

    context.administration.submit(create, reply)


def _created(creation: Message) -> Acl | RaftlogError:
    try:
        return Acl(
            principal=creation.principal,
            operation=_named(OPERATIONS_BY_NUMBER, creation.operation, "operation"),
            resource_type=_named(RESOURCE_TYPES, creation.resource_type, "resource type"),
            resource_name=creation.resource_name,
            pattern_type=_named(PATTERN_TYPES, creation.resource_pattern_type, "pattern type"),
            permission=_named(PERMISSIONS, creation.permission_type, "permission"),
            host=creation.host,
        ).checked()
    except RaftlogError as error:
        return error


def _result(error: RaftlogError | None) -> Message:
    if error is None:
        return _Created.AclCreationResult(error_message=None)
    return _Created.AclCreationResult(error_code=_code(error), error_message=error.wire_text)


def refuse_create(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Created.root(results=[_result(error) for _ in request.message.creations])


# -- DeleteAcls ------------------------------------------------------------------------------------


def handle_delete(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Delete the rules that the filters select. Each filter has a separate result."""
    _check_enforced(context)
    filters = request.message.filters
    _check_count(reply, len(filters), limits.ACL_FILTERS_PER_REQUEST_MAX)
    selected: list[Sequence[Acl] | RaftlogError] = []
    for each in filters:
        try:
            selected.append((yield from select_acls(context, [_filter(each)])))
        except RaftlogError as error:
            selected.append(error)
    doomed = {acl for acls in selected if not isinstance(acls, RaftlogError) for acl in acls}

    async def delete() -> Message:
        gone = set(await delete_acls(context, sorted(doomed)))
        return _Deleted.root(filter_results=[_deleted(acls, gone) for acls in selected])

    context.administration.submit(delete, reply)


def _deleted(acls: Sequence[Acl] | RaftlogError, gone: set[Acl]) -> Message:
    if isinstance(acls, RaftlogError):
        return _undeleted(acls)
    return _Deleted.DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            _rule(
                _Deleted.DeleteAclsMatchingAcl(
                    error_message=None,
                    resource_type=_TYPE_NUMBERS[acl.resource_type],
                    resource_name=acl.resource_name,
                    pattern_type=_PATTERN_NUMBERS[acl.pattern_type],
                ),
                acl,
            )
            for acl in acls
            if acl in gone
        ],
    )


def _undeleted(error: RaftlogError) -> Message:
    return _Deleted.DeleteAclsFilterResult(error_code=_code(error), error_message=error.wire_text)


def refuse_delete(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Deleted.root(filter_results=[_undeleted(error) for _ in request.message.filters])
