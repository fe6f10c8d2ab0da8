"""Access rules and quotas: the bounds in their fields."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from typing import Any, Final

import msgspec.structs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import (
    AccessDeniedError,
    BrokerIdInUseError,
    BrokerUnavailableError,
    RaftlogError,
    StaleBrokerError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftlog.protocol.peer import (
    NONCE_BYTES,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerIdentity,
    PeerProveRequest,
)
from raftlog.protocol.security import (
    PEER_PROTOCOL_VERSION,
    PEER_PROTOCOL_VERSION_MIN,
    AlterQuotasRequest,
    Answering,
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Asking,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    Dialling,
    Granting,
    OperatorHelloRequest,
    check_boot,
    check_cluster,
    check_journal,
)
from tests.protocol import strategies
from tests.protocol.fields import accepted, refused

ACL: dict[str, Any] = {
    "principal": "User:a",
    "operation": "READ",
    "resource_type": "TOPIC",
    "resource_name": "t",
}


@pytest.mark.parametrize(
    "bad",
    [
        {"principal": "x" * 513},
        {"operation": "read"},
        {"resource_type": "USER"},
        {"resource_name": "x" * 513},
        {"pattern_type": "MATCH"},
        {"permission": "MAYBE"},
        {"host": "x" * 256},
    ],
)
def test_a_rule_has_bounds(bad: dict[str, Any]) -> None:
    accepted(CreateAclsRequest, {"acls": [ACL]})
    refused(CreateAclsRequest, {"acls": [ACL | bad]}, path=next(iter(bad)))


def test_the_number_of_rules_and_filters_is_bounded() -> None:
    refused(CreateAclsRequest, {"acls": []}, path="acls")
    many = [ACL] * (limits.ACLS_PER_REQUEST_MAX + 1)
    refused(CreateAclsRequest, {"acls": many}, path="acls")
    accepted(DescribeAclsRequest, {"filter": {}})
    many = [{}] * (limits.ACL_FILTERS_PER_REQUEST_MAX + 1)
    refused(DeleteAclsRequest, {"filters": many}, path="filters")


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e16, float("nan"), "5"])
def test_a_limit_has_bounds(rate: Any) -> None:
    quota: dict[str, Any] = {"entity": {"user": "a"}, "changes": {"connections": 1.5}}
    accepted(AlterQuotasRequest, {"quotas": [quota]})
    quota["changes"] = {"connections": rate}
    refused(AlterQuotasRequest, {"quotas": [quota]}, path="changes")


# -- handshake -------------------------------------------------------------------------------------
#
# ``api_versions``: bounds of what a stranger may say first.


def test_a_client_need_not_say_who_it_is() -> None:
    assert accepted(ApiVersionsRequest, {}) == ApiVersionsRequest(client_id="", client_software="")


@pytest.mark.parametrize("name", ["client_id", "client_software"])
def test_names_are_bounded(name: str) -> None:
    accepted(ApiVersionsRequest, {name: "é" * limits.CLIENT_ID_CHARS_MAX})
    too_long = {name: "x" * (limits.CLIENT_ID_CHARS_MAX + 1)}
    refused(ApiVersionsRequest, too_long, path=f"$.{name}")


def answer(**versions: Any) -> dict[str, Any]:
    spoken = {"api": 0, "version_min": 0, "version_max": 0, **versions}
    return {"broker_software": "r", "broker_id": 1, "cluster_id": "c", "apis": [spoken]}


def test_a_broker_may_speak_what_this_client_does_not_know() -> None:
    message = accepted(ApiVersionsResponse, answer(api=65_535, version_max=65_535))
    assert isinstance(message, ApiVersionsResponse)
    assert message.apis == [ApiVersionRange(65_535, 0, 65_535)]


@pytest.mark.parametrize("name", ["api", "version_min", "version_max"])
@pytest.mark.parametrize("value", [-1, 65_536, "0", None, 1.5])
def test_versions_are_numbers_that_fit_a_frame(name: str, value: Any) -> None:
    refused(ApiVersionsResponse, answer(**{name: value}), path=f"$.apis[0].{name}")


# -- operator auth ---------------------------------------------------------------------------------
#
# An operator and a broker: each believes the other once it has proved that it knows the secret.


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


# -- peer auth -------------------------------------------------------------------------------------
#
# Two brokers and those who would pass for one: who is believed, and who learns nothing.


def identity(broker_id: int, **fields: Any) -> PeerIdentity:
    usual: dict[str, Any] = {
        "directory_id": f"d{broker_id}",
        "boot": 1,
        "host": f"10.0.0.{broker_id}",
        "port": 9100,
        "protocol_version": 1,
        "cluster_id": "c",
    }
    return PeerIdentity(broker_id=broker_id, **{**usual, **fields})


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "little")


ONE, TWO, THREE = identity(1), identity(2), identity(3)


def dialling(
    me: PeerIdentity = ONE,
    *,
    secret: bytes = SECRET,
    number: int = 1,
    expected: int | None = None,
) -> Dialling:
    return Dialling(secret, me, nonce(number), expected=expected)


def answering(me: PeerIdentity = TWO, *, secret: bytes = SECRET, number: int = 2) -> Answering:
    return Answering(secret, me, nonce(number))


def proof(
    role: str, hello: PeerHelloRequest, answerer: PeerIdentity, *, secret: bytes = SECRET
) -> bytes:
    """The proof of an answering side whose nonce is 2, or of the side that dialled it."""
    fields: list[bytes] = [f"raftlog peer, {role}".encode()]
    for one, random in ((hello.identity, hello.nonce), (answerer, nonce(2))):
        *always, history = (str(value).encode() for value in msgspec.structs.astuple(one))
        fields += [*always, history] if history else always
        fields.append(random)
    data = b"".join(len(field).to_bytes(4, "little") + field for field in fields)
    return hmac.new(secret, data, hashlib.sha256).digest()


def shake_hands(one: Dialling, other: Answering) -> PeerIdentity:
    """Raises whatever either of them does. The peer that the answering side has."""
    return other.check(one.check(other.answer(one.hello())))


# -- those who know the secret ---------------------------------------------------------------------


def test_two_brokers_believe_each_other() -> None:
    one, other = dialling(expected=2), answering()
    response = other.answer(one.hello())
    assert response.identity == TWO
    assert other.check(one.check(response)) == ONE


@given(
    strategies.messages(PeerIdentity),
    strategies.messages(PeerIdentity),
    st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
    st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
    st.binary(max_size=100),
)
def test_any_two_that_differ_and_share_the_secret_do(
    one: PeerIdentity, other: PeerIdentity, first: bytes, second: bytes, secret: bytes
) -> None:
    one = msgspec.structs.replace(one, broker_id=1, directory_id="a", cluster_id="")
    one = msgspec.structs.replace(one, protocol_version=PEER_PROTOCOL_VERSION)
    other = msgspec.structs.replace(other, broker_id=2, directory_id="b")
    other = msgspec.structs.replace(other, protocol_version=PEER_PROTOCOL_VERSION)
    assert shake_hands(Dialling(secret, one, first), Answering(secret, other, second)) == one


@pytest.mark.parametrize(("mine", "theirs"), [("", "c"), ("c", ""), ("", "")])
def test_a_broker_that_has_yet_to_join_is_let_in(mine: str, theirs: str) -> None:
    one, two = identity(1, cluster_id=mine), identity(2, cluster_id=theirs)
    assert shake_hands(dialling(one), answering(two)) == one


def test_another_cluster_is_told_so_by_both_sides() -> None:
    """Once both have proved themselves, so that each knows that it is a broker who says so."""
    stranger = identity(2, cluster_id="other")
    assert shake_hands(dialling(), answering(stranger)) == ONE
    with pytest.raises(WrongClusterError, match=r"broker 2 .* cluster other, but broker 1 to c"):
        check_cluster(ONE, stranger)
    with pytest.raises(WrongClusterError, match=r"broker 1 .* cluster c, but broker 2 to other"):
        check_cluster(stranger, ONE)


def test_another_list_of_voters_is_another_cluster() -> None:
    one = identity(1, voters="1,2,3", cluster_id="")
    other = identity(3, voters="3", cluster_id="")
    check_cluster(one, identity(3, voters="1,2,3", cluster_id=""))
    with pytest.raises(WrongClusterError, match=r"broker 3 .* voters 3, but broker 1 has 1,2,3"):
        check_cluster(one, other)
    with pytest.raises(WrongClusterError, match=r"broker 1 .* voters 1,2,3, but broker 3 has 3"):
        check_cluster(other, one)


def test_the_configured_voters_matter_only_until_there_is_a_cluster() -> None:
    """Later its state names them, and brokers that joined have no such list."""
    for mine, theirs in (("c", "c"), ("c", ""), ("", "c")):
        one = identity(1, voters="1,2,3", cluster_id=mine)
        check_cluster(one, identity(3, voters="3", cluster_id=theirs))
    check_cluster(identity(1, voters="1,2,3", cluster_id=""), identity(4, voters="", cluster_id=""))


def test_a_namesake_is_refused_before_it_gets_a_proof() -> None:
    namesake = identity(2, directory_id="another", host="10.9.9.9")
    with pytest.raises(BrokerIdInUseError, match=r"ID 2: data directory d2 .* another at 10.9.9.9"):
        answering().answer(dialling(namesake).hello())


def test_a_namesake_that_answers_is_refused() -> None:
    """An answering side that does not look at who asks: a broker of this release would."""
    response = forged(dialling(), identity(1, directory_id="another"))
    with pytest.raises(BrokerIdInUseError, match="two brokers have the ID 1"):
        dialling().check(response)


@pytest.mark.parametrize("broker_id", [2, 7])
def test_its_own_data_directory_is_refused(broker_id: int) -> None:
    """A broker that dialled itself, or a copy of its directory under whatever id."""
    copy = identity(broker_id, directory_id="d2")
    with pytest.raises(AccessDeniedError, match=r"its own data directory \(d2\)"):
        answering().answer(dialling(copy).hello())


def test_another_broker_than_expected_may_be_asked_for_again() -> None:
    with pytest.raises(BrokerUnavailableError, match=r"expected broker 3 .* broker 2 responded"):
        shake_hands(dialling(expected=3), answering())


def test_a_version_of_long_ago_is_refused_by_both_sides() -> None:
    old = {"protocol_version": PEER_PROTOCOL_VERSION_MIN - 1}
    with pytest.raises(UnsupportedVersionError, match=r"broker 2 supports .* Upgrade broker 2"):
        shake_hands(dialling(), answering(identity(2, **old)))
    with pytest.raises(UnsupportedVersionError, match=r"broker 1 supports .* Upgrade broker 1"):
        shake_hands(dialling(identity(1, **old)), answering())


def test_a_newer_version_comes_down_to_ours() -> None:
    newer = identity(1, protocol_version=PEER_PROTOCOL_VERSION + 5)
    assert shake_hands(dialling(newer), answering()) == newer


# -- those who do not ------------------------------------------------------------------------------


def forged(one: Dialling, by: PeerIdentity, *, secret: bytes = SECRET) -> PeerHelloResponse:
    """What an answering side that checks nothing says to ``one``."""
    right = proof("answering", one.hello(), by, secret=secret)
    return PeerHelloResponse(identity=by, nonce=nonce(2), proof=right)


def test_a_proof_is_what_the_page_says() -> None:
    """Computed here by itself: another implementation has to come to the same."""
    one, other = dialling(), answering()
    response = other.answer(one.hello())
    assert response == forged(one, TWO)
    assert one.check(response).proof == proof("dialling", one.hello(), TWO)
    golden = "b51e2f5b24fb62e4bc978607c146b4f06b74f74203dda31950b2c2c5aa780474"
    assert response.proof.hex() == golden


@pytest.mark.parametrize("secret", [b"", b"another", SECRET + b"!", SECRET[:-1]])
def test_another_secret_is_found_out_by_whoever_looks_first(secret: bytes) -> None:
    with pytest.raises(AccessDeniedError, match=r"broker 2 at 10.0.0.2:9100 has a different"):
        shake_hands(dialling(), answering(secret=secret))


def test_the_answering_side_finds_out_a_dialling_one_that_does_not_look() -> None:
    other = answering()
    stranger = dialling(secret=b"another")
    other.answer(stranger.hello())
    prove = stranger.check(forged(stranger, TWO, secret=b"another"))
    with pytest.raises(AccessDeniedError, match=r"broker 1 at 10.0.0.1:9100 has a different"):
        other.check(prove)


def test_a_proof_recorded_from_the_answering_side_is_of_no_use() -> None:
    recorded = answering().answer(dialling(number=1).hello())
    with pytest.raises(AccessDeniedError):
        dialling(number=77).check(recorded)


def test_a_proof_recorded_from_the_dialling_side_is_of_no_use() -> None:
    one, other = dialling(), answering()
    hello = one.hello()
    recorded = one.check(other.answer(hello))
    later = answering(number=78)
    later.answer(hello)
    with pytest.raises(AccessDeniedError):
        later.check(recorded)


def test_a_broker_cannot_be_made_to_prove_itself_to_itself() -> None:
    """Reflection: its own hello sent back to it gets no proof, on any connection."""
    with pytest.raises(AccessDeniedError):
        answering(ONE).answer(dialling(ONE).hello())
    reflected = forged(dialling(ONE), ONE)
    with pytest.raises(AccessDeniedError):
        dialling(ONE).check(reflected)


def test_the_proof_of_one_role_is_none_of_the_other() -> None:
    """Even with the same identities and nonces: the answering side's proof given back to it."""
    other = answering()
    response = other.answer(dialling().hello())
    with pytest.raises(AccessDeniedError):
        other.check(PeerProveRequest(proof=response.proof))


