"""Texts that become values: options, offsets, fields of HTTP requests; and shell completion."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from raftlog import Producer
from raftlog.errors import InvalidRequestError
from raftlog_cli import completing
from raftlog_cli.console.http import choice, whole
from raftlog_cli.options import (
    EARLIEST,
    LATEST,
    Bound,
    Extent,
    From,
    Offsets,
    checked,
    confine,
    http_url,
    in_units,
    key_and_value,
    no_topic,
    parse_offsets,
    parse_time,
    parsed,
    partition_and_offset,
    read_text,
    resolve,
    topic_partition,
)
from raftlog_cli.options import (
    cluster_secret_file as secret_file_option,
)
from raftlog_cli.tail import tail
from tests.cli.conftest import Raftlog

# -- options ---------------------------------------------------------------------------------------

# Values of shared options: a table each.


@pytest.mark.parametrize(
    ("text", "pair"), [("k=v", ("k", "v")), ("k=", ("k", "")), ("k=a=b", ("k", "a=b"))]
)
def test_settings_are_split_at_the_first_equals_sign(text: str, pair: tuple[str, str]) -> None:
    assert key_and_value(text) == pair


@pytest.mark.parametrize("text", ["", "k", "=v"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        key_and_value(text)


def test_a_partition_and_its_offset() -> None:
    assert partition_and_offset("3:1500") == (3, 1500)


@pytest.mark.parametrize("text", ["", "3", "3:", ":1", "a:1", "3:-1", "3:1:2"])
def test_what_is_no_partition_and_offset_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="P:OFFSET"):
        partition_and_offset(text)


def test_a_topic_and_its_partition() -> None:
    assert topic_partition("clicks:3") == ("clicks", 3)


@pytest.mark.parametrize("text", ["", "clicks", ":3", "clicks:", "clicks:-1", "clicks:x"])
def test_what_is_no_topic_and_partition_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="TOPIC:P"):
        topic_partition(text)


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("7d", "retention.ms", "604800000"),
        ("1.5 h", "segment.ms", "5400000"),
        ("30MIN", "segment.ms", "1800000"),
        ("1gib", "segment.bytes", "1073741824"),
        ("2.5MiB", "max.message.bytes", "2621440"),
        ("2w", "retention.ms", "1209600000"),
        ("10MB", "segment.bytes", "10000000"),
        ("604800000", "retention.ms", "604800000"),
        ("-1", "retention.ms", "-1"),
        ("1GiB", "retention.ms", "1GiB"),
        ("0.5ms", "retention.ms", "0.5ms"),
        ("7d", "min.insync.replicas", "7d"),
        ("9" * 99 + "d", "retention.ms", "9" * 99 + "d"),
        ("compact", "cleanup.policy", "compact"),
    ],
)
def test_settings_accept_amounts_with_units(text: str, setting: str, value: str) -> None:
    assert in_units(text, setting) == value


@click.command()
@click.option("--number", callback=parsed(int))
@click.option("--port", callback=checked(int))
@click.option("--grep", expose_value=False, callback=parsed(re.compile))
def probe(number: int | None, port: str | None) -> None:
    click.echo(f"{number!r} {port!r}")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("clik", "Did you mean 'clicks' or 'click-log'?"),
        ("zzzz", "`raftlog topic list` lists all topics, and `raftlog topic create zzzz` creates"),
    ],
)
def test_a_topic_that_does_not_exist_has_similar_names(name: str, advice: str) -> None:
    assert advice in no_topic(name, ["clicks", "click-log", "orders"], create=True)
    assert "create" not in no_topic(name, ["clicks", "orders"])


@pytest.mark.parametrize("text", ["host:9", "ftp://x", "http://", "http://[::1/", "http://h:x"])
def test_what_is_no_http_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        http_url(text)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(b"\xff")
    with pytest.raises(click.BadParameter, match="it is not UTF-8"):
        read_text(file)


def test_a_parsed_option_is_its_value_and_a_checked_one_its_text() -> None:
    assert CliRunner().invoke(probe, ["--number", "7", "--port", "08"]).output == "7 '08'\n"
    assert CliRunner().invoke(probe).output == "None None\n"


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}"])
def test_what_is_no_regular_expression_is_wrong_usage(pattern: str) -> None:
    result = CliRunner().invoke(probe, ["--grep", pattern])
    assert (result.exit_code, "is not a regular expression" in result.output) == (2, True)


@pytest.mark.parametrize("option", ["--number", "--port"])
def test_what_cannot_be_parsed_is_wrong_usage(option: str) -> None:
    result = CliRunner().invoke(probe, [option, "seven"])
    assert result.exit_code == 2
    assert "'seven'" in result.output


@click.command()
@secret_file_option
def show_secret_file(cluster_secret_file: str | None) -> None:
    click.echo(cluster_secret_file)


def test_the_secret_is_found_by_the_configuration_of_a_broker(tmp_path: Path) -> None:
    secret, other, config = (tmp_path / name for name in ("secret", "other", "broker.toml"))
    secret.write_text("0123456789abcdef")
    other.write_text("fedcba9876543210")

    def run(*arguments: str, **environment: str) -> str:
        ran = CliRunner().invoke(show_secret_file, arguments, env=environment)
        return ran.output.strip()

    from_config = ("--config", str(config))
    config.write_text(f'cluster.secret.file = "{secret}"')
    assert run(*from_config) == str(secret)
    assert run(*from_config, "--cluster-secret-file", str(other)) == str(other)
    assert run(*from_config, RAFTLOG_CLUSTER_SECRET_FILE=str(other)) == str(other)
    config.write_text("id = 1")
    assert "does not set cluster.secret.file" in run(*from_config)


# -- offsets ---------------------------------------------------------------------------------------

# The OFFSETS grammar: a table of texts and what they mean.


NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NEW_YEAR_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z


def at(milliseconds: int) -> Bound:
    return Bound(From.TIME, milliseconds)


def offset(number: int) -> Bound:
    return Bound(From.OFFSET, number)


def test_offsets_mean_what_the_grammar_says() -> None:
    for text, meaning in [
        ("earliest", Offsets(EARLIEST)),
        ("latest", Offsets(LATEST)),
        ("0", Offsets(offset(0))),
        ("47", Offsets(offset(47))),
        ("-10", Offsets(Bound(From.END, 10))),
        ("+10", Offsets(Bound(From.BEGINNING, 10))),
        ("5:9", Offsets(offset(5), offset(9))),
        ("5:5", Offsets(offset(5), offset(5))),
        ("@1700000000000", Offsets(at(NOW_MS))),
        ("@-2h", Offsets(at(NOW_MS - 2 * HOUR_MS))),
        ("@-1h30m", Offsets(at(NOW_MS - HOUR_MS * 3 // 2))),
        ("@-2h:-1h", Offsets(at(NOW_MS - 2 * HOUR_MS), at(NOW_MS - HOUR_MS))),
        ("@2024-01-01", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T00:00", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T00:00:00Z", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T01:00:00+01:00", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T00:00:00.250", Offsets(at(NEW_YEAR_MS + 250))),
        ("@2024-01-01T00:00:00.250001", Offsets(at(NEW_YEAR_MS + 251))),
        ("@2024-01-01:2024-01-02", Offsets(at(NEW_YEAR_MS), at(NEW_YEAR_MS + DAY_MS))),
        (
            "@2024-01-01T00:00:00:2024-01-01T01:00:00",
            Offsets(at(NEW_YEAR_MS), at(NEW_YEAR_MS + HOUR_MS)),
        ),
        (
            "@2024-01-01T01:00+01:00:2024-01-01T01:00Z",
            Offsets(at(NEW_YEAR_MS), at(NEW_YEAR_MS + HOUR_MS)),
        ),
        ("@1700000000000:1700000000001", Offsets(at(NOW_MS), at(NOW_MS + 1))),
    ]:
        assert parse_offsets(text, now_ms=NOW_MS) == meaning


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "EARLIEST",
        "1.5",
        "--1",
        "-",
        "+",
        "1:",
        ":1",
        "9:5",
        "1:2:3",
        "@",
        "@yesterday",
        "@-2 h",
        "@-2y",
        "@-1h:-2h",
        "@2024-13-01",
        "٤٧",
        "99999999999999999999",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not one of|TIME|starts"):
        parse_offsets(text, now_ms=NOW_MS)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_offsets(text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("-5ms", 5), ("-5s", 5_000), ("-5m", 300_000), ("-1d", DAY_MS), ("-2w", 14 * DAY_MS)],
)
def test_relative_times_count_back_from_now(text: str, ago_ms: int) -> None:
    assert parse_time(text, now_ms=NOW_MS) == NOW_MS - ago_ms


def test_a_time_before_1970_is_1970() -> None:
    assert parse_time("-9999w", now_ms=NOW_MS) == 0
    assert parse_time("1969-07-20", now_ms=NOW_MS) == 0


EXTENT = Extent(beginning=100, end=200)


@pytest.mark.parametrize(
    ("bound", "at_time", "expected"),
    [
        (EARLIEST, None, 100),
        (LATEST, None, 200),
        (Bound(From.END, 10), None, 190),
        (Bound(From.END, 1_000), None, 100),
        (Bound(From.BEGINNING, 10), None, 110),
        (Bound(From.BEGINNING, 1_000), None, 200),
        (offset(150), None, 150),
        (offset(7), None, 7),
        (at(NOW_MS), 120, 120),
        (at(NOW_MS), None, 200),
    ],
)
def test_bounds_become_offsets(bound: Bound, at_time: int | None, expected: int) -> None:
    assert resolve(bound, EXTENT, at_time=at_time) == expected


@pytest.mark.parametrize(("wanted", "given"), [(7, 100), (100, 100), (150, 150), (999, 200)])
def test_confined_offsets_are_ones_that_exist(wanted: int, given: int) -> None:
    assert confine(wanted, EXTENT) == given


# -- http parameters -------------------------------------------------------------------------------

# Values of queries and forms.


def test_whole_numbers() -> None:
    assert whole({"n": " 12 "}, "n", 3) == 12
    assert (whole({"n": ""}, "n", 3), whole({}, "n", 3)) == (3, 3)
    for text in ("x", "-1", "1.5", "\N{SUPERSCRIPT TWO}", "1" * 19):
        with pytest.raises(InvalidRequestError, match=r"^n: "):
            whole({"n": text}, "n", 3)


def test_choices() -> None:
    assert choice({"c": "b"}, "c", ("a", "b")) == "b"
    assert (choice({"c": ""}, "c", ("a", "b")), choice({}, "c", ("a", "b"))) == ("a", "a")
    with pytest.raises(InvalidRequestError, match=r"^c: 'B' is not one of a, b"):
        choice({"c": "B"}, "c", ("a", "b"))


# -- completing ------------------------------------------------------------------------------------

# Shell completion of names: those of a running cluster, or none, and never an error.


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def complete(
    names: completing.Complete, incomplete: str, bootstrap: str | None = None
) -> list[str]:
    context = click.Context(tail)
    context.params["bootstrap"] = bootstrap
    return names(context, tail.params[0], incomplete)


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.integration
def test_names_are_those_of_the_cluster(raftlog: Raftlog, bootstrap: str, topic: str) -> None:
    assert raftlog("tail", topic, "--group", f"group-{topic}").status == 0
    assert complete(completing.topics, topic, bootstrap) == [topic]
    assert complete(completing.topics, "__", bootstrap) == []
    assert complete(completing.partitions, topic) == [f"{topic}:0", f"{topic}:1"]
    assert complete(completing.groups, "group-" + topic) == [f"group-{topic}"]
    assert complete(completing.brokers, "") == ["1"]
    with (
        Producer(bootstrap, transactional_id=f"tx-{topic}") as producer,
        producer.transaction() as txn,
    ):
        txn.send(topic, b"a")
    assert complete(completing.transactional_ids, "tx-" + topic) == [f"tx-{topic}"]


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "no address"])
def test_without_a_cluster_there_are_no_names(
    capfd: pytest.CaptureFixture[str], bootstrap: str
) -> None:
    assert complete(completing.topics, "", bootstrap) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("logging_as_before")
def test_settings_are_those_of_topics() -> None:
    assert complete(completing.settings, "retention.m") == ["retention.ms"]
    assert complete(completing.assignments, "retention.m") == ["retention.ms="]
