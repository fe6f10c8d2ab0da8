"""The command line as a whole: commands, errors, exit statuses, and how a command is ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from raftlog.errors import UnknownTopicError
from raftlog_cli import main
from raftlog_cli.main import STOP_SIGNALS, HeldInterrupt, Terminated, raise_on_signals, status_of
from tests.cli.conftest import Raftlog

# -- commands and errors ---------------------------------------------------------------------------


Spawn = Callable[..., "subprocess.Popen[bytes]"]


def test_help_lists_every_command_with_its_line(raftlog: Raftlog) -> None:
    ran = raftlog("--help")
    assert ran.status == 0
    for name, entry in main.COMMANDS.items():
        assert f"  {name} ".encode() in ran.out
        assert entry.help.split()[0].encode() in ran.out


@pytest.mark.integration
def test_help_loads_neither_numpy_nor_rich_nor_any_command() -> None:
    code = (
        "import sys; from raftlog_cli.main import run; run(['--help']); "
        "heavy = {'numpy', 'msgspec', 'rich', 'asyncio', 'raftlog_cli.tail', 'raftlog_cli.topic'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_version_is_the_packages(raftlog: Raftlog) -> None:
    from raftlog import __version__

    assert raftlog("--version").out.decode() == f"raftlog {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["topic", "nonsense"],
        ["tail"],
        ["tail", "t", "-n", "many"],
        ["produce", "t", "--rate", "nan"],
        ["top", "--interval", "inf"],
    ],
)
def test_wrong_usage_is_status_2(raftlog: Raftlog, arguments: list[str]) -> None:
    ran = raftlog(*arguments)
    assert ran.status == 2
    assert "Error: " in ran.err
    assert ran.out == b""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["topc"], "No such command 'topc'. Did you mean 'topic'"),
        (["topic", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["zzz"], "No such command 'zzz'.\n"),
    ],
)
def test_a_mistyped_command_gets_similar_ones(
    raftlog: Raftlog, arguments: list[str], hint: str
) -> None:
    assert hint in raftlog(*arguments).err


@pytest.mark.parametrize("arguments", [["-h"], ["topic", "-h"], ["topic", "list", "-h"]], ids=str)
def test_h_is_help_everywhere(raftlog: Raftlog, arguments: list[str]) -> None:
    ran = raftlog(*arguments)
    assert (ran.status, ran.out[:6]) == (0, b"Usage:")


def test_options_of_the_connection_have_a_help_of_their_own(raftlog: Raftlog) -> None:
    names = (b"--bootstrap", b"--profile", b"--ssl-cafile", b"--sasl-oauthbearer-token-command")
    normal, connection = raftlog("tail", "-h").out, raftlog("tail", "--help-connection").out
    assert [name in normal for name in names] == [False] * 4
    assert [name in connection for name in names] == [True] * 4
    assert b"--help-connection" in normal
    assert b"--follow" not in connection


class Raising(click.Command):
    """A command that ends with the given error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("raising")
        self._error = error

    def invoke(self, ctx: click.Context) -> None:
        raise self._error


@pytest.fixture
def ending_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    def call(error: BaseException) -> int:
        monkeypatch.setattr(main.Root, "get_command", lambda *_: Raising(error))
        return main.run(["raising"])

    return call


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UnknownTopicError("no topic 't'"), "raftlog: no topic 't'\n"),
        (UnknownTopicError("two\n lines"), "raftlog: two lines\n"),
        (UnknownTopicError(), "raftlog: UnknownTopicError\n"),
        (PermissionError(13, "Permission denied", "/data"), "raftlog: /data: Permission denied\n"),
        (ConnectionResetError(), "raftlog: ConnectionResetError\n"),
        (TimeoutError("no answer within 5 s"), "raftlog: no answer within 5 s\n"),
    ],
)
def test_what_the_world_did_wrong_is_one_line_and_status_1(
    ending_with: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    line: str,
) -> None:
    assert ending_with(error) == 1
    assert capsys.readouterr().err == line


def test_an_interrupt_is_status_130_and_silent(
    ending_with: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending_with(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == ""


def test_our_own_mistakes_keep_their_traceback(
    ending_with: Callable[[BaseException], int],
) -> None:
    with pytest.raises(AssertionError):
        ending_with(AssertionError("a broken invariant"))


@pytest.mark.integration
def test_a_reader_that_has_had_enough_ends_the_command_quietly(spawn: Spawn) -> None:
    process = spawn("completion", "zsh")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == b""


@pytest.mark.integration
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topic", "--help"]], ids=str)
def test_output_that_cannot_be_written_is_one_sentence(
    arguments: list[str], unbuffered: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["PYTHONUNBUFFERED"] = unbuffered
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "raftlog", *arguments],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == b"raftlog: standard output: No space left on device\n"


def test_the_help_names_every_exit_status(raftlog: Raftlog) -> None:
    text = raftlog("--help").out.decode()
    statuses = text[text.index("Exit status:") :]
    assert re.findall(r"^ +(\d+)  ", statuses, re.MULTILINE) == ["0", "1", "2", "3", "4", "130"]


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        (
            "no broker: check the argument bootstrap (RAFTLOG_BOOTSTRAP)",
            "no broker: check the option --bootstrap (RAFTLOG_BOOTSTRAP)",
        ),
        ("send it to broker 1 (argument bootstrap)", "send it to broker 1 (--bootstrap)"),
        ("bootstrap='x': not HOST:PORT", "--bootstrap='x': not HOST:PORT"),
    ],
)
def test_errors_name_options(argument: str, option: str) -> None:
    assert main.in_options(argument) == option


@pytest.mark.integration
def test_ctrl_c_ends_a_waiting_command_with_130(spawn: Spawn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = spawn("topic", "list", "--bootstrap", address)
        connection, _ = silent.accept()  # it waits for an answer from now on
        with connection:
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(timeout=60) == 130


# -- completion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_ask_raftlog(raftlog: Raftlog, shell: str) -> None:
    ran = raftlog("completion", shell)
    assert ran.status == 0
    assert b"_RAFTLOG_COMPLETE" in ran.out


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("raftlog top", {"top", "topic"}),
        ("raftlog topic desc", {"describe"}),
        ("raftlog produce --comp", {"--compression"}),
        ("raftlog produce --compression z", {"zstd"}),
    ],
)
def test_the_shell_completes_commands_and_options(words: str, expected: set[str]) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "_RAFTLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from raftlog_cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert {line.partition(",")[2] for line in ran.stdout.splitlines()} == expected


# -- interrupts ------------------------------------------------------------------------------------

# How a command is told to end.


@pytest.fixture
def handlers() -> Iterator[None]:
    """What was there before stays."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_it_is_an_interrupt_with_a_status_of_its_own(number: int, status: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise_on_signals()
    with pytest.raises(Terminated) as noted:
        signal.raise_signal(number)
    assert isinstance(noted.value, KeyboardInterrupt)
    assert status_of(noted.value) == status


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_has_its_own_status() -> None:
    assert status_of(KeyboardInterrupt()) == 130


@pytest.mark.usefixtures("handlers")
def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_on_signals()
    signal.raise_signal(signal.SIGHUP)
    with HeldInterrupt() as held:
        signal.raise_signal(signal.SIGHUP)
        assert held.has_come is None


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_held_back_once(number: int) -> None:
    raise_on_signals()
    before = signal.getsignal(number)
    with HeldInterrupt() as held:
        assert held.has_come is None
        signal.raise_signal(number)
        assert held.has_come is not None
        assert status_of(held.has_come) == 128 + number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
