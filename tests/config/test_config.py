"""Settings: addresses, tables of settings, and those of brokers and topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.config import (
    BROKER_KEYS,
    TOPIC_KEYS,
    Address,
    BrokerConfig,
    TopicConfig,
    Voter,
    parse_address,
    parse_voters,
)
from raftlog.config.address import Watermark, apply_rules, parse_principal_rules, parse_watermark
from raftlog.config.broker import check_exposure, show_voters
from raftlog.config.keys import HIDDEN, INT64_MAX, ConfigKey, hidden, number, parse, word
from raftlog.errors import InvalidConfigError

# -- address ---------------------------------------------------------------------------------------

# host:port: read, written, refused.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9100", Address("127.0.0.1", 9100)),
        ("logs.example:0", Address("logs.example", 0)),
        ("[::1]:65535", Address("::1", 65_535)),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "HOST:PORT"),
        ("9100", "HOST:PORT"),
        (":9100", "HOST:PORT"),
        ("host:", "port number"),
        ("host:port", "port number"),
        ("host:-1", "port number"),
        ("host:65536", "port number"),
        ("host:٣", "port number"),
        ("::1:9100", "brackets"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("LocalHost", True), ("0.0.0.0", False), ("a", False)],
)
def test_loopback_addresses_are_known(host: str, is_loopback: bool) -> None:
    assert Address(host, 1).is_loopback == is_loopback


# -- principal rules -------------------------------------------------------------------------------
#
# Rules for names of certificates: which texts are rules.


@pytest.mark.parametrize(
    "text",
    ["", "DEFAULT", "RULE:a/b/", "RULE:a/b/L,DEFAULT", r"RULE:a\/b/c\/d/U,RULE:^x{1,2}$/$0/"],
)
def test_a_text_is_kept(text: str) -> None:
    config = BrokerConfig.from_text({"ssl.principal.mapping.rules": text})
    assert config.to_text()["ssl.principal.mapping.rules"] == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "default",
            "RULE:a/b",
            "RULE:a",
            "RULE:(/b/",
            "RULE:a/$1/",
            "RULE:a/b/X",
            "DEFAULT DEFAULT",
        ),
        "RULE:a/" + "b" * limits.PRINCIPAL_RULES_CHARS_MAX + "/",
    ],
)
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules"):
        BrokerConfig.from_text({"ssl.principal.mapping.rules": text})


def test_slashes_and_dollars_are_escaped() -> None:
    rules = parse_principal_rules(r"RULE:CN=a\/(b)/x\/$1\$1/")
    assert apply_rules(rules, "CN=a/b") == "x/b$1"


# -- watermark -------------------------------------------------------------------------------------
#
# A watermark of free disk space as text, and what it comes to on a disk.


@pytest.mark.parametrize(
    ("text", "disk_bytes", "free_bytes"),
    [
        ("5%", 1_000, 50),
        ("70", 1_000, 70),
        ("5%,70", 1_000, 50),
        ("70, 5%", 10_000, 70),
        ("0", 1_000, 0),
        ("0%,70", 1_000, 0),
    ],
)
def test_the_smaller_one_counts(text: str, disk_bytes: int, free_bytes: int) -> None:
    watermark = parse_watermark(text)
    assert watermark.free_bytes(disk_bytes) == free_bytes
    assert parse_watermark(str(watermark)) == watermark


@pytest.mark.parametrize(
    "text", ["", "%", "91%", "5%,6%", "1,2", "-1", "1.5%", "1 GiB", "²", "9" * 20, "9" * 19 + "9"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"disk\.watermark\.producers="):
        BrokerConfig.from_text({"disk.watermark.producers": text})


def test_none_is_no_watermark() -> None:
    assert Watermark().free_bytes(1_000) == 0


# -- tables of settings ----------------------------------------------------------------------------

# A table of settings: text in, typed values out, and errors that name the setting.


KEYS = (
    number("size.bytes", 10, 1, 100, "bytes", "A size."),
    number("age.ms", 5, -1, INT64_MAX, "ms", "An age."),
    word("kind", "a", ("a", "b"), "A kind."),
)


def test_values_are_typed_and_named_as_fields() -> None:
    values = parse(KEYS, {"size.bytes": "7", "kind": "b"}, what="test")
    assert values == {"size_bytes": 7, "kind": "b"}


def refuse(text: str) -> str:
    raise ValueError("it is refused")


def test_a_secret_is_in_no_message() -> None:
    keys = (ConfigKey("secret", "", refuse, "text", "A secret.", show=hidden), KEYS[0])
    assert [key.is_secret for key in keys] == [True, False]
    with pytest.raises(InvalidConfigError) as caught:
        parse(keys, {"secret": "sesame"}, what="test")
    assert str(caught.value) == "secret=(hidden) is refused (it is refused). Accepted: text"


def test_a_dump_shows_that_there_is_a_secret() -> None:
    assert hidden("sesame") == HIDDEN
    assert hidden("") == ""


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("size", "1", "'size' is not a test setting. Settings: age.ms, kind, size.bytes"),
        ("size.bytes", "0", "size.bytes=0 .* 1 to 100"),
        ("size.bytes", "many", r"\(not a whole number\). Accepted: bytes, 1 to 100"),
        ("size.bytes", "1e3", "1 to 100"),
        ("age.ms", "-2", r"2\^63-1"),
        ("kind", "c", "a or b"),
    ],
)
def test_errors_name_the_setting_and_what_it_takes(name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        parse(KEYS, {name: text}, what="test")


# -- settings of brokers ---------------------------------------------------------------------------

# Broker settings from TOML and from the command line.


TLS = {"tls.certificate.file": "c", "tls.key.file": "k"}
AUTHENTICATED = {"authentication.required": "true", "voters": "1@h:1"}
DOCUMENT = """
id = 3
listen = "0.0.0.0:9200"
data.dir = "/var/lib/raftlog"

