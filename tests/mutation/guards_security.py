"""Guards of TLS: certificates, keys and handshakes."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import drop, never, value
from tests.mutation.guard import Guard

_BROKER: Final = "tests/server/test_tls.py"

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
]
