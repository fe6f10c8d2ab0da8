"""Groups of Kafka clients: the consumer protocol, lists and descriptions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import finish
from raftlog.protocol import api as native
from raftlog.protocol.records import DescribeGroupsRequest, ListGroupsRequest
from raftlog.replication.cluster_commands import PEER_PROTOCOL_GROUPS
from raftlog.server.kafka import consumer_protocol
from raftlog.server.kafka.consumer_protocol import HEARTBEAT, SESSION, matching
from raftlog.server.scheduling import ITEMS_PER_STEP
from tests.server.harness import RunningBroker, running
from tests.server.kafka.group_client import GroupClient, grouped, message

# -- the consumer protocol -------------------------------------------------------------------------

# Subscriptions by regular expression: what matches, and what is refused.


def found(pattern: str, names: Iterable[str]) -> list[str]:
    return sorted(finish(matching(pattern, names, lambda name: not name.startswith("secret"))))


@pytest.mark.parametrize("has_re2", [True, False])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^t.*", ["t1", "t2"]),
        ("t[0-1]", ["t1"]),
        ("(?:a)?t1$|u", ["at1", "t1", "u"]),
        (r"\w+1", ["at1", "t1"]),
        (".*t.*1", ["at1", "t1"]),
        ("^(t|at)1.*$", ["at1", "t1"]),
        ("|".join(f"t{number}" for number in range(99)), ["t1", "t2"]),
        ("t.", ["t1", "t2"]),
        ("(t1|^u$)", ["t1", "u"]),
        ("1", []),
        (".*", ["at1", "t1", "t2", "u"]),
    ],
)
def test_whole_names_match_that_the_client_may_see(
    monkeypatch: pytest.MonkeyPatch, pattern: str, expected: list[str], *, has_re2: bool
) -> None:
    if not has_re2:
        monkeypatch.setattr(consumer_protocol, "re2", None)
    assert found(pattern, ["t1", "t2", "at1", "u", "secret"]) == expected


def test_other_requests_may_run_in_between() -> None:
    names = [f"t{number}" for number in range(2 * ITEMS_PER_STEP)]
    assert len(list(matching("t.*", names, lambda _name: True))) == 2


@pytest.mark.parametrize("pattern", ["(a", "(?=a)", r"\1", "a{1001}", "(x{100}){99}" * 99])
def test_what_re2_does_not_accept(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a valid regular expression: "):
        found(pattern, ["a"])


def test_the_length_is_limited() -> None:
    found("a" * limits.SUBSCRIPTION_PATTERN_CHARS_MAX, ["a"])
    with pytest.raises(ValueError, match="the maximum is 4096"):
        found("a" * (limits.SUBSCRIPTION_PATTERN_CHARS_MAX + 1), ["a"])


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*",
        "(a|a)*b",
        ".*.*.*b",
        "a?" * 20,
        "(a|a)" * 20,
        "a{9}",
        r"(a)\1",
        "(?=a)",
        "[[:alpha:]]",
        r"\pN",
        "é",
    ],
)
def test_without_re2_some_expressions_are_refused(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Python would need too long for them, or does not know them as RE2 does."""
    monkeypatch.setattr(consumer_protocol, "re2", None)
    with pytest.raises(ValueError, match=r"google-re2 is not installed \(pip install"):
        found(pattern, ["t"])


@pytest.mark.parametrize("pattern", ["(a", "a)", "[b-a]"])
def test_what_python_does_not_accept(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr(consumer_protocol, "re2", None)
    with pytest.raises(ValueError, match="is not a valid regular expression: "):
        found(pattern, ["t"])


# -- consumer protocol -----------------------------------------------------------------------------
#
# KIP-848 over a socket: a member's life, its errors, and native members beside it.


API = apis.CONSUMER_GROUP_HEARTBEAT
Heartbeat = codec.structs("request", API.key)


class Member:
    """A member with its own ID, on a connection."""

    def __init__(self, client: GroupClient, group: str, member_id: str) -> None:
        self.client, self.group, self.id, self.epoch = client, group, member_id, 0
        self.client.find(group)

    def beat(self, *, version: int = 1, **fields: Any) -> Any:
        asked = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            **fields,
        }
        answer = self.client.ask(API, version, message(API, **asked))
        if not answer.error_code:
            self.epoch, self.id = answer.member_epoch, answer.member_id
        return answer

    def join(self, **fields: Any) -> Any:
        said = {
            "subscribed_topic_names": ["t"],
            "rebalance_timeout_ms": 20_000,
            "member_epoch": 0,
            "topic_partitions": [],
            **fields,
        }
        return self.beat(**said)


