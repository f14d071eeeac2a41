"""`observatory predict`: predicts memory, step and throughput of a case, on this machine or another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from bench.cli.completion import complete_strategy
from bench.cli.options import FORMAT, ON, STORE, nodes_options
from bench.cli.run.case_options import GroupedCommand, case_options, counts
from bench.errors import Misuse
from workloads.cost_models.shape import DIMENSIONS

GROUPS = {
    "What is predicted": (
        *("ranks", "options", "device", "backend", "nodes", "ranks_per_node", "precision", "threads", "bind", "seed"),
    ),
    "The model": ("shape_name", *DIMENSIONS),
    "What it rests on": ("on", "from_history", "store_url"),
    "Results": ("tokens", "is_scored", "format_name"),
    "As in run, without effect here": ("trials", "steps", "warm_up", "trace_steps", "save_every", "save_mode"),
}

MOST_TOKENS = 1e18
_POWERS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}


class Tokens(click.ParamType):  # type: ignore[type-arg]  # Generic only in newer versions of click.
    """A number of tokens from 1 to 10^18, for example 15T, 300B, 1.5M or 2e9."""

    name = "tokens"
    _FORM = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)(?:e\+?(\d{1,2}))?([kmbt]?)", re.ASCII)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = self._FORM.fullmatch(value.strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a number of tokens; use for example 15T, 300B or 2e9", param, ctx)
        digits, exponent, size = match.groups()
        tokens = float(f"{digits}e{exponent or 0}") * 10.0 ** _POWERS[size]
        if not 1 <= tokens <= MOST_TOKENS:
            self.fail(f"{value!r} tokens are too {'many' if tokens > 1 else 'few'}; it may be 1 to 1e18", param, ctx)
        return tokens


@click.command(name="predict", cls=GroupedCommand, groups=GROUPS)
@click.argument("strategy", required=False, shell_complete=complete_strategy)
@click.option(
    "--ranks",
    callback=counts,
    metavar="N[,N...]",
    help="Number of ranks; several numbers are predicted one after the other.  [default: all GPUs of --on, or one for"
    " each GPU here, or 2 on a CPU, as the strategy allows]",
)
@case_options(trials=3)
@nodes_options
@ON
@click.option(
    "--from-history",
    is_flag=True,
    help="Use rates that runs on the same hardware reached: always without --on, instead of data sheets with --on.",
)
@click.option("--tokens", type=Tokens(), metavar="TOKENS", help="Tokens to train on, for example 15T: prints the days.")
@click.option(
    "--score",
    "is_scored",
    is_flag=True,
    help="Score the predictions that are stored with earlier runs; takes no STRATEGY.",
)
@STORE
@FORMAT
def command(**parameters: Any) -> None:
    """Predict memory, step and throughput of a strategy, and what decides.

    Nothing runs. Without --on, the prediction is for this machine, at the rates that its history measured.

    \b
    Example:
      observatory predict fsdp --shape 8b --batch 16 --on h100x8x2 --tokens 15T
    """
    if parameters.pop("is_scored"):
        _score(parameters)
        return
    if parameters["strategy"] is None:
        raise click.UsageError("Missing argument 'STRATEGY'.")
    from bench.analysis.prediction.forecast_report import print_forecasts
    from bench.analysis.prediction.planned import PredictOptions, predicted_cases
    from bench.session.case_args import CaseArgs

    tokens, format_name = parameters.pop("tokens"), parameters.pop("format_name")
    parameters["dimensions"] = {name: parameters.pop(name) for name in DIMENSIONS}
    args = CaseArgs(**{field.name: parameters.pop(field.name) for field in fields(CaseArgs)})
    predicted = predicted_cases(args, PredictOptions(**parameters))
    print_forecasts(predicted, tokens, format_name)


def _score(parameters: Mapping[str, Any]) -> None:
    """Print the score of the history's predictions.

    Raises:
        Misuse: a case is named, or there is no history.
    """
    from bench.analysis.prediction.scoring.score_report import print_score
    from bench.store.history import History

    context = click.get_current_context()
    allowed = {"is_scored", "store_url", "format_name"}
    if given := [
        name
        for name in parameters
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name not in allowed
    ]:
        words = {each.name: each.opts[0] for each in context.command.params} | {"strategy": "STRATEGY"}
        raise Misuse(f"--score covers all runs of the history; leave {words.get(given[0], given[0])} out")
    with History(parameters["store_url"], writable=False, is_glance=True) as history:
        print_score(history, parameters["format_name"])
