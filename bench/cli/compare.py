"""`observatory compare`: compares two sides of the history, measures two sides now, or one side twice for its noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bench.cli.completion import complete_run, complete_strategy, complete_suite
from bench.cli.options import FORMAT, RUNS, SHARING, STORE, NamedText, Ratio
from bench.cli.run.case_options import LIMIT, GroupedCommand, case_options
from bench.cli.suite.plan import ONLY, SETTINGS, read_plan
from bench.errors import CASE_FAILED, FINE, InfrastructureFailed, Misuse, interrupt_in_order, say
from workloads.cost_models.shape import DIMENSIONS

if TYPE_CHECKING:
    from bench.analysis.compare.report import Comparison
    from bench.analysis.compare.sides import Pair, Side
    from bench.results.comparison import FigureChange
    from bench.session.persist import PersistedRuns
    from bench.session.session import Session
    from bench.store.history import History
    from bench.store.summary import Summary

_OF_AB = (
    *("ranks", "options", "device", "backend", "precision", "threads", "bind", "seed"),
    *("shape_name", *DIMENSIONS, "trials", "steps", "warm_up", "trace_steps", "limit_s"),
    *("save_every", "save_mode"),
    *("a_settings", "b_settings", "a_checkout", "b_checkout"),
)
_OF_AA = ("settings", "only")
GROUPS = {
    "What is compared": ("margin", "has_all", "strategy", "suite_name"),
    "Two sides now (--ab)": ("a_settings", "b_settings", "a_checkout", "b_checkout", "ranks", "options"),
    "Both sides (--ab)": ("device", "backend", "precision", "threads", "bind", "seed", "shape_name", *DIMENSIONS),
    "How they are measured (--ab)": ("trials", "steps", "warm_up", "trace_steps", "limit_s", "save_every", "save_mode"),
    "One side twice (--aa)": ("settings", "only"),
    "Where results go, and messages": ("runs_folder", "store_url", "format_name", "quiet"),
}
_DIFFERENCES_SHOWN = 6


@click.command(
    name="compare",
    cls=GroupedCommand,
    groups=GROUPS,
    too_many="a comparison has two sides; `observatory choose` ranks several strategies for a model",
)
@click.argument("a", required=False, type=NamedText(), shell_complete=complete_run)
@click.argument("b", required=False, type=NamedText(), shell_complete=complete_run)
@click.option(
    "--margin",
    type=Ratio(),
    default=0.02,
    show_default=True,
    help="Largest change that does not matter; an interval within it counts as `same`.",
)
@click.option("--all", "has_all", is_flag=True, help="Show all figures, not only the main ones.")
@click.option(
    "--ab",
    "strategy",
    metavar="STRATEGY",
    type=NamedText(),
    shell_complete=complete_strategy,
    help="Measure two sides of this strategy now, in turn.",
)
@click.option(
    "--aa",
    "suite_name",
    metavar="NAME|FILE",
    type=NamedText(),
    shell_complete=complete_suite,
    help="Measure each case of this suite twice, in turn, to show its noise.",
)
@click.option(
    "--a",
    "a_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the strategy, or key of the case, for side A.",
)
@click.option("--b", "b_settings", multiple=True, metavar="KEY=VALUE", help="The same for side B.")
@click.option(
    "--checkout-a",
    "a_checkout",
    metavar="FOLDER|COMMIT",
    type=NamedText(),
    help="Source tree of A's ranks.  [default: this program's]",
)
@click.option("--checkout-b", "b_checkout", metavar="FOLDER|COMMIT", type=NamedText(), help="The same for side B.")
@click.option(
    "--ranks", type=int, help="Number of ranks.  [default: one for each GPU, or 2 on a CPU, as the strategy allows]"
)
@case_options(trials=6)
@LIMIT
@SETTINGS
@ONLY
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the final result.")
@RUNS
@SHARING
@STORE
@FORMAT
def command(**parameters: Any) -> int:
    """Compare two runs, suites or commits, and separate changes from noise.

    A and B are runs, suite runs or commits in the history; the beginning of a name is enough. For a watched program,
    NAME means its newest run, and NAME@2026-11-20 the newest as of that day. --ab measures both sides now, in turn,
    which is the fairest way on a noisy machine. --aa measures one side twice, which shows how much equal measurements
    differ, and how many trials a change needs. A regression does not change the exit code.

    \b
    Example:
      observatory compare --ab ddp --trials 2 --a bucket_mb=1 --b bucket_mb=25
    """
    context = click.get_current_context()
    options = {
        parameter.name: (parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.opts[0].upper())
        for parameter in context.command.params
        if parameter.name is not None and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    mode = _mode(parameters, options)
    if mode == "ab":
        return _measure_sides(parameters)
    if mode == "aa":
        return _measure_twice(parameters)
    return _look(parameters)


def _mode(parameters: dict[str, Any], options: dict[str, str]) -> str:
    """Return the form of the command: "look", "ab" or "aa".

    Raises:
        Misuse: it has none of these forms, or an option belongs to another form.
    """
    sides = [name for name in ("a", "b") if parameters[name] is not None]
    if parameters["strategy"] is not None and parameters["suite_name"] is not None:
        raise Misuse("--ab and --aa exclude each other; use one of them")
    mode = "ab" if parameters["strategy"] is not None else "aa" if parameters["suite_name"] is not None else "look"
    if mode == "look" and len(sides) < 2:
        raise Misuse(
            "a comparison has two sides: `observatory compare A B` compares two runs, suite runs or commits"
            " (`observatory"
            " show` lists runs), --ab STRATEGY measures two sides now, and --aa SUITE one side twice"
        )
    if mode != "look" and sides:
        raise Misuse(f"--{mode} measures now, and takes no A and B from the history; leave {parameters[sides[0]]} out")
    foreign = {
        "look": (*_OF_AB, *_OF_AA),
        "ab": _OF_AA,
        "aa": (*_OF_AB, "margin"),
    }[mode]
    wrong = [option for name, option in options.items() if name in foreign]
    if wrong:
        why = {
            "look": "is for measuring now; add --ab STRATEGY or --aa SUITE",
            "ab": "is for --aa; leave it out",
            "aa": "is not for --aa: the suite defines its cases, and --set KEY=VALUE changes them",
        }[mode]
        raise Misuse(f"{wrong[0]} {why}")
    return mode


# Two sides of the history


def _look(parameters: dict[str, Any]) -> int:
    from bench.analysis.compare.report import print_comparison
    from bench.analysis.compare.sides import earlier_runs, find_side, match
    from bench.store.history import History, NoStoreYet

    try:
        with History(parameters["store_url"], writable=False) as history:
            a, b = (find_side(parameters[name], history) for name in ("a", "b"))
            matched = match(a, b)
            lines = machine_lines(matched.pairs, history)
            earlier = earlier_runs(matched.pairs, history)
    except InfrastructureFailed as error:
        a, b = (_without_store(parameters[name], parameters["runs_folder"], error) for name in ("a", "b"))
        matched = match(a, b)
        lines, earlier = machine_lines(matched.pairs, None), {}
        if not isinstance(error, NoStoreYet):
            say(f"both runs are read from their folders: {error}")
    notes = (*a.notes, *b.notes, *lines)
    sides, margin = (a.title, b.title, matched.pairs), parameters["margin"]
    comparison = comparison_of(*sides, margin, earlier, missing=matched.missing, notes=notes)
    print_comparison(comparison, parameters["format_name"], has_all=parameters["has_all"])
    return CASE_FAILED if matched.is_incomplete else FINE


def _without_store(text: str, runs: Path, error: InfrastructureFailed) -> Side:
    """Return the run in this folder. error: why the store cannot be read.

    Raises:
        Misuse: there is neither such a folder nor a store.
        InfrastructureFailed: there is no such folder, and the store cannot be read.
    """
    from bench.analysis.compare.sides import side_of_folder
    from bench.store.history import NoStoreYet

    if (side := side_of_folder(text, runs)) is not None:
        return side
    if isinstance(error, NoStoreYet):
        raise Misuse(f'"{text}" is unknown; the history has no run yet, `observatory run` makes one')
    raise InfrastructureFailed(f'{error}; without it only folders of runs can be compared, and "{text}" is not one')


def comparison_of(
    a: str,
    b: str,
    pairs: Sequence[Pair],
    margin: float,
    earlier: Mapping[str, Sequence[Summary]] = MappingProxyType({}),
    *,
    missing: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Comparison:
    """Compare the runs of each pair, and judge all differences together.

    earlier: other runs of a run's series, by the run's id.
    """
    from bench.analysis.compare.report import Compared, Comparison
    from bench.analysis.compare.sides import arithmetic, arithmetic_note
    from bench.results.comparison import changes, judge
    from bench.store.nights import trials_of

    def changes_of(pair: Pair) -> list[FigureChange]:
        of_a, of_b = (earlier.get(run.run, ()) for run in (pair.a, pair.b))
        return changes(
            *(pair.a.estimates, pair.b.estimates),
            is_paired=pair.is_in_turn,
            earlier=lambda figure: (trials_of(of_a, figure), trials_of(of_b, figure)),
        )

    changed = [changes_of(pair) for pair in pairs]
    judged = iter(judge([change for of_pair in changed for change in of_pair], margin=margin))
    compared = [
        Compared(
            name=pair.name,
            a_run=pair.a.run,
            b_run=pair.b.run,
            trials=(pair.a.trials_done, pair.b.trials_done),
            is_watched=pair.a.watched is not None,
            differences=pair.differences,
            arithmetic=(arithmetic(pair.a.case), arithmetic(pair.b.case)),
            arithmetic_note=arithmetic_note(pair.a.case, pair.b.case),
            is_in_turn=pair.is_in_turn,
            figures=tuple(next(judged) for _ in of_pair),
        )
        for pair, of_pair in zip(pairs, changed, strict=True)
    ]
    return Comparison(a=a, b=b, margin=margin, compared=tuple(compared), missing=missing, notes=notes)


def machine_lines(pairs: Sequence[Pair], history: History | None) -> tuple[str, ...]:
    """Return a line with the differences between the machines and programs of the runs; empty if there are none.

    history: None if it cannot be read.
    """
    from bench.machine.machine_diff import differences
    from bench.store.run_dir import machine_of

    def machine(summary: Summary) -> Any:
        known = None if history is None else history.machine(summary.run)
        return known or machine_of(Path(summary.folder))

    lines = list(
        dict.fromkeys(
            f"{difference.field} {difference.before[:40]} -> {difference.now[:40]}"
            for pair in pairs
            for difference in differences(machine(pair.a), machine(pair.b))
        )
    )
    if not lines:
        return ()
    more = f" and {len(lines) - _DIFFERENCES_SHOWN} more" if len(lines) > _DIFFERENCES_SHOWN else ""
    return (f"the machine or the program also differs: {'; '.join(lines[:_DIFFERENCES_SHOWN])}{more}",)


# Measuring now


def _check(parameters: dict[str, Any]) -> None:
    """Before anything starts, refuse an invalid limit or folder of runs."""
    from bench.session.case_args import check_limit
    from bench.store.run_dir import check_place

    check_limit(parameters["limit_s"])
    check_place(parameters["runs_folder"])


def _open_session(parameters: dict[str, Any]) -> AbstractContextManager[Session]:
    from bench.session.session import open_session

    tell = (lambda line: None) if parameters["quiet"] else say
    return open_session(runs=parameters["runs_folder"], store_url=parameters["store_url"], tell=tell, work="comparison")


def _measure_sides(parameters: dict[str, Any]) -> int:
    from bench.analysis.compare.ab import SideRequest, checked_out, measure_sides, plan_sides
    from bench.analysis.compare.report import print_comparison
    from bench.analysis.compare.sides import pair
    from bench.session.case_args import CaseArgs

    _check(parameters)
    requests = [
        SideRequest(settings=parameters[f"{side}_settings"], checkout=parameters[f"{side}_checkout"]) for side in "ab"
    ]
    names = {field.name for field in fields(CaseArgs)} - {"dimensions", "ranks"}
    args = CaseArgs(
        **{name: parameters[name] for name in names},
        dimensions={name: parameters[name] for name in DIMENSIONS},
        ranks=None if parameters["ranks"] is None else (parameters["ranks"],),
    )
    sides = plan_sides(args, *requests)
    if not parameters["quiet"]:
        for line in dict.fromkeys(line for side in sides for line in side.crowds):
            say(line)
    interrupt_in_order()  # So that a checked-out commit is also removed after SIGTERM.
    with checked_out(sides, requests), _open_session(parameters) as session:
        runs = measure_sides(sides, session, parameters["limit_s"], is_drawn=False if parameters["quiet"] else None)
    a, b = runs.summaries
    if a.trials_done and b.trials_done:
        a_title, b_title = (
            f"{side.description} (run {summary.run})" for side, summary in zip(sides, (a, b), strict=True)
        )
        notes = () if a.commit == b.commit else (f"commit {a.commit} -> {b.commit}",)
        pairs = [pair(a.case.title, a, b)]
        comparison = comparison_of(a_title, b_title, pairs, parameters["margin"], notes=notes)
        print_comparison(comparison, parameters["format_name"], has_all=parameters["has_all"])
    else:
        say("no trial is complete on both sides, so there is nothing to compare")
    return _end([runs])


def _measure_twice(parameters: dict[str, Any]) -> int:
    from bench.analysis.compare.aa import measure_twice, report_of
    from bench.analysis.compare.report import print_noise
    from bench.session.case_args import read_node
    from bench.store.history import History
    from bench.suite.plan import chosen

    _check(parameters)
    settings, runs_folder = parameters["settings"], parameters["runs_folder"]
    plan = read_plan(parameters["suite_name"], settings, parameters["store_url"], read_node(), runs_folder)
    names = chosen(plan.suite, parameters["only"])
    selected = [planned for planned in plan.cases if planned.suite_case.name in names]
    refused = [planned for planned in selected if planned.refusal is not None]
    drills = [planned for planned in selected if planned.fault is not None]
    cases = [planned for planned in selected if planned.refusal is None and planned.fault is None]
    for planned in cases:
        if planned.suite_case.args.trials < 2:
            raise Misuse(
                f"{plan.suite.path}: {planned.suite_case.name} has a single trial, which shows no noise; use --set"
                " defaults.trials=3"
            )
    missing = [f"{planned.suite_case.name} cannot run here: {planned.refusal}" for planned in refused]
    missing += [f"{planned.suite_case.name} is a fire drill and is left out" for planned in drills]
    if not cases:
        raise Misuse(f"{plan.suite.path}: no case can be measured: {'; '.join(missing)}")
    with _open_session(parameters) as session:
        pairs = measure_twice(plan.suite.name, cases, session, is_drawn=False if parameters["quiet"] else None)
    try:
        with History(parameters["store_url"], writable=False) as history:
            report = report_of(plan.suite.name, pairs, history, missing)
    except InfrastructureFailed as error:
        missing.append(f"the noise between nights is not known: {error}")
        report = report_of(plan.suite.name, pairs, None, missing)
    if report.series or parameters["format_name"] != "table":
        print_noise(report, parameters["format_name"], has_all=parameters["has_all"])
    else:
        for line in report.missing:
            say(line)
    code = _end([pair.runs for pair in pairs])
    return CASE_FAILED if code == FINE and refused else code


def _end(blocks: Sequence[PersistedRuns]) -> int:
    """Print failures and return the exit code, which does not depend on the compared figures."""
    from bench.report.run.summary import cause_lines
    from bench.session.session import exit_code

    for line in [line for block in blocks for summary in block.summaries for line in cause_lines(summary)]:
        say(line)
    for line in dict.fromkeys(str(failure) for block in blocks for failure in block.failures):
        say(line)
    return exit_code(blocks)
