"""Arguments of clients: what is taken, and what an error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.client import profiles
from raftlog.client.accumulator import BATCH_BYTES, Run
from raftlog.client.producer_core import (
    checked_headers,
    checked_timestamp,
    column,
    columns_of,
    cut,
    octets,
)
from raftlog.client.settings import (
    KAFKA_SEED,
    POSITIVE,
    Security,
    checked,
    connection_settings,
    consumer_settings,
    function,
    groups,
    integer,
    parse_bootstrap,
    partition_of_key,
    partitions_of_keys,
    producer_settings,
)
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.record import Codec
from raftlog.testing.certificates import Certificates

CONNECTION = {
    "bootstrap": "a:1",
    "client_id": "me",
    "request_timeout_ms": 1_000,
    "bootstrap_timeout_ms": 0,
    "metadata_max_age_ms": 30_000,
    "security": {},
}
PRODUCER = {
    "acks": "all",
    "idempotent": None,
    "compression": "none",
    "compression_level": None,
    "linger_ms": 5,
    "batch_bytes_max": limits.MIB,
    "buffer_memory": 32 * limits.MIB,
    "max_block_ms": 60_000,
    "request_timeout_ms": 30_000,
    "delivery_timeout_ms": 120_000,
    "partitioner": None,
    "transactional_id": None,
    "transaction_timeout_ms": 60_000,
}
CONSUMER = {
    "auto_offset_reset": "latest",
    "check_crcs": True,
    "fetch_min_bytes": 1,
    "fetch_max_wait_ms": 500,
    "fetch_max_bytes": limits.FETCH_BYTES_MAX,
    "max_partition_fetch_bytes": limits.MIB,
    "read_from": "leader",
    "client_rack": None,
}


@pytest.mark.parametrize(
    ("bootstrap", "addresses"),
    [
        ("localhost:9100", [("localhost", 9100)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , b:2 ,", [("a", 1), ("b", 2)]),
        ("a:1,a:1", [("a", 1)]),
        ("[::1]:9100,[fe80::1]:1", [("::1", 9100), ("fe80::1", 1)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
        (("a:1",), [("a", 1)]),
    ],
)
def test_bootstrap_lists(bootstrap: Any, addresses: list[tuple[str, int]]) -> None:
    assert list(parse_bootstrap(bootstrap)) == addresses


@pytest.mark.parametrize(
    ("bootstrap", "named"),
    [
        ("", "''"),
        (",", "contains no address"),
        ("localhost", "'localhost'"),
        ("a:1,b:x", "'x'"),
        ("a:70000", "70000"),
        ("a:0", "port 0"),
        ("::1:9100", "brackets"),
        (":9100", "':9100'"),
        ([], "contains no address"),
    ],
)
def test_a_bad_bootstrap_is_named(bootstrap: Any, named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_bootstrap(bootstrap)
    assert named in str(caught.value)
    assert "host:port" in str(caught.value).lower() or "port 0" in str(caught.value)


@pytest.mark.parametrize("bootstrap", [b"a:1", 9100, [9100], {"a": 1}])
def test_a_bootstrap_of_another_type_is_refused(bootstrap: Any) -> None:
    with pytest.raises(TypeError, match="bootstrap"):
        parse_bootstrap(bootstrap)


def test_the_environment_stands_in_for_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAFTLOG_BOOTSTRAP", raising=False)
    assert list(parse_bootstrap(None)) == [("127.0.0.1", port) for port in (9100, 9101, 9102)]
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", "there:7")
    assert list(parse_bootstrap(None)) == [("there", 7)]
    assert list(parse_bootstrap("here:8")) == [("here", 8)]
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", "nonsense")
    with pytest.raises(InvalidRequestError, match="RAFTLOG_BOOTSTRAP='nonsense'"):
        parse_bootstrap(None)


def test_a_bad_argument_is_named() -> None:
    for make, arguments, name, value in [
        (connection_settings, CONNECTION, "client_id", "x" * 257),
        (connection_settings, CONNECTION, "client_id", None),
        (connection_settings, CONNECTION, "request_timeout_ms", 0),
        (connection_settings, CONNECTION, "bootstrap_timeout_ms", -1),
        (connection_settings, CONNECTION, "metadata_max_age_ms", 1),
        (producer_settings, PRODUCER, "acks", 2),
        (producer_settings, PRODUCER, "acks", True),
        (producer_settings, PRODUCER, "compression", "snappy"),
        (producer_settings, PRODUCER, "compression_level", 99),
        (producer_settings, PRODUCER, "linger_ms", -1),
        (producer_settings, PRODUCER, "linger_ms", "5"),
        (producer_settings, PRODUCER, "linger_ms", 0.5),
        (producer_settings, PRODUCER, "batch_bytes_max", 100),
        (producer_settings, PRODUCER, "batch_bytes_max", limits.PRODUCER_BATCH_BYTES_MAX + 1),
        (producer_settings, PRODUCER, "buffer_memory", limits.MIB - 1),
        (producer_settings, PRODUCER, "max_block_ms", -1),
        (producer_settings, PRODUCER, "delivery_timeout_ms", 30_004),
        (producer_settings, PRODUCER, "partitioner", "murmur2"),
        (consumer_settings, CONSUMER, "auto_offset_reset", "newest"),
        (consumer_settings, CONSUMER, "fetch_min_bytes", -1),
        (consumer_settings, CONSUMER, "fetch_max_wait_ms", 60_001),
        (consumer_settings, CONSUMER, "fetch_max_bytes", 0),
        (consumer_settings, CONSUMER, "max_partition_fetch_bytes", limits.FETCH_BYTES_MAX + 1),
    ]:
        make(arguments)
        with pytest.raises((RaftlogError, TypeError)) as caught:
            make({**arguments, name: value})
        assert name in str(caught.value) or str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("acks", "number", "idempotent"),
    [("all", -1, True), (-1, -1, True), ("1", 1, False), (1, 1, False), (0, 0, False)],
)
def test_idempotence_comes_with_acks_all(acks: Any, number: int, idempotent: bool) -> None:
    settings = producer_settings({**PRODUCER, "acks": acks})
    assert (settings.acks, settings.idempotent) == (number, idempotent)


def test_idempotence_needs_acks_all() -> None:
    with pytest.raises(InvalidRequestError, match="acks='all'"):
        producer_settings({**PRODUCER, "acks": 1, "idempotent": True})
    assert not producer_settings({**PRODUCER, "idempotent": False}).idempotent


def test_names_become_values() -> None:
    assert producer_settings({**PRODUCER, "compression": "lz4"}).codec is Codec.LZ4
    settings = consumer_settings({**CONSUMER, "auto_offset_reset": "none"})
    assert settings.auto_offset_reset == "error"


def test_integers_and_functions() -> None:
    assert integer("n", 3, 3, 3) == 3
    with pytest.raises(TypeError, match="n=True"):
        integer("n", True, 0, 1)
    assert function("f", None) is None
    with pytest.raises(TypeError, match="f=3"):
        function("f", 3)


@pytest.mark.parametrize(
    ("changes", "error", "part"),
    [
        ({"read_from": "anyone"}, InvalidRequestError, "'leader' or 'replica'"),
        ({"client_rack": "a"}, InvalidRequestError, "read_from='replica'"),
        ({"read_from": "replica", "client_rack": 7}, TypeError, "client_rack=7"),
    ],
)
def test_where_to_read_from(changes: dict[str, Any], error: type[Exception], part: str) -> None:
    with pytest.raises(error, match=part):
        consumer_settings({**CONSUMER, **changes})
    found = consumer_settings({**CONSUMER, "read_from": "replica", "client_rack": "a"})
    assert (found.read_from, found.client_rack) == ("replica", "a")


# -- TLS -------------------------------------------------------------------------------------------


def test_tls_arguments_come_from_the_environment_if_they_are_not_given(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Security({}).tls_context() is None
    for name, value in certificates.environment().items():
        monkeypatch.setenv(name, value)
    found = Security({}).tls_context()
    assert found is not None
    assert found.check_hostname
    assert [dict(ca)["notAfter"] for ca in found.get_ca_certs()], "the CA of the environment"
    assert Security({"security_protocol": "PLAINTEXT"}).tls_context() is None
    monkeypatch.setenv("RAFTLOG_SSL_CHECK_HOSTNAME", "false")
    unchecked = Security({}).tls_context()
    assert unchecked is not None
    assert not unchecked.check_hostname


@pytest.mark.parametrize(
    ("security", "named"),
    [
        ({"security_protocol": "TLS"}, "security_protocol='TLS'"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile requires security_protocol='SSL'"),
        ({"security_protocol": "SSL", "ssl_certfile": "c"}, "ssl_certfile and ssl_keyfile require"),
        ({"security_protocol": "SSL", "ssl_cafile": 1}, "ssl_cafile=1"),
        ({"security_protocol": "SSL", "ssl_cafile": "/none"}, "/none cannot be read"),
        ({"security_protocol": "SSL", "ssl_check_hostname": "no"}, "ssl_check_hostname='no'"),
        ({"ssl_password": "x"}, "'ssl_password'"),
    ],
)
def test_a_bad_tls_argument_is_named(security: Any, named: str) -> None:
    with pytest.raises((RaftlogError, TypeError)) as caught:
        Security(security).tls_context()
    assert named in str(caught.value)


# -- partitioner -----------------------------------------------------------------------------------
#
# Keys land where Kafka's clients put them.


def murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2, line by line, as a signed 32-bit integer."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    digest = KAFKA_SEED ^ len(data)
    for start in range(0, len(data) // 4 * 4, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        digest = (digest * multiplier & mask) ^ word
    rest = data[len(data) // 4 * 4 :]
    if rest:
        digest = (digest ^ int.from_bytes(rest, "little")) * multiplier & mask
    digest = (digest ^ digest >> 13) * multiplier & mask
    digest ^= digest >> 15
    return digest - (1 << 32) if digest >> 31 else digest


# From Kafka's own UtilsTest.
VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "digest"), VECTORS)
def test_the_hash_is_kafkas(key: bytes, digest: int) -> None:
    assert murmur2(key) == digest
    for count in (1, 2, 6, 7, 10_000):
        assert partition_of_key(key, count) == (digest & POSITIVE) % count


@given(st.binary(max_size=40), st.integers(1, 10_000))
def test_any_key_lands_where_kafka_puts_it(key: bytes, count: int) -> None:
    assert partition_of_key(key, count) == (murmur2(key) & POSITIVE) % count


@given(st.lists(st.binary(max_size=20), max_size=50), st.integers(1, 10_000))
def test_many_keys_at_once_land_where_each_does(keys: list[bytes], count: int) -> None:
    assert partitions_of_keys(keys, count) == [partition_of_key(key, count) for key in keys]


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=60))
def test_groups_keep_the_order_within_a_partition(partitions: list[int]) -> None:
    found = list(groups(partitions))
    assert [number for number, _ in found] == list(dict.fromkeys(partitions))
    for number, indexes in found:
        assert indexes == [at for at, chosen in enumerate(partitions) if chosen == number]


@pytest.mark.parametrize("chosen", [-1, 3, "1", None, 1.0])
def test_what_a_partitioner_returns_is_checked(chosen: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"'clicks', which has 3 partitions"):
        checked(chosen, 3, "clicks")


def test_a_good_choice_is_taken() -> None:
    assert [checked(number, 3, "t") for number in range(3)] == [0, 1, 2]
    assert checked(np.int64(2), 3, "t") == 2


# -- profiles --------------------------------------------------------------------------------------
#
# Profiles: tables of one file, or a file each; what is rejected shows no password.


ADMIN = """
bootstrap = "a:1,b:2"
security_protocol = "SASL_PLAINTEXT"
sasl_username = "admin"
sasl_password = "the secret"
"""


BEARER = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = profiles.config_file()
    path.parent.mkdir()
    return path


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def settings(**arguments: object) -> object:
    names = ("request_timeout_ms", "bootstrap_timeout_ms", "metadata_max_age_ms")
    values = dict.fromkeys(names, 1_000) | {"client_id": "c", "bootstrap": None}
    return connection_settings({**values, "security": arguments})


def test_a_profile_that_is_written_is_read(home: Path) -> None:
    values = {"sasl_username": 'a"\\\n\t', "sasl_password": "\U0001f600\x7f\x00é"}
    private(home.with_name("own.toml"), profiles.dump(values))
    assert profiles.load(str(home.with_name("own.toml"))) == values


def test_a_profile_is_a_table_of_the_file_of_the_user(home: Path) -> None:
    private(home, f"[one]{ADMIN}[two]\nbootstrap = 'c:3'\nssl_check_hostname = false\n")
    assert profiles.load("one")["sasl_username"] == "admin"
    assert profiles.load("two") == {"bootstrap": "c:3", "ssl_check_hostname": "false"}
    with pytest.raises(InvalidRequestError, match=r"'three' is not in .*: one, two"):
        profiles.load("three")


def test_a_profile_is_a_file_with_paths_relative_to_it(tmp_path: Path) -> None:
    path = private(tmp_path / "x.toml", "ssl_cafile = 'ca.pem'\nssl_keyfile = '/k'\n")
    assert profiles.load(str(path)) == {
        "ssl_cafile": str(tmp_path / "ca.pem"),
        "ssl_keyfile": "/k",
    }


def test_a_byte_order_mark_of_an_editor_is_no_part_of_a_profile(tmp_path: Path) -> None:
    path = private(tmp_path / "x.toml", "\ufeffbootstrap = 'a:1'\n")
    assert profiles.load(str(path)) == {"bootstrap": "a:1"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    values = {"bootstrap": "a:1", "sasl_password": 'quo"te\\ \u00e9'}
    assert profiles.load(str(private(tmp_path / "x.toml", profiles.dump(values)))) == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sasl_password = 'the secret", "is not TOML"),
        ("passwort = 'the secret'", "'passwort' is not a key"),
        ("sasl_password = 5", "sasl_password is a int"),
        (ADMIN, "mode 0644"),
    ],
)
def test_other_files_are_rejected(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    path.chmod(0o644 if "0644" in words else 0o600)
    with pytest.raises(InvalidRequestError, match=words) as caught:
        profiles.load(str(path))
    assert "the secret" not in str(caught.value)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        profiles.load(str(tmp_path / "none.toml"))


def test_an_argument_comes_before_the_profile_and_that_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(private(tmp_path / "x.toml", ADMIN))
    other = str(private(tmp_path / "y.toml", ADMIN.replace('"admin"', '"other"')))
    for name in ("BOOTSTRAP", "SASL_USERNAME", "PROFILE"):
        monkeypatch.delenv(f"RAFTLOG_{name}", raising=False)
    found = Security({"profile": path, "sasl_username": "me"}).sasl_settings()
    assert found is not None
    assert (found.username, found.password, found.mechanism) == (
        "me",
        "the secret",
        "SCRAM-SHA-512",
    )
    assert "the secret" not in repr(settings(profile=path))
    assert "port=2" in repr(settings(profile=path))
    monkeypatch.setenv("RAFTLOG_SASL_USERNAME", "env")
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", "e:9")
    assert "username='admin'" in repr(settings(profile=path))
    assert "'a'" in repr(settings(profile=path))
    monkeypatch.setenv("RAFTLOG_PROFILE", other)
    assert "username='env'" in repr(settings())
    assert "'e'" in repr(settings())
    monkeypatch.delenv("RAFTLOG_SASL_USERNAME")
    assert "username='other'" in repr(settings())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"security_protocol": "SASL_SSL"}, "requires sasl_username and sasl_password"),
        ({"sasl_username": "a"}, "sasl_username requires security_protocol='SASL_SSL'"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism='GSSAPI'"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}, "sends the password"),
        ({"security_protocol": "SASL_SSL", "sasl_password": b"x"}, "sasl_password is a bytes"),
        ({"sasl_token_auth": True}, "sasl_token_auth requires security_protocol"),
        ({"security_protocol": "SASL_SSL", "sasl_oauthbearer_token_file": "f"}, "'OAUTHBEARER'"),
        ({**BEARER}, "requires sasl_oauth_token_provider, sasl_oauthbearer_token_file or"),
        (
            {**BEARER, "sasl_oauthbearer_token_file": "f", "sasl_oauthbearer_token_command": "c"},
            "exclude each other",
        ),
        ({**BEARER, "sasl_oauthbearer_token_command": "a 'b"}, "sasl_oauthbearer_token_command is"),
        ({**BEARER, "sasl_oauthbearer_token_file": "f", "sasl_token_auth": True}, "SCRAM-SHA-256"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises((InvalidRequestError, TypeError), match=words):
        Security(arguments).sasl_settings()  # type: ignore[arg-type]


@pytest.mark.integration
def test_a_profile_has_a_source_of_bearer_tokens(tmp_path: Path) -> None:
    text = "security_protocol = 'SASL_SSL'\nsasl_mechanism = 'OAUTHBEARER'\n"
    file = private(tmp_path / "file.toml", text + "sasl_oauthbearer_token_file = 'token'\n")
    (tmp_path / "token").write_text("a.b.c\n")
    found = Security({"profile": str(file)}).sasl_settings()
    assert found is not None
    assert found.token_provider is not None
    assert found.token_provider.token() == "a.b.c"
    command = private(tmp_path / "c.toml", text + "sasl_oauthbearer_token_command = 'echo x'\n")
    found = Security({"profile": str(command)}).sasl_settings()
    assert found is not None
    assert found.token_provider is not None
    assert found.token_provider.token() == "x"
    command.chmod(0o646)
    with pytest.raises(InvalidRequestError, match="contains a command and has the mode 0646"):
        profiles.load(str(command))


def test_a_profile_has_a_delegation_token(tmp_path: Path) -> None:
    path = private(tmp_path / "x.toml", f"{ADMIN}sasl_token_auth = true\n")
    found = Security({"profile": str(path)}).sasl_settings()
    assert found is not None
    assert found.is_token
    own = Security({"profile": str(path), "sasl_token_auth": False}).sasl_settings()
    assert own is not None
    assert not own.is_token


# -- records ---------------------------------------------------------------------------------------
#
# What users pass: taken, turned into bytes, or refused with a reason; long lists cut to fit.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a", b"a"),
        (None, None),
        (bytearray(b"a"), b"a"),
        (memoryview(b"abc")[1:], b"bc"),
    ],
)
def test_what_is_bytes_or_like_them_is_taken(value: Any, expected: bytes | None) -> None:
    assert octets(value, "value") == expected


@pytest.mark.parametrize(("value", "hint"), [("a", "encode"), (3, "bytes"), ([1], "bytes")])
def test_what_is_not_is_refused_with_a_hint(value: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint) as caught:
        octets(value, "key")
    assert "key_serializer" in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, None),
        ([], None),
        ([("a", b"1"), ("a", None)], (("a", b"1"), ("a", None))),
        ({"a": b"1"}, (("a", b"1"),)),
        ((("a", bytearray(b"1")),), (("a", b"1"),)),
    ],
)
def test_headers_become_tuples(headers: Any, expected: object) -> None:
    assert checked_headers(headers) == expected


@pytest.mark.parametrize(
    "headers", ["ab", [("a",)], [("a", "text")], [(b"a", b"1")], [3], 3, [("a", b"1", b"2")]]
)
def test_bad_headers_are_refused(headers: Any) -> None:
    with pytest.raises(TypeError, match="header"):
        checked_headers(headers)


def test_header_names_that_utf8_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"header name .* UTF-8"):
        checked_headers([("\udcff", b"1")])


def test_timestamps_are_milliseconds() -> None:
    assert checked_timestamp(0) == 0
    with pytest.raises(TypeError, match="milliseconds"):
        checked_timestamp(1.5)
    with pytest.raises(TypeError):
        checked_timestamp(True)
    for wrong in (-1, limits.TIMESTAMP_MS_MAX + 1):
        with pytest.raises(InvalidRequestError, match="milliseconds since 1970"):
            checked_timestamp(wrong)


def test_columns_are_taken_as_they_are_when_they_can_be() -> None:
    values = [b"a", None]
    assert column(values, None, "value")[0] is values
    assert column(values, None, "value") == (values, True)
    assert column((b"a",), None, "value") == ((b"a",), False)
    assert column(iter([b"a"]), None, "value") == ([b"a"], False)  # type: ignore[arg-type]
    assert column([bytearray(b"a"), None], None, "value") == ([b"a", None], True)
    assert column([1, 2], lambda number: b"%d" % number, "value") == ([b"1", b"2"], False)
    with pytest.raises(TypeError, match="value_serializer"):
        column([b"a", "b"], None, "value")
    for one in (b"ab", "ab", bytearray(b"ab")):
        with pytest.raises(TypeError, match="a list, with one value"):
            column(one, None, "value")


def columns(values: list[Any], **more: Any) -> Run:
    arguments: dict[str, Any] = {"keys": None, "headers": None, "timestamps_ms": 1, **more}
    return columns_of(
        values,
        arguments["keys"],
        arguments["headers"],
        arguments["timestamps_ms"],
        key_serializer=None,
        value_serializer=None,
    )


@pytest.mark.parametrize(
    "more", [{"keys": [b"a"]}, {"headers": [None]}, {"timestamps_ms": [1]}, {"keys": []}]
)
def test_columns_have_one_entry_for_each_record(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="for 2 values"):
        columns([b"1", b"2"], **more)


def test_all_columns_together() -> None:
    run = columns(
        [b"1", None], keys=[None, b"k"], headers=[None, [("h", b"x")]], timestamps_ms=[3, 4]
    )
    assert run == Run([b"1", None], [None, b"k"], [None, (("h", b"x"),)], [3, 4], 0)
    assert not columns([b"1"], keys=[b"k"]).has_nulls
    assert columns([b"1", None]).has_nulls
    assert columns([b"1"], keys=[None]).has_nulls
    with pytest.raises(InvalidRequestError):
        columns([b"1"], timestamps_ms=-5)


OPTIONAL = st.none() | st.binary(max_size=40)


@given(
    st.lists(st.tuples(OPTIONAL, OPTIONAL, st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 400),
    st.sampled_from(["keyed", "keyless", "plain", "plain keyed"]),
)
def test_pieces_are_the_run_and_fit(
    records: list[tuple[bytes | None, bytes | None, int]], bytes_max: int, kind: str
) -> None:
    run = columns(
        [value or b"" if "plain" in kind else value for value, _, _ in records],
        keys=[key or b"" if "plain" in kind else key for _, key, _ in records]
        if "keyed" in kind
        else None,
        timestamps_ms=[stamp for _, _, stamp in records],
    )
    assert not run.has_nulls or "plain" not in kind
    pieces = list(cut(run, bytes_max))
    assert [value for piece in pieces for value in piece.values] == list(run.values)
    assert [s for piece in pieces for s in piece.timestamps_ms] == run.timestamps_ms  # type: ignore[union-attr]
    for piece in pieces:
        body = piece.encode(Codec.NONE, None)
        assert body.size_bytes <= BATCH_BYTES + piece.size_bytes
        assert piece.size_bytes <= bytes_max or len(piece.values) == 1


def test_a_run_that_fits_is_one_piece() -> None:
    run = Run([b"x" * 100] * 1_000, None, None, 0, 0, has_nulls=False)
    (piece,) = cut(run, 112_000)
    assert piece.values is run.values
    assert len(list(cut(run, 111_999))) == 2
    assert [len(piece.values) for piece in cut(run, 11_200)] == [100] * 10
