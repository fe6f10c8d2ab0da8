"""Access: decisions, owners of producer IDs, and quotas."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.config.address import parse_principal_rules
from raftlog.errors import InvalidRequestError
from raftlog.security.acl import (
    ANONYMOUS,
    ANY,
    CLUSTER_NAME,
    OPERATIONS,
    OPERATIONS_OF,
    Acl,
    AclFilter,
    Authorizer,
    Operation,
    Principal,
    applies_to,
    distinguished_name,
    of_certificate,
)
from raftlog.security.producer_ids import (
    MEMBER_BITS,
    NAMED_ID_BASE,
    is_owner,
    member_id,
    named_id,
    owned_id,
)
from raftlog.security.quota import DEFAULT, QUOTA_KEYS, Bucket, QuotaEntity, QuotaKey, Quotas

# -- decisions -------------------------------------------------------------------------------------

# Decisions about access, compared with a model that looks at every rule.


ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")

NAMES = st.text("ab", min_size=1, max_size=4)
ACLS = st.builds(
    Acl,
    principal=st.sampled_from(["User:alice", "User:bob", "User:*"]),
    operation=st.sampled_from(OPERATIONS),
    resource_type=st.sampled_from(["TOPIC", "GROUP"]),
    resource_name=NAMES | st.just(ANY),
    pattern_type=st.sampled_from(["LITERAL", "PREFIXED"]),
    permission=st.sampled_from(["ALLOW", "DENY"]),
    host=st.sampled_from([ANY, "10.0.0.1", "10.0.0.2"]),
)


def authorizer(*acls: Acl, super_users: tuple[Principal, ...] = ()) -> Authorizer:
    made = Authorizer(super_users)
    for acl in acls:
        made.add(acl)
    return made


def decide(rules: Authorizer, who: Principal, operation: Operation, name: str) -> bool:
    return rules.question(who, "10.0.0.1", operation, "TOPIC").decide(name).is_allowed


def expected(
    acls: set[Acl], who: Principal, host: str, operation: str, resource_type: str, name: str
) -> bool:
    """Kafka's documentation, rule by rule."""
    that_apply = [
        acl
        for acl in acls
        if acl.principal in (str(who), "User:*")
        and acl.host in (host, ANY)
        and acl.resource_type == resource_type
        and applies_to(acl, name)
    ]
    if any(acl.permission == "DENY" and acl.operation in (operation, "ALL") for acl in that_apply):
        return False
    enough = {operation, "ALL"}
    if operation == "DESCRIBE":
        enough |= {"READ", "WRITE", "DELETE", "ALTER"}
    if operation == "DESCRIBE_CONFIGS":
        enough |= {"ALTER_CONFIGS"}
    return any(acl.permission == "ALLOW" and acl.operation in enough for acl in that_apply)


