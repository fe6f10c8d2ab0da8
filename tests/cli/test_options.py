"""Values of shared options: a table each."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from raftlog_cli.options import (
    checked,
    http_url,
    key_and_value,
    no_topic,
    parsed,
    partition_and_offset,
    read_text,
    topic_partition,
)
from raftlog_cli.options import (
    cluster_secret_file as secret_file_option,
)


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


@click.command()
@click.option("--number", callback=parsed(int))
@click.option("--port", callback=checked(int))
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
