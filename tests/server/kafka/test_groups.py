"""Groups listed, described and deleted; the groups of raftlog's own clients too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import errors
from raftlog.kafka.api import Api
from raftlog.protocol import api as native
from raftlog.protocol.records import DescribeGroupsRequest, ListGroupsRequest
from tests.server.harness import RunningBroker, running
from tests.server.kafka.group_client import GroupClient, grouped, message
from tests.server.kafka.test_consumer_protocol import Member


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


def test_what_is_refused(group_client: GroupClient, group_broker: RunningBroker) -> None:
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
