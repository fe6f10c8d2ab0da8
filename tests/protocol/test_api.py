"""The API table: complete, unambiguous, and the only judge of numbers and versions."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidRequestError, UnsupportedApiError, UnsupportedVersionError
from raftlog.protocol import api as apis
from raftlog.protocol.api import APIS, METADATA, Api
from raftlog.protocol.schema import Message, NoResponse, slices


def test_every_row_that_is_named_is_in_the_table() -> None:
    named = [row for row in vars(apis).values() if isinstance(row, Api)]
    assert named == list(APIS.values())


def test_numbers_and_names_are_unambiguous() -> None:
    assert list(APIS) == list(range(len(APIS))), "numbers are never given twice, nor left out"
    assert len({api.name for api in APIS.values()}) == len(APIS)


def test_names_are_those_that_stand_in_the_source() -> None:
    assert all(getattr(apis, api.name.upper()) is api for api in APIS.values())


def test_a_row_is_whole() -> None:
    for api in APIS.values():
        assert issubclass(api.request, Message)
        assert issubclass(api.response, Message)
        assert 0 <= api.version_min <= api.version_max < 1 << 16
        assert apis.lookup(api.number, api.version_min) is api
        assert apis.lookup(api.number, api.version_max) is api


@pytest.mark.parametrize("number", [len(APIS), 0xFFFF])
def test_an_unknown_api_is_named(number: int) -> None:
    last = len(APIS) - 1
    with pytest.raises(UnsupportedApiError, match=f"not support API {number} .* 0 to {last}\\b"):
        apis.lookup(number, 0)


@pytest.mark.parametrize("version", [0, 4, 0xFFFF])
def test_an_unknown_version_is_answered_with_the_known_ones(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = dataclasses.replace(METADATA, version_min=1, version_max=3)
    monkeypatch.setitem(APIS, METADATA.number, newer)
    with pytest.raises(UnsupportedVersionError, match=f"version {version} of metadata .* 1 to 3"):
        apis.lookup(METADATA.number, version)


def test_what_may_be_repeated_is_said() -> None:
    once = {api.name for api in APIS.values() if not api.idempotent}
    assert once == {
        *("produce", "create_topics", "delete_topics", "add_partitions"),
        *("transfer_leader", "reassign", "recover_cluster", "revive", "propose"),
        *("operator_prove", "sasl_authenticate", "alter_users"),
        *("create_token", "expire_token"),
        # Somebody else may have changed the group in between.
        *("offset_commit", "delete_groups", "delete_offsets", "delete_acls", "schema_registry"),
        "transaction_offset_commit",
        "abort_transaction",  # the producer may have begun another one in between
        # What one connection knows of another broker is not known to the next.
        *("peer_hello", "peer_prove", "raft", "replica_fetch"),
    }


def test_what_is_for_peers_only_is_said() -> None:
    for_peers = [api.name for api in APIS.values() if api.peer_only]
    assert for_peers == [
        *("raft", "peer_ping", "replica_fetch", "replica_progress", "partition_states"),
        *("survey", "revive", "describe_copies", "cluster_state", "propose"),
        *("verify_transactions", "transaction_markers", "transaction_owners"),
    ]


def test_what_is_never_answered_is_said() -> None:
    one_way = {api.name for api in APIS.values() if api.one_way}
    assert one_way == {"raft", "replica_progress", "partition_states"}


def test_the_request_alone_tells_whether_it_is_answered() -> None:
    for api in APIS.values():
        assert (api.response is NoResponse) == api.one_way
        if api.one_way:
            users = [row.name for row in APIS.values() if row.request is api.request]
            assert users == [api.name]


# -- attachments -----------------------------------------------------------------------------------
#
# Attachments are cut exactly, or refused.


@given(st.lists(st.binary(max_size=40)))
def test_parts_come_back_as_they_were_joined(parts: list[bytes]) -> None:
    joined = b"".join(parts)
    found = slices(memoryview(joined), [len(part) for part in parts])
    assert found == parts
    assert all(part.obj is joined for part in found), "views, not copies"


@pytest.mark.parametrize(
    ("size", "lengths"),
    [(0, [1]), (1, []), (4, [3]), (4, [3, 2]), (4, [4, 1]), (4, [0]), (4, [5, -1]), (2, [-1, 3])],
)
def test_lengths_that_do_not_add_up_are_refused(size: int, lengths: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="bytes"):
        slices(bytes(size), lengths)


@given(st.binary(max_size=20), st.lists(st.integers(-5, 30), max_size=6))
def test_any_lengths_cut_exactly_or_are_refused(data: bytes, lengths: list[int]) -> None:
    try:
        parts = slices(data, lengths)
    except InvalidRequestError:
        assert sum(lengths) != len(data) or min(lengths) < 0
    else:
        assert [len(part) for part in parts] == lengths
        assert b"".join(parts) == data
