"""`observatory prune`: deletes folders of runs by age and size, except those that baselines need."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.completion import complete_run
from bench.cli.options import FORMAT, RUNS, STORE, Duration, NamedText
from bench.errors import INFRASTRUCTURE, Misuse, plural, say
from bench.report.format import readable
from bench.report.table import Block, Table, write

if TYPE_CHECKING:
    from bench.store.history import History
    from bench.store.prune import Folder, PrunePlan

SCHEMA_VERSION = 1
MOST_ROWS = 30
COLUMNS = ("kind", "name", "action", "reason", "bytes", "ended_ns", "folder")


class _Age(Duration):
    """A time with its unit: a bare number, elsewhere in seconds, might be meant as days."""

    examples = "12h or 30d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and value.strip()[-1:].isdigit():
            self.fail(f"{value!r} has no unit; use for example {self.examples}", param, ctx)
        return super().convert(value, param, ctx)


class _Size(click.ParamType):  # type: ignore[type-arg]  # Generic only in newer versions of click.
    """A size, for example 500M or 20G in powers of 1024, or a number of bytes."""

    name = "size"
    _FORM = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([KMGT]?)", re.ASCII)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = self._FORM.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is not a size; use for example 500M, 20G or 1T", param, ctx)
        return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


@click.command(name="prune")
@click.option(
    "--older-than",
    "older_than_s",
    metavar="TIME",
    type=_Age(),
    help="Delete runs that ended longer ago than TIME: 12h, 30d.",
)
@click.option(
    "--keep-bytes",
    "keep_bytes",
    metavar="SIZE",
    type=_Size(),
    help="Then delete the oldest runs until the others take at most SIZE: 500M, 20G.",
)
@click.option(
    "--keep",
    "names",
    metavar="RUN",
    multiple=True,
    type=NamedText(),
    shell_complete=complete_run,
    help="Run to keep. Repeatable.",
)
@click.option(
    "--dry-run", "is_dry_run", is_flag=True, help="Print what would be deleted and what stays; delete nothing."
)
@click.option("--history", "with_history", is_flag=True, help="Also delete the results of these runs from the history.")
@RUNS
@STORE
@FORMAT
def command(
    older_than_s: float | None,
    keep_bytes: int | None,
    names: tuple[str, ...],
    is_dry_run: bool,
    with_history: bool,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
) -> int | None:
    """Delete folders of old runs, except those that baselines need.

    Results stay in the history; logs and traces are deleted, without a confirmation. Try --dry-run first.

    \b
    Example:
      observatory prune --older-than 30d --dry-run
    """
    from bench.store.history import History, NoStoreYet, check_store
    from bench.store.prune import Limits, carry_out, plan

    if older_than_s is None and keep_bytes is None:
        raise Misuse("--older-than or --keep-bytes is required; for example --older-than 30d --dry-run")
    if not runs_folder.is_dir():
        raise Misuse(f"{runs_folder} is not a folder; name the folder of the runs with --runs")
    with ExitStack() as stack:
        history: History | None = None
        if is_dry_run and with_history:
            check_store(store_url)
        try:
            history = stack.enter_context(History(store_url, writable=with_history and not is_dry_run))
        except NoStoreYet as error:
            say(f"no run can be deleted, since none is in a history: {error}")
        keep = frozenset(history.find(name).run for name in names) if history is not None else frozenset(names)
        limits = Limits(older_than_s=older_than_s, keep_bytes=keep_bytes, keep=keep)
        planned = plan(runs_folder, history, limits, now_ns=time.time_ns())
        problems: tuple[str, ...] = ()
        deleted = planned.deleted
        if not is_dry_run:
            forget = history.forget if history is not None and with_history else None
            deleted, problems = carry_out(planned, forget=forget)
    _print(planned, deleted, format_name, is_dry_run=is_dry_run)
    left_bytes = sum(folder.size_bytes for folder in planned.kept)
    if keep_bytes is not None and left_bytes > keep_bytes:
        say(f"{readable(left_bytes, 'bytes')} are needed, which is more than --keep-bytes; that much stays")
    for problem in problems:
        say(problem)
    return INFRASTRUCTURE if problems else None


def _print(plan: PrunePlan, deleted: Sequence[Folder], format_name: str, *, is_dry_run: bool) -> None:
    """Print what was or would be deleted, and what stays and why."""
    rows = [
        {
            "kind": folder.kind,
            "name": folder.path.name,
            "action": "deleted" if folder.is_deleted else "kept",
            "reason": folder.reason,
            "bytes": folder.size_bytes,
            "ended_ns": folder.ended_ns,
            "folder": str(folder.path),
        }
        for folder in (*deleted, *plan.kept)
    ]
    write(
        format_name,
        _page(plan, deleted, is_dry_run=is_dry_run),
        lambda: {
            "schema_version": SCHEMA_VERSION,
            "is_dry_run": is_dry_run,
            "deleted_bytes": sum(folder.size_bytes for folder in deleted),
            "kept_bytes": sum(folder.size_bytes for folder in plan.kept),
            "folders": rows,
            "leftovers": list(map(str, plan.leftovers)),
        },
        rows,
        COLUMNS,
    )


def _page(plan: PrunePlan, deleted: Sequence[Folder], *, is_dry_run: bool) -> Iterator[Block]:
    needed = [folder for folder in plan.kept if folder.is_needed]
    for heading, folders in (("would go" if is_dry_run else "gone", deleted), ("stays regardless of age", needed)):
        if folders:
            cells = [
                (
                    each.path.name,
                    "-" if each.ended_ns is None else f"{datetime.fromtimestamp(each.ended_ns / 1e9, tz=UTC):%Y-%m-%d}",
                    readable(each.size_bytes, "bytes"),
                    each.reason,
                )
                for each in folders
            ]
            yield Table((heading, "ended", "size", "why"), cells[:MOST_ROWS], words=(0, 1, 3))
            if len(cells) > MOST_ROWS:
                yield f"... and {len(cells) - MOST_ROWS} more, in --format json"
            yield ""
    if plan.leftovers:
        yield f"also {plural(len(plan.leftovers), 'folder')} that an earlier prune left half deleted"
    freed, rest = (readable(sum(each.size_bytes for each in folders), "bytes") for folders in (deleted, plan.kept))
    verb = "would be deleted" if is_dry_run else "deleted"
    yield f"{_counts(deleted)} {verb}, {freed}; {_counts(plan.kept)} left, {rest}"


def _counts(folders: Sequence[Folder]) -> str:
    """Return the numbers of runs and suite runs: `3 runs, 1 suite run`."""
    counted = Counter(folder.kind for folder in folders)
    return ", ".join(plural(number, kind) for kind, number in counted.items()) or "nothing"
