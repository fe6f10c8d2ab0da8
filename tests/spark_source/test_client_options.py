"""Settings go to the client under its own names; what is not for users is refused by name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer

from pyspark_raftlog import options as client_options
from pyspark_raftlog.options import (
    CONNECTION_SETTINGS,
    READ_SETTINGS,
    SECURITY_SETTINGS,
    WRITE_SETTINGS,
    Setting,
    SinkOptions,
    SourceOptions,
    Texts,
    dotted,
    parse_address_list,
    parse_settings,
)
from raftlog import Admin, Consumer, Producer
from raftlog.client.readers import RangeReader
from raftlog.client.settings import SecurityArguments
from raftlog.errors import InvalidRequestError
from raftlog.record import Codec


def settings(writing: bool = False, **options: str) -> dict[str, Setting]:
    texts = {name.replace("__", "."): text for name, text in options.items()}
    return dict(parse_settings(Texts(texts), writing=writing))


@pytest.mark.parametrize(
    "name", ["bootstrap.servers", "raftlog.bootstrap.servers", "kafka.bootstrap.servers",
             "Bootstrap.Servers", "raftlog.bootstrap_servers"],
)  # fmt: skip
def test_the_address_has_several_names(name: str) -> None:
    assert parse_address_list(Texts({name: "a:1, [::1]:2,a:1,"})) == "a:1,[::1]:2"


def test_addresses_that_disagree_are_refused_and_their_order_does_not_matter() -> None:
    options = {"bootstrap.servers": "a:1,b:2", "kafka.bootstrap.servers": "b:2,a:1"}
    assert parse_address_list(Texts(options)) == "a:1,b:2"
    options["kafka.bootstrap.servers"] = "b:2"
    with pytest.raises(InvalidRequestError, match="name different brokers: leave all but one out"):
        parse_address_list(Texts(options))


@pytest.mark.parametrize("name", ["raftlog.profile", "profile"])
def test_a_profile_has_the_address_if_no_option_has(name: str, tmp_path: Path) -> None:
    profile = tmp_path / "cluster.toml"
    profile.write_text('bootstrap = "a:1,b:2"\n')
    assert parse_address_list(Texts({name: str(profile)})) == "a:1,b:2"
    assert parse_address_list(Texts({name: str(profile), "bootstrap.servers": "c:3"})) == "c:3"
    profile.write_text('sasl_username = "alice"\n')
    with pytest.raises(InvalidRequestError, match=r"cluster\.toml' has no bootstrap: add it"):
        parse_address_list(Texts({name: str(profile)}))


def test_without_an_address_there_is_an_example() -> None:
    with pytest.raises(InvalidRequestError, match=r"bootstrap\.servers is missing.*broker-1:9100"):
        parse_address_list(Texts({}))


@pytest.mark.parametrize("text", ["a", "a:b", "a:70000", "a:0", ",", "::1:9100", "a:1;b:2"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"option raftlog\.bootstrap\.servers='"):
        parse_address_list(Texts({"raftlog.bootstrap.servers": text}))


def test_settings_are_named_with_dots_or_underscores() -> None:
    found = parse_settings(
        Texts(
            {
                "raftlog.request.timeout.ms": "5000",
                "raftlog.client_id": "job-7",
                "Raftlog.Check.Crcs": "false",
                "raftlog.read.from": "leader",
                "raftlog.bootstrap.servers": "a:1",
                "subscribe": "t",
            }
        ),
        writing=False,
    )
    assert found == (
        ("check_crcs", False),
        ("client_id", "job-7"),
        ("read_from", "leader"),
        ("request_timeout_ms", 5_000),
    )


def test_kafkas_names_are_accepted_for_what_both_have() -> None:
    given = {"kafka.security.protocol": "ssl", "kafka.client.id": "job", "kafka.check.crcs": "true"}
    assert dict(parse_settings(Texts(given), writing=False)) == {
        "security_protocol": "SSL",
        "client_id": "job",
        "check_crcs": True,
    }
    with pytest.raises(InvalidRequestError, match="given twice, by two names"):
        parse_settings(Texts({**given, "raftlog.client.id": "other"}), writing=False)
    options = {
        "bootstrap.servers": "a:1",
        "kafka.compression.type": "lz4",
        "kafka.acks": "-1",
        "kafka.buffer.memory": "1000000",
    }
    sink = SinkOptions.parse(options, streaming=False)
    assert (sink.codec, sink.settings) == (Codec.LZ4, (("buffer_memory", 1_000_000),))


def test_every_setting_is_one_of_the_client() -> None:
    for client, names in (
        (Admin, CONNECTION_SETTINGS),
        (RangeReader, {**CONNECTION_SETTINGS, **READ_SETTINGS}),
        (Producer, {**CONNECTION_SETTINGS, **WRITE_SETTINGS}),
    ):
        security = set(SecurityArguments.__annotations__)
        assert set(names) <= set(inspect.signature(client).parameters) | security


@pytest.mark.parametrize("client", [Admin, Consumer, Producer])
def test_every_parameter_of_a_client_is_a_setting_or_refused_with_advice(
    client: type[object],
) -> None:
    parameters = inspect.signature(client).parameters.values()
    security = SecurityArguments.__annotations__
    names = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for name in (*names, *security):
        if name in {**CONNECTION_SETTINGS, **READ_SETTINGS, **WRITE_SETTINGS}:
            continue
        for writing in (False, True):
            with pytest.raises(InvalidRequestError, match="is not supported here: "):
                parse_settings(Texts({dotted(name): "1"}), writing=writing)


def test_a_setting_given_in_two_ways_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="given twice, by two names"):
        settings(raftlog__client__id="a", raftlog__client_id="a")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("raftlog.auto.offset.reset", "latest", "set startingOffsets to earliest or latest"),
        ("raftlog.enable.auto.commit", "true", "are stored in the query's checkpoint"),
        ("raftlog.isolation.level", "read_uncommitted", "only committed records are ever read"),
        ("raftlog.group.id", "g", "groupId with commitOffsets=true"),
        ("raftlog.key.deserializer", "x", "key and value are binary columns"),
        ("raftlog.request.timeout", "1", r"did you mean raftlog\.request\.timeout\.ms\?"),
        ("raftlog.zzz", "1", r"there is raftlog\.client\.id"),
        ("raftlog.buffer.memory", "1", "a setting of writing"),
        ("raftlog.request.timeout.ms", "0", "is not from 1 to"),
        ("raftlog.request.timeout.ms", "1.5", "a whole number"),
        ("raftlog.request.timeout.ms", " ", "is empty"),
        ("raftlog.check.crcs", "1", "true or false"),
        ("raftlog.read.from", "follower", "leader or replica"),
        ("raftlog.client.id", "x" * 257, "256 are allowed"),
        ("kafka.buffer.memory", "5", "raftlog has no setting of that name"),
        ("kafka.group.id", "g", "groupId with commitOffsets=true"),
        ("kafka.auto.offset.reset", "x", "set startingOffsets"),
        ("kafka.sasl.jaas.config", "x", "there is profile, security_protocol"),
        ("raftlog.ssl.truststore.location", "x", "there is profile, security_protocol"),
        ("raftlog.security.protocol", "TLS", "SSL or SASL_PLAINTEXT or SASL_SSL"),
        ("kafka.fetch.max.wait", "5", r"there is raftlog\.fetch\.max\.wait\.ms"),
        ("kafka.zzz", "5", "raftlog has no setting of that name"),
    ],
)
def test_what_is_no_setting_of_a_read_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        parse_settings(Texts({name: text}), writing=False)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raftlog.acks", "set acks"),
        ("raftlog.compression.type", "set codec"),
        ("raftlog.partitioner.class", "write a column `partition`"),
        ("raftlog.enable.idempotence", "always idempotent"),
        ("raftlog.fetch.max.bytes", "a setting of reading"),
        ("raftlog.linger.ms", "sends batches without a delay"),
        ("kafka.transactional.id", "set transactional=true"),
    ],
)
def test_what_is_no_setting_of_a_write_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        parse_settings(Texts({name: "1"}), writing=True)


def test_a_write_has_settings_of_its_own() -> None:
    found = settings(True, raftlog__buffer__memory="2048", raftlog__compression__level="-5")
    assert found == {"buffer_memory": 2_048, "compression_level": -5}


def test_a_rack_needs_replicas_to_choose_from() -> None:
    assert settings(raftlog__client__rack="r1") == {"client_rack": "r1"}
    with pytest.raises(InvalidRequestError, match=r"requires raftlog\.read\.from=replica"):
        settings(raftlog__client__rack="r1", raftlog__read__from="leader")


def test_no_name_is_both_a_setting_and_refused() -> None:
    known = {**CONNECTION_SETTINGS, **READ_SETTINGS, **WRITE_SETTINGS}
    assert not known.keys() & client_options._OWNED.keys()


def test_a_password_stays_out_of_every_text() -> None:
    read = {"bootstrap.servers": "a:1", "subscribe": "t", "sasl_password": "the secret"}
    options = SourceOptions.parse({**read, "sasl_username": "alice"}, streaming=False)
    assert dict(options.connection)["sasl_password"] == "the secret"
    assert "the secret" not in repr(options)
    pickler: Any = CPickleSerializer()
    again = pickler.loads(pickler.dumps(options))  # as it goes to the tasks
    assert again == options
    assert "the secret" not in repr(again)
    for wrong in ({"sasl_password": "the secret" * 30}, {"sasl_passwort": "the secret"}):
        with pytest.raises(InvalidRequestError) as caught:
            SourceOptions.parse(read | wrong, streaming=False)
        assert "the secret" not in str(caught.value)


def test_spark_hides_passwords_by_their_names() -> None:
    """``spark.redaction.regex`` has this value by default."""
    hides = re.compile("(?i)secret|password|token|access[.]?key")
    for name in (*SECURITY_SETTINGS, *map(dotted, SECURITY_SETTINGS)):
        assert bool(hides.search(name)) == ("password" in name or "token" in name)
