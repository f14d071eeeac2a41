"""Shell completion of strategies, options, runs and traces; `observatory completion` prints its script.

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
"""The variable that a shell sets to have a word completed."""
SHELLS = ("bash", "zsh", "fish")

_PLAIN = "COMPREPLY+=($value)"
_UNFINISHED = """COMPREPLY+=($value)
            [[ $value == *= ]] && compopt -o nospace 2> /dev/null"""
RUNS_OFFERED = 50
"""Number of newest runs to offer."""


def complete_strategy(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the strategies and probes with this prefix, each with its summary."""
    from workloads.registry import SPECS

    return [
        CompletionItem(spec.name, help=spec.summary.partition(":")[0])
        for spec in SPECS
        if spec.name.startswith(incomplete)
    ]


def complete_option(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return `NAME=` for each option of the strategy on the command line, or after the `=`, its allowed values."""
    from bench.case import known_options

    name, equals, value = incomplete.partition("=")
    words = [context.params.get("strategy"), *context.args]  # Click has parsed nothing while an option lacks its value.
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
    """Return the shipped suites with this prefix; files if there are none."""
    from bench.suite.form.document import shipped_suites

    items = [CompletionItem(name) for name in shipped_suites() if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def complete_machine(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the shipped machines with this prefix; files if there are none."""
    from bench.machine.machines.machine_file import shipped_machines

    items = [CompletionItem(name) for name in shipped_machines() if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the newest runs with this prefix in the history of --store or its variable; else folders."""
    items = [CompletionItem(run) for run in _runs(context) if run.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="dir")]


def complete_trace(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return trace files and folders; if no path has this prefix, return runs."""
    path = Path(incomplete)
    if not incomplete or any(path.parent.glob(f"{path.name}*")):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(run) for run in _runs(context) if run.startswith(incomplete)]


def _runs(context: click.Context) -> Iterable[str]:
    """Return names of runs; none if the history cannot be read, because completion must not print errors."""
    from bench.store.history import History

    with (
        suppress(InfrastructureFailed, Misuse),
        History(context.params.get("store_url"), writable=False, is_glance=True) as history,
    ):
        return history.names(RUNS_OFFERED)
    return ()


class BashWithValues(BashComplete):
    """Completion for bash, which splits words at "=": `--option overlap=t` arrives as `overlap`, `=` and `t`.

    The parts are joined again. The result contains only the part after "=", which bash replaces. No blank follows a
    name that needs a value.
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
