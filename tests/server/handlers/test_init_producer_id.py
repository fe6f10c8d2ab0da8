"""Producer ids: nobody gets one that another has had."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from raftlog.protocol import api as apis
from raftlog.protocol.records import InitProducerIdRequest, InitProducerIdResponse
from raftlog.security.producer_ids import NAMED_ID_BASE
from tests.server.harness import Client, running


def ask(client: Client) -> InitProducerIdResponse:
    answer: InitProducerIdResponse = client.ask(apis.INIT_PRODUCER_ID, InitProducerIdRequest())
    return answer


def test_ids_are_fresh_even_after_a_restart(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        with running(tmp_path) as broker, broker.client() as client:
            for _ in range(20):
                answer = ask(client)
                assert answer.producer_epoch == 0
                seen.append(answer.producer_id)
    assert len(set(seen)) == len(seen)


def test_ids_do_not_follow_from_those_of_others(client: Client) -> None:
    ids = sorted(ask(client).producer_id for _ in range(20))
    assert 0 <= ids[0] < ids[-1] < NAMED_ID_BASE
    assert min(b - a for a, b in pairwise(ids)) > 1 << 30


def test_requests_in_flight_together_get_different_ids(client: Client) -> None:
    sent = [client.send(apis.INIT_PRODUCER_ID, InitProducerIdRequest()) for _ in range(50)]
    ids = {getattr(client.answer(id_).message, "producer_id") for id_ in sent}  # noqa: B009
    assert len(ids) == 50