def partitions(answer: Any) -> list[int] | None:
    if answer.assignment is None:
        return None
    return [number for topic in answer.assignment.topic_partitions for number in topic.partitions]


def owned(broker: RunningBroker, *numbers: int) -> list[Any]:
    ident = bytes.fromhex(broker.broker.context.topics.topic("t").id)
    return [Heartbeat.TopicPartitions(topic_id=ident, partitions=list(numbers))]


def test_two_members_share_the_partitions(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    one = Member(group_client, "848", "m1")
    answer = one.join()
    assert (partitions(answer), answer.heartbeat_interval_ms) == ([0, 1, 2, 3], 5_000)
    assert partitions(one.beat(topic_partitions=owned(group_broker, 0, 1, 2, 3))) is None
    two = Member(group_client, "848", "")
    assert partitions(two.join(version=0)) == []
    assert len(two.id) == 36
    (kept, more) = partitions(one.beat()) or ()
    assert partitions(two.beat()) == [], "the first member has not released anything"
    one.beat(topic_partitions=owned(group_broker, kept, more))
    gained = partitions(two.beat())
    assert sorted([kept, more, *(gained or ())]) == [0, 1, 2, 3]
    described = message(apis.CONSUMER_GROUP_DESCRIBE, group_ids=["848", "missing"])
    for version in (0, 1):
        found, missing = group_client.ask(apis.CONSUMER_GROUP_DESCRIBE, version, described).groups
        assert (found.group_state, found.assignor_name) == ("Stable", "uniform")
        assert [each.client_id for each in found.members] == ["test", "test"]
        first = found.members[0].assignment.topic_partitions[0]
        assert (first.topic_name, len(first.partitions)) == ("t", 2)
        assert missing.error_code == errors.GROUP_ID_NOT_FOUND
    assert one.beat(member_epoch=-1).member_epoch == -1


def test_what_is_refused(group_client: GroupClient, group_broker: RunningBroker) -> None:
    member = Member(group_client, "bad848", "m1")
    for fields, code in [
        ({"subscribed_topic_regex": "(t"}, errors.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_names": None}, errors.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, errors.UNSUPPORTED_ASSIGNOR),
        ({"member_id": "x" * 65}, errors.INVALID_REQUEST),
        ({"group_id": ""}, errors.INVALID_REQUEST),
        ({"member_id": ""}, errors.INVALID_REQUEST),
        ({"instance_id": ""}, errors.INVALID_REQUEST),
        ({"rack_id": ""}, errors.INVALID_REQUEST),
        ({"member_epoch": -3}, errors.INVALID_REQUEST),
        ({"member_epoch": -2}, errors.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, errors.INVALID_REQUEST),
        ({"topic_partitions": None}, errors.INVALID_REQUEST),
        ({"topic_partitions": owned(group_broker, 0)}, errors.INVALID_REQUEST),
        ({"member_epoch": 1}, errors.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, errors.GROUP_ID_NOT_FOUND),
    ]:
        answer = member.join(**fields)
        assert (answer.error_code, bool(answer.error_message)) == (code, True)
    member.join(instance_id="i")
    other = Member(group_client, "bad848", "m2")
    assert other.join(instance_id="i").error_code == errors.UNRELEASED_INSTANCE_ID
    assert member.beat(member_epoch=9).error_code == errors.FENCED_MEMBER_EPOCH
    assert other.beat(member_epoch=1).error_code == errors.UNKNOWN_MEMBER_ID
    assert member.beat(member_epoch=-2, instance_id="i").member_epoch == -2
    assert partitions(other.join(instance_id="i")) == [0, 1, 2, 3]
    assert member.beat(member_epoch=1).error_code == errors.UNKNOWN_MEMBER_ID
    assert group_broker.broker.context.counters.mistakes == 0


def test_a_regular_expression_follows_the_topics(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    def held(answer: Any) -> list[str]:
        found = answer.assignment.topic_partitions
        by_id = group_broker.broker.context.topics.by_id
        return sorted(by_id(each.topic_id.hex()).name for each in found)

    def topics() -> list[str]:
        asked = message(apis.CONSUMER_GROUP_DESCRIBE, group_ids=["regex"])
        group = group_client.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, asked).groups[0]
        (found,) = group.members
        assert found.subscribed_topic_regex in {None, "rx-.*"}
        return sorted(found.subscribed_topic_names)

    with group_broker.client() as native:
        native.create("rx-1", 1)
        member = Member(group_client, "regex", "m1")
        answer = member.join(subscribed_topic_names=None, subscribed_topic_regex="rx-.*")
        assert held(answer) == ["rx-1"]
        native.create("rx-2", 1)
        native.create("xrx-3", 1)
        while held(member.beat()) != ["rx-1", "rx-2"]:
            pass
        assert held(member.beat(subscribed_topic_names=["t"])) == ["rx-1", "rx-2", "t"]
        assert topics() == ["rx-1", "rx-2", "t"]
        member.beat(subscribed_topic_regex="")
        assert topics() == ["t"]
    assert group_broker.broker.context.counters.mistakes == 0


def test_a_group_has_one_kind_of_members(group_client: GroupClient) -> None:
    member = Member(group_client, "kind", "m1")
    member.join()
    code = errors.INCONSISTENT_GROUP_PROTOCOL
    assert group_client.join("kind").error_code == code
    member.beat(member_epoch=-1)
    group_client.alone("kind")
    assert member.join().error_code == code
    described = message(apis.CONSUMER_GROUP_DESCRIBE, group_ids=["kind"])
    found = group_client.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, described).groups[0]
    assert found.error_code == errors.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(("version", "epoch", "code"), [(9, 0, 113), (8, 0, 22), (9, 99, 22)])
def test_commits_are_fenced_by_the_epoch(
    group_client: GroupClient, version: int, epoch: int, code: int
) -> None:
    member = Member(group_client, f"fenced{version}-{epoch}", "m1")
    member.join()
    commits = codec.structs("request", apis.OFFSET_COMMIT.key)
    one = commits.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    asked = message(
        apis.OFFSET_COMMIT,
        group_id=member.group,
        member_id="m1",
        generation_id_or_member_epoch=epoch,
        topics=[commits.OffsetCommitRequestTopic(name="t", partitions=[one])],
    )
    answer = group_client.ask(apis.OFFSET_COMMIT, version, asked)
    assert answer.topics[0].partitions[0].error_code == code


# -- settings of groups ----------------------------------------------------------------------------

GROUP, SET, DELETE, APPEND = 32, 0, 1, 2
Incremental = codec.structs("request", apis.INCREMENTAL_ALTER_CONFIGS.key)
Alter = codec.structs("request", apis.ALTER_CONFIGS.key)
Describe = codec.structs("request", apis.DESCRIBE_CONFIGS.key)


def alter(
    client: GroupClient, group: str, *changes: tuple[str, int, str | None]
) -> tuple[int, str]:
    configs = [
        Incremental.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    resource = Incremental.AlterConfigsResource(
        resource_type=GROUP, resource_name=group, configs=configs
    )
    asked = Incremental.root(resources=[resource])
    (result,) = client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, asked).responses
    return result.error_code, result.error_message or ""


def settings_of(client: GroupClient, group: str) -> dict[str, tuple[str, int]]:
    resource = Describe.DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=None
    )
    (result,) = client.ask(apis.DESCRIBE_CONFIGS, 4, Describe.root(resources=[resource])).results
    assert not result.error_code
    return {each.name: (each.value, each.config_source) for each in result.configs}


