"""Every request of raftlog's protocol is denied without a rule, and permitted by those it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.errors import (
    AccessDeniedError,
    CoordinatorLoadingError,
    GroupAuthorizationFailedError,
    NotCoordinatorError,
    RaftlogError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import APIS, Api
from raftlog.protocol.records import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    DescribeGroupsRequest,
    DescribeTopicsRequest,
    DescribeTransactionRequest,
    FetchPartition,
    FetchRequest,
    FindTransactionCoordinatorsRequest,
    InitProducerIdRequest,
    InitTransactionsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    ProducePartition,
    ProduceRequest,
    TransactionOffsetCommitRequest,
)
from raftlog.protocol.schema import Failure, Message
from raftlog.security.acl import CLUSTER_NAME, Acl, Operation, ResourceType
from raftlog.security.producer_ids import named_id
from raftlog.server.access.rules import RULES, free
from raftlog.types import OFFSETS_TOPIC
from tests.golden import make_protocol
from tests.server.access.acting import acting, allowing, guarded
from tests.server.harness import Client, RunningBroker, batch_of, error_of, only

GOLDEN = {entry["api"]: entry for entry in make_protocol.load()["apis"]}

# What each request needs, with resources of any name. Requests between brokers, handshakes and
# proofs have their own means.
NEEDS: dict[Api, set[tuple[Operation, ResourceType]]] = {
    apis.METADATA: {("DESCRIBE", "TOPIC")},
    apis.PRODUCE: {("WRITE", "TOPIC")},
    apis.FETCH: {("READ", "TOPIC")},
    apis.LIST_OFFSETS: {("DESCRIBE", "TOPIC")},
    apis.INIT_PRODUCER_ID: {("WRITE", "TOPIC")},
    apis.CREATE_TOPICS: {("CREATE", "TOPIC")},
    apis.DELETE_TOPICS: {("DELETE", "TOPIC")},
    apis.DESCRIBE_TOPICS: {("DESCRIBE", "TOPIC")},
    apis.ALTER_TOPICS: {("ALTER_CONFIGS", "TOPIC")},
    apis.ADD_PARTITIONS: {("ALTER", "TOPIC")},
    apis.DELETE_RECORDS: {("DELETE", "TOPIC")},
    apis.DESCRIBE_CLUSTER: {("DESCRIBE", "CLUSTER")},
    apis.DESCRIBE_EVENTS: {("DESCRIBE", "CLUSTER")},
    apis.VERIFY_COPY: {("DESCRIBE", "CLUSTER")},
    apis.TRANSFER_LEADER: {("ALTER", "CLUSTER")},
    apis.REASSIGN: {("ALTER", "CLUSTER")},
    apis.THROTTLE_MOVES: {("ALTER", "CLUSTER")},
    apis.UPGRADE_FEATURES: {("ALTER", "CLUSTER")},
    apis.CANCEL_DECOMMISSION: {("ALTER", "CLUSTER")},
    apis.RECOVER_CLUSTER: {("ALTER", "CLUSTER")},
    apis.FIND_COORDINATORS: {("DESCRIBE", "GROUP")},
    apis.GROUP_HEARTBEAT: {("READ", "GROUP"), ("DESCRIBE", "TOPIC")},
    apis.OFFSET_COMMIT: {("READ", "GROUP"), ("READ", "TOPIC")},
    apis.OFFSET_FETCH: {("DESCRIBE", "GROUP"), ("DESCRIBE", "TOPIC")},
    apis.DESCRIBE_GROUPS: {("DESCRIBE", "GROUP")},
    apis.DELETE_GROUPS: {("DELETE", "GROUP")},
    apis.DELETE_OFFSETS: {("DELETE", "GROUP"), ("READ", "TOPIC")},
    apis.DESCRIBE_PRODUCERS: {("READ", "TOPIC")},
    apis.LIST_PRODUCERS: {("READ", "TOPIC")},
    apis.RESERVE_BROKER_ID: {("ALTER", "CLUSTER")},
    apis.DECOMMISSION: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_USERS: {("DESCRIBE", "CLUSTER")},
    apis.ALTER_USERS: {("ALTER", "CLUSTER")},
    apis.CREATE_ACLS: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_ACLS: {("DESCRIBE", "CLUSTER")},
    apis.DELETE_ACLS: {("ALTER", "CLUSTER")},
    apis.CHECK_ACL: {("DESCRIBE", "CLUSTER")},
    apis.DESCRIBE_QUOTAS: {("DESCRIBE_CONFIGS", "CLUSTER")},
    apis.ALTER_QUOTAS: {("ALTER_CONFIGS", "CLUSTER")},
    apis.DESCRIBE_LOG_LEVELS: {("DESCRIBE_CONFIGS", "CLUSTER")},
    apis.ALTER_LOG_LEVELS: {("ALTER_CONFIGS", "CLUSTER")},
    apis.SCHEMA_REGISTRY: {("WRITE", "TOPIC")},  # of a call that registers
    apis.FIND_TRANSACTION_COORDINATORS: {("DESCRIBE", "TRANSACTIONAL_ID")},
    apis.INIT_TRANSACTIONS: {("WRITE", "TRANSACTIONAL_ID")},
    apis.END_TRANSACTION: {("WRITE", "TRANSACTIONAL_ID")},
    apis.DESCRIBE_TRANSACTION: {("DESCRIBE", "TRANSACTIONAL_ID")},
    apis.ABORT_TRANSACTION: {("WRITE", "TRANSACTIONAL_ID")},
    apis.TRANSACTION_OFFSET_COMMIT: {
        *(("WRITE", "TRANSACTIONAL_ID"), ("READ", "GROUP"), ("READ", "TOPIC")),
    },
}
# Their responses have less in them without rights.
FILTERED = {apis.LIST_GROUPS, apis.LIST_TRANSACTIONS}
HANDSHAKES = {
    *(apis.API_VERSIONS, apis.PEER_HELLO, apis.PEER_PROVE),
    *(apis.OPERATOR_HELLO, apis.OPERATOR_PROVE, apis.SASL_AUTHENTICATE),
}
# Of their owner: tests/server/test_delegation_tokens.py.
TOKENS = {apis.CREATE_TOKEN, apis.DESCRIBE_TOKENS, apis.RENEW_TOKEN, apis.EXPIRE_TOKEN}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with guarded(tmp_path_factory.mktemp("guarded")) as broker:
        with acting(broker, "admin") as admin:
            for name in ("clicks", "orders", "secret"):
                assert admin.create(name).failure is None
        yield broker


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with acting(broker, "alice") as client:
        yield client


def allow(operation: Operation, resource_type: ResourceType, name: str = "*", **more: Any) -> Acl:
    if resource_type == "CLUSTER":
        name = CLUSTER_NAME
    return Acl("User:alice", operation, resource_type, name, **more)


def failures(value: Any) -> Iterator[RaftlogError]:
    """The errors anywhere in a response."""
    if isinstance(value, Failure):
        yield value.to_error()
    elif isinstance(value, list):
        for each in value:
            yield from failures(each)
    elif isinstance(value, Message):
        for name in value.__struct_fields__:
            yield from failures(getattr(value, name))


def is_denied(client: Client, api: Api, message: Message, attachment: bytes = b"") -> bool:
    """Whether any part of a request is denied."""
    try:
        answer = client.ask(api, message, [attachment] if attachment else ())
    except RaftlogError as error:
        return isinstance(error, AccessDeniedError)
    return any(isinstance(error, AccessDeniedError) for error in failures(answer))


def is_golden_denied(client: Client, api: Api) -> bool:
    entry = GOLDEN[api.name]
    attachment = bytes.fromhex("".join(entry.get("request_attachment", [])))
    return is_denied(client, api, make_protocol.request_of(entry), attachment)


def test_every_api_has_a_rule() -> None:
    """A new API without one would fail at the first request: decide here who may send it."""
    assert RULES.keys() == APIS.keys()
    peers = {api for api in APIS.values() if api.peer_only}
    without = {APIS[number] for number, rule in RULES.items() if rule is free}
    assert without == HANDSHAKES | TOKENS | peers
    assert NEEDS.keys() | FILTERED == set(APIS.values()) - without


@pytest.mark.parametrize("api", NEEDS, ids=lambda api: api.name)
def test_a_request_needs_these_rules_and_no_others(
    api: Api, broker: RunningBroker, client: Client
) -> None:
    """Without any one of them, it is denied."""
    rules = [allow(operation, resource_type) for operation, resource_type in NEEDS[api]]
    assert is_golden_denied(client, api)
    for rule in rules:
        with allowing(broker, *(each for each in rules if each != rule)):
            assert is_golden_denied(client, api), f"without {rule}"
    with allowing(broker, *rules):
        assert not is_golden_denied(client, api)


def test_nothing_is_denied_where_clients_do_not_authenticate(tmp_path: Path) -> None:
    with guarded(tmp_path) as broker:
        broker.broker.context.access.is_enforced = False
        with acting(broker, "alice") as client:
            assert client.create("t").failure is None
            assert client.produce("t", batch_of(b"a")).failure is None


def test_each_topic_is_permitted_or_denied_by_itself(broker: RunningBroker, client: Client) -> None:
    batch = batch_of(b"x")
    names = ["secret", "clicks", "other", "orders"]
    parts = [ProducePartition(topic=name, partition=0, length=len(batch)) for name in names]
    request = ProduceRequest(acks=-1, partitions=parts)
    rules = [allow("WRITE", "TOPIC", "clicks"), allow("WRITE", "TOPIC", "orders")]
    with allowing(broker, *rules):
        answer = client.ask(apis.PRODUCE, request, [batch * 4])
    assert [part.topic for part in answer.partitions] == names
    denied = [part for part in answer.partitions if part.failure is not None]
    assert [part.topic for part in denied] == ["secret", "other"]
    for part in denied:
        assert isinstance(error_of(part), TopicAuthorizationFailedError)
    with acting(broker, "admin") as admin:
        assert admin.fetch("secret")[1] == []
        assert admin.fetch("orders")[1][-1] == b"x"
    with allowing(broker, allow("READ", "TOPIC", "clicks")):
        wanted = [FetchPartition(topic=name, partition=0, offset=0, bytes_max=9) for name in names]
        found = client.answer(client.send(apis.FETCH, FetchRequest(partitions=wanted)))
    read = {part.topic: part for part in found.message.partitions}
    assert {name for name, part in read.items() if part.failure is None} == {"clicks"}
    assert len(found.attachment) == read["clicks"].length


def test_a_rule_for_an_address_permits_no_other(broker: RunningBroker, client: Client) -> None:
    request = MetadataRequest(topics=["clicks"])
    with allowing(broker, allow("READ", "TOPIC", "clicks", host="10.0.0.1")):
        assert is_denied(client, apis.METADATA, request)
    with allowing(broker, allow("READ", "TOPIC", "clicks", host="127.0.0.1")):
        assert not is_denied(client, apis.METADATA, request)


def test_a_list_of_all_topics_has_those_that_may_be_described(
    broker: RunningBroker, client: Client
) -> None:
    requests = [
        (apis.METADATA, MetadataRequest(topics=None)),
        (apis.DESCRIBE_TOPICS, DescribeTopicsRequest(topics=None)),
    ]
    for api, request in requests:
        assert client.ask(api, request).topics == []
        with allowing(broker, allow("READ", "TOPIC", "c", pattern_type="PREFIXED")):
            assert only(client.ask(api, request).topics).name == "clicks"
    after = DescribeTopicsRequest(topics=None, after="clicks", paged=True)
    with allowing(broker, allow("DESCRIBE", "TOPIC")):
        listed = [topic.name for topic in client.ask(apis.DESCRIBE_TOPICS, after).topics]
    assert "clicks" not in listed
    assert "orders" in listed


def test_a_produce_request_without_a_response_is_denied_as_a_whole(
    broker: RunningBroker, client: Client
) -> None:
    """The connection is closed: the client has no other way to notice."""
    batch = batch_of(b"x")
    parts = [
        ProducePartition(topic=name, partition=0, length=len(batch))
        for name in ("clicks", "secret")
    ]
    with allowing(broker, allow("WRITE", "TOPIC", "clicks")), acting(broker, "admin") as admin:
        before = admin.offset("clicks", "latest").offset
        client.send(apis.PRODUCE, ProduceRequest(acks=0, partitions=parts), [batch * 2])
        assert client.is_closed_by_broker()
        assert admin.offset("clicks", "latest").offset == before


# -- groups ----------------------------------------------------------------------------------------


def committed(client: Client, group: str, *topics: str) -> Any:
    offsets = [OffsetToCommit(topic=topic, partition=0, offset=1) for topic in topics]
    return client.ask(apis.OFFSET_COMMIT, OffsetCommitRequest(group=group, offsets=offsets))


def coordinated(broker: RunningBroker) -> None:
    """Wait until the broker coordinates groups."""
    with acting(broker, "admin") as admin:
        make_protocol_request = make_protocol.request_of(GOLDEN["find_coordinators"])
        admin.ask(apis.FIND_COORDINATORS, make_protocol_request)
        coordinator = broker.broker.context.coordinator
        broker.wait_until(lambda: bool(coordinator.shards()))


def test_offsets_and_groups_are_shown_to_those_who_may_describe_them(
    broker: RunningBroker, client: Client
) -> None:
    coordinated(broker)
    with acting(broker, "admin") as admin:
        for group in ("mine", "theirs"):
            committed(admin, group, "clicks", "secret")
    rules = [allow("READ", "GROUP", "mine"), allow("READ", "TOPIC", "clicks")]
    with allowing(broker, *rules):
        listed = client.ask(apis.LIST_GROUPS, ListGroupsRequest()).groups
        assert [one.group for one in listed] == ["mine"]
        offsets = client.ask(apis.OFFSET_FETCH, OffsetFetchRequest(group="mine")).offsets
        assert [one.topic for one in offsets] == ["clicks"]
        described = client.ask(
            apis.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["theirs", "mine"])
        ).groups
        assert [one.failure is None for one in described] == [False, True]
        assert isinstance(error_of(described[0]), GroupAuthorizationFailedError)
        answer = committed(client, "mine", "secret", "clicks")
        assert [part.failure is None for part in answer.partitions] == [False, True]
    with allowing(broker, allow("DESCRIBE", "CLUSTER")):
        listed = client.ask(apis.LIST_GROUPS, ListGroupsRequest()).groups
        assert {"mine", "theirs"} <= {one.group for one in listed}


def test_transactions_are_shown_to_those_who_may_describe_them(
    broker: RunningBroker, client: Client
) -> None:
    def asked(api: Api, message: Message, client: Client = client) -> Any:
        while True:  # the coordinator may load
            answer = client.answer(client.send(api, message)).message
            if not isinstance(answer, CoordinatorLoadingError | NotCoordinatorError):
                return answer

    with acting(broker, "admin") as admin:
        find = FindTransactionCoordinatorsRequest(transactional_ids=["mine", "theirs"])
        asked(apis.FIND_TRANSACTION_COORDINATORS, find, admin)
        for name in find.transactional_ids:
            begin = InitTransactionsRequest(transactional_id=name, timeout_ms=60_000)
            who = asked(apis.INIT_TRANSACTIONS, begin, admin)
            commit = TransactionOffsetCommitRequest(
                transactional_id=name,
                producer_id=who.producer_id,
                producer_epoch=who.producer_epoch,
                group="g",
                offsets=[OffsetToCommit(topic="clicks", partition=0, offset=1)],
            )
            asked(apis.TRANSACTION_OFFSET_COMMIT, commit, admin)
    mine = allow("DESCRIBE", "TRANSACTIONAL_ID", "mine")
    describe = DescribeTransactionRequest(transactional_id="mine")
    with allowing(broker, mine):
        listed = asked(apis.LIST_TRANSACTIONS, ListTransactionsRequest()).transactions
        assert [each.transactional_id for each in listed] == ["mine"]
        assert asked(apis.DESCRIBE_TRANSACTION, describe).topics == []
    with allowing(broker, mine, allow("DESCRIBE", "TOPIC")):
        (topic,) = asked(apis.DESCRIBE_TRANSACTION, describe).topics
        assert topic.topic == OFFSETS_TOPIC
    with allowing(broker, allow("ALTER", "CLUSTER")):
        assert not is_denied(client, apis.FIND_TRANSACTION_COORDINATORS, find)
        for name in find.transactional_ids:
            abort = AbortTransactionRequest(transactional_id=name)
            assert isinstance(asked(apis.ABORT_TRANSACTION, abort), AbortTransactionResponse)


# -- producer ids ----------------------------------------------------------------------------------


def produce_as(client: Client, producer_id: int, name: str = "", sequence: int = 0) -> Any:
    batch = batch_of(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    part = ProducePartition(topic="clicks", partition=0, length=len(batch))
    request = ProduceRequest(acks=-1, partitions=[part], producer=name)
    return only(client.ask(apis.PRODUCE, request, [batch]).partitions)


def test_a_producer_id_belongs_to_the_principal_that_got_it(
    broker: RunningBroker, client: Client
) -> None:
    write = [Acl("User:*", "WRITE", "TOPIC", "clicks")]
    with allowing(broker, *write), acting(broker, "bob") as bob:
        ids = [
            each.ask(apis.INIT_PRODUCER_ID, InitProducerIdRequest()).producer_id
            for each in (client, client, bob)
        ]
        assert len(set(ids)) == 3
        assert produce_as(client, ids[0]).failure is None
        stolen = produce_as(bob, ids[0], sequence=1)
        assert isinstance(error_of(stolen), TransactionalIdAuthorizationFailedError)
        assert produce_as(client, ids[0], sequence=1).failure is None
        assert produce_as(bob, ids[2]).failure is None


def test_the_name_of_a_producer_needs_a_rule(broker: RunningBroker, client: Client) -> None:
    own, other = named_id("copy-1"), named_id("copy-2")
    write = allow("WRITE", "TOPIC", "clicks")
    with allowing(broker, write):
        assert isinstance(
            error_of(produce_as(client, own)), TransactionalIdAuthorizationFailedError
        )
        with pytest.raises(TransactionalIdAuthorizationFailedError, match="copy-1"):
            produce_as(client, own, "copy-1")
    with allowing(broker, write, allow("WRITE", "TRANSACTIONAL_ID", "copy-1")):
        assert produce_as(client, own, "copy-1").failure is None
        assert isinstance(
            error_of(produce_as(client, other, "copy-1")), TransactionalIdAuthorizationFailedError
        )
