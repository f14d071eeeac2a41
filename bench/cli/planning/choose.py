"""`observatory choose`: which strategy, in which setup, trains a model best, before anything is measured."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from bench.cli.completion import complete_strategy
from bench.cli.options import FORMAT, ON, STORE, NamedPath, NamedText
from bench.cli.run.case_options import GroupedCommand, named_option
from workloads.cost_models.shape import DIMENSIONS, PRESETS
from workloads.spec import Precision

if TYPE_CHECKING:
    from bench.analysis.choosing.ground import Ground
    from bench.analysis.choosing.question import Question
    from workloads.cost_models.shape import Shape

OBJECTIVES = ("throughput", "memory")
GROUPS = {
    "What is chosen": ("strategies", "ranks", "objective", "options", "precision"),
    "The model": ("shape_name", *DIMENSIONS),
    "Where": ("on", "store_url"),
    "Results": ("output", "format_name"),
}


def _objective(_context: click.Context, _option: click.Parameter, word: str) -> str:
    """Refuse an objective that no cost model predicts."""
    if word not in OBJECTIVES:
        why = ": no cost model predicts energy, and only a GPU's NVML measures it" if word == "energy" else ""
        raise click.BadParameter(f"'{word}' cannot be predicted{why}; it may be {' or '.join(OBJECTIVES)}.")
    return word


def _dimensions(function: click.decorators.FC) -> click.decorators.FC:
    """Add an option for each dimension of a shape."""
    for name in reversed(DIMENSIONS):
        text = "Sequences in a step, over all ranks." if name == "batch" else f"Overrides the shape's {name}."
        function = named_option(name, text, type=int)(function)
    return function


@click.command(name="choose", cls=GroupedCommand, groups=GROUPS)
@click.argument("strategies", nargs=-1, shell_complete=complete_strategy)
@click.option(
    "--shape",
    "shape_name",
    type=NamedText(),
    required=True,
    help=f"One of {', '.join(PRESETS)}, or the path of a Llama-like model's config.json.",
)
@_dimensions
@click.option("--ranks", type=int, help="Number of ranks.  [default: all GPUs; 2 on a CPU]")
@named_option("precision", "Arithmetic precision of the model.", type=click.Choice(get_args(Precision)))
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option that is set and not searched; strategies without it are left out.",
)
@click.option(
    "--objective",
    default="throughput",
    show_default=True,
    callback=_objective,
    metavar="|".join(OBJECTIVES),
    help="What is best: the fastest step, or the least memory of a rank.",
)
@ON
@STORE
@click.option(
    "-o",
    "--output",
    type=NamedPath(is_folder=False),
    metavar="FILE",
    help="Suite file to write the candidates to, for `observatory suite plan` and `suite run`.",
)
@FORMAT
def command(
    strategies: tuple[str, ...],
    shape_name: str,
    ranks: int | None,
    precision: Precision | None,
    options: tuple[str, ...],
    objective: str,
    on: str | None,
    store_url: str | None,
    output: Path | None,
    format_name: str,
    **dimensions: int | None,
) -> None:
    """Choose the strategy and setup that train a model best, as the cost models predict.

    Compares every strategy, or those named, over their meshes and main options. With --on, for a machine that is not
    here; otherwise for this machine, at the rates that its history has measured.

    \b
    Example:
      observatory choose --shape 8b --batch 32 --on h100x8
    """
    from bench.analysis.choosing.candidates import candidates
    from bench.analysis.choosing.explain import explain
    from bench.analysis.choosing.report import COLUMNS, choice_document, choice_page, choice_rows
    from bench.analysis.choosing.suite_text import write_suite
    from bench.report.table import write
    from bench.session.case_args import CaseArgs, shape_of

    args = CaseArgs(strategy="single", shape_name=shape_name, dimensions=dimensions)
    shape = shape_of(args)
    if on is not None:
        question, ground = _on(on, shape, ranks, precision, strategies, options)
    else:
        question, ground = _here(shape, ranks, precision, strategies, options, store_url)
    bases, fixed = question.bases()
    ranking = candidates(bases, ground, objective="memory" if objective == "memory" else "throughput", fixed=fixed)
    explanations = explain(ranking)
    if output is not None:
        write_suite(output, ranking, shape_name=shape_name, command=shlex.join(["observatory", *sys.argv[1:]]))
    write(
        format_name,
        choice_page(ranking, explanations),
        lambda: choice_document(ranking, explanations),
        choice_rows(ranking),
        COLUMNS,
    )


def _on(
    on: str,
    shape: Shape,
    ranks: int | None,
    precision: Precision | None,
    strategies: tuple[str, ...],
    options: tuple[str, ...],
) -> tuple[Question, Ground]:
    """Return the question and the ground of a machine that is not here; asks nothing of this host."""
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
    store_url: str | None,
) -> tuple[Question, Ground]:
    """Return the question and the ground of this machine, by its history.

    Raises:
        Misuse: the history lacks what predictions need.
    """
    from bench.analysis.choosing.here import ground_here
    from bench.analysis.choosing.question import Question
    from bench.errors import Misuse
    from bench.session.case_args import read_node
    from bench.store.history import History, NoStoreYet

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
    bases, _ = question.bases()
    try:
        with History(store_url, writable=False, is_glance=True) as history:
            return question, ground_here(bases[0], history, cores=node.cores, gpus=gpus)
    except NoStoreYet:
        raise Misuse(
            f"nothing is predicted here: the history has no run yet; `observatory run matmul --ranks {question.ranks}`"
            f" and `observatory run collectives --ranks {question.ranks}` calibrate, or plan with --on MACHINE"
        ) from None