def test_the_challenge_of_one_cannot_be_answered_by_another_of_its_peers() -> None:
    """A stranger dials 2 as 1, and has 1 answer: roles and nonces are those of another pair."""
    other = answering()
    claimed = PeerHelloRequest(identity=THREE, nonce=nonce(5))
    response = other.answer(claimed)
    oracle = answering(ONE, number=6)
    got = oracle.answer(PeerHelloRequest(identity=TWO, nonce=response.nonce))
    with pytest.raises(AccessDeniedError):
        other.check(PeerProveRequest(proof=got.proof))


FIELDS = [
    "broker_id",
    "directory_id",
    "boot",
    "host",
    "port",
    "protocol_version",
    "cluster_id",
    "run",
    "journal_sequence",
    "voters",
    "history",
]


def test_these_tests_know_every_field_of_an_identity() -> None:
    assert list(PeerIdentity.__struct_fields__) == FIELDS


def altered(one: PeerIdentity, name: str) -> PeerIdentity:
    value = getattr(one, name)
    other = value + "x" if isinstance(value, str) else value + 5
    return msgspec.structs.replace(one, **{name: other})


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_an_identity_can_be_changed_on_the_way(name: str) -> None:
    one, other = dialling(), answering()
    response = other.answer(one.hello())
    wrong = msgspec.structs.replace(response, identity=altered(TWO, name))
    with pytest.raises(AccessDeniedError):
        one.check(wrong)

    one, other = dialling(), answering()
    hello = msgspec.structs.replace(one.hello(), identity=altered(ONE, name))
    with pytest.raises(AccessDeniedError):
        one.check(other.answer(hello))


