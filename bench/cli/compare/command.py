"""`observatory compare`: two sides of the history, two sides measured now, or one side twice for its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bench.cli.completion import complete_run, complete_strategy, complete_suite
from bench.cli.options import FORMAT, RUNS, SHARING, STORE, NamedText, Ratio
from bench.cli.run.case_options import LIMIT, GroupedCommand, case_options
from bench.cli.suite.plan import ONLY, SETTINGS
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, InfrastructureFailed, Misuse, say
from workloads.cost_models.shape import DIMENSIONS

if TYPE_CHECKING:
    from bench.analysis.comparison import FigureChange
    from bench.cli.compare.ab import Places
    from bench.cli.compare.sides import Pair, Side
    from bench.reports.comparison import Comparison
    from bench.runner.case_args import CaseArgs
    from bench.runs.history import History
    from bench.runs.summary import Summary

_OF_AB = (
    *("ranks", "options", "device", "backend", "precision", "threads", "seed"),
    *("shape_name", *DIMENSIONS, "trials", "steps", "warm_up", "trace_steps", "limit_s"),
    *("a_settings", "b_settings", "a_checkout", "b_checkout"),
)
_OF_AA = ("settings", "only")
GROUPS = {
    "What is compared": ("margin", "has_all", "strategy", "suite_name"),
    "Two sides now (--ab)": ("a_settings", "b_settings", "a_checkout", "b_checkout", "ranks", "options"),
    "Both sides (--ab)": ("device", "backend", "precision", "threads", "seed", "shape_name", *DIMENSIONS),
    "How they are measured (--ab)": ("trials", "steps", "warm_up", "trace_steps", "limit_s"),
    "One side twice (--aa)": ("settings", "only"),
    "Where it is kept, and what is said": ("runs_folder", "store_url", "format_name", "quiet"),
}
_DIFFERENCES_SHOWN = 6


@click.command(name="compare", cls=GroupedCommand, groups=GROUPS)
@click.argument("a", required=False, type=NamedText(), shell_complete=complete_run)
@click.argument("b", required=False, type=NamedText(), shell_complete=complete_run)
@click.option(
    "--margin",
    type=Ratio(),
    default=0.02,
    show_default=True,
    help="Largest change that does not matter: same is an interval within it.",
)
@click.option("--all", "has_all", is_flag=True, help="All figures, and not only the main ones.")
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
    help="Measure each case of this suite twice, in turn, for its noise.",
)
@click.option("--a", "a_settings", multiple=True, metavar="KEY=VALUE", help="An option, or a key of a case, of side A.")
@click.option("--b", "b_settings", multiple=True, metavar="KEY=VALUE", help="The same of side B.")
@click.option(
    "--checkout-a",
    "a_checkout",
    metavar="FOLDER|COMMIT",
    type=NamedText(),
    help="Source tree of A's ranks.  [default: this program's]",
)
@click.option("--checkout-b", "b_checkout", metavar="FOLDER|COMMIT", type=NamedText(), help="The same of side B.")
@click.option("--ranks", type=int, help="Number of ranks.  [default: the GPUs, or 2 on a CPU, as the strategy allows]")
@case_options(trials=6)
@LIMIT
@SETTINGS
@ONLY
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the final result.")
@RUNS
@SHARING
@STORE
@FORMAT
def command(**parameters: Any) -> int:
    """Compare two runs, suites or commits, and tell differences from noise.

    A and B are runs, suite runs or commits of the history, each by the beginning of its name. With --ab both sides are
    measured now, in turn, which is the honest way on a noisy machine. With --aa one side is measured twice: how much
    does the same differ, and how many trials does it take to see a change? A comparison is a look and no gate: it ends
    with code 0 whatever became worse.

    \b
    Example:
      observatory compare --ab ddp --trials 2 --a bucket_mb=1 --b bucket_mb=25
    """
    context = click.get_current_context()
    given = {
        parameter.name: (parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.opts[0].upper())
        for parameter in context.command.params
        if parameter.name is not None and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    mode = _mode(parameters, given)
    if mode == "ab":
        return _measure_sides(parameters)
    if mode == "aa":
        return _measure_twice(parameters)
    return _look(parameters)


def _mode(parameters: dict[str, Any], given: dict[str, str]) -> str:
    """Return which of the three forms of the command this is.

    Raises:
        Misuse: it is none, or something of another form is given.
    """
    named = [name for name in ("a", "b") if parameters[name] is not None]
    if parameters["strategy"] is not None and parameters["suite_name"] is not None:
        raise Misuse("--ab and --aa cannot be together; take one of them")
    mode = "ab" if parameters["strategy"] is not None else "aa" if parameters["suite_name"] is not None else "look"
    if mode == "look" and len(named) < 2:
        raise Misuse(
            "a comparison has two sides: `observatory compare A B` takes two runs, suite runs or commits (`observatory"
            " show` lists runs), --ab STRATEGY measures two sides now, and --aa SUITE one side twice"
        )
    if mode != "look" and named:
        raise Misuse(f"--{mode} measures now, and takes no A and B of the history; leave {parameters[named[0]]} out")
    foreign = {
        "look": (*_OF_AB, *_OF_AA),
        "ab": _OF_AA,
        "aa": (*_OF_AB, "margin"),
    }[mode]
    wrong = [option for name, option in given.items() if name in foreign]
    if wrong:
        why = {
            "look": "is of measuring now; add --ab STRATEGY or --aa SUITE",
            "ab": "is of --aa; leave it out",
            "aa": "is not of --aa: a suite says what its cases are, and --set KEY=VALUE what is otherwise",
        }[mode]
        raise Misuse(f"{wrong[0]} {why}")
    return mode


# Two sides of the history.


def _look(parameters: dict[str, Any]) -> int:
    from bench.cli.compare.sides import find_side, match
    from bench.reports.comparison import print_comparison
    from bench.runs.history import History, NoStoreYet

    try:
        with History(parameters["store_url"], writable=False) as history:
            a, b = (find_side(parameters[name], history) for name in ("a", "b"))
            matched = match(a, b)
            lines = machine_lines(matched.pairs, history)
    except InfrastructureFailed as error:
        a, b = (_without_store(parameters[name], parameters["runs_folder"], error) for name in ("a", "b"))
        matched = match(a, b)
        lines = machine_lines(matched.pairs, None)
        if not isinstance(error, NoStoreYet):
            say(f"both runs are read from their folders: {error}")
    notes = (*a.notes, *b.notes, *lines)
    found = comparison_of(a.title, b.title, matched.pairs, parameters["margin"], missing=matched.missing, notes=notes)
    print_comparison(found, parameters["format_name"], has_all=parameters["has_all"])
    return CASE_FAILED if matched.is_incomplete else FINE


def _without_store(text: str, runs: Path, error: InfrastructureFailed) -> Side:
    """Return the run whose folder is named so, where the store cannot be read, which is the error.

    Raises:
        Misuse: there is no such folder, and no store yet.
        InfrastructureFailed: there is no such folder.
    """
    from bench.cli.compare.sides import side_of_folder
    from bench.runs.history import NoStoreYet

    if (side := side_of_folder(text, runs)) is not None:
        return side
    if isinstance(error, NoStoreYet):
        raise Misuse(f'"{text}" is unknown; no run is in the history yet, `observatory run` makes one')
    raise InfrastructureFailed(f'{error}; without it only folders of runs can be compared, and "{text}" is none')


def comparison_of(
    a: str,
    b: str,
    pairs: Sequence[Pair],
    margin: float,
    *,
    missing: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Comparison:
    """Return what differs between the runs of each pair, judged together."""
    from bench.analysis.comparison import changes, judge
    from bench.reports.comparison import Compared, Comparison

    found: list[list[FigureChange]] = [
        changes(one.a.estimates, one.b.estimates, is_paired=one.is_in_turn) for one in pairs
    ]
    judged = iter(judge([change for of_pair in found for change in of_pair], margin=margin))
    compared = [
        Compared(
            name=one.name,
            a_run=one.a.run,
            b_run=one.b.run,
            trials=(one.a.trials_done, one.b.trials_done),
            differences=one.differences,
            is_in_turn=one.is_in_turn,
            figures=tuple(next(judged) for _ in of_pair),
        )
        for one, of_pair in zip(pairs, found, strict=True)
    ]
    return Comparison(a=a, b=b, margin=margin, compared=tuple(compared), missing=missing, notes=notes)


def machine_lines(pairs: Sequence[Pair], history: History | None) -> tuple[str, ...]:
    """Return in one line what differs between the machines and programs of the runs; nothing where all are alike.

    history: None where it cannot be read.
    """
    from bench.machine.machine_diff import differences
    from bench.runs.run_dir import machine_of

    def machine(summary: Summary) -> Any:
        known = None if history is None else history.machine(summary.run)
        return known or machine_of(Path(summary.folder))

    found = dict.fromkeys(
        f"{one.field} {one.before[:40]} -> {one.now[:40]}"
        for pair in pairs
        for one in differences(machine(pair.a), machine(pair.b))
    )
    if not found:
        return ()
    more = f" and {len(found) - _DIFFERENCES_SHOWN} more" if len(found) > _DIFFERENCES_SHOWN else ""
    return (f"the machine or the program differs, too: {'; '.join(list(found)[:_DIFFERENCES_SHOWN])}{more}",)


# Measured now.


def _places(parameters: dict[str, Any]) -> Places:
    from bench.cli.compare.ab import Places

    found = Places(
        runs=parameters["runs_folder"],
        store=parameters["store_url"],
        limit_s=parameters["limit_s"],
        tell=(lambda line: None) if parameters["quiet"] else say,
    )
    found.check()
    return found


def _measure_sides(parameters: dict[str, Any]) -> int:
    from bench.cli.compare.ab import Wanted, measure_sides, plan_sides
    from bench.cli.compare.sides import pair
    from bench.errors import interrupt_in_order
    from bench.reports.comparison import print_comparison
    from bench.reports.summary import cause_lines

    places = _places(parameters)
    wanted = [Wanted(settings=parameters[f"{side}_settings"], checkout=parameters[f"{side}_checkout"]) for side in "ab"]
    sides = plan_sides(_args(parameters), *wanted)
    for line in dict.fromkeys(line for side in sides for line in side.crowds):
        places.tell(line)
    interrupt_in_order()
    turns = measure_sides(sides, wanted, places)
    a, b = turns.kept.summaries
    if a.trials_done and b.trials_done:
        a_title, b_title = (f"{side.description} (run {one.run})" for side, one in zip(sides, (a, b), strict=True))
        notes = () if a.commit == b.commit else (f"commit {a.commit} -> {b.commit}",)
        pairs = [pair(a.case.title, a, b)]
        found = comparison_of(a_title, b_title, pairs, parameters["margin"], notes=notes)
        print_comparison(found, parameters["format_name"], has_all=parameters["has_all"])
    else:
        say("no trial is complete on both sides, so there is nothing to compare")
    for line in [line for one in (a, b) for line in cause_lines(one)]:
        say(line)
    return _code((a, b), turns.kept.failures, is_interrupted=turns.is_interrupted)


def _args(parameters: dict[str, Any]) -> CaseArgs:
    from bench.runner.case_args import CaseArgs

    given = {one.name: parameters[one.name] for one in fields(CaseArgs) if one.name not in ("dimensions", "ranks")}
    dimensions = {name: parameters[name] for name in DIMENSIONS}
    return CaseArgs(
        **given, dimensions=dimensions, ranks=None if parameters["ranks"] is None else (parameters["ranks"],)
    )


def _measure_twice(parameters: dict[str, Any]) -> int:
    from bench.cli.compare.aa import measure_twice, report_of
    from bench.cli.suite.plan import read_plan
    from bench.errors import interrupt_in_order
    from bench.reports.comparison import print_noise
    from bench.reports.summary import cause_lines
    from bench.runner.case_args import read_node
    from bench.runs.history import History
    from bench.suites.plan import chosen

    places = _places(parameters)
    planned = read_plan(parameters["suite_name"], parameters["settings"], parameters["store_url"], read_node())
    names = chosen(planned.suite, parameters["only"])
    wanted = [one for one in planned.cases if one.suite_case.name in names]
    cases = [one for one in wanted if one.refusal is None and one.fault is None]
    single = [one for one in cases if one.suite_case.args.trials < 2]
    if single:
        raise Misuse(
            f"{planned.suite.path}: {single[0].suite_case.name} has one trial, which tells nothing of noise; take --set"
            " defaults.trials=3"
        )
    missing = [f"{one.suite_case.name} cannot run here: {one.refusal}" for one in wanted if one.refusal is not None]
    missing += [f"{one.suite_case.name} is a fire drill, and is left out" for one in wanted if one.fault is not None]
    if not cases:
        raise Misuse(f"{planned.suite.path}: no case can be measured: {'; '.join(missing)}")
    interrupt_in_order()
    measured = measure_twice(planned.suite.name, cases, places)
    try:
        with History(places.store, writable=False) as history:
            found = report_of(planned.suite.name, measured, history, missing)
    except InfrastructureFailed as error:
        missing.append(f"how nights differ is not known: {error}")
        found = report_of(planned.suite.name, measured, None, missing)
    if found.series or parameters["format_name"] != "table":
        print_noise(found, parameters["format_name"], has_all=parameters["has_all"])
    else:
        for line in found.missing:
            say(line)
    summaries = [summary for _, *both in measured.pairs for summary in both]
    for line in [line for one in summaries for line in cause_lines(one)]:
        say(line)
    code = _code(summaries, measured.failures, is_interrupted=measured.is_interrupted)
    return CASE_FAILED if code == FINE and any(one.refusal for one in wanted) else code


def _code(summaries: Sequence[Summary], failures: Sequence[InfrastructureFailed], *, is_interrupted: bool) -> int:
    """Return the exit code: interrupted before infrastructure before a failed case; no change makes it another."""
    for line in dict.fromkeys(map(str, failures)):
        say(line)
    if is_interrupted:
        return INTERRUPTED
    causes = {one.cause.kind for one in summaries if one.cause is not None}
    if failures or causes & {"agent", "disk"}:
        return INFRASTRUCTURE
    return CASE_FAILED if causes else FINE
