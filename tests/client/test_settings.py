"""Arguments of clients: what is taken, and what an error says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
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
