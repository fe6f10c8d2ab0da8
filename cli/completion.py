"""``raftlog completion``: the script that teaches a shell raftlog's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script.

    \b
    Example:
      bash:  eval "$(raftlog completion bash)"                        in ~/.bashrc
      zsh:   eval "$(raftlog completion zsh)"                         in ~/.zshrc
      fish:  raftlog completion fish > ~/.config/fish/completions/raftlog.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all the shells that the argument allows"
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "raftlog", "_RAFTLOG_COMPLETE").source())
