"""An operator and a broker: each believes the other once it has proved that it knows the secret."""

from __future__ import annotations

import msgspec.structs
import pytest

from raftlog.errors import AccessDeniedError
from raftlog.protocol.peer import NONCE_BYTES
from raftlog.protocol.security import Asking, Granting, OperatorHelloRequest

SECRET = b"the cluster's secret"


def asking(secret: bytes = SECRET, number: int = 1) -> Asking:
    return Asking(secret, number.to_bytes(NONCE_BYTES, "little"))


def granting(secret: bytes = SECRET, number: int = 2) -> Granting:
    return Granting(secret, 7, "c", number.to_bytes(NONCE_BYTES, "little"))


def test_both_know_the_secret() -> None:
    one, other = asking(), granting()
    other.check(one.check(other.answer(one.hello())))


@pytest.mark.parametrize("secret", [b"", b"another", SECRET + b"!"])
def test_who_does_not_know_it_is_found_out(secret: bytes) -> None:
    other = granting()
    with pytest.raises(AccessDeniedError, match="broker 7 has a different cluster secret"):
        asking(secret).check(other.answer(asking().hello()))
    stranger = asking(secret)
    forged = granting(secret).answer(stranger.hello())
    other = granting()
    other.answer(stranger.hello())
    with pytest.raises(AccessDeniedError, match="the operator has a different cluster secret"):
        other.check(stranger.check(forged))


def test_a_recorded_proof_is_of_no_use_later() -> None:
    one, other = asking(), granting()
    prove = one.check(other.answer(one.hello()))
    later = granting(number=3)
    later.answer(one.hello())
    with pytest.raises(AccessDeniedError):
        later.check(prove)


def test_there_is_one_try_after_a_hello() -> None:
    one, other = asking(), granting()
    prove = one.check(other.answer(one.hello()))
    other.check(prove)
    with pytest.raises(AccessDeniedError, match="without operator_hello"):
        other.check(prove)
    with pytest.raises(AccessDeniedError, match="without operator_hello"):
        granting().check(prove)


@pytest.mark.parametrize("field", ["broker", "cluster_id", "nonce"])
def test_nothing_that_the_broker_says_can_be_changed_on_the_way(field: str) -> None:
    one = asking()
    response = granting().answer(one.hello())
    wrong = {"broker": 8, "cluster_id": "d", "nonce": bytes(NONCE_BYTES)}[field]
    with pytest.raises(AccessDeniedError):
        one.check(msgspec.structs.replace(response, **{field: wrong}))


def test_the_brokers_proof_is_none_of_an_operator() -> None:
    """Who has it answer its own challenge gets a proof of the other role."""
    other = granting()
    response = other.answer(OperatorHelloRequest(nonce=bytes(NONCE_BYTES)))
    proof = msgspec.structs.replace(
        asking().check(granting().answer(asking().hello())), proof=response.proof
    )
    with pytest.raises(AccessDeniedError):
        other.check(proof)
