"""Groups listed, described and deleted; the groups of raftlog's own clients too."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import errors
from raftlog.kafka.api import Api
from raftlog.protocol import api as native
from raftlog.protocol.records import DescribeGroupsRequest, ListGroupsRequest
from tests.server.harness import RunningBroker
from tests.server.kafka.group_client import GroupClient, message
from tests.server.kafka.handlers.test_consumer_protocol import Member


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
