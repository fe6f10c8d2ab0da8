"""A Kafka client that joins groups, message by message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import KafkaClient

SESSION_MS, REBALANCE_MS = 30_000, 20_000


def message(api: Api, **fields: Any) -> Any:
    return codec.structs("request", api.key).root(**fields)


class GroupClient(KafkaClient):
    """One connection. A group is loaded by its first request: that is repeated until it is."""

    def find(self, group: str) -> None:
        """Wait until the coordinator of the group serves."""
        asked = message(apis.OFFSET_FETCH, group_id=group, topics=None)
        while self.ask(apis.OFFSET_FETCH, 7, asked).error_code:
            found = message(apis.FIND_COORDINATOR, key=group)
            assert self.ask(apis.FIND_COORDINATOR, 3, found).error_code in {0, 15}

    def send_join(self, group: str, member_id: str = "", *, version: int = 9, **fields: Any) -> int:
        protocol = codec.structs("request", apis.JOIN_GROUP.key).JoinGroupRequestProtocol
        asked = {
            "group_id": group,
            "member_id": member_id,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": [protocol(name="range", metadata=b"topics")],
            **fields,
        }
        return self.send(apis.JOIN_GROUP, version, message(apis.JOIN_GROUP, **asked))

    def join(self, group: str, member_id: str = "", *, version: int = 9, **fields: Any) -> Any:
        """Join, with the ID that the coordinator gives."""
        self.send_join(group, member_id, version=version, **fields)
        answer = self.receive(apis.JOIN_GROUP, version)[1]
        if answer.error_code == errors.MEMBER_ID_REQUIRED:
            self.send_join(group, answer.member_id, version=version, **fields)
            answer = self.receive(apis.JOIN_GROUP, version)[1]
        return answer

    def send_sync(self, group: str, joined: Any, given: dict[str, bytes], version: int = 5) -> int:
        one = codec.structs("request", apis.SYNC_GROUP.key).SyncGroupRequestAssignment
        asked = message(
            apis.SYNC_GROUP,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[one(member_id=name, assignment=data) for name, data in given.items()],
        )
        return self.send(apis.SYNC_GROUP, version, asked)

    def sync(self, group: str, joined: Any, given: dict[str, bytes], version: int = 5) -> Any:
        self.send_sync(group, joined, given, version)
        return self.receive(apis.SYNC_GROUP, version)[1]

    def heartbeat(self, group: str, joined: Any, version: int = 4, **fields: Any) -> int:
        asked = {
            "group_id": group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            **fields,
        }
        answer = self.ask(apis.HEARTBEAT, version, message(apis.HEARTBEAT, **asked))
        code: int = answer.error_code
        return code

    def leave(self, group: str, *member_ids: str, version: int = 5) -> Any:
        one = codec.structs("request", apis.LEAVE_GROUP.key).MemberIdentity
        asked = message(
            apis.LEAVE_GROUP,
            group_id=group,
            member_id=member_ids[0],
            members=[one(member_id=name) for name in member_ids],
        )
        return self.ask(apis.LEAVE_GROUP, version, asked)

    def alone(self, group: str, version: int = 9) -> Any:
        """Join as the only member, with an assignment."""
        self.find(group)
        joined = self.join(group, version=version)
        assert joined.error_code == errors.NONE
        assert not self.sync(group, joined, {joined.member_id: b"all"}).error_code
        return joined


@contextmanager
def grouped(broker: RunningBroker) -> Iterator[GroupClient]:
    client = GroupClient(broker.address)
    try:
        yield client
    finally:
        client.close()
