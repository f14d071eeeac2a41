"""`observatory choose`: which strategy, in which setup, trains a model best.

For another machine it predicts. On this machine it measures the best predicted and the plainest setups in turn.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
from click.core import ParameterSource

from bench.cli.completion import complete_strategy
from bench.cli.options import FORMAT, ON, RUNS, SHARING, STORE, Duration, NamedPath, NamedText
from bench.cli.run.case_options import LIMIT, GroupedCommand, dimension_options, named_option
from bench.errors import FINE, Misuse
from workloads.cost_models.shape import DIMENSIONS, PRESETS
from workloads.spec import ChosenPrecision, OptionValue, Precision

if TYPE_CHECKING:
    from bench.analysis.choosing.ground import Ground
    from bench.analysis.choosing.question import Question
    from bench.analysis.choosing.search import Objective
    from bench.case import Case
    from bench.machine.gpus import Gpu
    from workloads.cost_models.shape import Shape

_OBJECTIVES: dict[str, Objective] = {"throughput": "throughput", "memory": "memory"}
OBJECTIVES = tuple(_OBJECTIVES)
GROUPS = {
    "What is chosen": ("ranks", "objective", "options", "precision"),
    "The model": ("shape_name", *DIMENSIONS),
    "Where": ("on", "runs_folder", "shared", "store_url"),
    "How it is measured": ("budget_s", "steps", "limit_s", "resumed", "is_dry"),
    "Results": ("output", "format_name", "quiet"),
}


def _objective(_context: click.Context, _option: click.Parameter, word: str) -> str:
    """Refuse an objective that no cost model predicts."""
    if word not in OBJECTIVES:
        why = ": no cost model predicts energy, and only a GPU's NVML measures it" if word == "energy" else ""
        raise click.BadParameter(f"'{word}' cannot be predicted{why}; it may be {' or '.join(OBJECTIVES)}.")
    return word


@click.command(name="choose", cls=GroupedCommand, groups=GROUPS)
@click.argument("strategies", nargs=-1, shell_complete=complete_strategy)
@click.option(
    "--shape",
    "shape_name",
    type=NamedText(),
    required=True,
    help=f"One of {', '.join(PRESETS)}, or the path of a Llama-like model's config.json.",
)
@dimension_options
@click.option("--ranks", type=int, help="Number of ranks.  [default: all GPUs; 2 on a CPU]")
@named_option("precision", "Arithmetic precision of the model.", type=click.Choice(get_args(ChosenPrecision)))
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Fixed option, which is not searched; strategies without it are left out.",
)
@click.option(
    "--objective",
    default="throughput",
    show_default=True,
    callback=_objective,
    metavar="|".join(OBJECTIVES),
    help="Goal: the fastest step, or the least memory of a rank.",
)
@ON
@RUNS
@SHARING
@STORE
@click.option(
    "--budget",
    "budget_s",
    type=Duration(),
    help="Time for measuring on this machine, for example 30m.  [default: 10m]",
)
@named_option("steps", "Measured steps of a trial.", default=20)
@LIMIT
@click.option(
    "--resume", "resumed", type=NamedText(), metavar="ID", help="Suite run of an interrupted choice to continue."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Print the prediction for this machine; measure nothing.")
@click.option(
    "-o",
    "--output",
    type=NamedPath(is_folder=False),
    metavar="FILE",
    help="Suite file to write the candidates to, for `observatory suite plan` and `suite run`.",
)
@FORMAT
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the result.")
def command(
    strategies: tuple[str, ...],
    shape_name: str,
    ranks: int | None,
    precision: Precision | None,
    options: tuple[str, ...],
    objective: str,
    on: str | None,
    runs_folder: Path,
    store_url: str | None,
    budget_s: float | None,
    steps: int,
    limit_s: float,
    resumed: str | None,
    is_dry: bool,
    output: Path | None,
    format_name: str,
    quiet: bool,
    **dimensions: int | None,
) -> int:
    """Choose the strategy and setup that train a model best.

    Compares every strategy, or the named ones, over meshes and main options, by the predictions of cost models. With
    --on, it plans for another machine. Otherwise it then measures the best predicted setups, and single, ddp and fsdp,
    in turn on this machine until one of them is shown to be the best.

    \b
    Example:
      observatory choose --shape 8b --batch 32 --on h100x8
    """
    from bench.analysis.choosing.candidates import candidates
    from bench.analysis.choosing.explain import explain
    from bench.analysis.choosing.report import COLUMNS, choice_document, choice_page, choice_rows
    from bench.analysis.choosing.suite_text import write_suite
    from bench.report.table import write
    from bench.session.case_args import CaseArgs, check_limit, shape_of

    check_limit(limit_s)
    if steps < 1:
        raise Misuse(f"steps is {steps}; it must be 1 or more")
    shape = shape_of(CaseArgs(strategy="single", shape_name=shape_name, dimensions=dimensions))
    is_measured, notices = on is None and not is_dry, []
    if on is not None:
        _refuse_measuring_options()
        question, ground = _on(on, shape, ranks, precision, strategies, options)
        bases, fixed = question.bases()
    else:
        question, cores, gpus = _here(shape, ranks, precision, strategies, options)
        bases, fixed = question.bases()
        try:
            ground = _ground_here(question, bases, fixed, cores, gpus, store_url)
        except Misuse as error:
            if not is_measured or output is not None:
                raise
            measured = "the named strategies" if strategies else "single, ddp and fsdp"
            ground, notices = None, [f"{error}; until then only {measured} are measured"]
    ranking = None
    if ground is not None:
        ranking = candidates(bases, ground, objective=_OBJECTIVES[objective], fixed=fixed)
    if output is not None and ranking is not None:
        write_suite(output, ranking, shape_name=shape_name, command=shlex.join(["observatory", *sys.argv[1:]]))
    if is_measured:
        from bench.analysis.choosing.entrants import continued, entrants
        from bench.analysis.race.race import begun_cases
        from bench.cli.planning.measured_choice import RaceOptions, measure

        cases = entrants(
            ranking, bases, is_named=bool(strategies), shape_name=shape_name, dimensions=dimensions, steps=steps
        )
        if resumed is not None:
            begun = begun_cases(runs_folder, resumed)
            cases = continued(begun, cases, bases, fixed, is_named=bool(strategies), suite_run=resumed)
        race = RaceOptions(
            objective=_OBJECTIVES[objective],
            budget_s=budget_s,
            limit_s=limit_s,
            resumed=resumed,
            runs_folder=runs_folder,
            store_url=store_url,
            format_name=format_name,
            quiet=quiet,
            notices=notices,
        )
        return measure(cases, race)
    assert ranking is not None, "without a ground it was refused"
    explanations = explain(ranking)
    write(
        format_name,
        choice_page(ranking, explanations),
        lambda: choice_document(ranking, explanations),
        choice_rows(ranking),
        COLUMNS,
    )
    return FINE


def _refuse_measuring_options() -> None:
    """Refuse with --on the options of measuring.

    Raises:
        Misuse: one of them is on the command line.
    """

    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in GROUPS["How it is measured"]
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise Misuse(f"--on measures nothing; leave {' and '.join(given)} out")


def _on(
    on: str,
    shape: Shape,
    ranks: int | None,
    precision: Precision | None,
    strategies: tuple[str, ...],
    options: tuple[str, ...],
) -> tuple[Question, Ground]:
    """Return the question and the ground for a remote machine; does not query this host."""
    from bench.analysis.choosing.ground import ground_on
    from bench.analysis.choosing.question import Question
    from bench.machine.machines.machine_file import read_machine

    machine = read_machine(on)
    question = Question(
        shape=shape,
        ranks=machine.gpus if ranks is None else ranks,
        nodes=1,
        device="cuda",
        backend="nccl",
        precision=precision or "bf16",
        strategies=strategies,
        options=options,
    )
    question.check_ranks()
    ground = ground_on(machine, question.ranks, question.precision)
    return replace(question, nodes=ground.nodes), ground


def _here(
    shape: Shape,
    ranks: int | None,
    precision: Precision | None,
    strategies: tuple[str, ...],
    options: tuple[str, ...],
) -> tuple[Question, int, Sequence[Gpu]]:
    """Return the question for this machine, with its cores and GPUs."""
    from bench.analysis.choosing.question import Question
    from bench.session.case_args import read_node

    node = read_node()
    gpus = node.gpus.gpus
    question = Question(
        shape=shape,
        ranks=(len(gpus) or 2) if ranks is None else ranks,
        nodes=1,
        device="cuda" if gpus else "cpu",
        backend="nccl" if gpus else "gloo",
        precision=precision or ("bf16" if gpus else "fp32"),
        strategies=strategies,
        options=options,
    )
    question.check_ranks()
    return question, node.cores, gpus


def _ground_here(
    question: Question,
    bases: Sequence[Case],
    fixed: Mapping[str, OptionValue],
    cores: int,
    gpus: Sequence[Gpu],
    store_url: str | None,
) -> Ground:
    """Return the ground that the history of this machine provides.

    Raises:
        Misuse: the history lacks rates that predictions need.
    """
    from bench.analysis.choosing.here import ground_here
    from bench.store.history import History, NoStoreYet

    try:
        with History(store_url, writable=False, is_glance=True) as history:
            return ground_here(bases, fixed, history, cores=cores, gpus=gpus)
    except NoStoreYet:
        raise Misuse(
            "nothing is predicted here: the history has no run yet; `observatory run matmul`, `copies` and"
            f" `collectives` with --ranks {question.ranks} calibrate, or plan with --on MACHINE"
        ) from None
