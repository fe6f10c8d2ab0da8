"""DescribeClientQuotas and AlterClientQuotas (KIP-546). Any broker accepts changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.kafka import api, codec
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.replication.cluster_commands import AlterQuotas, QuotaChange
from raftlog.security.quota import DEFAULT, QUOTA_KEYS, QuotaEntity, QuotaKey
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply

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
