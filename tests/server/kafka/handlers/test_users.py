"""DescribeUserScramCredentials in single-broker mode, which has no users."""

from __future__ import annotations

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from tests.server.kafka.kafka_client import KafkaClient

Describe = codec.structs("request", apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key)


def test_a_refusal_names_each_user(kafka_client: KafkaClient) -> None:
    """librdkafka crashes if the response has an error for the request as a whole."""
    names = [Describe.UserName(name=name) for name in ("alice", "bob")]
    answer = kafka_client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, Describe.root(users=names))
    assert answer.error_code == 0
    assert [(each.user, each.error_code) for each in answer.results] == [
        ("alice", errors.UNSUPPORTED_VERSION),
        ("bob", errors.UNSUPPORTED_VERSION),
    ]
    of_all = kafka_client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, Describe.root(users=None))
    assert (of_all.error_code, of_all.results) == (errors.UNSUPPORTED_VERSION, [])
