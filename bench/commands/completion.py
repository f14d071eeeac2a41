"""`observatory completion`: the script that lets a shell complete our command line."""

from __future__ import annotations

import click

from bench.completion import SHELLS, script


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """The script with which a shell completes strategies, options and runs.

    \b
    Example:
      observatory completion bash

    \b
    To switch it on, add a line to what the shell reads when it starts:
      ~/.bashrc                     eval "$(observatory completion bash)"
      ~/.zshrc, after compinit      eval "$(observatory completion zsh)"
      ~/.config/fish/config.fish    observatory completion fish | source
    """
    from bench.cli import observatory

    click.echo(script(shell, observatory))