@pytest.mark.parametrize("name", ["nonce", "proof"])
@given(bit=st.integers(0, 8 * NONCE_BYTES - 1))
def test_no_bit_of_an_answer_can_be_changed_on_the_way(name: str, bit: int) -> None:
    one = dialling()
    response = answering().answer(one.hello())
    value = int.from_bytes(getattr(response, name), "little") ^ (1 << bit)
    wrong = msgspec.structs.replace(response, **{name: nonce(value)})
    with pytest.raises(AccessDeniedError):
        one.check(wrong)


# -- out of turn -----------------------------------------------------------------------------------


def test_there_is_one_try() -> None:
    one, other = dialling(), answering()
    prove = one.check(other.answer(one.hello()))
    with pytest.raises(AccessDeniedError):
        other.check(PeerProveRequest(proof=bytes(len(prove.proof))))
    with pytest.raises(AccessDeniedError, match="without peer_hello"):
        other.check(prove)


def test_a_proof_is_good_once() -> None:
    one, other = dialling(), answering()
    prove = one.check(other.answer(one.hello()))
    assert other.check(prove) == ONE
    with pytest.raises(AccessDeniedError, match="without peer_hello"):
        other.check(prove)


def test_a_proof_comes_after_a_hello() -> None:
    with pytest.raises(AccessDeniedError, match="without peer_hello"):
        answering().check(PeerProveRequest(proof=nonce(0)))


