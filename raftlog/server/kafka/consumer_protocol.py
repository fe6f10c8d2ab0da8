"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, and the settings of single groups: groups whose
coordinator assigns (KIP-848).
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from raftlog import limits
from raftlog.config.broker import BROKER_KEYS, BrokerConfig
from raftlog.config.keys import ConfigKey, parse
from raftlog.consumer_groups import (
    AWAY_EPOCH,
    CONSUMER_TYPE,
    JOIN_EPOCH,
    GroupView,
    HeartbeatDelta,
    HeartbeatResult,
    Interest,
    MemberView,
    Share,
    Topics,
)
from raftlog.errors import (
    InvalidConfigError,
    InvalidRequestError,
    RaftlogError,
    UnknownGroupError,
    UnknownMemberError,
    UnsupportedFeatureError,
)
from raftlog.install import install_command
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.replication.cluster_commands import (
    GROUP_SETTINGS,
    PEER_PROTOCOL_GROUPS,
    AlterGroup,
    GroupSetting,
)
from raftlog.server.access.control import Caller
from raftlog.server.apis.groups import describe_groups
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import check_once
from raftlog.server.kafka.metadata import AuthorizedOperations
from raftlog.server.kafka.reply import KafkaReply, ResponseRoom
from raftlog.server.scheduling import ITEMS_PER_STEP, Steps, in_steps

MEMBER_TYPE_CONSUMER: Final = 1
MEMBER_BYTES: Final = 256  # of IDs and addresses
NO_SUBSCRIPTION: Final = (
    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
)
STATES: Final = {"empty": "Empty", "reconciling": "Reconciling", "stable": "Stable"}

_Heartbeat = codec.structs("response", api.CONSUMER_GROUP_HEARTBEAT.key)
_Describe = codec.structs("response", api.CONSUMER_GROUP_DESCRIBE.key)


# -- ConsumerGroupHeartbeat ------------------------------------------------------------------------


