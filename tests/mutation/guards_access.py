"""Guards of authorization: rules, and the requests that they decide about."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import drop, never, value
from tests.mutation.guard import Guard

_RULES: Final = "tests/server/access/test_rules.py"
_CONTROL: Final = "tests/server/access/test_control.py"
_KAFKA: Final = "tests/server/kafka/test_access.py"
_ACL: Final = "tests/security/test_acl.py"

GUARDS: Final = [
    Guard(
        name="access rules decide about each request",
        why="a client reads and writes every topic",
        module="raftlog/server/dispatch.py",
        function="dispatch",
        change=never("if applies_to"),
        tests=(f"{_RULES}::test_each_topic_is_permitted_or_denied_by_itself",),
    ),
    Guard(
        name="access rules decide about each Kafka request",
        why="a Kafka client reads and writes every topic",
        module="raftlog/server/kafka/dispatch.py",
        function="dispatch",
        change=never("if applies_to"),
        tests=(f"{_KAFKA}::test_each_topic_is_permitted_or_denied_by_itself",),
    ),
    Guard(
        name="a rule that denies outweighs those that allow",
        why="an administrator cannot exclude a user from what a wider rule allows",
        module="raftlog/security/acl.py",
        function="Question.decide",
        change=drop("for _denying"),
        tests=(f"{_ACL}::test_a_rule_that_denies_outweighs_those_that_allow",),
    ),
    Guard(
        name="a batch has the producer id of its client",
        why="a batch under the id of another producer replaces a batch of it",
        module="raftlog/server/access/control.py",
        function="Caller.check_producer_id",
        change=never("if TransactionalIdAuthorizationFailedError"),
        tests=(
            f"{_RULES}::test_a_producer_id_belongs_to_the_principal_that_got_it",
            f"{_KAFKA}::test_a_producer_id_belongs_to_the_principal_that_got_it",
        ),
    ),
    Guard(
        name="the name of a producer requires a rule",
        why="a client writes under the name of another producer, whose records then are duplicates",
        module="raftlog/server/access/rules.py",
        function="_produce",
        change=never("if producer"),
        tests=(f"{_RULES}::test_the_name_of_a_producer_needs_a_rule",),
    ),
    Guard(
        name="a proof of the cluster secret permits nothing but the cluster",
        why="an operator reads the records of every topic",
        module="raftlog/server/access/control.py",
        function="Caller.decide",
        change=value("if _is_operator", "_.values[0]"),
        tests=(f"{_CONTROL}::test_a_proof_of_the_cluster_secret_permits_the_cluster_only",),
    ),
]
