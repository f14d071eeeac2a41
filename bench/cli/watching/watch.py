"""`observatory watch`: run your own training command unedited, and store the times of its steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bench.cli.options import RUNS, SHARING, STORE, NamedText
from bench.errors import CASE_FAILED, FINE, Misuse

MOST_TAGS = 16
MOST_MINUTES = 7 * 24 * 60
MOST_STEPS = 50
"""Equal to `collectors.watch.observatory_watch_window.MOST_STEPS`."""
_TAG = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,30})=([A-Za-z0-9._:+/-]{1,64})")


class Minutes(click.ParamType):  # type: ignore[type-arg]  # Generic only in newer versions of click.
    """A whole number of minutes, up to a week."""

    name = "minutes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        minutes = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_MINUTES)) else 0
        if not 1 <= minutes <= MOST_MINUTES:
            self.fail(f"{text!r} is no whole number of minutes from 1 to {MOST_MINUTES:,}", param, ctx)
        return minutes


@click.command(name="watch", context_settings={"allow_interspersed_args": False})
@click.option(
    "--name", type=NamedText(), show_default="the script's", help="Name of the series that the run belongs to."
)
@click.option(
    "--tag",
    "tag_words",
    metavar="KEY=VALUE",
    type=NamedText(),
    multiple=True,
    help="What tells runs of the same name apart, for example model=7b. Repeatable.",
)
@click.option(
    "--attach",
    "attached",
    metavar="NAME",
    type=NamedText(),
    help="Name or run id of a running watched job to trace now.",
)
@click.option(
    "--window-every",
    "window_minutes",
    metavar="MINUTES",
    type=Minutes(),
    help="Minutes between windows of traced steps.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_STEPS),
    default=12,
    show_default=True,
    help="Number of steps to trace at a time.",
)
@click.option("--no-slow-windows", is_flag=True, help="Trace no steps when they become slower than the job's own past.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress, only the table at the end.")
@click.option(
    "--live", is_flag=True, help="Redraw one progress line in place; it can overwrite the script's progress bar."
)
@click.option(
    "--redact", is_flag=True, help="Leave folders out of stored paths: the script's, and those in stacks and traces."
)
@SHARING
@RUNS
@STORE
@click.argument("words", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    name: str | None,
    tag_words: tuple[str, ...],
    attached: str | None,
    window_minutes: int | None,
    steps: int,
    no_slow_windows: bool,
    quiet: bool,
    live: bool,
    redact: bool,
    runs_folder: Path,
    store_url: str | None,
    words: tuple[str, ...],
) -> int:
    """Run a training command, watch its steps, and keep them as a run.

    The script needs no edits, and output, signals and exit code stay the command's own. Standard error shows the
    progress and, at the end, a table of the ranks. OBSERVATORY_WATCH=off runs it unwatched.

    --attach runs no command: all ranks of a job that is already watched trace the same steps, and the joined result is
    printed.

    \b
    Example:
      observatory watch --name llama-sft -- torchrun --nproc-per-node 8 train.py
    """
    if attached is not None:
        names = [each.name for each in context.command.params if isinstance(each, click.Option) and each.name]
        given = {each for each in names if context.get_parameter_source(each) is ParameterSource.COMMANDLINE}
        if words or given - {"attached", "steps", "runs_folder"}:
            raise Misuse(
                "--attach NAME takes only --steps and --runs: it traces a job that is already watched; leave the"
                " command and the other options out"
            )
        return _attach(attached, runs_folder, steps)
    if not words:
        raise click.MissingParameter(param_hint="'COMMAND...'", param_type="argument")
    from bench.session.watched.command_line import default_name
    from bench.session.watched.session import NAME, WatchRequest, watch

    if name is None:
        name = default_name(words)
    if not NAME.fullmatch(name):
        raise Misuse(f"--name {name!r} cannot name a run; use up to 63 letters, digits and `.`, `_` or `-`")
    is_chosen = context.get_parameter_source("steps") is ParameterSource.COMMANDLINE
    if is_chosen and no_slow_windows and window_minutes is None:
        raise Misuse(
            f"--steps {steps} has no window: --no-slow-windows leaves only those of --attach, where --steps is given"
            " again; add --window-every, or leave --steps out"
        )
    if live and quiet:
        raise Misuse("--live draws the progress that --quiet leaves out; use one of them")
    request = WatchRequest(
        command=words,
        name=name,
        runs=runs_folder,
        store_url=store_url,
        tags=_tags(tag_words),
        is_quiet=quiet,
        is_drawn=live,
        is_redacted=redact,
        umask=context.obj if isinstance(context.obj, int) else None,
        window_every_s=None if window_minutes is None else 60.0 * window_minutes,
        window_steps=steps,
        has_slow_windows=not no_slow_windows,
    )
    return watch(request)


def _attach(name: str, runs: Path, steps: int) -> int:
    from bench.report.run.watched import window_lines
    from bench.report.table import open_console, print_page
    from bench.session.watched.windows import attach

    window = attach(name, runs, steps)
    if window is None:
        return CASE_FAILED
    print_page(window_lines(window), open_console())
    return CASE_FAILED if window.dropped is not None else FINE


def _tags(words: tuple[str, ...]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for word in words:
        match = _TAG.fullmatch(word)
        if match is None:
            raise Misuse(f"--tag {word!r} is no KEY=VALUE; write for example --tag model=7b")
        if match[1] in tags:
            raise Misuse(f"--tag {match[1]} is set twice; set it once")
        tags[match[1]] = match[2]
    if len(tags) > MOST_TAGS:
        raise Misuse(f"{len(tags)} tags are too many; use {MOST_TAGS} or fewer")
    return tags
