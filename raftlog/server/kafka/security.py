"""DescribeAcls, CreateAcls and DeleteAcls: access rules. Any broker accepts changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeVar, cast

from raftlog import limits
from raftlog.errors import (
    AuthenticationError,
    ClusterNotReadyError,
    InvalidRequestError,
    RaftlogError,
    ThrottledError,
    TokenOwnerError,
    UnsupportedFeatureError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.replication.cluster_commands import AlterQuotas, CreateAcls, QuotaChange
from raftlog.security.acl import (
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)
from raftlog.security.credentials import (
    SCRAM_MECHANISMS,
    DelegationToken,
    Mechanism,
    of_salted_password,
)
from raftlog.security.quota import DEFAULT, QUOTA_KEYS, QuotaEntity, QuotaKey
from raftlog.server.apis import security
from raftlog.server.apis.security import delete_acls, fail_later, select_acls
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.scheduling import Steps

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


# -- quotas ----------------------------------------------------------------------------------------
#
# DescribeClientQuotas and AlterClientQuotas (KIP-546). Any broker accepts changes.


# Kafka's names of the fields of an entity.
TYPES: Final[Mapping[str, str]] = {"user": "user", "client-id": "client_id", "ip": "address"}
# How a component of a filter matches.
EXACT: Final = 0
OF_DEFAULT: Final = 1
ANY_NAME: Final = 2

_DescribedQuotas = codec.structs("response", api.DESCRIBE_CLIENT_QUOTAS.key)
_Altered = codec.structs("response", api.ALTER_CLIENT_QUOTAS.key)


# -- DescribeClientQuotas --------------------------------------------------------------------------


def handle_describe_quotas(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> None:
    """Return the quotas whose entities match all components of the filter."""
    components, is_strict = request.message.components, request.message.strict
    for component in components:
        _field(component.entity_type)
    entries = [
        _DescribedQuotas.EntryData(
            entity=_parts(_DescribedQuotas, entity),
            values=[
                _DescribedQuotas.ValueData(key=key, value=value) for key, value in quota.items()
            ],
        )
        for entity, quota in sorted(context.access.quotas, key=lambda one: str(one[0]))
        if _matches(entity, components, is_strict=is_strict)
    ]
    reply.send(_DescribedQuotas.root(error_message=None, entries=entries))


def refuse_describe_quotas(_request: KafkaRequest, error: RaftlogError) -> Message:
    code = code_of(error, Place.ADMIN)
    return _DescribedQuotas.root(error_code=code, error_message=error.wire_text, entries=None)


def _matches(entity: QuotaEntity, components: Sequence[Message], *, is_strict: bool) -> bool:
    names = {kind: name for kind, name in _names(entity).items() if name is not None}
    if is_strict and names.keys() != {component.entity_type for component in components}:
        return False
    return all(_matches_one(names.get(each.entity_type), each) for each in components)


def _matches_one(name: str | None, component: Message) -> bool:
    if name is None:
        return False
    if component.match_type == EXACT:
        return bool(name == component.match)
    return component.match_type == ANY_NAME or name == DEFAULT


def _names(entity: QuotaEntity) -> dict[str, str | None]:
    return {kind: getattr(entity, field) for kind, field in TYPES.items()}


def _parts(structs: Any, entity: QuotaEntity) -> list[Message]:
    return [
        structs.EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
        for kind, name in _names(entity).items()
        if name is not None
    ]


def _field(kind: str) -> str:
    field = TYPES.get(kind)
    if field is None:
        raise InvalidRequestError(f"unknown entity type {kind[:20]!r}. Use {', '.join(TYPES)}")
    return field


# -- AlterClientQuotas -----------------------------------------------------------------------------


def handle_alter(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Change quotas. Each entity has a separate result."""
    message = request.message
    context.check_operator(reply.connection, reply.name)
    if len(message.entries) > limits.QUOTAS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"{len(message.entries)} entities in a request; the maximum is "
            f"{limits.QUOTAS_PER_REQUEST_MAX}. Send several requests"
        )

    async def alter_all() -> Message:
        results = [await alter(entry) for entry in message.entries]
        return _Altered.root(entries=results)

    async def alter(entry: Message) -> Message:
        try:
            change = _change(entry)
            if not message.validate_only:
                await context.access.authority.propose(AlterQuotas(changes=(change,)))
        except RaftlogError as error:
            return _altered(entry, error)
        return _altered(entry, None)

    context.administration.submit(alter_all, reply)