def test_one_connection_says_hello_once() -> None:
    other = answering()
    other.answer(dialling().hello())
    with pytest.raises(AccessDeniedError, match="second peer_hello"):
        other.answer(dialling(THREE).hello())


def test_after_a_refused_hello_nothing_else_is_heard() -> None:
    other = answering()
    with pytest.raises(BrokerIdInUseError):
        other.answer(dialling(identity(2, directory_id="another")).hello())
    with pytest.raises(AccessDeniedError):
        other.answer(dialling().hello())
    with pytest.raises(AccessDeniedError):
        other.check(PeerProveRequest(proof=nonce(0)))


def test_one_hello_is_answered_once() -> None:
    one = dialling()
    response = answering().answer(one.hello())
    one.check(response)
    with pytest.raises(AccessDeniedError, match="second response"):
        one.check(response)


@given(strategies.messages(PeerHelloRequest), strategies.messages(PeerProveRequest))
def test_a_stranger_gets_nowhere_whatever_it_says(
    hello: PeerHelloRequest, prove: PeerProveRequest
) -> None:
    other = answering()
    with contextlib.suppress(RaftlogError):
        other.answer(hello)
    with pytest.raises(AccessDeniedError):
        other.check(prove)


# -- old copies of a data directory ----------------------------------------------------------------


