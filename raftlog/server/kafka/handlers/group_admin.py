"""ListGroups, DescribeGroups and DeleteGroups. A group has the same name for every client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from raftlog import limits
from raftlog.consumer_groups import (
    CLASSIC_TYPE,
    GroupListing,
    GroupShard,
    GroupView,
    MemberView,
    StateChange,
)
from raftlog.errors import InvalidRequestError, RaftlogError, UnknownGroupError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply, text_of
from raftlog.server.requests.gathering import Gathering
from raftlog.server.turns import Steps

STATES: Final = {
    "empty": "Empty",
    "reconciling": "Reconciling",
    "stable": "Stable",
    "preparing_rebalance": "PreparingRebalance",
    "completing_rebalance": "CompletingRebalance",
}
TYPES: Final = {"classic": "Classic", "consumer": "Consumer"}
DEAD: Final = "Dead"  # state of a group that does not exist, before DescribeGroups 6
UNKNOWN_GROUPS_SINCE: Final = 6  # version of DescribeGroups

_List = codec.structs("response", api.LIST_GROUPS.key)
_Describe = codec.structs("response", api.DESCRIBE_GROUPS.key)
_Delete = codec.structs("response", api.DELETE_GROUPS.key)


def _check_count(groups: list[str]) -> None:
    if len(groups) > limits.GROUPS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"request for {len(groups)} groups: the maximum is {limits.GROUPS_PER_REQUEST_MAX}"
        )


# -- ListGroups ------------------------------------------------------------------------------------


def handle_list(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """List the groups that this broker coordinates. While some are loading, the response has the
    error that makes clients repeat the request.
    """
    message = request.message
    states = {state.lower() for state in message.states_filter}
    types = {name.lower() for name in message.types_filter}

    def send(answers: list[list[GroupListing] | None]) -> None:
        found = sorted(
            (one for answer in answers for one in answer or ()), key=lambda one: one.group
        )
        is_loading = any(answer is None for answer in answers)
        reply.send(
            _List.root(
                error_code=errors.COORDINATOR_LOAD_IN_PROGRESS if is_loading else errors.NONE,
                groups=[
                    _List.ListedGroup(
                        group_id=one.group,
                        protocol_type=one.protocol_type,
                        group_state=STATES[one.state],
                        group_type=TYPES[one.type],
                    )
                    for one in found
                    if (not states or STATES[one.state].lower() in states)
                    and (not types or one.type in types)
                ],
            )
        )

    shards = context.coordinator.shards()
    gathering: Gathering[list[GroupListing] | None] = Gathering(len(shards), send)
    for index, shard in enumerate(shards):
        put = partial(gathering.put, index)
        failed = partial(_put_nothing, gathering, index)
        try:
            shard.ask(lambda groups: list(groups.list()), put, failed)
        except RaftlogError as error:
            failed(error)


def _put_nothing(
    gathering: Gathering[list[GroupListing] | None], index: int, _error: RaftlogError
) -> None:
    gathering.put(index, None)


# -- DescribeGroups --------------------------------------------------------------------------------


def handle_describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Describe classic groups. Groups of the consumer protocol have ConsumerGroupDescribe."""
    groups, version = request.message.groups, request.version
    _check_count(groups)

    def send(described: list[Message]) -> None:
        reply.send(_Describe.root(groups=described))

    gathering = Gathering(len(groups), send)
    for index, group in enumerate(groups):
        yield None
        done = partial(_put_view, gathering, index, version)
        failed = partial(_put_error, gathering, index, version, group)
        try:
            context.coordinator.shard(group).ask(_describing(group), done, failed)
        except RaftlogError as error:
            failed(error)


def _describing(group: str) -> Callable[[GroupShard], GroupView]:
    return lambda groups: groups.describe(group)


def refuse_describe(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every group."""
    version = request.version
    described = [_undescribed(version, group, error) for group in request.message.groups]
    return _Describe.root(groups=described)


def _put_view(gathering: Gathering[Message], index: int, version: int, view: GroupView) -> None:
    if view.type != CLASSIC_TYPE and view.members:
        error = UnknownGroupError(f"group {view.group!r} is not a classic group")
        gathering.put(index, _undescribed(version, view.group, error))
        return
    described = _Describe.DescribedGroup(
        group_id=view.group,
        group_state=STATES[view.state],
        protocol_type=view.protocol_type,
        protocol_data=view.assignor if view.type == CLASSIC_TYPE else "",
        members=[_member(member) for member in view.members],
    )
    gathering.put(index, described)


def _put_error(
    gathering: Gathering[Message], index: int, version: int, group: str, error: RaftlogError
) -> None:
    gathering.put(index, _undescribed(version, group, error))


def _undescribed(version: int, group: str, error: RaftlogError) -> Message:
    if isinstance(error, UnknownGroupError) and version < UNKNOWN_GROUPS_SINCE:
        return _Describe.DescribedGroup(group_id=group, group_state=DEAD)
    return _Describe.DescribedGroup(
        group_id=group,
        group_state=DEAD,
        error_code=code_of(error, Place.GROUPS),
        error_message=text_of(error),
    )


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
    _check_count(groups)

    def send(deleted: list[Message]) -> None:
        reply.send(_Delete.root(results=deleted))

    gathering = Gathering(len(groups), send)
    for index, group in enumerate(groups):
        yield None
        done = partial(_put_deleted, gathering, index, group)
        try:
            context.coordinator.shard(group).change(
                _deleting(group),
                done,
                done,
            )
        except RaftlogError as error:
            done(error)


def _deleting(group: str) -> Callable[[GroupShard, float, int], StateChange[None]]:
    return lambda groups, _now, _now_ms: groups.delete_group(group)


def refuse_delete(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every group."""
    return _Delete.root(results=[_deleted(each, error) for each in request.message.groups_names])


def _put_deleted(
    gathering: Gathering[Message], index: int, group: str, error: RaftlogError | None
) -> None:
    gathering.put(index, _deleted(group, error))


def _deleted(group: str, error: RaftlogError | None) -> Message:
    code = errors.NONE if error is None else code_of(error, Place.GROUPS)
    return _Delete.DeletableGroupResult(group_id=group, error_code=code)
