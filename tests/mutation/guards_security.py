"""Guards of TLS, of authentication, and of the console."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, value
from tests.mutation.guard import Guard

_BROKER: Final = "tests/server/test_tls.py"
_AUTHENTICATION: Final = "tests/server/test_authentication.py"
_STATE: Final = "tests/replication/test_cluster_state.py"
_JUDGE: Final = "raftlog/server/authentication.py"
_REQUESTS: Final = "tests/cli/console/test_guard.py"
_PAGES: Final = "tests/cli/console/test_app.py"

GUARDS: Final = [
    Guard(
        name="a key that every user can read is rejected",
        why="any user of the machine can act as the broker",
        module="raftlog/tls.py",
        function="check_private",
        change=never("if S_IROTH"),
        tests=(
            "tests/test_tls.py::test_only_the_owner_and_the_group_may_use_a_key",
            f"{_BROKER}::test_a_key_that_others_can_read_is_refused",
        ),
    ),
    Guard(
        name="clients check the host name of the broker",
        why="the owner of any certificate of the CA can read and change all records in transit",
        module="raftlog/tls.py",
        function="client_context",
        change=value("assign check_hostname", "False"),
        tests=(f"{_BROKER}::test_a_certificate_for_another_host_is_refused",),
    ),
    Guard(
        name="a broker with a client CA requires certificates",
        why="clients without a certificate read and write every topic",
        module="raftlog/tls.py",
        function="server_context",
        change=drop("assign CERT_REQUIRED"),
        tests=(f"{_BROKER}::test_a_broker_with_a_client_ca_serves_its_certificates_only",),
    ),
    Guard(
        name="the number of unfinished TLS handshakes is limited",
        why="connections that never finish a handshake occupy memory without a limit",
        module="raftlog/server/tls.py",
        function="ListenerContext.wrap_bio",
        change=never("if TLS_HANDSHAKES_MAX"),
        tests=(f"{_BROKER}::test_unfinished_handshakes_are_bounded_in_number",),
    ),
    Guard(
        name="a console that changes the cluster listens on the loopback interface",
        why="any machine of the network creates topics and resets groups, without a password",
        module="raftlog/config/broker.py",
        function="_check_http",
        change=never("if is_loopback"),
        tests=("tests/config/test_broker.py::test_a_console_that_writes_is_local",),
    ),
    Guard(
        name="a read-only console changes nothing",
        why="the setting http.console.read.only has no effect",
        module="cli/console/guard.py",
        function="change_refusal",
        change=never("if #1/4"),
        tests=(
            f"{_REQUESTS}::test_other_changes_are_refused",
            f"{_PAGES}::test_a_read_only_console_changes_nothing",
        ),
    ),
    Guard(
        name="a change needs the token of the console's own pages",
        why="a page of another site changes the cluster through the browser of an operator",
        module="cli/console/guard.py",
        function="change_refusal",
        change=never("if TOKEN_FIELD"),
        tests=(
            f"{_REQUESTS}::test_other_changes_are_refused",
            f"{_PAGES}::test_a_change_needs_the_token_and_the_origin",
        ),
    ),
    Guard(
        name="a loopback console serves only names of the loopback interface",
        why="a site whose name resolves to 127.0.0.1 reads records through an operator's browser",
        module="cli/console/guard.py",
        function="refusal",
        change=always("if Address"),
        tests=(
            f"{_REQUESTS}::test_a_loopback_port_refuses_names_that_a_site_may_point_to_it",
            f"{_PAGES}::test_other_hosts_are_refused_on_a_loopback_port",
        ),
    ),
    Guard(
        name="pages escape every value",
        why="a record, a header or a client id runs code in the browser of an operator",
        module="cli/console/app.py",
        function="Console._templates",
        change=argument("call Environment", "autoescape", "False"),
        tests=(f"{_PAGES}::test_records_cannot_add_markup_to_a_page",),
    ),
    Guard(
        name="requests before authentication are rejected",
        why="clients without credentials read and write every topic",
        module=_JUDGE,
        function="Authenticator.check",
        change=never("if is_authenticated"),
        tests=(
            f"{_AUTHENTICATION}::test_requests_before_authentication_end_the_connection",
            f"{_AUTHENTICATION}::test_a_kafka_client_must_authenticate_too",
        ),
    ),
    Guard(
        name="a session ends after its lifetime",
        why="a client with an expired session continues for ever",
        module=_JUDGE,
        function="Authenticator.check",
        change=never("if time"),
        tests=(f"{_AUTHENTICATION}::test_a_session_ends_unless_the_client_authenticates_again",),
    ),
    Guard(
        name="a dispatched request is checked",
        why="the check exists, and no request is checked",
        module="raftlog/server/dispatch.py",
        function="_check_access",
        change=drop("call check"),
        tests=(f"{_AUTHENTICATION}::test_requests_before_authentication_end_the_connection",),
    ),
    Guard(
        name="a request of a Kafka client is checked",
        why="Kafka clients without credentials read and write every topic",
        module="raftlog/server/kafka/dispatch.py",
        function="dispatch",
        change=never("if BEFORE_AUTHENTICATION"),
        tests=(f"{_AUTHENTICATION}::test_a_kafka_client_must_authenticate_too",),
    ),
    Guard(
        name="an exchange is one attempt",
        why="a connection guesses passwords without a pause",
        module=_JUDGE,
        function="Authenticator.begin",
        change=never("if exchange is_rejected"),
        tests=(f"{_AUTHENTICATION}::test_an_exchange_is_one_attempt",),
    ),
    Guard(
        name="an address that fails too often is refused",
        why="an attacker guesses passwords on many connections at a time",
        module=_JUDGE,
        function="Authenticator.begin",
        change=never("if is_reached"),
        tests=(
            f"{_AUTHENTICATION}::test_an_address_that_fails_too_often_is_refused_before_any_work",
        ),
    ),
    Guard(
        name="a broker that knows no users rejects no password",
        why="clients fail for good while a broker starts",
        module=_JUDGE,
        function="Authenticator.begin",
        change=never("if _has_users"),
        tests=(f"{_AUTHENTICATION}::test_a_broker_without_users_rejects_no_password",),
    ),
    Guard(
        name="PLAIN requires TLS",
        why="a password is sent unencrypted",
        module=_JUDGE,
        function="Authenticator.begin",
        change=never("if mechanisms"),
        tests=(f"{_AUTHENTICATION}::test_a_plain_password_requires_tls",),
    ),
    Guard(
        name="a credential is compared again at the end of the exchange",
        why="a user that is deleted during its exchange stays connected",
        module=_JUDGE,
        function="Authenticator._accept",
        change=never("if used has"),
        tests=(f"{_AUTHENTICATION}::test_a_user_that_is_deleted_during_the_exchange_is_rejected",),
    ),
    Guard(
        name="a connection keeps its user",
        why="requests in flight continue with the rights of another user",
        module=_JUDGE,
        function="Authenticator._accept",
        change=never("if has_sasl"),
        tests=(f"{_AUTHENTICATION}::test_a_connection_stays_with_its_user",),
    ),
    Guard(
        name="connections of revoked users are closed",
        why="a user that is deleted stays connected",
        module="raftlog/server/broker.py",
        function="Broker._users_changed",
        change=drop("call close_each"),
        tests=(f"{_AUTHENTICATION}::test_open_connections_of_a_revoked_user_are_closed",),
    ),
    Guard(
        name="a client that has not authenticated sends short requests only",
        why="clients without credentials use the memory for requests",
        module="raftlog/server/listener.py",
        function="Connections.__init__",
        change=never("if authentication_required"),
        tests=(f"{_AUTHENTICATION}::test_a_long_first_request_ends_the_connection",),
    ),
    Guard(
        name="a client must authenticate in time",
        why="connections without credentials occupy all of max.connections",
        module="raftlog/server/listener.py",
        function="Connections._sweep",
        change=never("if _must_leave"),
        tests=(f"{_AUTHENTICATION}::test_a_client_that_does_not_authenticate_is_sent_away",),
    ),
    Guard(
        name="users of an open cluster require the secret",
        why="an attacker creates an administrator before authentication is required",
        module="raftlog/server/requests/users.py",
        function="check_allowed",
        change=drop("call check_operator"),
        tests=(f"{_AUTHENTICATION}::test_users_of_an_open_cluster_require_the_secret",),
    ),
    Guard(
        name="the first user is created once",
        why="a broker with an old file creates an administrator again",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._put_user",
        change=never("if user_secret"),
        tests=(f"{_STATE}::test_a_cluster_has_one_first_user_and_one_secret",),
    ),
    Guard(
        name="a client limits the iterations of SCRAM",
        why="a broker occupies the CPU of a client for seconds",
        module="raftlog/security/scram.py",
        function="ScramClient.final",
        change=never("if SCRAM_ITERATIONS_MAX"),
        tests=("tests/security/test_scram.py::test_a_broker_cannot_make_a_client_work_for_ever",),
    ),
    Guard(
        name="an exposed broker is secured",
        why="every host that reaches the port reads, changes and deletes all data",
        module="raftlog/server/main.py",
        function="_serve",
        change=drop("call check_exposure"),
        tests=("tests/cli/test_broker.py::test_an_exposed_broker_says_how_to_secure_it",),
    ),
]
