"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup: classic consumer groups."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from raftlog import limits
from raftlog.consumer_groups import (
    CLASSIC_TYPE,
    NO_GENERATION,
    Departure,
    GroupListing,
    GroupView,
    Join,
    JoinResult,
    MemberView,
    Sync,
    SyncResult,
)
from raftlog.errors import (
    InvalidRequestError,
    RaftlogError,
    UnknownGroupError,
    UnknownMemberError,
    UnsupportedFeatureError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.apis.groups import Listed, delete_groups, describe_groups, list_groups
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import check_once
from raftlog.server.groups.coordinator import Lookup
from raftlog.server.kafka.metadata import AuthorizedOperations
from raftlog.server.kafka.reply import KafkaReply, ResponseRoom
from raftlog.server.scheduling import Steps, in_steps

KEY_TYPE_GROUP: Final = 0
KEY_TYPE_TRANSACTION: Final = 1
KEYS_SINCE: Final = 4  # version of FindCoordinator
LOAD_SECONDS_MAX: Final = 1.0  # that a request waits for the load of the group
NO_SHARE_GROUPS: Final = "this release has no share groups for Kafka clients: use a consumer group"
NO_NODE: Final = -1
CLIENT_ID_CHARS_IN_MEMBER_ID: Final = 24  # with a UUID, a member ID has at most ID_CHARS_MAX

_Coordinator = codec.structs("response", api.FIND_COORDINATOR.key)
_Join = codec.structs("response", api.JOIN_GROUP.key)
_Sync = codec.structs("response", api.SYNC_GROUP.key)
_Heartbeat = codec.structs("response", api.HEARTBEAT.key)
_Leave = codec.structs("response", api.LEAVE_GROUP.key)


# -- FindCoordinator -------------------------------------------------------------------------------


class Loading(Protocol):
    """A shard of a coordinator, which may be loading its state."""

    @property
    def is_loading(self) -> bool: ...
    def when_loaded(self, done: Callable[[], object]) -> None: ...


class Coordinators(Protocol):
    """The coordinators of a broker."""

    def shard(self, name: str, /) -> Loading: ...


def handle_find_coordinator(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> None:
    """Return the coordinators of groups or transactional ids. Other kinds of coordinators do not
    exist: the error is final, or clients would wait indefinitely.
    """
    keys = _keys(request)
    key_type = request.message.key_type if request.version >= 1 else KEY_TYPE_GROUP
    if key_type == KEY_TYPE_GROUP:
        coordinators: Coordinators = context.coordinator
        lookup = context.lookup
    elif key_type == KEY_TYPE_TRANSACTION:
        context.transactions.check_available()
        coordinators, lookup = context.transactions, context.transactions.lookup
    else:
        raise UnsupportedFeatureError(NO_SHARE_GROUPS)

    def made(error: RaftlogError | None) -> None:
        found = _find(context, request, reply, lookup)
        if error is not None:
            reply.fail(error)
        elif len(keys) == 1:
            _when_loaded(context, partial(coordinators.shard, keys[0]), partial(reply.go_on, found))
        else:
            reply.go_on(found)

    lookup.maker.when_made(made)


def _when_loaded(
    context: BrokerContext, shard_of: Callable[[], Loading], done: Callable[[], None]
) -> None:
    """Call ``done`` when this broker serves the state, if it coordinates it: the client would
    receive COORDINATOR_LOAD_IN_PROGRESS next.
    """
    try:
        shard = shard_of()
    except RaftlogError:  # another broker coordinates it
        done()
        return
    if not shard.is_loading:
        done()
        return
    is_done = False

    def once() -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            timer.cancel()
            done()

    timer = context.loop.call_later(LOAD_SECONDS_MAX, once)
    shard.when_loaded(once)


def _find(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply, lookup: Lookup
) -> Steps:
    local_host = reply.connection.local_host
    brokers = {each.id: each for each in context.brokers(local_host, for_kafka=True)}

    def find(key: str) -> Message:
        try:
            broker = lookup.coordinator(key, brokers)
        except RaftlogError as reason:
            return _no_coordinator(key, code_of(reason, Place.GROUPS), reason.wire_text)
        return _Coordinator.Coordinator(
            key=key, node_id=broker.id, host=broker.host, port=broker.port
        )

    reply.send(_coordinators(request, (yield from in_steps(_keys(request), find))))


def refuse_find_coordinator(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every key."""
    code, text = code_of(error, Place.GROUPS), error.wire_text
    if isinstance(error, UnsupportedFeatureError):
        code = _no_such_coordinator(request)
    return _coordinators(request, [_no_coordinator(key, code, text) for key in _keys(request)])


def _no_such_coordinator(request: KafkaRequest) -> int:
    """Return the code for a kind of coordinator that does not exist, or not yet.

    The Java client and franz-go (since version 4) show the text of an error that they do not
    expect. Librdkafka, which sends version 2, repeats the request after every error but two.
    """
    if request.version < KEYS_SINCE and request.message.key_type == KEY_TYPE_TRANSACTION:
        return errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return errors.INVALID_REQUEST


def _keys(request: KafkaRequest) -> list[str]:
    message = request.message
    return message.coordinator_keys if request.version >= KEYS_SINCE else [message.key]


def _no_coordinator(key: str, code: int, text: str) -> Message:
    return _Coordinator.Coordinator(key=key, error_code=code, error_message=text, node_id=NO_NODE)


def _coordinators(request: KafkaRequest, found: list[Message]) -> Message:
    if request.version >= KEYS_SINCE:
        return _Coordinator.root(coordinators=found)
    only = found[0]
    return _Coordinator.root(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


# -- JoinGroup and SyncGroup -----------------------------------------------------------------------


def handle_join(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Join a group. The response waits until the rebalance is complete."""
    message, config = request.message, context.config
    timeout_ms = message.session_timeout_ms
    if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
        reply.send(_not_joined(request, errors.INVALID_SESSION_TIMEOUT, message.member_id))
        return
    client_id = request.client_id[: limits.CLIENT_ID_CHARS_MAX]
    member_uuid = uuid.UUID(bytes=context.entropy(16), version=4)
    connection = reply.connection
    join = Join(
        group=message.group_id,
        member_id=message.member_id,
        new_member_id=f"{client_id[:CLIENT_ID_CHARS_IN_MEMBER_ID]}-{member_uuid}",
        instance_id=message.group_instance_id,
        client_id=client_id,
        host=connection.peer_host,
        session_timeout_ms=timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms if request.version >= 1 else timeout_ms,
        protocol_type=message.protocol_type,
        protocols=tuple((each.name, each.metadata) for each in message.protocols),
        reason=message.reason or "",
        needs_member_id=request.version >= 4,
        may_skip_assignment=request.version >= 9,
    )

    def done(result: JoinResult) -> None:
        reply.send(_joined(request, result))

    context.coordinator.shard(join.group).join(join, done, reply.fail, owner=connection)


def _joined(request: KafkaRequest, result: JoinResult) -> Message:
    if result.generation == NO_GENERATION:
        return _not_joined(request, errors.MEMBER_ID_REQUIRED, result.member_id)
    return _Join.root(
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            _Join.JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata,
            )
            for each in result.members
        ],
    )


def refuse_join(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error and the member's own ID."""
    code = code_of(error, Place.CLASSIC_GROUPS)
    return _not_joined(request, code, request.message.member_id)


def _not_joined(request: KafkaRequest, code: int, member_id: str) -> Message:
    protocol = None if request.version >= 7 else ""
    return _Join.root(error_code=code, member_id=member_id, protocol_name=protocol)


def _check_members(count: int) -> None:
    """Raise ``InvalidRequestError`` for more members than a group can have."""
    if count > limits.MEMBERS_PER_GROUP_MAX:
        raise InvalidRequestError(
            f"request with {count} members: a group has at most {limits.MEMBERS_PER_GROUP_MAX}"
        )


def handle_sync(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Return the member's assignment. The response waits for the leader's assignments."""
    message = request.message
    _check_members(len(message.assignments))
    sync = Sync(
        group=message.group_id,
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        generation=message.generation_id,
        protocol_type=message.protocol_type,
        protocol=message.protocol_name,
        assignments=tuple((each.member_id, each.assignment) for each in message.assignments),
    )

    def done(result: SyncResult) -> None:
        reply.send(
            _Sync.root(
                protocol_type=result.protocol_type,
                protocol_name=result.protocol,
                assignment=result.assignment,
            )
        )

    shard = context.coordinator.shard(sync.group)
    shard.sync(sync, done, reply.fail, owner=reply.connection)


# -- Heartbeat and LeaveGroup ----------------------------------------------------------------------


def handle_heartbeat(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Renew the session of a member."""
    message = request.message

    def done(_nothing: None) -> None:
        reply.send(_Heartbeat.root())

    context.coordinator.shard(message.group_id).classic_heartbeat(
        lambda groups, now, _now_ms: groups.classic_heartbeat(
            message.group_id,
            message.member_id,
            message.group_instance_id,
            message.generation_id,
            now=now,
        ),
        done,
        reply.fail,
    )


def handle_leave(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Remove members. Before version 3 there is one member, and its error is the response's."""
    message = request.message
    _check_members(len(message.members))
    departures = (
        [
            Departure(each.member_id, each.group_instance_id, each.reason or "")
            for each in message.members
        ]
        if request.version >= 3
        else [Departure(message.member_id)]
    )

    def failed(error: RaftlogError) -> None:
        if isinstance(error, UnknownMemberError):  # there is no such group: as in Kafka
            done([error] * len(departures))
        else:
            reply.fail(error)

    def done(outcomes: Sequence[RaftlogError | None]) -> None:
        codes = [
            errors.NONE if error is None else code_of(error, Place.CLASSIC_GROUPS)
            for error in outcomes
        ]
        if request.version < 3:
            reply.send(_Leave.root(error_code=codes[0]))
            return
        reply.send(
            _Leave.root(
                members=[
                    _Leave.MemberResponse(
                        member_id=one.member_id,
                        group_instance_id=one.instance_id,
                        error_code=code,
                    )
                    for one, code in zip(departures, codes, strict=True)
                ]
            )
        )

    context.coordinator.shard(message.group_id).change(
        lambda groups, now, now_ms: groups.leave(
            message.group_id, departures, now=now, now_ms=now_ms
        ),
        done,
        failed,
    )


# -- group admin -----------------------------------------------------------------------------------
#
# ListGroups, DescribeGroups and DeleteGroups. A group has the same name for every client.


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
    # guard: DescribeGroups has each group once
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
