"""A choice on this machine: which cases it measures, and that it names the one that pays, with real ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.choosing.candidates import Ranking, candidates
from bench.analysis.choosing.entrants import MOST_PREDICTED, entrants
from bench.analysis.choosing.ground import ground_on
from bench.analysis.choosing.question import Question
from bench.case import Case
from bench.cli.main import run
from bench.machine.machines.machine_file import read_machine
from bench.session.case_args import case_of_args, node_on
from bench.suite.folder import suite_run_folders
from workloads.core.precision_options import WEIGHTS
from workloads.cost_models.shape import PRESETS

TINY = ("--layers=1", "--width=32", "--heads=2", "--kv-heads=1", "--mlp-width=64", "--vocabulary=64", "--sequence=16")


@pytest.fixture(scope="module")
def ranked() -> tuple[Ranking, list[Case]]:
    question = Question(
        shape=PRESETS["125m"], ranks=8, nodes=1, device="cuda", backend="nccl", precision="bf16",
        strategies=("single", "ddp", "fsdp", "zero1", "tensor_parallel", "hsdp"),
    )  # fmt: skip
    bases, fixed = question.bases()
    return candidates(bases, ground_on(read_machine("h100x8"), 8, "bf16"), fixed=fixed), bases


def test_the_best_predicted_take_part_and_always_the_plainest(ranked: tuple[Ranking, list[Case]]) -> None:
    ranking, bases = ranked
    cases = entrants(ranking, bases, is_named=False, shape_name="125m", dimensions={}, steps=20)
    best = ranking.candidates[:MOST_PREDICTED]
    assert [case.args.strategy for case in cases[: len(best)]] == [each.case.strategy for each in best]
    assert [case.predicted for case in cases[: len(best)]] == [each.tokens_per_second for each in best]
    assert {("single", (1,)), ("ddp", (8,)), ("fsdp", (8,))} <= {
        (case.args.strategy, case.args.ranks) for case in cases
    }
    assert len({case.name for case in cases}) == len(cases)


def test_a_plain_case_that_is_among_the_best_is_plain_and_another_setup_of_it_is_named_so(
    ranked: tuple[Ranking, list[Case]],
) -> None:
    ranking, bases = ranked
    (ddp,) = [case for case in bases if case.strategy == "ddp"]
    for options, expected in (
        (ddp.options, [("ddp", True)]),
        ({**ddp.options, "bucket_mb": 100.0}, [("ddp", False), ("ddp-plain", True)]),
    ):
        best = replace(ranking.candidates[0], case=replace(ddp, options=options))
        cases = entrants(
            replace(ranking, candidates=(best,)), bases, is_named=False, shape_name="125m", dimensions={}, steps=20
        )
        assert [(case.name, case.is_plain) for case in cases if case.args.strategy == "ddp"] == expected
        assert cases[0].predicted == best.tokens_per_second


def test_all_keep_weights_alike(ranked: tuple[Ranking, list[Case]]) -> None:
    cases = entrants(*ranked, is_named=False, shape_name="125m", dimensions={}, steps=20)
    resolved = [
        case_of_args(case.args, case.args.ranks[0], node_on(read_machine("h100x8")))
        for case in cases
        if case.args.ranks
    ]
    assert {WEIGHTS.of(case) for case in resolved} == {"bf16_compute"}


def test_without_predictions_the_plainest_or_those_named_take_part(ranked: tuple[Ranking, list[Case]]) -> None:
    _, bases = ranked
    cases = entrants(None, bases, is_named=False, shape_name="125m", dimensions={}, steps=20)
    assert {case.name for case in cases} == {"single", "ddp", "fsdp"}
    named = [case for case in bases if case.strategy in ("ddp", "zero1", "hsdp")]
    cases = entrants(None, named, is_named=True, shape_name="125m", dimensions={}, steps=20)
    assert [case.name for case in cases] == [case.strategy for case in named]


def test_each_named_strategy_takes_part_with_its_best_setup(ranked: tuple[Ranking, list[Case]]) -> None:
    cases = entrants(*ranked, is_named=True, shape_name="125m", dimensions={}, steps=20)
    assert {case.args.strategy for case in cases} == {case.strategy for case in ranked[1]}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_choice_of_real_ranks_ends_in_a_sentence_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a history nothing is predicted."""
    monkeypatch.chdir(tmp_path)
    places = ["--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path / 'history.sqlite'}"]
    words = ["choose", "ddp", "fsdp", "--shape", "tiny", *TINY, "--batch=8", "--steps", "3", "--budget", "5m", *places]
    assert run(words) == 0
    printed = capsys.readouterr()
    assert "until then only the named strategies" in printed.err
    *table, sentence = printed.out.splitlines()
    assert sentence.startswith(("ddp pays: ", "fsdp pays: ", "no winner between ", "no winner yet between "))
    assert 2 <= len(table) <= 9
    (suite_run,) = suite_run_folders(tmp_path / "runs")
    assert run(["suite", "show", suite_run.name, *places, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {case["case"] for case in shown["cases"]} == {"ddp", "fsdp"}