def handle_heartbeat(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> Steps | None:
    """Process a heartbeat. The response never waits: see ``ActiveShard.heartbeat_delta``."""
    _check_heartbeat(request)
    delta = _delta(context, request, reply)
    shard = context.coordinator.shard(delta.group)
    if shard.loaded is None or delta.member_epoch < JOIN_EPOCH:
        _beat(context, reply, delta)
        return None
    before, matched = shard.loaded.interest(delta.group, delta.member_id)
    interest = _interest(request.message, before)
    if interest is None:
        if before is not None and delta.topics is None:
            delta = structs.replace(delta, topics=before.names)
        _beat(context, reply, delta)
        return None
    topics = shard.loaded.topics
    says_nothing = delta.topics is None and request.message.subscribed_topic_regex is None
    if says_nothing and matched is topics:
        _beat(context, reply, delta)
        return None
    return _matched(context, reply, delta, interest, topics)


def _check_heartbeat(request: KafkaRequest) -> None:
    """Raise ``InvalidRequestError`` for a heartbeat that no client sends, in Kafka's words."""
    message = request.message
    epoch, is_joining = message.member_epoch, message.member_epoch == JOIN_EPOCH
    is_named = request.version == 0 and is_joining  # the coordinator chooses the ID
    may_omit = message.subscribed_topic_names is None and message.subscribed_topic_regex is None
    for is_invalid, text in (
        (not message.group_id, "GroupId can't be empty."),
        (not message.member_id and not is_named, "MemberId can't be empty."),
        (message.instance_id == "", "InstanceId can't be empty."),
        (message.rack_id == "", "RackId can't be empty."),
        (epoch < AWAY_EPOCH, "MemberEpoch is invalid."),
        (epoch == AWAY_EPOCH and message.instance_id is None, "InstanceId can't be null."),
        (
            is_joining and message.rebalance_timeout_ms == -1,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            is_joining and message.topic_partitions != [],
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            is_joining and may_omit,
            NO_SUBSCRIPTION,
        ),
    ):
        if is_invalid:
            raise InvalidRequestError(text)


def _interest(message: Message, before: Interest | None) -> Interest | None:
    """Return the subscription if it has a regular expression. Omitted fields are as before."""
    names, pattern = message.subscribed_topic_names, message.subscribed_topic_regex
    if pattern is None:
        pattern = "" if before is None else before.pattern
    if names is None:
        names = () if before is None else before.names
    return Interest(tuple(names), pattern) if pattern else None


def _matched(
    context: BrokerContext,
    reply: KafkaReply,
    delta: HeartbeatDelta,
    interest: Interest,
    topics: Topics,
) -> Steps:
    """Match the topics that the client may describe."""
    caller = Caller(context.access, reply.connection)
    has_rules = context.access.applies_to(reply.connection)

    def is_visible(name: str) -> bool:
        return not has_rules or caller.may("DESCRIBE", "TOPIC", name)

    try:
        found = yield from matching(interest.pattern, topics.by_name, is_visible)
    except ValueError as error:
        code = errors.INVALID_REGULAR_EXPRESSION
        reply.send(_Heartbeat.root(error_code=code, error_message=str(error)))
        return
    names = tuple(sorted(found.union(interest.names)))
    _beat(
        context,
        reply,
        structs.replace(delta, topics=names, interest=interest, matched=topics),
    )


def _delta(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> HeartbeatDelta:
    message = request.message
    # Before version 1, the coordinator chooses the ID.
    member_id = message.member_id or str(uuid.UUID(bytes=context.entropy(16), version=4))
    if len(member_id) > limits.ID_CHARS_MAX:
        raise InvalidRequestError(
            f"member ID of {len(member_id)} characters: the maximum is {limits.ID_CHARS_MAX}"
        )
    topics, owned = message.subscribed_topic_names, message.topic_partitions
    return HeartbeatDelta(
        group=message.group_id,
        member_id=member_id,
        member_epoch=message.member_epoch,
        connection=reply.connection.number,
        session_timeout_ms=in_force(context, message.group_id)[SESSION],
        topics=None if topics is None else tuple(topics),
        owned=None
        if owned is None
        else tuple((each.topic_id.hex(), tuple(each.partitions)) for each in owned),
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        instance_id=message.instance_id,
        client_id=request.client_id[: limits.CLIENT_ID_CHARS_MAX],
        host=reply.connection.peer_host,
        rack=None if message.rack_id is None else message.rack_id[: limits.RACK_CHARS_MAX],
        assignor=message.server_assignor,
    )


def _beat(context: BrokerContext, reply: KafkaReply, delta: HeartbeatDelta) -> None:
    interval_ms = in_force(context, delta.group)[HEARTBEAT]

    def done(result: HeartbeatResult) -> None:
        reply.send(
            _Heartbeat.root(
                member_id=delta.member_id,
                member_epoch=result.member_epoch,
                heartbeat_interval_ms=interval_ms,
                assignment=_news(delta, result),
            )
        )

    shard = context.coordinator.shard(delta.group)

    def failed(error: RaftlogError) -> None:
        groups = shard.loaded
        is_unknown = isinstance(error, UnknownMemberError) and groups is not None
        if is_unknown and groups is not None and groups.listing(delta.group) is None:
            error = UnknownGroupError(f"Consumer group {delta.group} not found.")
        reply.fail(error)

    shard.heartbeat_delta(delta, done, failed)


def _news(delta: HeartbeatDelta, result: HeartbeatResult) -> Message:
    """Return the assignment; None if the member has reported exactly this one."""
    if result.member_epoch < 0:
        return None
    assigned = {
        (share.topic_id, number) for share in result.assignment for number in share.partitions
    }
    if delta.owned is not None and delta.member_epoch == result.member_epoch:
        owned = {(topic_id, number) for topic_id, numbers in delta.owned for number in numbers}
        if owned == assigned:
            return None
    return _Heartbeat.Assignment(
        topic_partitions=[
            _Heartbeat.TopicPartitions(
                topic_id=bytes.fromhex(share.topic_id), partitions=list(share.partitions)
            )
            for share in result.assignment
        ]
    )


# -- ConsumerGroupDescribe -------------------------------------------------------------------------


def handle_describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Describe groups of the consumer protocol, those of raftlog's own clients too."""
    groups = request.message.group_ids
    # guard: ConsumerGroupDescribe has each group once
    check_once(reply.name, groups)

    def send(found: list[GroupView | RaftlogError]) -> None:
        operations = AuthorizedOperations(
            context.access,
            reply.connection,
            is_requested=request.message.include_authorized_operations,
        )
        reply.go_on(_send_described(reply, groups, found, operations))

    yield from describe_groups(context, groups, send)


def _send_described(
    reply: KafkaReply,
    groups: list[str],
    found: list[GroupView | RaftlogError],
    operations: AuthorizedOperations,
) -> Steps:
    described: list[Message] = []
    room = ResponseRoom()
    for group, view in zip(groups, found, strict=True):
        one = _described(group, view)
        if isinstance(view, GroupView) and not one.error_code:
            try:
                room.check(f"group {group}")
            except RaftlogError as error:
                described.append(_undescribed(group, error))
                continue
            one.members = yield from in_steps(view.members, _member)
            room.use(sum((yield from in_steps(view.members, _size_of))))
            one.authorized_operations = operations.of("GROUP", group)
        described.append(one)
        yield None
    reply.send(_Describe.root(groups=described))


def refuse_describe(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every group."""
    return _Describe.root(groups=[_undescribed(each, error) for each in request.message.group_ids])


def _described(group: str, found: GroupView | RaftlogError) -> Message:
    """Return a group without its members."""
    if isinstance(found, UnknownGroupError):
        return _undescribed(group, UnknownGroupError(f"Group {group} not found."))
    if isinstance(found, RaftlogError):
        return _undescribed(group, found)
    if found.type != CONSUMER_TYPE:
        error = UnknownGroupError(
            f"Group {group} is not a consumer group. Use DescribeGroups for a classic group"
        )
        return _undescribed(group, error)
    return _Describe.DescribedGroup(
        group_id=group,
        group_state=STATES[found.state],
        group_epoch=found.group_epoch,
        assignment_epoch=found.group_epoch,
        assignor_name=found.assignor,
    )


def _undescribed(group: str, error: RaftlogError) -> Message:
    return _Describe.DescribedGroup(
        group_id=group, error_code=code_of(error, Place.GROUPS), error_message=error.wire_text
    )


def _size_of(member: MemberView) -> int:
    shares = (*member.assigned, *member.revoking, *member.target)
    numbers = sum(len(share.partitions) for share in shares)
    names = sum(map(len, member.topics)) + sum(len(share.topic) for share in shares)
    return MEMBER_BYTES + names + 4 * numbers


def _member(member: MemberView) -> Message:
    return _Describe.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack or None,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=f"/{member.host}",
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=None if member.interest is None else member.interest.pattern,
        assignment=_assignment((*member.assigned, *member.revoking)),
        target_assignment=_assignment(member.target),
        member_type=MEMBER_TYPE_CONSUMER,
    )


def _assignment(shares: Iterable[Share]) -> Message:
    return _Describe.Assignment(
        topic_partitions=[
            _Describe.TopicPartitions(
                topic_id=bytes.fromhex(share.topic_id),
                topic_name=share.topic,
                partitions=list(share.partitions),
            )
            for share in shares
        ]
    )


# -- patterns --------------------------------------------------------------------------------------
#
# Subscriptions by regular expression (KIP-848), evaluated by RE2 as in Kafka.
#
# RE2 takes time in proportion to the length of a name, and bounded memory, for every expression
# (Cox: "Regular Expression Matching in the Wild", 2010). The time of Python's ``re`` can be
# exponential. ``google-re2`` is an optional dependency. Without it, Python evaluates the common
# expressions, for which it needs at most the square of the length.


try:
    import re2
except ImportError:
    re2 = None

# Parts of an expression that have the same meaning in RE2 and in Python. Only single characters
# are repeated without a limit; a group at most once.
_PART: Final = re.compile(
    r"""
    (?P<one> [A-Za-z0-9_ -] | \\[.dwDW_-] | \. | \[\^?(?:[A-Za-z0-9_.-])+\] )
        (?P<repeats> [*+]\?? | \?\?? )?
    | \((?:\?:)? | \)\?? | \| | \^ | \$
    """,
    re.VERBOSE,
)
_LAST: Final = ".*"  # at the end it is never tried again
TRIES_MAX: Final = 70_000  # of one name: takes 5 ms at most
NAMES_PER_STEP: Final = 1  # that Python matches


def matching(
    pattern: str, names: Iterable[str], is_visible: Callable[[str], bool]
) -> Generator[None, Any, set[str]]:
    """Return the visible names that match ``pattern`` as a whole; some in each step.

    Raises ``ValueError`` with a text for the client: not an expression of RE2, too long or too
    large, or one that requires RE2, which is not installed.
    """
    # guard: a regular expression has a limited length
    if len(pattern) > limits.SUBSCRIPTION_PATTERN_CHARS_MAX:
        raise ValueError(
            f"a subscription of {len(pattern)} characters: the maximum is "
            f"{limits.SUBSCRIPTION_PATTERN_CHARS_MAX}"
        )
    matches = _by_python(pattern) if re2 is None else _by_re2(pattern)
    found: set[str] = set()
    for count, name in enumerate(names, 1):
        # guard: a regular expression matches only topics that the client may describe
        if matches(name) and is_visible(name):
            found.add(name)
        if not count % (NAMES_PER_STEP if re2 is None else ITEMS_PER_STEP):
            yield None
    return found


def _by_re2(pattern: str) -> Callable[[str], object]:
    options = re2.Options()
    options.max_mem = limits.SUBSCRIPTION_PATTERN_BYTES_MAX
    options.log_errors = False
    patterns = re2.Set.FullMatchSet(options)
    try:
        re2.compile(pattern, options)  # its errors have the reason
        patterns.Add(pattern)
        patterns.Compile()
    except re2.error as error:
        text = error.args[0]
        why = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise _invalid(pattern, why) from error
    match: Callable[[str], object] = patterns.Match
    return match


def _by_python(pattern: str) -> Callable[[str], object]:
    if _tries(pattern) > TRIES_MAX:
        raise ValueError(
            f"SubscribedTopicRegex `{pattern[:200]}` cannot be evaluated by this broker, because "
            f"google-re2 is not installed ({install_command('regex')}). Use names, `.`, `[a-z]`, "
            "one group with `|`, and one or two repeats, or set group.protocol=classic"
        )
    try:
        return re.compile(pattern, re.ASCII).fullmatch
    except re.error as error:
        raise _invalid(pattern, str(error)) from error


def _tries(pattern: str) -> float:
    """Return how many ways of matching one name Python may try, at most; infinity for an
    expression that is not made of known parts.
    """
    rest = pattern.removesuffix("$").removesuffix(_LAST)
    tries, choices, at = 1.0, [1], 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            return math.inf
        text, repeats, at = part[0], part["repeats"], part.end()
        if repeats is not None and repeats[0] != "?":
            tries *= limits.TOPIC_NAME_CHARS_MAX
        elif text.endswith("?") and text != "(?:":
            tries *= 2
        if text.startswith("("):
            choices.append(1)
        elif text == "|":
            choices[-1] += 1
        elif text.startswith(")") and len(choices) > 1:
            tries *= choices.pop()
        if tries > TRIES_MAX:
            return tries
    return tries * choices[0]


def _invalid(pattern: str, why: str) -> ValueError:
    return ValueError(
        f"SubscribedTopicRegex `{pattern[:200]}` is not a valid regular expression: {why[:200]}."
    )


# -- settings of groups ----------------------------------------------------------------------------
#
# Settings of single groups, which the cluster state contains: the timeouts of their members. The
# broker's settings apply to all other groups.

SESSION: Final[GroupSetting] = "consumer.session.timeout.ms"
HEARTBEAT: Final[GroupSetting] = "consumer.heartbeat.interval.ms"
# As those of brokers, whose names begin with "group.".
_OF_BROKER: Final[Mapping[str, ConfigKey[int]]] = {key.name: key for key in BROKER_KEYS}
GROUP_KEYS: Final[Mapping[GroupSetting, ConfigKey[int]]] = {
    name: replace(_OF_BROKER[f"group.{name}"], name=name) for name in GROUP_SETTINGS
}


def of_broker(config: BrokerConfig) -> dict[GroupSetting, int]:
    """Return the values of groups without settings, in ms."""
    return {
        SESSION: _within_limits(config, config.group_consumer_session_timeout_ms),
        HEARTBEAT: config.group_consumer_heartbeat_interval_ms,
    }


def in_force(context: BrokerContext, group: str) -> dict[GroupSetting, int]:
    """Return the values that apply to the members of a group, in ms.

    A session timeout beyond the limits of this broker is its limit.
    """
    config = context.config
    held = context.access.authority.machine.groups.get(group)
    values = of_broker(config)
    if held:
        values |= held
        values[SESSION] = _within_limits(config, values[SESSION])
    values[HEARTBEAT] = min(values[HEARTBEAT], values[SESSION] // 3)
    return values


def _within_limits(config: BrokerConfig, session_ms: int) -> int:
    """Return the session timeout, or the limit of this broker that it exceeds."""
    at_least = max(session_ms, config.group_min_session_timeout_ms)
    return min(at_least, config.group_max_session_timeout_ms)


def check_group(name: str) -> None:
    """Raise ``InvalidRequestError`` for a name that no group can have."""
    if not name:
        raise InvalidRequestError("Group name must not be empty.")
    if len(name) > limits.GROUP_ID_CHARS_MAX:
        raise InvalidRequestError(
            f"group name of {len(name)} characters: the maximum is {limits.GROUP_ID_CHARS_MAX}"
        )


async def alter_group(
    context: BrokerContext, group: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Change settings of a group; None resets one to that of the broker.

    Raises ``InvalidConfigError`` for a setting that groups do not have here, and for a value out of
    bounds, and ``UnsupportedFeatureError`` until the cluster is upgraded.
    """
    check_group(group)
    _check_names(changes)
    config = context.config
    given = {name: value for name, value in changes.items() if value is not None}
    numbers = parse(tuple(GROUP_KEYS.values()), given, what="group")
    wanted = {name: numbers.get(key.field) for name, key in GROUP_KEYS.items() if name in changes}
    merged = {**context.access.authority.machine.groups.get(group, {}), **wanted}
    after = of_broker(config) | {name: value for name, value in merged.items() if value is not None}
    least, most = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if wanted.get(SESSION) is not None and not least <= after[SESSION] <= most:
        raise InvalidConfigError(
            f"{SESSION}={after[SESSION]} is not between {least} (group.min.session.timeout.ms) and "
            f"{most} (group.max.session.timeout.ms)"
        )
    if after[HEARTBEAT] >= after[SESSION]:
        raise InvalidConfigError(
            f"{HEARTBEAT}={after[HEARTBEAT]} must be less than {SESSION}={after[SESSION]}"
        )
    if context.operations.peer_protocol < PEER_PROTOCOL_GROUPS:
        raise UnsupportedFeatureError(
            "settings of groups require that all brokers support them. Upgrade them, then run "
            "`raftlog cluster features --upgrade`"
        )
    if wanted and not validate_only:
        await context.access.authority.propose(AlterGroup(group=group, changes=wanted))


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in GROUP_SETTINGS:
            raise InvalidConfigError(
                f"Unknown group config name: {name[:100]}. Groups have {', '.join(GROUP_SETTINGS)}"
            )
