"""Which quota applies, and how long a client that has used more has to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.security.quota import DEFAULT, QUOTA_KEYS, Bucket, QuotaEntity, QuotaKey, Quotas


def quotas(
    *given_quotas: tuple[QuotaEntity, float], key: QuotaKey = "producer_byte_rate"
) -> Quotas:
    made = Quotas()
    for entity, rate in given_quotas:
        made.put(entity, {key: rate})
    return made


@given(
    rate=st.floats(1, 1e6),
    amounts=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 5)), min_size=1, max_size=50),
)
def test_who_waits_uses_no_more_than_the_rate(
    rate: float, amounts: list[tuple[float, float]]
) -> None:
    """A client that waits for as long as the bucket demands."""
    bucket, now, used = Bucket(rate, 0.0), 0.0, 0.0
    for amount, pause in amounts:
        now += pause
        used += amount
        now += bucket.take(amount, rate, now)
        # What is left of the debt after the wait is none.
        assert used <= rate * (now + limits.QUOTA_BURST_S) * 1.000_001 + 1e-3


def test_a_rest_gives_no_more_than_a_burst() -> None:
    bucket = Bucket(10.0, 0.0)
    assert bucket.take(10.0, 10.0, 100.0) == 0.0
    assert bucket.take(10.0, 10.0, 100.0) == 1.0


def test_a_lower_rate_applies_at_once() -> None:
    bucket = Bucket(1_000.0, 0.0)
    assert bucket.take(20.0, 10.0, 0.0) == 1.0


def test_the_most_specific_quota_applies() -> None:
    """The order of KIP-55."""
    order = [
        QuotaEntity("alice", "app"),
        QuotaEntity("alice", DEFAULT),
        QuotaEntity("alice"),
        QuotaEntity(DEFAULT, "app"),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT),
        QuotaEntity(None, "app"),
        QuotaEntity(None, DEFAULT),
    ]
    found = quotas(*((entity, float(index)) for index, entity in enumerate(order, start=1)))
    for index, entity in enumerate(order, start=1):
        assert found.rate("producer_byte_rate", "alice", "app") == index
        found.put(entity, {})
    assert found.rate("producer_byte_rate", "alice", "app") is None
    assert not found.has("producer_byte_rate")


def test_other_limits_of_a_more_specific_entity_hide_nothing() -> None:
    found = quotas((QuotaEntity("alice"), 5.0))
    found.put(QuotaEntity("alice", "app"), {"consumer_byte_rate": 1.0})
    assert found.rate("producer_byte_rate", "alice", "app") == 5.0


def test_clients_of_a_user_share_its_quota_and_users_share_none() -> None:
    found = quotas((QuotaEntity(DEFAULT), 10.0))
    key: QuotaKey = "producer_byte_rate"
    assert found.use(key, "alice", "one", 10, now=0.0) == 0.0
    assert found.use(key, "alice", "two", 10, now=0.0) == 1.0
    assert found.use(key, "bob", "one", 10, now=0.0) == 0.0
    assert found.use("consumer_byte_rate", "alice", "one", 1e9, now=0.0) == 0.0


def test_each_client_id_has_a_default_of_its_own() -> None:
    found = quotas((QuotaEntity(None, DEFAULT), 10.0))
    key: QuotaKey = "producer_byte_rate"
    assert found.use(key, "alice", "one", 20, now=0.0) == 1.0
    assert found.use(key, "alice", "two", 10, now=0.0) == 0.0
    assert found.use(key, "bob", "one", 10, now=0.0) == 2.0


def test_an_address_opens_connections_at_its_rate() -> None:
    found = quotas((QuotaEntity(address=DEFAULT), 2.0), key="connection_creation_rate")
    opened = [found.connect("10.0.0.1", now=0.0) for _ in range(10)]
    assert opened == [True] * 3 + [False] * 7  # a burst, and the one that overdraws
    assert found.connect("10.0.0.2", now=0.0)
    assert not found.connect("10.0.0.1", now=0.4)
    assert found.connect("10.0.0.1", now=0.5)
    assert Quotas().connect("10.0.0.1", now=0.0)


def test_what_is_counted_is_bounded() -> None:
    found = quotas((QuotaEntity(None, DEFAULT), 1.0))
    key: QuotaKey = "producer_byte_rate"
    assert found.use(key, "u", "first", 2, now=0.0) == 1.0
    for number in range(limits.QUOTA_BUCKETS_MAX):
        found.use(key, "u", str(number), 0, now=0.0)
    assert found.use(key, "u", "first", 1, now=0.0) == 0.0  # it was forgotten


@pytest.mark.parametrize(
    ("entity", "complaint"),
    [
        (QuotaEntity(), "requires a user"),
        (QuotaEntity(user=""), "0 characters"),
        (QuotaEntity(user="a", address="10.0.0.1"), "cannot have a user"),
        (QuotaEntity(address="*"), "<default>"),
        (QuotaEntity(address="host"), "not an IP address"),
    ],
)
def test_an_entity_that_selects_nothing_is_refused(entity: QuotaEntity, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        entity.checked()


def test_an_entity_has_the_limits_that_can_be_enforced_for_it() -> None:
    assert QuotaEntity(address="::ffff:10.0.0.1").checked() == QuotaEntity(address="10.0.0.1")
    permitted = {
        entity: {key for key in QUOTA_KEYS if not _is_refused(entity, key)}
        for entity in (QuotaEntity("a"), QuotaEntity(None, "c"), QuotaEntity(address=DEFAULT))
    }
    user, client, address = permitted.values()
    assert user == set(QUOTA_KEYS) - {"connection_creation_rate"}
    assert client == user - {"connections"}
    assert address == {"connection_creation_rate"}


def _is_refused(entity: QuotaEntity, key: QuotaKey) -> bool:
    try:
        entity.checked().check_key(key)
    except InvalidRequestError:
        return True
    return False
