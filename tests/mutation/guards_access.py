"""Guards of authorization: rules, and the requests that they decide about."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import drop, never, value
from tests.mutation.guard import Guard

_RULES: Final = "tests/server/access/test_rules.py"
_AUDIT: Final = "tests/server/access/test_audit.py"
_CONTROL: Final = "tests/server/access/test_control.py"
_KAFKA: Final = "tests/server/kafka/test_dispatch.py"
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
        name="a client over its quota waits",
        why="one client uses the whole broker",
        module="raftlog/server/exchange.py",
        function="Exchange._throttle",
        change=drop("call throttle"),
        tests=("tests/server/access/test_meter.py::test_a_producer_over_its_quota_waits",),
    ),
    Guard(
        name="the connections of a user are limited by its quota",
        why="one user occupies all connections of a broker",
        module="raftlog/server/access/control.py",
        function="AccessControl._count",
        change=never("if ThrottledError"),
        tests=("tests/server/access/test_meter.py::test_a_user_has_so_many_connections",),
    ),
    Guard(
        name="events of the audit that are not stored are limited",
        why="denied requests fill the memory while the topic has no leader",
        module="raftlog/server/access/audit.py",
        function="Audit.note",
        change=drop("operand AUDIT_EVENTS_PENDING_MAX"),
        tests=(f"{_AUDIT}::test_events_are_bounded_and_dropped_ones_are_counted",),
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