@given(
    acls=st.lists(ACLS, max_size=12),
    removed=st.lists(ACLS, max_size=3),
    who=st.sampled_from([ALICE, BOB]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.3"]),
    operation=st.sampled_from(OPERATIONS),
    name=NAMES,
)
def test_a_decision_is_that_of_a_look_at_every_rule(
    acls: list[Acl],
    removed: list[Acl],
    who: Principal,
    host: str,
    operation: Operation,
    name: str,
) -> None:
    rules = authorizer(*acls, *removed)
    for acl in (*removed, *acls[:2]):
        rules.remove(acl)
    left = {*acls} - {*removed, *acls[:2]}
    assert len(rules) == len(left)
    for resource_type in ("TOPIC", "GROUP"):
        question = rules.question(who, host, operation, resource_type)
        decision = question.decide(name)
        is_allowed = expected(left, who, host, operation, resource_type, name)
        assert decision.is_allowed == is_allowed
        if decision.acl is not None:
            assert decision.acl in left
            assert (decision.acl.permission == "ALLOW") == is_allowed
        if is_allowed:
            assert question.decide_any().is_allowed


def test_a_denied_prefix_leaves_other_names() -> None:
    """A prefix is a text, also the prefix "*": only a literal "*" stands for all names."""
    everything = Acl("User:alice", "READ", "TOPIC", "*")
    rules = authorizer(
        everything,
        Acl("User:alice", "READ", "TOPIC", "*", pattern_type="PREFIXED", permission="DENY"),
        Acl("User:alice", "READ", "GROUP", "a", pattern_type="PREFIXED"),
        Acl("User:alice", "READ", "GROUP", "a", permission="DENY"),
    )
    assert rules.question(ALICE, "::1", "READ", "TOPIC").decide_any().acl == everything
    assert rules.question(ALICE, "::1", "READ", "GROUP").decide_any().is_allowed


def test_nothing_is_allowed_without_a_rule() -> None:
    assert not decide(authorizer(), ALICE, "READ", "t")
    assert (
        str(authorizer().question(ALICE, "::1", "READ", "TOPIC").decide("t")) == "no rule applies"
    )


def test_a_rule_that_denies_outweighs_those_that_allow() -> None:
    allow = Acl("User:alice", "READ", "TOPIC", "t")
    deny = Acl("User:*", "READ", "TOPIC", "t", permission="DENY", host="10.0.0.1")
    assert decide(authorizer(allow), ALICE, "READ", "t")
    assert not decide(authorizer(allow, deny), ALICE, "READ", "t")


def test_denied_reading_does_not_deny_describing() -> None:
    deny = Acl("User:alice", "READ", "TOPIC", "t", permission="DENY")
    rules = authorizer(deny, Acl("User:alice", "WRITE", "TOPIC", "t"))
    assert decide(rules, ALICE, "DESCRIBE", "t")
    assert not decide(rules, ALICE, "READ", "t")


def test_rules_do_not_apply_to_super_users() -> None:
    deny = Acl("User:alice", "ALL", "TOPIC", ANY, permission="DENY")
    rules = authorizer(deny, super_users=(ALICE,))
    question = rules.question(ALICE, "::1", "DELETE", "TOPIC")
    assert str(question.decide("t")) == "super.users contains the principal"
    assert question.decide_any().is_allowed
    assert not decide(rules, BOB, "DELETE", "t")


def test_any_topic_is_none_where_all_are_denied() -> None:
    allow = Acl("User:alice", "WRITE", "TOPIC", "a", pattern_type="PREFIXED")
    deny = Acl("User:alice", "WRITE", "TOPIC", ANY, permission="DENY")
    assert authorizer(allow).question(ALICE, "::1", "WRITE", "TOPIC").decide_any().is_allowed
    both = authorizer(allow, deny)
    assert not both.question(ALICE, "::1", "WRITE", "TOPIC").decide_any().is_allowed


@pytest.mark.parametrize(
    ("acl", "complaint"),
    [
        (Acl("alice", "READ", "TOPIC", "t"), "not a principal"),
        (Acl("User:a", "READ", "CLUSTER", CLUSTER_NAME), "has no operation READ"),
        (Acl("User:a", "READ", "TOPIC", ""), "0 characters"),
        (Acl("User:a", "READ", "TOPIC", "x" * 257), "257 characters"),
        (Acl("User:a", "ALTER", "CLUSTER", "other"), "'kafka-cluster', literal"),
        (Acl("User:a", "READ", "TOPIC", "t", host="example.com"), "not an IP address"),
    ],
)
def test_a_rule_that_can_never_apply_is_refused(acl: Acl, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        acl.checked()


def test_hosts_have_one_form() -> None:
    for given_host, host in (("::ffff:10.0.0.1", "10.0.0.1"), ("0:0::1", "::1"), ("*", "*")):
        assert Acl("User:a", "READ", "TOPIC", "t", host=given_host).checked().host == host


def test_every_operation_belongs_to_a_resource_type() -> None:
    assert frozenset().union(*OPERATIONS_OF.values()) == frozenset(OPERATIONS)


@given(acl=ACLS, fields=st.sets(st.sampled_from(Acl.__struct_fields__)), other=ACLS)
def test_a_filter_selects_by_equal_fields(acl: Acl, fields: set[str], other: Acl) -> None:
    chosen = AclFilter(**{name: getattr(acl, name) for name in fields})
    assert chosen.selects(acl)
    assert chosen.selects(other) == all(getattr(other, n) == getattr(acl, n) for n in fields)


@given(acl=ACLS, name=NAMES)
def test_a_matching_filter_selects_the_rules_for_a_name(acl: Acl, name: str) -> None:
    chosen = AclFilter(resource_name=name, pattern_type="MATCH")
    assert chosen.selects(acl) == applies_to(acl, name)


def test_a_decision_does_not_look_at_every_rule() -> None:
    """10,000 names, with as many rules as a cluster may have, in far less time than that."""
    rules = authorizer(
        *(
            Acl("User:*", "READ", "TOPIC", f"{i:05}-", pattern_type="PREFIXED")
            for i in range(limits.ACLS_PER_CLUSTER_MAX)
        )
    )
    question = rules.question(ALICE, "10.0.0.1", "READ", "TOPIC")
    names = [f"{i:05}-clicks" for i in range(10_000)]
    began = time.process_time()
    assert all(question.decide(name).is_allowed for name in names)
    assert time.process_time() - began < 2.0  # with a look at every rule: a minute


# -- principal -------------------------------------------------------------------------------------
#
# Principals and the names of users.


@pytest.mark.parametrize("name", ["alice", "CN=a, O=b", "a:b", "x" * 256, "Zoë"])
def test_a_principal_is_its_text(name: str) -> None:
    principal = Principal.parse(f"User:{name}")
    assert principal == Principal("User", name)
    assert str(principal) == f"User:{name}"


@pytest.mark.parametrize(
    "text",
    ["", "alice", "User:", "user:alice", "Group:a", "User:a\nb", "User:a\0", "User:\ud800",
     "User:" + "x" * (limits.PRINCIPAL_NAME_CHARS_MAX + 1)],
)  # fmt: skip
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Principal.parse(text)


def test_the_anonymous_principal() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ([[("commonName", "alice")]], "alice"),
        ([[("organizationName", "o")], [("commonName", "alice")]], "alice"),
        ([[("commonName", "a\nb")]], None),
        ([[("commonName", "")]], None),
        ([[("organizationName", "o")]], None),
        ([], None),
    ],
)
def test_a_certificate_names_its_owner(subject: list[Any], name: str | None) -> None:
    expected = None if name is None else Principal("User", name)
    assert of_certificate({"subject": subject}) == expected


