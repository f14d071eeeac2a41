"""`observatory analyse`: a subcommand for each analysis of traces, from a run or from any use of torch.profiler."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from bench.analysis.traces.analyses import ANALYSES, Analysis
from bench.cli.completion import complete_trace
from bench.cli.options import FORMAT, RUNS, STORE, FullTextGroup, NamedPath, NamedText, offer_nearest
from bench.errors import InfrastructureFailed, Misuse, say
from collectors.files import write_named

if TYPE_CHECKING:
    from bench.analysis.traces.inputs import TraceSet

F = TypeVar("F", bound=Callable[..., object])

ROWS = 30
MOST_RANKS = 2**31 - 1
_LONE = ("trace",)
_FILE = NamedPath(is_folder=False)
_RANK = click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0, MOST_RANKS),
    multiple=True,
    help="Rank of a trace, replacing the rank in the trace; give it once for each trace, in order.",
)
_WHAT_IT_MAY_BE = (
    "a trace of torch.profiler (.json, .json.gz, or - for standard input), a rank's .timeline.npz, a folder of these,"
    " or the beginning of a run's name"
)


def _command_of(analysis: Analysis) -> click.Command:
    @click.command(name=analysis.name, help=_help(analysis.name, analysis.summary, analysis.sides))
    @_sides(analysis.sides)
    @click.option("--table", "table_name", metavar="NAME", help="Only this table; --format csv needs one.")
    @click.option(
        "--limit",
        type=click.IntRange(min=1),
        default=ROWS,
        show_default=True,
        help="Most rows of each printed table.",
    )
    @click.option("--output", type=_FILE, help="Output file.  [default: standard output]")
    @_RANK
    @RUNS
    @STORE
    @FORMAT
    def answer(
        table_name: str | None,
        limit: int,
        output: Path | None,
        ranks: tuple[int, ...],
        runs_folder: Path,
        store_url: str | None,
        format_name: str,
        **named: str | tuple[str, ...],
    ) -> None:
        from bench.analysis.traces.inputs import read_sides
        from bench.analysis.traces.report import AnalysisReport, write

        sides = read_sides(_by_side(named), ranks=ranks, runs_folder=runs_folder, store_url=store_url)
        _keep_traces(output, sides)
        tabled = analysis.run(*(side.timelines() for side in sides))
        text = sys.stdout if output is None else io.StringIO()
        report = AnalysisReport(analysis=analysis.name, sides=sides, tables=tabled.tables(), notes=tabled.notes)
        write(report, text, format_name, table_name=table_name, limit=limit, on_notice=say)
        if output is not None and isinstance(text, io.StringIO):
            _write(output, text.getvalue().encode(errors="backslashreplace"))

    return answer


def _sides(sides: tuple[str, ...]) -> Callable[[F], F]:
    """Add a click argument for each side; a lone side takes any number of names."""

    def decorate(function: F) -> F:
        for side in reversed(sides):
            count = -1 if sides == _LONE else 1
            function = click.argument(
                side, nargs=count, required=True, type=NamedText(), shell_complete=complete_trace
            )(function)
        return function

    return decorate


def _by_side(named: dict[str, str | tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {side: (names,) if isinstance(names, str) else names for side, names in named.items()}


def _help(name: str, summary: str, sides: tuple[str, ...], more: str = "") -> str:
    files = ["rank0.json.gz", "rank1.json.gz"] if sides == _LONE else [f"{side}.json.gz" for side in sides]
    words = " ".join(["observatory", "analyse", name, *files, *more.split()])
    what = " and ".join(side.upper() for side in sides)
    verb = "is" if len(sides) == 1 else "are each"
    return f"{summary}\n\n{what} {verb} {_WHAT_IT_MAY_BE}.\n\n\b\nExample:\n  {words}\n"


def _keep_traces(output: Path | None, sides: Iterable[TraceSet]) -> None:
    """Refuse to overwrite a trace that was read."""
    if output is None:
        return
    try:
        is_new = not output.exists()
    except OSError as error:
        raise _not_written(output, error) from None
    for trace in (trace for side in sides for trace in side.traces):
        if not is_new and trace.path.samefile(output):
            raise Misuse(f"--output {output} is one of the traces; choose another name")


def _write(path: Path, content: bytes) -> None:

    try:
        write_named(path, content)
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> InfrastructureFailed:
    return InfrastructureFailed(f"{path} cannot be written: {error.strerror}; choose another --output")


@click.command(
    name="merge",
    help=_help("merge", "Merge all ranks on one clock, for ui.perfetto.dev.", _LONE, "--output all.json.gz"),
)
@_sides(_LONE)
@click.option("--output", type=_FILE, required=True, help="Output file; compressed if its name ends in .gz.")
@_RANK
@RUNS
@STORE
def _merge(
    output: Path, ranks: tuple[int, ...], runs_folder: Path, store_url: str | None, **named: str | tuple[str, ...]
) -> None:
    from bench.analysis.traces.inputs import read_sides
    from bench.analysis.traces.pipeline_trace import stage_spans
    from bench.report.format import on_one_line
    from collectors.traces.analyzers.merge import merge

    (side,) = read_sides(_by_side(named), ranks=ranks, runs_folder=runs_folder, store_url=store_url)
    _keep_traces(output, (side,))
    drawn = merge(side.timelines(), added=() if side.folder is None else stage_spans(side.folder, on_notice=say))
    _write(output, gzip.compress(drawn.content, mtime=0) if output.suffix == ".gz" else drawn.content)
    for line in (*drawn.notes, *side.notices):
        say(on_one_line(line))
    click.echo(output)


@click.command(name="flight-recorder")
@click.argument("dumps", nargs=-1, required=True, type=NamedText())
@click.option("--table", "table_name", metavar="NAME", help="Only this table; --format csv needs one.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Most rows of each printed table."
)
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0, MOST_RANKS),
    multiple=True,
    help="Rank of a dump, replacing the rank in the file's name; give it once for each dump, in order.",
)
@RUNS
@FORMAT
def _flight_recorder(
    dumps: tuple[str, ...],
    table_name: str | None,
    limit: int,
    ranks: tuple[int, ...],
    runs_folder: Path,
    format_name: str,
) -> None:
    """Find the first call on which ranks differ, and who is missing, after a hang.

    DUMPS are files of torch's Flight Recorder, one for each rank (nccl_trace_rank_0), a folder of these, or a run.

    \b
    Example:
      observatory analyse flight-recorder nccl_trace_rank_0 nccl_trace_rank_1
    """
    from bench.analysis.flight_records.inputs import read_dumps
    from bench.analysis.flight_records.report import records
    from bench.analysis.traces.report import AnalysisReport, write

    read = read_dumps(dumps, runs_folder, ranks=ranks)
    tables, notes = records(read.dumps)
    report = AnalysisReport(analysis="flight-recorder", sides=(), tables=tables, notes=(*notes, *read.notices))
    write(report, sys.stdout, format_name, table_name=table_name, limit=limit, on_notice=say)


_OTHERS = {"merge": _merge, "flight-recorder": _flight_recorder}
NAMES = (*(analysis.name for analysis in ANALYSES), *_OTHERS)


class _Analyses(FullTextGroup):
    """A group with a command for each entry of `bench.analysis.traces.analyses` and of `_OTHERS`."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(NAMES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        for analysis in ANALYSES:
            if analysis.name == name:
                return _command_of(analysis)
        return _OTHERS.get(name)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        offer_nearest(context, args, NAMES)
        return super().resolve_command(context, args)


@click.group(name="analyse", cls=_Analyses, no_args_is_help=False)
def command() -> None:
    """Analyse traces of a run, or of any program that used torch.profiler.

    \b
    Example:
      observatory analyse summary rank0.json.gz rank1.json.gz
    """
