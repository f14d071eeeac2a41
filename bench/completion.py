"""What a shell completes: strategies, their options, runs and traces; it imports no torch and writes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from bench.errors import InfrastructureFailed, Misuse

RUNS_OFFERED = 50
"""The newest of the history."""


def complete_strategy(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Strategies and probes, with what they are."""
    from workloads.roster import CARDS

    return [
        CompletionItem(card.name, help=card.summary.partition(":")[0])
        for card in CARDS
        if card.name.startswith(incomplete)
    ]


def complete_option(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`NAME=` of the strategy that stands on the command line, then the words that its value may be."""
    from bench.case import known_options

    name, equals, value = incomplete.partition("=")
    words = [context.params.get("strategy"), *context.args]  # Before an option without its value click parses nothing.
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


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest runs of the history that --store or its environment variable names, and folders."""
    found = [CompletionItem(run) for run in _runs(context) if run.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


def complete_trace(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Trace files and folders of them, or, where nothing is there under such a name, runs."""
    path = Path(incomplete)
    if not incomplete or any(path.parent.glob(f"{path.name}*")):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(run) for run in _runs(context) if run.startswith(incomplete)]


def _runs(context: click.Context) -> Iterable[str]:
    """Names of runs; none where the history cannot be read: a shell that completes is no place to say why."""
    from bench.store.history import History

    with (
        suppress(InfrastructureFailed, Misuse),
        History(context.params.get("store_url"), writable=False, is_glance=True) as history,
    ):
        return history.names(RUNS_OFFERED)
    return ()