def groups_with_settings(client: GroupClient) -> list[str]:
    asked = message(apis.LIST_CONFIG_RESOURCES, resource_types=[GROUP])
    answer = client.ask(apis.LIST_CONFIG_RESOURCES, 1, asked)
    assert {each.resource_type for each in answer.config_resources} <= {GROUP}
    return [each.resource_name for each in answer.config_resources]


def test_members_obey_the_settings_of_their_group(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    defaults = {SESSION: ("45000", 5), HEARTBEAT: ("5000", 5)}
    assert settings_of(group_client, "set") == defaults
    member, other = Member(group_client, "set", "m1"), Member(group_client, "unset", "m1")
    assert {member.join().heartbeat_interval_ms, other.join().heartbeat_interval_ms} == {5_000}
    changes = (SESSION, SET, "9000"), (HEARTBEAT, SET, "3000")
    assert alter(group_client, "set", *changes) == (errors.NONE, "")
    assert settings_of(group_client, "set") == {SESSION: ("9000", 8), HEARTBEAT: ("3000", 8)}
    assert groups_with_settings(group_client) == ["set"]
    owns = owned(group_broker, 0, 1, 2, 3)
    assert member.beat(topic_partitions=owns).heartbeat_interval_ms == 3_000
    assert other.beat(topic_partitions=owns).heartbeat_interval_ms == 5_000
    shard = group_broker.broker.context.coordinator.shard("set")
    assert shard.loaded is not None
    assert shard.loaded._groups["set"].members["m1"].session_timeout_ms == 9_000
    resource = Alter.AlterConfigsResource(
        resource_type=GROUP,
        resource_name="set",
        configs=[Alter.AlterableConfig(name=SESSION, value="8000")],
    )
    group_client.ask(apis.ALTER_CONFIGS, 2, Alter.root(resources=[resource]))
    assert settings_of(group_client, "set") == {SESSION: ("8000", 8), HEARTBEAT: ("5000", 5)}
    assert member.beat(topic_partitions=owns).heartbeat_interval_ms == 8_000 // 3
    assert not alter(group_client, "set", (SESSION, DELETE, None))[0]
    assert settings_of(group_client, "set") == defaults
    assert groups_with_settings(group_client) == []


@pytest.mark.parametrize(
    ("group", "change", "code", "text"),
    [
        ("", (SESSION, SET, "9000"), errors.INVALID_REQUEST, "must not be empty"),
        ("g" * 256, (SESSION, SET, "9000"), errors.INVALID_REQUEST, "256 characters"),
        ("g", ("share.session.timeout.ms", SET, "1"), errors.INVALID_CONFIG, "Unknown group"),
        ("g", (SESSION, SET, "x"), errors.INVALID_CONFIG, "refused"),
        ("g", (SESSION, SET, "99"), errors.INVALID_CONFIG, "between"),
        ("g", (SESSION, SET, "1800001"), errors.INVALID_CONFIG, "between"),
        ("g", (HEARTBEAT, SET, "50000"), errors.INVALID_CONFIG, "must be less than"),
        ("g", (SESSION, APPEND, "9000"), errors.INVALID_CONFIG, "not LIST"),
        ("g", (SESSION, SET, None), errors.INVALID_REQUEST, "Null value"),
    ],
)
def test_settings_of_groups_that_are_refused(
    group_client: GroupClient,
    group: str,
    change: tuple[str, int, str | None],
    code: int,
    text: str,
) -> None:
    found = alter(group_client, group, change)
    assert found[0] == code
    assert text in found[1]
    assert group not in groups_with_settings(group_client)


def test_settings_of_groups_require_that_all_brokers_support_them(
    group_client: GroupClient, group_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = property(lambda _self: PEER_PROTOCOL_GROUPS - 1)
    monkeypatch.setattr(type(group_broker.broker.context.operations), "peer_protocol", earlier)
    code, text = alter(group_client, "g", (SESSION, SET, "9000"))
    assert code == errors.UNSUPPORTED_VERSION
    assert "--upgrade" in text


def test_resources_with_settings_are_listed(group_client: GroupClient) -> None:
    def listed(version: int, *types: int) -> Any:
        asked = message(apis.LIST_CONFIG_RESOURCES, resource_types=list(types))
        return group_client.ask(apis.LIST_CONFIG_RESOURCES, version, asked)

    found = {(each.resource_type, each.resource_name) for each in listed(1).config_resources}
    assert {(2, "t"), (4, "1"), (8, "1")} <= found
    assert listed(0).config_resources == [], "client metrics, which there are none of"
    assert listed(1, 3).error_code == errors.UNSUPPORTED_VERSION


# -- administration --------------------------------------------------------------------------------

# Groups listed, described and deleted; the groups of raftlog's own clients too.


def listed(client: GroupClient, version: int = 5, **filters: Any) -> dict[str, tuple[str, str]]:
    answer = client.ask(apis.LIST_GROUPS, version, message(apis.LIST_GROUPS, **filters))
    assert answer.error_code == errors.NONE
    return {each.group_id: (each.group_state, each.group_type) for each in answer.groups}


def test_groups_are_listed_with_state_and_type(group_client: GroupClient) -> None:
    group_client.alone("listed")
    assert listed(group_client)["listed"] == ("Stable", "classic")
    for version in range(6):
        assert "listed" in listed(group_client, version)
    assert "listed" in listed(group_client, states_filter=["stable"], types_filter=["classic"])
    assert "listed" not in listed(group_client, states_filter=["Empty"])
    assert "listed" not in listed(group_client, types_filter=["consumer"])


def test_texts_that_old_versions_cannot_have_are_refused(group_client: GroupClient) -> None:
    """ListGroups before version 3 got no response while there was such a group, of any client."""
    group_client.find("long")
    longest = "x" * limits.CLASSIC_NAME_BYTES_MAX
    refused = group_client.join("long", protocol_type=longest + "x")
    assert refused.error_code == errors.INVALID_REQUEST
    assert group_client.join("long", protocol_type=longest).error_code == errors.NONE
    assert "long" in listed(group_client, 0)


def test_an_emptied_group_keeps_its_protocol_type(group_client: GroupClient) -> None:
    group_client.leave("left", group_client.alone("left").member_id)
    answer = group_client.ask(apis.LIST_GROUPS, 5, message(apis.LIST_GROUPS))
    (found,) = [each for each in answer.groups if each.group_id == "left"]
    assert (found.group_state, found.protocol_type) == ("Empty", "consumer")
    asked = message(apis.DESCRIBE_GROUPS, groups=["left", "missing"])
    left, missing = group_client.ask(apis.DESCRIBE_GROUPS, 6, asked).groups
    assert (left.protocol_type, left.protocol_data) == ("consumer", "")
    assert missing.error_message == "Group missing not found."
    joined = group_client.join("left", protocol_type="connect")
    assert (joined.error_code, joined.protocol_type) == (errors.NONE, "connect")


@pytest.mark.parametrize("version", range(7))
def test_classic_groups_are_described(group_client: GroupClient, version: int) -> None:
    group = f"described{version}"
    joined = group_client.alone(group)
    asked = message(apis.DESCRIBE_GROUPS, groups=[group, "missing", ""])
    group_client.find("missing")
    found, missing, bad = group_client.ask(apis.DESCRIBE_GROUPS, version, asked).groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == (
        *("Stable", "consumer"),
        "range",
    )
    (member,) = found.members
    assert (member.member_id, member.client_id) == (joined.member_id, "test")
    assert (member.client_host, member.member_metadata, member.member_assignment) == (
        *("/127.0.0.1", b"topics"),
        b"all",
    )
    assert missing.group_state == "Dead"
    assert missing.error_code == (errors.NONE if version < 6 else errors.GROUP_ID_NOT_FOUND)
    assert (bad.error_code, bad.group_state) == (errors.INVALID_GROUP_ID, "")


@pytest.mark.parametrize(
    ("api", "field"),
    [(apis.DESCRIBE_GROUPS, "groups"), (apis.CONSUMER_GROUP_DESCRIBE, "group_ids")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_group_is_described_once(group_client: GroupClient, api: Api, field: str) -> None:
    """A group can have thousands of members."""
    group_client.find("once")
    answer = group_client.ask(api, 0, message(api, **{field: ["once", "once"]}))
    assert [each.error_code for each in answer.groups] == [errors.INVALID_REQUEST] * 2


@pytest.mark.parametrize(
    ("api", "field"),
    [(apis.DESCRIBE_GROUPS, "groups"), (apis.CONSUMER_GROUP_DESCRIBE, "group_ids")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_many_groups_are_described_in_parts(
    group_client: GroupClient, monkeypatch: pytest.MonkeyPatch, api: Api, field: str
) -> None:
    """The client repeats the request for the groups that are not in the response."""
    names = [f"{api.name}{number}" for number in range(2)]
    for name in names:
        if api is apis.DESCRIBE_GROUPS:
            group_client.alone(name)
        else:
            assert not Member(group_client, name, "m").join().error_code
    many = message(api, **{field: [f"many{number}" for number in range(1_001)]})
    found = group_client.ask(api, api.version_max, many).groups
    assert {each.error_code for each in found} == {errors.GROUP_ID_NOT_FOUND}
    monkeypatch.setattr(limits, "KAFKA_RESPONSE_BYTES_MAX", 1)
    found = group_client.ask(api, api.version_max, message(api, **{field: names})).groups
    assert [each.error_code for each in found] == [0, errors.COORDINATOR_LOAD_IN_PROGRESS]
    asked = message(apis.DELETE_GROUPS, groups_names=[f"many{number}" for number in range(1_001)])
    results = group_client.ask(apis.DELETE_GROUPS, 2, asked).results
    assert {each.error_code for each in results} == {errors.GROUP_ID_NOT_FOUND}


def test_raftlogs_own_clients_see_classic_groups(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    group_client.alone("seen")
    with group_broker.client() as client:
        listings = client.ask(native.LIST_GROUPS, ListGroupsRequest()).groups
        (listing,) = [each for each in listings if each.group == "seen"]
        assert (listing.type, listing.state, listing.members) == ("classic", "stable", 1)
        asked = DescribeGroupsRequest(groups=["seen"])
        (view,) = client.ask(native.DESCRIBE_GROUPS, asked).groups
        assert (view.type, view.assignor, len(view.members)) == ("classic", "range", 1)


def test_groups_without_members_are_deleted(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    joined = group_client.alone("doomed")
    group_client.find("missing")
    asked = message(apis.DELETE_GROUPS, groups_names=["doomed", "missing"])
    for version in range(3):
        results = group_client.ask(apis.DELETE_GROUPS, version, asked).results
        assert [each.error_code for each in results] == [
            errors.NON_EMPTY_GROUP,
            errors.GROUP_ID_NOT_FOUND,
        ]
    group_client.leave("doomed", joined.member_id)
    results = group_client.ask(apis.DELETE_GROUPS, 2, asked).results
    assert results[0].error_code == errors.NONE
    assert "doomed" not in listed(group_client)
    assert group_broker.broker.context.counters.mistakes == 0


# -- groups ----------------------------------------------------------------------------------------
#
# FindCoordinator and classic groups over a socket, in every version.


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_found(
    group_client: GroupClient, group_broker: RunningBroker, version: int
) -> None:
    group_client.find("found")
    asked = message(apis.FIND_COORDINATOR, key="found", coordinator_keys=["found", ""])
    answer = group_client.ask(apis.FIND_COORDINATOR, version, asked)
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.node_id, found.port) == (0, 1, group_broker.address.port)
    if version >= 4:
        assert answer.coordinators[1].error_code == errors.INVALID_GROUP_ID


def test_the_coordinators_of_many_groups_are_found(group_client: GroupClient) -> None:
    group_client.find("found")
    keys = [f"many{number}" for number in range(1_001)]
    answer = group_client.ask(
        apis.FIND_COORDINATOR, 6, message(apis.FIND_COORDINATOR, coordinator_keys=keys)
    )
    assert [(each.key, each.error_code) for each in answer.coordinators] == [(k, 0) for k in keys]


def test_there_are_no_other_coordinators(group_client: GroupClient) -> None:
    asked = message(apis.FIND_COORDINATOR, key_type=2, coordinator_keys=["t"])
    (answer,) = group_client.ask(apis.FIND_COORDINATOR, 6, asked).coordinators
    assert answer.error_code == errors.INVALID_REQUEST
    assert "share groups" in answer.error_message


def test_a_coordinator_that_is_found_serves(tmp_path: Path) -> None:
    """Not COORDINATOR_LOAD_IN_PROGRESS, which the first request got."""
    with running(tmp_path) as broker, grouped(broker) as client:
        asked = message(apis.FIND_COORDINATOR, key="first")
        while client.ask(apis.FIND_COORDINATOR, 3, asked).error_code:
            pass
        asked = message(apis.OFFSET_FETCH, group_id="first", topics=None)
        assert client.ask(apis.OFFSET_FETCH, 7, asked).error_code == errors.NONE


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_a_join(group_client: GroupClient, version: int) -> None:
    group = f"join{version}"
    joined = group_client.alone(group, version)
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (
        *(1, joined.member_id),
        "range",
    )
    assert joined.member_id.startswith("test-")
    assert [one.member_id for one in joined.members] == [joined.member_id]
    assert joined.members[0].metadata == b"topics"
    for each in range(5):
        assert group_client.heartbeat(group, joined, each) == errors.NONE
    for each in range(6):
        assert group_client.sync(group, joined, {}, each).assignment == b"all"


def test_two_members_rebalance_and_wait_on_their_own_connections(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    one = group_client.alone("two")
    with grouped(group_broker) as other:
        other.send_join("two")
        given = other.receive(apis.JOIN_GROUP, 9)[1]
        assert given.error_code == errors.MEMBER_ID_REQUIRED
        other.send_join("two", given.member_id)
        while group_client.heartbeat("two", one) != errors.REBALANCE_IN_PROGRESS:
            pass  # until the join has arrived
        again = group_client.join("two", one.member_id)
        two = other.receive(apis.JOIN_GROUP, 9)[1]
        assert again.generation_id == two.generation_id == 2
        assert (again.leader, two.leader, two.members) == (one.member_id, one.member_id, [])
        other.send_sync("two", two, {})
        given_to = {one.member_id: b"0", two.member_id: b"1"}
        assert group_client.sync("two", again, given_to).assignment == b"0"
        assert other.receive(apis.SYNC_GROUP, 5)[1].assignment == b"1"
        left = other.leave("two", two.member_id)
        assert [each.error_code for each in left.members] == [errors.NONE]
    assert group_client.heartbeat("two", again) == errors.REBALANCE_IN_PROGRESS


def test_the_end_of_a_connection_ends_its_wait_and_not_the_member(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    one = group_client.alone("gone")
    with grouped(group_broker) as other:
        other.send_join("gone", group_instance_id="i")
        while group_client.heartbeat("gone", one) != errors.REBALANCE_IN_PROGRESS:
            pass
    again = group_client.join("gone", one.member_id)
    assert sorted(each.group_instance_id or "" for each in again.members) == ["", "i"]


def test_what_is_refused_of_groups(group_client: GroupClient, group_broker: RunningBroker) -> None:
    group_client.find("bad")
    for fields, code in [
        ({"session_timeout_ms": 1}, errors.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "invented"}, errors.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": ""}, errors.INVALID_GROUP_ID),
    ]:
        group_client.send_join("bad", **{"version": 9, **fields})  # type: ignore[arg-type]
        refused = group_client.receive(apis.JOIN_GROUP, 9)[1]
        assert (refused.error_code, refused.protocol_name) == (code, None)
    assert group_client.join("").error_code == errors.INVALID_GROUP_ID
    joined = group_client.alone("bad")
    old = errors.ILLEGAL_GENERATION
    assert group_client.heartbeat("bad", joined, generation_id=9) == old
    assert group_client.heartbeat("bad", joined, member_id="x") == errors.UNKNOWN_MEMBER_ID
    group_client.find("none")
    for group in ("bad", "none"):
        for version in range(6):
            left = group_client.leave(group, "x", version=version)
            assert version < 3 or left.error_code == errors.NONE
            found = left if version < 3 else left.members[0]
            assert found.error_code == errors.UNKNOWN_MEMBER_ID
    assert group_broker.broker.context.counters.mistakes == 0


def test_a_static_member_is_fenced(group_client: GroupClient) -> None:
    group_client.find("static")
    old = group_client.join("static", group_instance_id="i")
    group_client.sync("static", old, {old.member_id: b"x"})
    new = group_client.join("static", group_instance_id="i")
    assert (new.generation_id, new.skip_assignment) == (1, True)
    code = group_client.heartbeat("static", old, group_instance_id="i")
    assert code == errors.FENCED_INSTANCE_ID