SUBJECT = [
    [("countryName", "DE")],
    [("organizationName", "Example, Inc.")],
    [("organizationalUnitName", "apps"), ("userId", "7")],
    [("commonName", "Alice")],
]


def test_a_distinguished_name_is_that_of_rfc_2253() -> None:
    assert distinguished_name(SUBJECT) == r"CN=Alice,OU=apps+UID=7,O=Example\, Inc.,C=DE"
    assert distinguished_name([[("commonName", "#a ")]]) == r"CN=\#a\ "
    assert distinguished_name([[("emailAddress", "a@b")]]) == "emailAddress=a@b"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", r"CN=Alice,OU=apps+UID=7,O=Example\, Inc.,C=DE"),
        ("RULE:^CN=(.*?),OU=apps.*$/$1/L,DEFAULT", "alice"),
        ("RULE:^CN=Bob,.*$/bob/ , RULE:.*UID=([0-9]+).*/user-$1/U", "USER-7"),
        ("RULE:CN=Alice/alice/", None),  # it does not match all of the name
        ("RULE:^.*$//", None),
        ("RULE:^CN=(.*?),.*$/$1\\n/", "Alicen"),
    ],
)
def test_rules_make_the_name_of_the_user(rules: str, name: str | None) -> None:
    expected = None if name is None else Principal("User", name)
    assert of_certificate({"subject": SUBJECT}, parse_principal_rules(rules)) == expected


def test_a_long_name_is_not_matched() -> None:
    subject = [[("commonName", "a" * limits.CERTIFICATE_NAME_CHARS_MAX)]]
    rules = parse_principal_rules("RULE:.*/alice/")
    assert of_certificate({"subject": subject}, rules) is None


# -- producer ids ----------------------------------------------------------------------------------

# Whose a producer id is.


PRINCIPALS = st.text(min_size=1).map(lambda name: Principal("User", name))
RANDOM = st.integers(0, (1 << 62) - 1)


@given(principal=PRINCIPALS, random=RANDOM)
def test_an_id_is_its_owners(principal: Principal, random: int) -> None:
    id_ = owned_id(principal, random)
    assert 0 <= id_ < NAMED_ID_BASE
    assert is_owner(principal, id_)


@given(principal=PRINCIPALS, random=RANDOM, other=RANDOM)
def test_ids_of_a_principal_differ_in_42_bits(
    principal: Principal, random: int, other: int
) -> None:
    is_same = owned_id(principal, random) == owned_id(principal, other)
    assert is_same == ((random ^ other) & ((1 << 42) - 1) == 0)


def test_an_id_is_no_one_elses() -> None:
    owners = [Principal("User", f"u{number}") for number in range(300)]
    id_ = owned_id(owners[0], 5)
    assert [owner for owner in owners if is_owner(owner, id_)] == owners[:1]


def test_the_mapping_does_not_change() -> None:
    """Producers hold their ids while brokers are upgraded."""
    assert owned_id(Principal("User", "alice"), 5) >> 42 == 418961
    assert named_id("copy-2024-05-01") == 7044026938543915573
    assert member_id("copy-2024-05-01", 7) == 7044026938543833095


def test_members_of_a_family_differ_in_their_number_only() -> None:
    ids = [member_id("job", member) for member in (0, 1, (1 << MEMBER_BITS) - 1)]
    assert len({one >> MEMBER_BITS for one in ids}) == 1
    assert [one % (1 << MEMBER_BITS) for one in ids] == [0, 1, (1 << MEMBER_BITS) - 1]
    assert all(NAMED_ID_BASE <= one < 1 << 63 for one in ids)
    assert member_id("other job", 0) >> MEMBER_BITS != ids[0] >> MEMBER_BITS


# -- quotas ----------------------------------------------------------------------------------------

# Which quota applies, and how long a client that has used more has to wait.


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
