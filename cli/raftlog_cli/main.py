"""The ``raftlog`` command: table of commands, and exit statuses of errors.

The module of a command is imported when the command or its help is used, so ``raftlog --help`` is
fast.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem, get_completion_class

from raftlog.standard_streams import STDERR, STDOUT, occupy

STATUS_FAILED: Final = 1
STATUS_INTERRUPTED: Final = 130  # 128 + SIGINT, as in shells


class Entry(NamedTuple):
    """Module of a command, and the first line of its help (a test compares the two)."""

    home: str  # module:attribute
    help: str


COMMANDS: Final[dict[str, Entry]] = {
    "demo": Entry(
        "raftlog_cli.demo:demo",
        "Write records, kill two leaders, and compare what is read back.",
    ),
    "up": Entry("raftlog_cli.up:up", "Run a local cluster in the foreground."),
    "broker": Entry("raftlog_cli.broker:broker", "Run one broker."),
    "ready": Entry(
        "raftlog_cli.broker:ready", "Wait until a broker is ready, or can be restarted."
    ),
    "topic": Entry("raftlog_cli.topic:topic", "Create, list, describe, alter and delete topics."),
    "group": Entry(
        "raftlog_cli.group:group",
        "List, describe, reset and delete consumer groups.",
    ),
    "txn": Entry("raftlog_cli.txn:txn", "List and describe transactions, and abort one."),
    "cluster": Entry(
        "raftlog_cli.cluster:cluster",
        "Show the cluster, move leaders and replicas, recover it.",
    ),
    "explain": Entry(
        "raftlog_cli.explain:explain",
        "Explain a lag, a partition, a broker, a rebalance or a disk.",
    ),
    "top": Entry(
        "raftlog_cli.top:top",
        "Show brokers, topics, groups and problems, live.",
    ),
    "console": Entry(
        "raftlog_cli.console.command:console",
        "Open the console of a cluster in the browser, and print its URL.",
    ),
    "produce": Entry(
        "raftlog_cli.produce:produce", "Send records, one per line, from a file or standard input."
    ),
    "tail": Entry("raftlog_cli.tail:tail", "Print records."),
    "sql": Entry("raftlog_cli.sql:sql", "Query topics with SQL, as tables."),
    "schema": Entry(
        "raftlog_cli.schema:schema",
        "List, get, put, check and delete schemas of the schema registry.",
    ),
    "mirror": Entry(
        "raftlog_cli.backup:mirror", "Copy topics of one cluster to another, with their offsets."
    ),
    "backup": Entry(
        "raftlog_cli.backup:backup", "Copy topics, their settings and group offsets to files."
    ),
    "restore": Entry(
        "raftlog_cli.backup:restore", "Restore topics and group offsets from a backup."
    ),
    "log": Entry("raftlog_cli.log:log", "Inspect and verify the files of partitions."),
    "user": Entry(
        "raftlog_cli.user:user", "Create, list and delete users, and change their passwords."
    ),
    "token": Entry("raftlog_cli.token:token", "Create, list, renew and remove delegation tokens."),
    "acl": Entry("raftlog_cli.acl:acl", "Create, list, delete and check access rules."),
    "quota": Entry("raftlog_cli.quota:quota", "Set, list and delete quotas."),
    "security": Entry(
        "raftlog_cli.security:security",
        "Create certificates for TLS, and the administrator of a cluster.",
    ),
    "bench": Entry(
        "raftlog_cli.bench:bench",
        "Measure raftlog on this machine, compared with a baseline.",
    ),
    "chaos": Entry(
        "raftlog_cli.chaos:chaos",
        "Inject faults, and check what the clients observed.",
    ),
    "completion": Entry("raftlog_cli.main:completion", "Print the completion script of a shell."),
}


class Failed(click.ClickException):
    """Failure of an operation: one line on stderr, exit status 1."""

    exit_code = STATUS_FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"raftlog: {' '.join(self.message.split())}", file=file, err=file is None)


class Commands(click.Group):
    """Group whose usage errors suggest similar commands, with any release of click."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        is_option = name.startswith("-")
        if not (is_option or ctx.resilient_parsing or self.get_command(ctx, name)):
            from difflib import get_close_matches

            similar = " or ".join(f"'{each}'" for each in get_close_matches(name, known))
            ctx.fail(f"No such command '{name}'.{f' Did you mean {similar}?' if similar else ''}")
        return super().resolve_command(ctx, args)


class Root(Commands):
    """Command table as a click group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.home.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        if not names:
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=COMMANDS[name].help) for name in names]

    # click would print a newline for an interrupt, and return status 1 for a closed pipe.

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with ending_quietly():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with ending_quietly():
            return super().invoke(ctx)


@contextmanager
def ending_quietly() -> Iterator[None]:
    """End the command without a message when it is interrupted, or when the reader has closed the
    pipe, as in `| head`.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise click.exceptions.Exit(status_of(interrupt)) from None
    except BrokenPipeError:
        discard(sys.stdout)
        raise click.exceptions.Exit(0) from None


