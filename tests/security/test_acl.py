"""Decisions about access, compared with a model that looks at every rule."""

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