[fetch.max]
bytes = 4096
"""


def test_dotted_keys_and_tables_are_the_same() -> None:
    config = BrokerConfig.from_toml(DOCUMENT)
    assert config.id == 3
    assert config.listen == Address("0.0.0.0", 9200)
    assert config.data_dir == "/var/lib/raftlog"
    assert config.fetch_max_bytes == 4_096
    quoted = BrokerConfig.from_toml('"fetch.max.bytes" = "4096"')
    assert quoted.fetch_max_bytes == 4_096


def test_a_byte_order_mark_of_an_editor_is_no_part_of_the_document() -> None:
    assert BrokerConfig.from_toml(f"\ufeff{DOCUMENT}").id == 3


def test_the_command_line_wins() -> None:
    config = BrokerConfig.from_toml(DOCUMENT, {"id": "4"})
    assert (config.id, config.fetch_max_bytes) == (4, 4_096)


def test_defaults_survive_a_round_trip_through_text() -> None:
    text = BrokerConfig().to_text()
    assert set(text) == {key.name for key in BROKER_KEYS}
    assert text["advertised.listen"] == ""
    assert BrokerConfig.from_text(text) == BrokerConfig()


def test_a_setting_in_two_spellings_is_refused() -> None:
    """For TOML, these are different keys: the last one was used without a message."""
    with pytest.raises(
        InvalidConfigError, match=r"log\.retention\.check\.interval\.ms is set twice"
    ):
        BrokerConfig.from_toml(
            '"log.retention.check.interval.ms" = 1\n[log.retention.check]\ninterval.ms = 2\n'
        )
    with pytest.raises(InvalidConfigError, match="is not TOML"):
        BrokerConfig.from_toml(f"id = {'9' * 5_000}")


def test_a_bad_document_is_refused_with_the_reason() -> None:
    for document, words in [
        ("id = ", "not TOML"),
        ("idd = 1", "'idd' is not a broker setting"),
        ("id = -1", "id=-1 is refused"),
        ("id = true", "id=true is refused"),
        ("data.dir = 1.5", "data.dir = 1.5 is a float"),
        ("id = 1.5", "id = 1.5 is a float"),
        ("id = [1]", "settings must be text, integers, or true or false"),
        ('listen = "9100"', "HOST:PORT"),
        ('data.dir = ""', "data.dir= is refused"),
        ('advertised.listen = "nowhere"', "advertised.listen=nowhere"),
        ('voters = "1@a"', "voters=1@a is refused"),
        ('voters = "1@a:1,1@b:1"', "broker id 1 is listed twice"),
        ('voters = "1@a:1,2@a:1"', "a:1 is the address of both 1 and 2"),
        ('voters = "2@a:1"', "does not contain this broker, whose id is 1"),
        ('voters = "1@a:1,2@b:1"', "set cluster.secret or cluster.secret.file to the same text"),
        ('cluster = {secret = "0123456789abcdef", "secret.file" = "b"}', "not both"),
        ('cluster.secret = "0123456789abcde"', "can be guessed"),
        (f'cluster.secret = "{" " * 30}"', "0 characters can be guessed"),
        ('cluster.secret = "(hidden)"', "shows for a secret"),
        ('cluster.secret.file = "\\u0000"', "not a path"),
        ("broker.heartbeat.interval.ms = 3000", "less than broker.session.timeout.ms=3000"),
        ("replica.fetch.wait.max.ms = 10000", "less than replica.lag.time.max.ms=10000"),
        ("default.replication.factor = 16", "0 to 15"),
        ('group.assignors = "uniform,,range"', "group.assignors=uniform,,range is refused"),
        ('group.assignors = "range,range"', "an empty or duplicate name"),
        ("group.max.size = 1001", "1 to 1000"),
        ("group = {min.session.timeout.ms = 3000, max.session.timeout.ms = 2000}", "could join"),
    ]:
        with pytest.raises(InvalidConfigError, match=words):
            BrokerConfig.from_toml(document)


def test_assignors_are_names_in_order() -> None:
    config = BrokerConfig.from_toml('group.assignors = "range, my.module:sticky"')
    assert config.group_assignors == ("range", "my.module:sticky")
    assert config.to_text()["group.assignors"] == "range,my.module:sticky"


VOTERS = "2@b:2,1@a:1"


@pytest.mark.parametrize(
    "settings",
    [
        {"voters": VOTERS, "cluster.secret": "open, sesame, for us"},
        {"voters": VOTERS, "cluster.secret.file": "/etc/raftlog/secret"},
    ],
)
def test_a_cluster_has_voters_and_a_secret(settings: dict[str, str]) -> None:
    config = BrokerConfig.from_text(settings)
    assert config.voters == ((1, Address("a", 1)), (2, Address("b", 2)))
    assert config.to_text()["voters"] == "1@a:1,2@b:2"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls.key.file": "k"}, "tls.key.file=k requires tls.certificate.file"),
        ({"tls.ca.file": "ca"}, "tls.ca.file=ca requires tls.certificate.file"),
        ({"tls.client.ca.file": "ca"}, "tls.client.ca.file=ca requires tls.certificate.file"),
        ({"tls.certificate.file": "c"}, "Set tls.key.file"),
        (
            {
                "tls.certificate.file": "c",
                "tls.key.file": "k",
                "voters": "1@a:1,2@b:1",
                "cluster.secret": "x" * 32,
            },
            "Set tls.ca.file",
        ),
        ({"tls.broker.id.required": "true"}, "id.required requires tls.certificate.file"),
        ({"tls.broker.id.required": "true", **TLS}, "Set tls.ca.file"),
        ({"tls.min.version": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
    ],
)
def test_incomplete_tls_settings_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        BrokerConfig.from_text(settings)


def test_a_console_that_writes_is_local() -> None:
    writes = {"http.console.read.only": "false"}
    for listen in ("127.0.0.1:9200", "[::1]:9200", "localhost:0"):
        config = BrokerConfig.from_text({**writes, "http.listen": listen})
        assert not config.http_console_read_only
    for listen in ("0.0.0.0:9200", "10.0.0.1:9200", "broker.example:9200", "[::]:9200"):
        assert BrokerConfig.from_text({"http.listen": listen}).http_console_read_only
        with pytest.raises(InvalidConfigError, match=r"or http\.listen to a loopback address"):
            BrokerConfig.from_text({**writes, "http.listen": listen})
        secured = {"authentication.required": "true", "voters": "1@127.0.0.1:9100"}
        config = BrokerConfig.from_text({**writes, **secured, "http.listen": listen})
        assert not config.http_console_read_only


def test_one_voter_needs_no_secret() -> None:
    assert BrokerConfig.from_text({"voters": "1@a:1"}).voters == ((1, Address("a", 1)),)


@pytest.mark.parametrize("secret", ["same old sesame seeds", "same", "se same " * 1_000])
def test_a_secret_is_shown_nowhere(secret: str) -> None:
    settings = {"voters": VOTERS, "cluster.secret": secret}
    try:
        config = BrokerConfig.from_text(settings)
    except InvalidConfigError as error:
        shown = str(error)
    else:
        assert config.cluster_secret == secret
        assert config.to_text()["cluster.secret"] == "(hidden)"
        shown = f"{config!r} {config.to_text()}"
    assert "same" not in shown


def test_a_secret_of_the_wrong_type_is_not_shown_either() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig.from_toml('cluster.secret = ["sesame"]')
    assert "cluster.secret = (hidden) is a list" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kafka.advertised.listen": "k:1"}, "requires kafka.listen"),
        ({"kafka.listen": "k:1", "kafka.protocol.enable": "false"}, "contradict"),
        ({"kafka.listen": "0.0.0.0:1", "voters": "1@h:1"}, "set kafka.advertised.listen"),
    ],
)
def test_an_address_for_kafka_clients_can_be_reached(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        BrokerConfig.from_text(settings)


def test_every_setting_says_what_it_is_for_and_what_it_takes() -> None:
    for key in BROKER_KEYS:
        assert key.help.endswith("."), key.name
        assert key.accepts or key.name == "id", key.name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ""),
        ({"listen": "localhost:9100"}, ""),
        ({"listen": "[::1]:9100"}, ""),
        ({"listen": "0.0.0.0:9100"}, "TLS is off"),
        ({"kafka.listen": "0.0.0.0:9092"}, "^kafka.listen=.* TLS is off"),
        ({"listen": "log1.example.org:9100"}, "TLS is off"),
        ({"listen": "10.0.0.1:9100", **TLS}, "clients need not authenticate"),
        ({"listen": "10.0.0.1:9100", **TLS, "tls.client.ca.file": "ca"}, ""),
        ({"listen": "10.0.0.1:9100", **TLS, **AUTHENTICATED}, ""),
        ({"listen": "10.0.0.1:9100", **AUTHENTICATED}, "TLS is off"),
        ({"listen": "10.0.0.1:9100", "insecure.allowed": "true"}, ""),
    ],
)
def test_a_broker_that_others_reach_is_secured_or_says_how(
    settings: dict[str, str], words: str
) -> None:
    config = BrokerConfig.from_text(settings)
    if not words:
        check_exposure(config)
        return
    with pytest.raises(InvalidConfigError, match=words) as caught:
        check_exposure(config)
    assert "raftlog security init" in str(caught.value)
    assert "--insecure" in str(caught.value)


# -- broker keys -----------------------------------------------------------------------------------
#
# The settings of a broker: that each is one, and can be read about.


def test_they_stand_in_the_order_of_their_names_after_the_first_ones() -> None:
    names = [key.name for key in BROKER_KEYS]
    first = names.index("broker.heartbeat.interval.ms")
    assert names[first:] == sorted(names[first:])
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("log.cleaner.dedupe.buffer.size", "1000"),
        ("log.cleaner.interval.ms", "0"),
        ("log.cleaner.io.max.bytes.per.second", "-1"),
        ("fetch.max.bytes", "many"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(name: str, bad: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{name}={bad}"):
        BrokerConfig.from_text({name: bad})


# -- voters ----------------------------------------------------------------------------------------
#
# Who votes: read, written, refused.


def test_voters_are_read_in_order_of_their_ids() -> None:
    voters = parse_voters(" 10@c:3, 2@[::1]:2,1@a:1 ")
    assert voters == ((1, Address("a", 1)), (2, Address("::1", 2)), (10, Address("c", 3)))
    assert show_voters(voters) == "1@a:1,2@[::1]:2,10@c:3"


@pytest.mark.parametrize("text", ["", "  "])
def test_no_voters(text: str) -> None:
    assert parse_voters(text) == ()
    assert show_voters(()) == ""


@given(
    st.dictionaries(
        st.integers(0, (1 << 31) - 1),
        st.integers(1, 65_535),
        max_size=limits.VOTERS_PER_CLUSTER_MAX,
    )
)
def test_what_is_written_is_read_alike(ports: dict[int, int]) -> None:
    voters = tuple(Voter(id_, Address(f"host-{id_}", port)) for id_, port in sorted(ports.items()))
    assert parse_voters(show_voters(voters)) == voters


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:1", "is not ID@HOST:PORT"),
        ("1@a:1,", "'' is not ID@HOST:PORT"),
        ("@a:1", "not a broker id"),
        ("x@a:1", "not a broker id"),
        ("-1@a:1", "not a broker id"),
        ("٣@a:1", "not a broker id"),
        ("2147483648@a:1", "not a broker id"),
        ("1" * 5_000 + "@a:1", "not a broker id"),
        ("1@a", "HOST:PORT"),
        ("1@a:0", "1@a:0: the port must not be 0"),
        ("1@a:1,2@b:2,1@c:3", "broker id 1 is listed twice"),
        ("1@a:1,2@b:2,3@a:1", "a:1 is the address of both 1 and 3"),
        (",".join(f"{n}@a:{n}" for n in range(1, 17)), "16 voters; the limit is 15"),
    ],
)
def test_what_is_no_list_of_voters_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_voters(text)


# -- settings of topics ----------------------------------------------------------------------------

# Topic settings: Kafka's defaults, and text both ways.


def test_defaults_of_topics_survive_a_round_trip_through_text() -> None:
    text = TopicConfig().to_text()
    assert set(text) == {key.name for key in TOPIC_KEYS}
    assert TopicConfig.from_text(text) == TopicConfig()


def test_an_override_changes_one_setting() -> None:
    config = TopicConfig.from_text({"retention.ms": "5"})
    assert config.retention_ms == 5
    assert config == TopicConfig(retention_ms=5)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"retention\.hours"):
        TopicConfig.from_text({"retention.hours": "5"})


@pytest.mark.parametrize(
    ("text", "replication_factor", "minimum"),
    [("0", 1, 1), ("0", 2, 1), ("0", 3, 2), ("0", 5, 2), ("1", 3, 1), ("3", 3, 3)],
)
def test_min_insync_replicas_follows_the_replication_factor(
    text: str, replication_factor: int, minimum: int
) -> None:
    config = TopicConfig.from_text({"min.insync.replicas": text})
    assert config.effective_min_isr(replication_factor) == minimum


def test_min_insync_replicas_has_a_range() -> None:
    for text in ("-1", "16"):
        with pytest.raises(InvalidConfigError, match="0 to 15"):
            TopicConfig.from_text({"min.insync.replicas": text})


def test_every_setting_of_topics_says_what_it_is_for_and_what_it_takes() -> None:
    for key in TOPIC_KEYS:
        assert key.help.endswith("."), key.name
        assert key.accepts, key.name
