"""Shell completion of strategies, their options, runs and traces, and `observatory completion`, its script.

Loads no torch and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from bench.errors import InfrastructureFailed, Misuse

PROGRAM = "observatory"
COMPLETION_VARIABLE = "_OBSERVATORY_COMPLETE"
"""Variable set by the shell that wants a word completed."""
SHELLS = ("bash", "zsh", "fish")

_PLAIN = "COMPREPLY+=($value)"
_UNFINISHED = """COMPREPLY+=($value)
            [[ $value == *= ]] && compopt -o nospace 2> /dev/null"""
RUNS_OFFERED = 50
"""How many runs of the history are offered, the newest first."""


def complete_strategy(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the strategies and probes whose names begin so, each with its summary."""
    from workloads.registry import SPECS

    return [
        CompletionItem(spec.name, help=spec.summary.partition(":")[0])
        for spec in SPECS
        if spec.name.startswith(incomplete)
    ]


def complete_option(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return `NAME=` for each option of the strategy on the command line; behind the `=`, the values it may have."""
    from bench.case import known_options

    name, equals, value = incomplete.partition("=")
    words = [context.params.get("strategy"), *context.args]  # Click parses nothing while an option lacks its value.
    options = next((known for word in words if (known := known_options(str(word)))), ())
    if not equals:
        return [
            CompletionItem(f"{option.name}=", help=option.help) for option in options if option.name.startswith(name)
        ]
    return [
        CompletionItem(f"{name}={choice}")
        for option in options
        if option.name == name
        for choice in (("true", "false") if isinstance(option.default, bool) else option.choices)
        if choice.startswith(value)
    ]


def complete_suite(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the shipped suites whose names begin so; files where none does."""
    from bench.suite.form.document import shipped_suites

    items = [CompletionItem(name) for name in shipped_suites() if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def complete_machine(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the shipped machines whose names begin so; files where none does."""
    from bench.machine.machines.machine_file import shipped_machines

    items = [CompletionItem(name) for name in shipped_machines() if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the newest runs of the history that --store or its environment variable names; folders where none fits."""
    items = [CompletionItem(run) for run in _runs(context) if run.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="dir")]


def complete_trace(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return trace files and folders of them; where no path begins so, return runs."""
    path = Path(incomplete)
    if not incomplete or any(path.parent.glob(f"{path.name}*")):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(run) for run in _runs(context) if run.startswith(incomplete)]


def _runs(context: click.Context) -> Iterable[str]:
    """Return names of runs; none where the history cannot be read, as a completing shell is no place to say why."""
    from bench.store.history import History

    with (
        suppress(InfrastructureFailed, Misuse),
        History(context.params.get("store_url"), writable=False, is_glance=True) as history,
    ):
        return history.names(RUNS_OFFERED)
    return ()


class BashWithValues(BashComplete):
    """Completion for bash, which splits words at "=": `--option overlap=t` arrives as `overlap`, `=` and `t`.

    The parts are joined again. The answer holds only the part behind "=", which is what bash replaces. No blank
    follows a name that needs a value.
    """

    source_template = BashComplete.source_template.replace(_PLAIN, _UNFINISHED)

    def get_completion_args(self) -> tuple[list[str], str]:
        words = ["".join(split_arg_string(word)) for word in os.environ["COMP_WORDS"].split("\n")]
        last = int(os.environ["COMP_CWORD"])
        words = [*words[1:last], words[last] if last < len(words) else ""]
        joined: list[str] = []
        for word in words:
            if joined and (word == "=" or joined[-1].endswith("=")):
                joined[-1] += word
            else:
                joined.append(word)
        return joined[:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        name, _, value = item.value.rpartition("=")
        return f"{item.type},{value if name and value else item.value}"


def register() -> None:
    """Make click use `BashWithValues` for bash."""
    add_completion_class(BashWithValues)


def script(shell: str, program: click.Command) -> str:
    """Return the script that makes the shell complete the program's words."""
    register()
    completer = get_completion_class(shell)
    assert completer is not None, "click has each of SHELLS"
    return completer(program, {}, PROGRAM, COMPLETION_VARIABLE).source()


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a shell script that completes strategies, options and runs.

    \b
    Example:
      observatory completion bash

    \b
    To enable completion, add a line to your shell's startup file:
      ~/.bashrc                     eval "$(observatory completion bash)"
      ~/.zshrc, after compinit      eval "$(observatory completion zsh)"
      ~/.config/fish/config.fish    observatory completion fish | source
    """
    click.echo(script(shell, click.get_current_context().find_root().command))
