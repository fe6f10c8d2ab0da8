"""Guards of TLS (certificates, keys, handshakes) and of the console (requests, pages)."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, value
from tests.mutation.guard import Guard

_BROKER: Final = "tests/server/test_tls.py"
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
]
