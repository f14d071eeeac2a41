"""A choice on this machine: which cases it measures, and that it names the one that pays, with real ranks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.choosing.candidates import Ranking, candidates
from bench.analysis.choosing.entrants import MOST_PREDICTED, continued, entrants
from bench.analysis.choosing.ground import ground_on
from bench.analysis.choosing.question import Question
from bench.analysis.race.race import begun_cases, race_suite
from bench.case import Case
from bench.cli.main import run
from bench.errors import Misuse
from bench.machine.machines.machine_file import read_machine
from bench.session.case_args import case_of_args, node_on
from bench.suite.folder import begin, suite_run_folders
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


def test_an_interrupted_choice_continues_with_its_own_cases_whatever_is_predicted_now(
    ranked: tuple[Ranking, list[Case]], tmp_path: Path
) -> None:
    ranking, bases = ranked
    question: dict[str, Any] = {"is_named": False, "shape_name": "125m", "dimensions": {"layers": 3}, "steps": 20}
    cases = entrants(ranking, bases, **question)
    suite = race_suite(cases, "choose", 60.0)
    begin(suite, tmp_path)
    (folder,) = suite_run_folders(tmp_path)
    now = entrants(replace(ranking, candidates=tuple(reversed(ranking.candidates))), bases, **question)
    assert race_suite(now, "choose", 60.0).digest != suite.digest
    begun = begun_cases(tmp_path, folder.name)
    again = continued(begun, now, bases, {}, is_named=False, suite_run=folder.name)
    assert race_suite(again, "choose", 60.0).digest == suite.digest
    assert [case.name for case in again] == [case.name for case in cases]
    predicted = {(case.args.strategy, *case.args.options): case.predicted for case in now}
    for case in again:
        assert case.predicted == predicted.get((case.args.strategy, *case.args.options))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"steps": 10}, "steps 20 (ddp), now 10;"),
        ({"shape_name": "tiny"}, "shape 125m (ddp), now tiny;"),
        ({"dimensions": {"layers": 4}}, "layers of the shape 3 (ddp), now 4;"),
    ],
)
def test_an_interrupted_choice_with_another_question_is_refused(
    change: dict[str, Any], expected: str, ranked: tuple[Ranking, list[Case]]
) -> None:
    _, bases = ranked
    named = [case for case in bases if case.strategy in ("ddp", "zero1")]
    question: dict[str, Any] = {"shape_name": "125m", "dimensions": {"layers": 3}, "steps": 20}
    begun = {case.name: case.args for case in entrants(None, named, is_named=True, **question)}
    now = entrants(None, named, is_named=True, **(question | change))
    with pytest.raises(Misuse, match=re.escape(f"suite run 20261128 was begun with {expected}")):
        continued(begun, now, named, {}, is_named=True, suite_run="20261128")


def test_an_interrupted_choice_keeps_its_strategies_and_options(ranked: tuple[Ranking, list[Case]]) -> None:
    _, bases = ranked
    named = {name: [case for case in bases if case.strategy in (name, "ddp")] for name in ("zero1", "fsdp")}
    question: dict[str, Any] = {"is_named": True, "shape_name": "125m", "dimensions": {}, "steps": 20}
    cases = entrants(None, named["zero1"], **question)
    begun = {case.name: case.args for case in cases}
    with pytest.raises(Misuse, match="begun with strategy zero1, now without it: ddp, fsdp"):
        continued(begun, entrants(None, named["fsdp"], **question), named["fsdp"], {}, is_named=True, suite_run="1")
    with pytest.raises(Misuse, match=r"begun with ddp, now also zero1"):
        continued({"ddp": begun["ddp"]}, cases, named["zero1"], {}, is_named=True, suite_run="1")
    with pytest.raises(Misuse, match=r"begun with option checkpoint none \(ddp\), now full"):
        continued(begun, cases, named["zero1"], {"checkpoint": "full"}, is_named=True, suite_run="1")


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
