"""Profiles: tables of one file, or a file each; what is rejected shows no password."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.client import profiles
from raftlog.client.settings import Security, connection_settings
from raftlog.errors import InvalidRequestError

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