def test_an_older_boot_of_the_same_directory_is_an_old_copy() -> None:
    check_boot(identity(1, boot=7), seen_directory_id="d1", seen_boot=7)
    check_boot(identity(1, boot=8), seen_directory_id="d1", seen_boot=7)
    with pytest.raises(StaleBrokerError, match="data directory d1: boot 6, but boot 7"):
        check_boot(identity(1, boot=6), seen_directory_id="d1", seen_boot=7)


def test_the_same_boot_in_another_run_is_an_old_copy_too() -> None:
    """Each number is one start's: a copy that is one start behind comes with the number seen."""
    seen = {"seen_directory_id": "d1", "seen_boot": 7, "seen_run": "a"}
    check_boot(identity(1, boot=7, run="a"), **seen)
    check_boot(identity(1, boot=8, run="b"), **seen)
    with pytest.raises(StaleBrokerError, match="an old copy of data directory"):
        check_boot(identity(1, boot=7, run="b"), **seen)


def test_another_directory_begins_to_count_anew() -> None:
    check_boot(identity(1, boot=1), seen_directory_id="gone", seen_boot=7)


# -- journals that have lost their end -------------------------------------------------------------

HEARD: Final[dict[str, Any]] = {"heard_directory_id": "d1", "heard_boot": 7, "heard_sequence": 40}


def test_a_later_boot_has_to_find_all_that_its_journal_told_of() -> None:
    check_journal(identity(1, boot=8, journal_sequence=40), **HEARD)
    check_journal(identity(1, boot=9, journal_sequence=41), **HEARD)
    with pytest.raises(StaleBrokerError) as caught:
        check_journal(identity(1, boot=8, journal_sequence=39), **HEARD)
    assert str(caught.value) == (
        "the consensus journal of broker 1 has lost acknowledged blocks: at boot 8 of data "
        "directory d1 it ends with block 39, but the broker had reported block 40. "
        "Start the broker with an empty data directory. It then copies all data from the other "
        "brokers"
    )


def test_the_boot_that_told_of_it_found_less_by_right() -> None:
    check_journal(identity(1, boot=7, journal_sequence=12), **HEARD)


def test_the_journal_of_another_directory_has_lost_nothing() -> None:
    check_journal(identity(1, boot=8, directory_id="new", journal_sequence=1), **HEARD)
