"""Strategies are listed in short, and one of them whole: options, refusals that were tried, an example that runs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from rich.console import Console

from bench.case import parse_options
from bench.cli import main
from bench.errors import FINE, MISUSE
from bench.machine.device_checks import TorchBuild
from bench.machine.gpus import Gpus
from bench.report.run.strategies import (
    default_case,
    example,
    options_page,
    strategies_page,
    strategy_page,
    tried_refusals,
)
from bench.report.table import print_page
from bench.session.case_args import CaseArgs, NodeResources, case_of_args
from workloads.registry import SPECS, spec_of
from workloads.spec import StrategySpec


def _printed(write: Callable[[Console], None], width: int = 80) -> list[str]:
    text = io.StringIO()
    write(Console(file=text, width=width, force_terminal=True, color_system=None))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_the_list_names_each_strategy_once_and_no_option() -> None:
    lines = _printed(lambda console: print_page(strategies_page(SPECS, console), console))
    assert all(len(line) <= 80 for line in lines)
    starts = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert [start for start in starts if start in {spec.name for spec in SPECS}] == [spec.name for spec in SPECS]
    assert not any("bucket_mb" in line for line in lines)


def test_all_options_stand_with_who_takes_them() -> None:
    lines = _printed(lambda console: print_page(options_page(SPECS), console), width=120)
    shown = {line.partition("=")[0] for line in lines}
    assert {option.name for spec in SPECS for option in spec.options} <= shown


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_strategy_is_told_whole_within_eighty_letters(spec: StrategySpec) -> None:
    lines = _printed(lambda console: print_page(strategy_page(spec), console))
    assert all(len(line) <= 80 for line in lines)
    assert all(any(line.startswith(f"{option.name}=") for line in lines) for option in spec.options)
    words = " ".join(" ".join(lines).split())
    assert spec.needs.text() in words
    assert example(spec) in words
    assert all(" ".join(reason.split()) in words for reason in tried_refusals(spec))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_example_of_a_strategy_is_no_misuse(spec: StrategySpec) -> None:
    words = example(spec).split()
    options = [word for before, word in pairwise(words) if before == "--option"]
    parse_options(spec, options)
    case = default_case(spec)
    node = NodeResources(cores=2, host_bytes=1 << 40, gpus=Gpus(), torch=TorchBuild(version="2.13.0"))
    args = CaseArgs(strategy=spec.name, device="cpu", options=options)
    assert case_of_args(args, case.ranks, node).ranks == case.ranks


def test_refusals_are_those_of_the_spec_one_of_a_kind() -> None:
    found = tried_refusals(spec_of("ddp"))
    assert any(reason.startswith("option static_graph is true with accumulate=") for reason in found)
    assert any("attention" in reason and "use --device cuda" in reason for reason in found)
    assert sum("only topk reads it" in reason for reason in found) == 1
    assert tried_refusals(spec_of("matmul")) != []


def test_one_strategy_as_json_has_its_refusals_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list", "ddp", "--format", "json"]) == FINE
    (spec,) = json.loads(capsys.readouterr().out)
    assert spec["example"] == "observatory run ddp --ranks 2 --option overlap=false"
    assert spec["refusals"] == tried_refusals(spec_of("ddp"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["list", "dpp"], 'strategy "dpp" is unknown; did you mean "ddp"?'),
        (
            ["list", "ddp", "--options"],
            "--options lists the options of all strategies; `observatory list ddp` shows its own",
        ),
    ],
)
def test_a_list_of_what_is_not_there_is_refused(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words) == MISUSE
    assert line in capsys.readouterr().err
