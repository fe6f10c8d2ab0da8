"""ListGroups, DescribeGroups and DeleteGroups. A group has the same name for every client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.consumer_groups import (
    CLASSIC_TYPE,
    GroupListing,
    GroupView,
    MemberView,
)
from raftlog.errors import RaftlogError, UnknownGroupError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.authorized_operations import AuthorizedOperations
from raftlog.server.kafka.parts import ResponseRoom
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.once import check_once
from raftlog.server.requests.groups import (
    Listed,
    delete_groups,
    describe_groups,
    list_groups,
)
from raftlog.server.turns import Steps, in_steps

STATES: Final = {
    "empty": "Empty",
    "reconciling": "Reconciling",
    "stable": "Stable",
    "preparing_rebalance": "PreparingRebalance",
    "completing_rebalance": "CompletingRebalance",
}
DEAD: Final = "Dead"  # state of a group that does not exist, before DescribeGroups 6
UNKNOWN_GROUPS_SINCE: Final = 6  # version of DescribeGroups
MEMBER_BYTES: Final = 256  # of IDs and addresses

_List = codec.structs("response", api.LIST_GROUPS.key)
_Describe = codec.structs("response", api.DESCRIBE_GROUPS.key)
_Delete = codec.structs("response", api.DELETE_GROUPS.key)


# -- ListGroups ------------------------------------------------------------------------------------


def handle_list(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """List the groups that this broker coordinates. While some are loading, the response has the
    error that makes clients repeat the request.
    """
    message = request.message
    states = {state.lower() for state in message.states_filter}
    types = {name.lower() for name in message.types_filter}

    def is_wanted(one: GroupListing) -> bool:
        is_in_state = not states or STATES[one.state].lower() in states
        return is_in_state and (not types or one.type in types)

    def send(answers: list[Listed]) -> None:
        reply.go_on(_send_listed(reply, answers, is_wanted))

    return list_groups(context.coordinator.shards(), send)


def _send_listed(
    reply: KafkaReply, answers: list[Listed], is_wanted: Callable[[GroupListing], bool]
) -> Steps:
    found = [one for answer in answers for one in answer or ()]
    found.sort(key=lambda one: one.group)
    yield None
    groups = yield from in_steps(filter(is_wanted, found), _listed)
    is_loading = any(answer is None for answer in answers)
    code = errors.COORDINATOR_LOAD_IN_PROGRESS if is_loading else errors.NONE
    reply.send(_List.root(error_code=code, groups=groups))


def _listed(one: GroupListing) -> Message:
    return _List.ListedGroup(
        group_id=one.group,
        protocol_type=one.protocol_type,
        group_state=STATES[one.state],
        group_type=one.type,
    )


# -- DescribeGroups --------------------------------------------------------------------------------


def handle_describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Describe classic groups. Groups of the consumer protocol have ConsumerGroupDescribe."""
    groups = request.message.groups
    check_once(reply.name, groups)

    def send(found: list[GroupView | RaftlogError]) -> None:
        operations = AuthorizedOperations(
            context.access,
            reply.connection,
            is_requested=request.version >= 3 and request.message.include_authorized_operations,
        )
        reply.go_on(_send_described(request, reply, found, operations))

    yield from describe_groups(context, groups, send)


def _send_described(
    request: KafkaRequest,
    reply: KafkaReply,
    found: list[GroupView | RaftlogError],
    operations: AuthorizedOperations,
) -> Steps:
    described: list[Message] = []
    room = ResponseRoom()
    for group, view in zip(request.message.groups, found, strict=True):
        one = _described(request.version, group, view)
        if isinstance(view, GroupView) and not one.error_code:
            try:
                room.check(f"group {group}")
            except RaftlogError as error:
                described.append(_undescribed(request.version, group, error))
                continue
            one.members = yield from in_steps(view.members, _member)
            room.use(sum((yield from in_steps(one.members, _size_of))))
            one.authorized_operations = operations.of("GROUP", group)
        described.append(one)
        yield None
    reply.send(_Describe.root(groups=described))


def refuse_describe(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every group."""
    version = request.version
    described = [_undescribed(version, group, error) for group in request.message.groups]
    return _Describe.root(groups=described)


def _described(version: int, group: str, found: GroupView | RaftlogError) -> Message:
    """Return a group without its members."""
    if isinstance(found, UnknownGroupError):
        return _undescribed(version, group, UnknownGroupError(f"Group {group} not found."))
    if isinstance(found, RaftlogError):
        return _undescribed(version, group, found)
    if found.type != CLASSIC_TYPE and found.members:
        error = UnknownGroupError(f"Group {group} is not a classic group.")
        return _undescribed(version, group, error)
    return _Describe.DescribedGroup(
        group_id=group,
        group_state=STATES[found.state],
        protocol_type=found.protocol_type,
        protocol_data=found.assignor if found.type == CLASSIC_TYPE else "",
    )


def _undescribed(version: int, group: str, error: RaftlogError) -> Message:
    is_unknown = isinstance(error, UnknownGroupError)
    if is_unknown and version < UNKNOWN_GROUPS_SINCE:
        return _Describe.DescribedGroup(group_id=group, group_state=DEAD)
    return _Describe.DescribedGroup(
        group_id=group,
        group_state=DEAD if is_unknown else "",
        error_code=code_of(error, Place.GROUPS),
        error_message=error.wire_text,
    )


def _size_of(member: Message) -> int:
    return MEMBER_BYTES + len(member.member_metadata) + len(member.member_assignment)


def _member(member: MemberView) -> Message:
    return _Describe.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=f"/{member.host}",
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )


# -- DeleteGroups ----------------------------------------------------------------------------------


def handle_delete(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Delete groups without members, with their offsets."""
    groups = request.message.groups_names

    def send(outcomes: list[RaftlogError | None]) -> None:
        reply.send(_Delete.root(results=list(map(_deleted, groups, outcomes))))

    yield from delete_groups(context, groups, send)


def refuse_delete(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every group."""
    return _Delete.root(results=[_deleted(each, error) for each in request.message.groups_names])


def _deleted(group: str, error: RaftlogError | None) -> Message:
    code = errors.NONE if error is None else code_of(error, Place.GROUPS)
    return _Delete.DeletableGroupResult(group_id=group, error_code=code)
