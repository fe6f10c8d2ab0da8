"""InitProducerId: a new id each time, and none for transactions."""

from __future__ import annotations

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.security.producer_ids import NAMED_ID_BASE
from tests.server.kafka.kafka_client import KafkaClient

Init = codec.structs("request", apis.INIT_PRODUCER_ID.key).root


def test_ids_are_new_whatever_id_the_client_has(kafka_client: KafkaClient) -> None:
    message = Init(transactional_id=None, producer_id=5, producer_epoch=7)
    found = [kafka_client.ask(apis.INIT_PRODUCER_ID, 5, message) for _ in range(10)]
    assert len({each.producer_id for each in found}) == 10
    assert all(0 <= each.producer_id < NAMED_ID_BASE for each in found)
    assert {(each.error_code, each.producer_epoch) for each in found} == {(0, 0)}


def test_transactions_are_refused(kafka_client: KafkaClient) -> None:
    answer = kafka_client.ask(apis.INIT_PRODUCER_ID, 5, Init(transactional_id="x"))
    assert (answer.error_code, answer.producer_id) == (errors.UNSUPPORTED_VERSION, -1)