def describe_os_error(error: OSError) -> str:
    cause = getattr(error, "reason", None)  # of urllib
    error = cause if isinstance(cause, OSError) else error
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the flush at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_standard_streams() -> None:
    """Open streams that are closed, as by ``>&-``. Otherwise sockets get their file descriptors.

    A write to such an output fails. Messages for a closed stderr are discarded.
    """
    occupied = occupy()
    if STDOUT in occupied:
        sys.stdout = open(STDOUT, "w", closefd=False)  # noqa: SIM115 - until the process ends
    elif isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED
        # `_failed` recognizes by the buffer that this output has failed. Lines are not delayed.
        # Opened again: the raw file may remember that another one could seek (fork server).
        buffered = io.BufferedWriter(io.FileIO(STDOUT, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(
            buffered, sys.stdout.encoding, sys.stdout.errors, line_buffering=True
        )
    if STDERR in occupied:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends


def show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from raftlog import __version__

        click.echo(f"raftlog {__version__}")
        ctx.exit()


@click.command(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=show_version,
    help="Print the version and exit.",
)
def root() -> None:
    """A partitioned commit log: topics of records, appended by producers, read by consumers.

    \b
    Example:
      raftlog up &                         three brokers: 127.0.0.1:9100 to 9102
      raftlog topic create clicks
      echo hello | raftlog produce clicks
      raftlog tail clicks -o earliest

    RAFTLOG_BOOTSTRAP sets --bootstrap, and RAFTLOG_CONFIG sets --config.

    \b
    Exit status:
      0    success
      1    the operation failed; the reason is on stderr
      2    wrong usage
      3    `cluster status` found problems, `cluster features` incompatible brokers;
           `acl check`: denied; `log verify --cluster`: copies were not verified;
           `chaos`: no verdict
      4    `broker`: the broker was decommissioned
      130  interrupted by Ctrl-C (129: by SIGHUP, 143: by SIGTERM)
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      bash:  eval "$(raftlog completion bash)"                        in ~/.bashrc
      zsh:   eval "$(raftlog completion zsh)"                         in ~/.zshrc
      fish:  raftlog completion fish > ~/.config/fish/completions/raftlog.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click supports all shells that the argument allows"
    click.echo(kind(root, {}, "raftlog", "_RAFTLOG_COMPLETE").source())


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit status: expected errors are one line on stderr."""
    try:
        status = root.main(args=list(arguments), prog_name="raftlog", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _failed(error)
    except click.Abort:
        return STATUS_INTERRUPTED
    except KeyboardInterrupt as interrupt:
        return status_of(interrupt)
    except OSError as error:
        return _failed(Failed(describe_os_error(error)))
    except Exception as error:
        from raftlog.errors import RaftlogError

        if not isinstance(error, RaftlogError):
            raise
        return _failed(Failed(in_options(str(error) or type(error).__name__)))
    return status if isinstance(status, int) else 0


def _failed(error: click.ClickException) -> int:
    """Print the error. Returns the exit status. Output that cannot be written is discarded."""
    try:
        sys.stdout.flush()
    except OSError as problem:
        discard(sys.stdout)
        error = Failed(f"standard output: {describe_os_error(problem)}")
    try:
        error.show()
    except OSError:
        discard(sys.stderr)
    return error.exit_code


def in_options(text: str) -> str:
    """Return the text of an error with the option in place of the argument of the client."""
    named = text.replace("argument bootstrap (RAFTLOG", "option --bootstrap (RAFTLOG")
    return named.replace("(argument bootstrap)", "(--bootstrap)").replace(
        "bootstrap='", "--bootstrap='"
    )


def main() -> NoReturn:
    """Run the console script."""
    open_standard_streams()
    raise_on_signals()
    sys.exit(run(sys.argv[1:]))


# -- interrupts ------------------------------------------------------------------------------------
#
# Signals that stop a command: Ctrl-C, and those of service managers and terminals.
#
# Each signal raises ``KeyboardInterrupt`` in the command, which then commits its offsets and stops
# the processes that it started. ``broker`` and ``up`` have other handlers.


# Under nohup, SIGHUP remains ignored.
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """Interrupt by a signal other than SIGINT."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def status_of(error: KeyboardInterrupt) -> int:
    """Return the exit status as shells do: 128 + the number of the signal."""
    return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)


def raise_on_signals() -> None:
    """Raise ``Terminated`` in the main thread on each of ``STOP_SIGNALS`` from now on."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


class HeldInterrupt:
    """Defers the first interrupt to the end of a block that must complete. ``has_come``: the
    deferred exception."""

    has_come: KeyboardInterrupt | None = None

    def __enter__(self) -> HeldInterrupt:
        held = [n for n in (signal.SIGINT, *STOP_SIGNALS) if callable(signal.getsignal(n))]
        self._before = {number: signal.signal(number, self._note) for number in held}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        if self.has_come is not None:  # the second interrupt is not deferred
            raise interrupt
        self.has_come = interrupt