def _change(entry: Message) -> QuotaChange:
    """Return the change of one entity. Raises ``InvalidRequestError``."""
    names = {
        _field(part.entity_type): DEFAULT if part.entity_name is None else part.entity_name
        for part in entry.entity
    }
    entity = QuotaEntity(**names).checked()
    changes: dict[QuotaKey, float | None] = {}
    for operation in entry.ops:
        if operation.key not in QUOTA_KEYS:
            raise InvalidRequestError(
                f"unknown quota {operation.key[:50]!r}. Use {', '.join(QUOTA_KEYS)}"
            )
        key = cast(QuotaKey, operation.key)
        entity.check_key(key)
        if not operation.remove and not 0 < operation.value <= limits.QUOTA_MAX:
            raise InvalidRequestError(f"{key}={operation.value} is not a limit above 0")
        changes[key] = None if operation.remove else operation.value
    return QuotaChange(entity, changes)


def _altered(entry: Message, error: RaftlogError | None) -> Message:
    return _Altered.EntryData(
        error_code=0 if error is None else code_of(error, Place.ADMIN),
        error_message=None if error is None else error.wire_text,
        entity=[
            _Altered.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in entry.entity
        ],
    )


def refuse_alter(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Altered.root(entries=[_altered(entry, error) for entry in request.message.entries])


# -- users -----------------------------------------------------------------------------------------
#
# DescribeUserScramCredentials and AlterUserScramCredentials: users of the cluster (KIP-554).


DESCRIBED_PER_STEP: Final = 500  # users per step
# Kafka's numbers of the mechanisms.
NUMBERS: Final[dict[Mechanism, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final = {number: mechanism for mechanism, number in NUMBERS.items()}

_Describe = codec.structs("response", api.DESCRIBE_USER_SCRAM_CREDENTIALS.key)
_Alter = codec.structs("response", api.ALTER_USER_SCRAM_CREDENTIALS.key)


def handle_describe_users(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> Steps:
    """Return the mechanisms and iterations of users; of all if the request names none."""
    security.check_allowed(context, reply.connection, reply.name)
    names = [each.name for each in request.message.users or ()] or None
    if names is not None:
        _check_user_count(len(names))
    results = []
    for number, user in enumerate(security.find(context, names)):
        if number % DESCRIBED_PER_STEP == 0:
            yield None
        infos = [
            _Describe.CredentialInfo(mechanism=NUMBERS[mechanism], iterations=each.iterations)
            for mechanism, each in user.credentials.items()
        ]
        results.append(_description(user.name, infos))
    missing = set(names or ()) - {result.user for result in results}
    results += [_missing(name) for name in sorted(missing)]
    reply.send(_Describe.root(error_message=None, results=results))


def refuse_describe_users(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error for each named user, or for the request if it is for all users.

    librdkafka ends its process with SIGSEGV if a request as a whole fails.
    """
    code = code_of(error, Place.ADMIN)
    if not request.message.users:
        return _Describe.root(error_code=code, error_message=error.wire_text, results=[])
    results = [_failed(each.name, code, error.wire_text) for each in request.message.users]
    return _Describe.root(error_message=None, results=results)


def _description(name: str, infos: list[Message]) -> Message:
    return _Describe.DescribeUserScramCredentialsResult(
        user=name, error_message=None, credential_infos=infos
    )


def _missing(name: str) -> Message:
    return _failed(name, errors.RESOURCE_NOT_FOUND, f"there is no user {name!r}")


def _failed(name: str, code: int, text: str) -> Message:
    result = _description(name, [])
    result.error_code, result.error_message = code, text
    return result


def handle_alter_users(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Change users, one after the other. Each has a separate result."""
    security.check_allowed(context, reply.connection, reply.name)
    message = request.message
    changes = [*message.deletions, *message.upsertions]
    _check_user_count(len(changes))
    # As in Kafka, a request may contain one change of each credential.
    count = Counter((change.name, change.mechanism) for change in changes)

    async def alter_all() -> Message:
        failures: dict[str, tuple[int, str | None]] = {}
        for change in changes:
            failed = failures.get(change.name, (errors.NONE, None))
            if failed[0] == errors.NONE:
                if count[change.name, change.mechanism] > 1:
                    failed = errors.DUPLICATE_RESOURCE, "the credential is in the request twice"
                else:
                    failed = await _alter(context, change)
            failures[change.name] = failed
        return _Alter.root(results=[_user_result(name, *found) for name, found in failures.items()])

    context.administration.submit(alter_all, reply)


async def _alter(context: BrokerContext, change: Message) -> tuple[int, str | None]:
    """Make one change. Return its error code and message."""
    mechanism = _NAMES.get(change.mechanism)
    if mechanism is None:
        return (
            errors.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {change.mechanism} is unknown. Use {', '.join(SCRAM_MECHANISMS)}",
        )
    try:
        if hasattr(change, "salted_password"):
            try:
                credential = of_salted_password(
                    mechanism,
                    bytes(change.salted_password),
                    salt=bytes(change.salt),
                    iterations=change.iterations,
                )
            except InvalidRequestError as error:
                return errors.UNACCEPTABLE_CREDENTIAL, error.wire_text
            await security.put(context, change.name, {mechanism: credential}, expected="any")
        else:
            await security.delete(context, change.name, [mechanism])
    except RaftlogError as error:
        return code_of(error, Place.ADMIN), error.wire_text
    return errors.NONE, None


def refuse_alter_users(request: KafkaRequest, error: RaftlogError) -> Message:
    message = request.message
    names = dict.fromkeys(each.name for each in (*message.deletions, *message.upsertions))
    code = code_of(error, Place.ADMIN)
    return _Alter.root(results=[_user_result(name, code, error.wire_text) for name in names])


def _user_result(name: str, code: int, text: str | None) -> Message:
    return _Alter.AlterUserScramCredentialsResult(user=name, error_code=code, error_message=text)


def _check_user_count(count: int) -> None:
    if count > limits.USERS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"the request has {count} users, over the limit of {limits.USERS_PER_REQUEST_MAX}"
        )


# -- sasl ------------------------------------------------------------------------------------------
#
# SaslHandshake and SaslAuthenticate: a client proves who it is (KIP-152, KIP-368).


_Handshake = codec.structs("response", api.SASL_HANDSHAKE.key)
_Authenticate = codec.structs("response", api.SASL_AUTHENTICATE.key)


def handle_handshake(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Begin an exchange of the mechanism, or return the mechanisms that there are."""
    authenticator, connection = context.authenticator, reply.connection
    code = errors.NONE
    try:
        yield from authenticator.begin(connection, request.message.mechanism)
    except UnsupportedFeatureError as error:
        connection.note_refusal(reply.name, error, reply.request_id)
        code = errors.UNSUPPORTED_SASL_MECHANISM
    except (AuthenticationError, ThrottledError) as error:
        fail_later(reply, error)
        return
    except ClusterNotReadyError as error:  # clients try again, at another broker
        connection.abort(str(error))
        return
    mechanisms = list(authenticator.mechanisms(connection))
    reply.send(_Handshake.root(error_code=code, mechanisms=mechanisms))


def handle_authenticate(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    try:
        progress = yield from context.authenticator.proceed(
            reply.connection, bytes(request.message.auth_bytes)
        )
    except AuthenticationError as error:
        fail_later(reply, error)
        return
    except ClusterNotReadyError as error:  # of a token: clients try again
        reply.connection.abort(str(error))
        return
    reply.send(
        _Authenticate.root(
            error_message=None,
            auth_bytes=progress.data,
            session_lifetime_ms=progress.session_lifetime_ms,
        )
    )


def refuse(_request: KafkaRequest, error: RaftlogError) -> Message:
    is_failure = isinstance(error, AuthenticationError)
    return _Authenticate.root(
        error_code=errors.SASL_AUTHENTICATION_FAILED if is_failure else errors.ILLEGAL_SASL_STATE,
        error_message=error.wire_text,
        auth_bytes=b"",
    )


# -- delegation tokens -----------------------------------------------------------------------------
#
# CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken
# (KIP-48).
#
# A client cannot create a token for another owner (KIP-373). Descriptions contain no HMAC: the
# brokers do not have it.


_CreatedToken = codec.structs("response", api.CREATE_DELEGATION_TOKEN.key)
_DescribedTokens = codec.structs("response", api.DESCRIBE_DELEGATION_TOKEN.key)


def handle_create_token(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    message, connection = request.message, reply.connection
    security.check_token_allowed(connection)
    if message.owner_principal_name:
        owner = f"{message.owner_principal_type}:{message.owner_principal_name}"
        if owner != str(connection.principal):
            raise TokenOwnerError(f"{connection.principal} cannot create a token of {owner}")
    renewers = _token_names(message.renewers, limits.DELEGATION_TOKEN_RENEWERS_MAX)

    async def create() -> Message:
        token, hmac = await security.create_token(
            context, connection, renewers, message.max_lifetime_ms
        )
        made = _CreatedToken.root(
            issue_timestamp_ms=token.issued_ms,
            expiry_timestamp_ms=token.expires_ms,
            max_timestamp_ms=token.max_ms,
            token_id=token.id,
            hmac=hmac,
        )
        return _with_owner(made, token)

    context.administration.submit(create, reply)


def handle_renew(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    _change_token(context, request, reply, request.message.renew_period_ms, security.renew_token)


def handle_expire(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    _change_token(
        context, request, reply, request.message.expiry_time_period_ms, security.expire_token
    )


def _change_token(
    context: BrokerContext,
    request: KafkaRequest,
    reply: KafkaReply,
    period_ms: int,
    change: Callable[[BrokerContext, Connection, DelegationToken, int], Awaitable[int]],
) -> None:
    security.check_token_allowed(reply.connection)
    token = security.by_hmac(context, bytes(request.message.hmac))
    answer = codec.structs("response", request.api.key)

    async def set_expiry() -> Message:
        bounded_ms = min(period_ms, limits.DELEGATION_TOKEN_LIFETIME_MS_MAX)
        expires_ms = await change(context, reply.connection, token, bounded_ms)
        return answer.root(expiry_timestamp_ms=expires_ms)

    context.administration.submit(set_expiry, reply)


def handle_describe_tokens(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> None:
    """Return the tokens of the owners, or all tokens, that the client may see."""
    security.check_token_allowed(reply.connection)
    wanted = request.message.owners
    owners = None if wanted is None else _token_names(wanted, limits.DELEGATION_TOKEN_OWNERS_MAX)
    found = security.find_tokens(context, reply.connection, owners)
    reply.send(_DescribedTokens.root(tokens=[_token_description(token) for token in found]))


def _token_description(token: DelegationToken) -> Message:
    described = _DescribedTokens.DescribedDelegationToken(
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.id,
        hmac=b"",
        renewers=[
            _DescribedTokens.DescribedDelegationTokenRenewer(
                principal_type=each.kind, principal_name=each.name
            )
            for each in map(Principal.parse, token.renewers)
        ],
    )
    return _with_owner(described, token)


def _with_owner(message: Any, token: DelegationToken) -> Message:
    owner = Principal.parse(token.owner)
    message.principal_type = message.token_requester_principal_type = owner.kind
    message.principal_name = message.token_requester_principal_name = owner.name
    return message


def _token_names(principals: Sequence[Any], most: int) -> list[str]:
    if len(principals) > most:
        raise InvalidRequestError(
            f"the request has {len(principals)} principals; the limit is {most}"
        )
    return [f"{each.principal_type}:{each.principal_name}" for each in principals]
