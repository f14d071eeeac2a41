"""Which cases of a planned suite are measured, in which order, and why the others are not; and how a case ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.errors import Misuse
from bench.machine.device_checks import TorchBuild
from bench.machine.gpus import Gpus
from bench.rank.messages import FailureCause, TrialOutcome
from bench.session.case_args import NodeResources
from bench.store.suite_record import CaseOutcome
from bench.suite.choice import Referee, as_chosen, blocks_of, choose, why_left_out
from bench.suite.file import Suite, read_suite
from bench.suite.ledger import CaseState, Judgement, Record, SuiteState, fold, judge
from bench.suite.plan import PlannedCase, SuitePlan, chosen, plan_suite
from tests.bench.suite.test_ledger import BEGUN, begin, end_trial
from tests.bench.suite.test_plan import FakeHistory

NODE = NodeResources(cores=8, host_bytes=8 << 30, gpus=Gpus(), torch=TorchBuild(version="2.13.0"))
FOUR = (
    "[case.ddp]\nranks = 2\ntrials = 4\n[case.fsdp]\nranks = 2\nimportance = 3\n"
    "[case.zero1]\nranks = 2\ntags = ['extra']\n[case.tp]\nstrategy = 'tensor_parallel'\nranks = 2\n"
    "needs = { gpus = 8 }"
)


def _suite(folder: Path, text: str) -> Suite:
    path = folder / "night.toml"
    path.write_text(f"schema_version = 1\n{text}\n")
    return read_suite(path)


def _plan(folder: Path, text: str = FOUR, estimate_s: float | None = 10.0) -> SuitePlan:
    """A plan whose cases that can run here take so long each."""
    plan = plan_suite(_suite(folder, text), NODE, "there is none")
    cases = (replace(each, estimate_s=None if each.refusal else estimate_s) for each in plan.cases)
    return replace(plan, cases=tuple(cases))


def _names(cases: Sequence[PlannedCase]) -> list[str]:
    return [each.suite_case.name for each in cases]


def _state(**outcomes: CaseOutcome | None) -> SuiteState:
    return SuiteState(cases={name: CaseState(run=f"run-{name}", outcome=outcome) for name, outcome in outcomes.items()})


NEW = SuiteState()
REFUSAL = "it needs 8 GPUs, and 0 can be used here"


def test_a_new_suite_run_measures_all_but_extras_and_what_cannot_run(tmp_path: Path) -> None:
    choice = choose(_plan(tmp_path), NEW)
    assert _names(choice.cases) == ["ddp", "fsdp"]
    (extra, extra_outcome, why), (refused, refused_outcome, refusal) = choice.not_run
    assert (extra.suite_case.name, extra_outcome, why) == (
        *("zero1", "left_out"),
        "tagged extra; --only extra or --only all runs it",
    )
    assert (refused.suite_case.name, refused_outcome) == ("tp", "skipped")
    assert refusal.startswith(REFUSAL)


def test_what_cannot_run_is_no_failure_if_nobody_chose_it(tmp_path: Path) -> None:
    choice = choose(_plan(tmp_path), NEW, tags=["extra"])
    assert _names(choice.cases) == ["zero1"]
    assert [(each.suite_case.name, outcome) for each, outcome, _ in choice.not_run] == [
        ("ddp", "left_out"),
        ("fsdp", "left_out"),
        ("tp", "left_out"),
    ]
    assert [why for *_, why in choice.not_run][:2] == ["without the tag extra"] * 2


def test_only_what_the_ledger_lacks_is_measured_again(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    for outcome in (None, "interrupted", "skipped", "left_out"):
        assert _names(choose(plan, _state(ddp=outcome, fsdp="done")).cases) == ["ddp"]
    failed = _state(ddp="failed", fsdp="timed_out")
    assert _names(choose(plan, failed).cases) == []
    assert _names(choose(plan, failed, is_failed_repeated=True).cases) == ["ddp", "fsdp"]


def test_within_a_budget_the_most_important_case_comes_first(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    assert _names(choose(plan, NEW, budget_s=20.0).cases) == ["fsdp", "ddp"]
    choice = choose(plan, NEW, budget_s=19.0)
    assert _names(choice.cases) == ["fsdp"]
    assert [(each.suite_case.name, outcome, why) for each, outcome, why in choice.not_run[:1]] == [
        ("ddp", "left_out", "beyond the budget of 19 s")
    ]
    with pytest.raises(Misuse, match="not one case fits into a budget of 9 s"):
        choose(plan, NEW, budget_s=9.0)


def test_a_resumed_case_takes_the_time_of_its_missing_trials(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    records: tuple[Record, ...] = (
        BEGUN,
        begin("ddp", "run-a"),
        *(end_trial("ddp", "run-a", trial) for trial in range(3)),
    )
    choice = choose(plan, fold(records), budget_s=12.5)
    assert {each.suite_case.name: each.estimate_s for each in choice.cases} == {"ddp": 2.5, "fsdp": 10.0}
    unknown = choose(_plan(tmp_path, estimate_s=None), fold(records))
    assert [each.estimate_s for each in unknown.cases] == [None, None]


def test_a_dry_run_shows_what_is_left_to_measure_and_why_the_rest_is_not(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    records: tuple[Record, ...] = (BEGUN, begin("ddp", "run-a"), end_trial("ddp", "run-a", 0))
    state = replace(fold(records), cases={**fold(records).cases, "fsdp": CaseState(outcome="done")})
    shown, out = as_chosen(plan, choose(plan, state), state)
    assert {each.suite_case.name: each.estimate_s for each in shown.cases} == {
        "ddp": 7.5,
        "fsdp": 10.0,
        "zero1": 10.0,
        "tp": None,
    }
    assert out == {
        "zero1": "tagged extra; --only extra or --only all runs it",
        "fsdp": "it is done already",
    }
    _, out = as_chosen(plan, choose(plan, _state(ddp="timed_out")), _state(ddp="timed_out"))
    assert out["ddp"] == "it is timed out already; --repeat-failed runs it again"


@pytest.mark.parametrize(
    ("estimate_s", "left_s", "words"),
    [
        (61.4, 30.6, "--budget: it takes about 61 s, and 31 s were left"),
        (None, 0.0, "--budget: it takes an unknown time, and 0 s were left"),
        (5.0, -2.0, "--budget: it takes about 5 s, and 0 s were left"),
    ],
)
def test_a_case_for_which_no_time_is_left_says_how_long_it_takes(
    tmp_path: Path, estimate_s: float | None, left_s: float, words: str
) -> None:
    assert why_left_out(_plan(tmp_path, estimate_s=estimate_s).cases[0], left_s) == words


COMPARED = (
    "[case.a]\nstrategy = 'ddp'\nranks = 4\nbaseline = 'b'\ntags = ['wanted']\n[case.b]\nstrategy = 'ddp'\nranks = 2\n"
    "baseline = 'd'\n[case.c]\nstrategy = 'fsdp'\nranks = 4\nbaseline = 'e'\n[case.d]\nstrategy = 'single'\nranks = 1\n"
    "block = 'x'\n"
    "[case.e]\nstrategy = 'single'\nranks = 1\nthreads = 2\nblock = 'x'\n[case.f]\nstrategy = 'zero1'\nranks = 2\n"
    "[lever.x]\noff = 'a'\non = 'c'\n"
    "claims = [{ metric = 'observatory_run_step_seconds', low = 1.2, high = 1.5, text = 'as in the book' }]"
)


def test_a_case_brings_all_that_it_is_compared_with_from_both_sides(tmp_path: Path) -> None:
    suite = _suite(tmp_path, COMPARED)
    assert chosen(suite, ["wanted"]) == {"a", "b", "c", "d", "e"}
    other = _suite(tmp_path, COMPARED.replace("tags = ['wanted']\n", "").replace("[case.d]", "tags = ['on']\n[case.d]"))
    assert chosen(other, ["on"]) == {"a", "b", "c", "d", "e"}


def test_a_fire_drill_has_no_estimate(tmp_path: Path) -> None:
    text = "[case.ddp]\nranks = 2\ninject = 'kill@1:2'\nexpect = { outcome = 'failed' }"
    (planned,) = plan_suite(_suite(tmp_path, text), NODE, FakeHistory()).cases
    assert (planned.estimate_s, planned.why_no_estimate) == (None, "a fire drill ends when its fault is found")


# Blocks


def _case(name: str, *, block: str, baseline: str | None = None, ranks: int = 2, threads: int = 1) -> str:
    lines = [
        f"[case.{name}]",
        f"strategy = '{'single' if ranks == 1 else 'ddp'}'",
        f"ranks = {ranks}",
        f"block = '{block}'",
    ]
    lines += [f"threads = {threads}"] + ([] if baseline is None else [f"baseline = '{baseline}'"])
    return "\n".join(lines)


def _blocks(folder: Path, *cases: str) -> list[list[str]]:
    return [_names(block) for block in blocks_of(_plan(folder, "\n".join(cases)).cases)]


def test_cases_of_a_block_are_together_at_the_place_of_the_first(tmp_path: Path) -> None:
    cases = (_case("a", block="x"), _case("b", block="y", threads=2), _case("c", block="x", threads=3))
    assert _blocks(tmp_path, *cases) == [["a", "c"], ["b"]]


def test_the_block_of_a_baseline_comes_before_its_users(tmp_path: Path) -> None:
    cases = (
        _case("four", block="x", ranks=4, baseline="two"),
        _case("other", block="z", threads=2),
        _case("two", block="y", baseline="one"),
        _case("one", block="w", ranks=1),
    )
    assert _blocks(tmp_path, *cases) == [["one"], ["two"], ["four"], ["other"]]


def test_blocks_that_need_each_other_are_each_measured_once(tmp_path: Path) -> None:
    cases = (
        _case("two", block="x", baseline="one"),
        _case("one", block="y", ranks=1),
        _case("four", block="y", ranks=4, baseline="base", threads=2),
        _case("base", block="x", ranks=1, threads=2),
    )
    assert _blocks(tmp_path, *cases) == [["one", "four"], ["two", "base"]]


def test_without_a_referee_each_case_has_all_its_trials() -> None:
    referee = Referee()
    assert list(referee.round_ended(3, lambda: None)) == []
    assert not referee.is_over("ddp")
    assert referee.judgement("ddp") == Judgement(outcome="done")


# How a case ended

KILLED = FailureCause(kind="killed", rank=1, step=3, text="rank 1 was killed")
AGENT = FailureCause(kind="agent", rank=None, step=None, text="the agent is gone")
DISK = FailureCause(kind="disk", rank=0, step=None, text="no space left")


@pytest.mark.parametrize(
    ("ended", "cause", "judged"),
    [
        ("done", None, Judgement(outcome="done")),
        ("failed", KILLED, Judgement(outcome="failed", reason="rank 1 was killed")),
        ("timed_out", KILLED, Judgement(outcome="timed_out", reason="rank 1 was killed")),
        ("failed", AGENT, Judgement(outcome="failed", reason="the agent is gone", is_infrastructure=True)),
        ("failed", DISK, Judgement(outcome="interrupted", reason="no space left", is_infrastructure=True)),
        ("interrupted", None, Judgement(outcome="interrupted")),
    ],
)
def test_a_case_ends_as_its_run_and_a_failed_disk_interrupts_it(
    tmp_path: Path, ended: TrialOutcome, cause: FailureCause | None, judged: Judgement
) -> None:
    (suite_case,) = _suite(tmp_path, "[case.ddp]\nranks = 2").cases
    assert judge(suite_case, ended, cause) == judged


def _drill(folder: Path, expect: str) -> Any:
    text = f"[case.ddp]\nranks = 2\ninject = 'kill@1:2'\nexpect = {{ {expect} }}"
    (suite_case,) = _suite(folder, text).cases
    return suite_case


@pytest.mark.parametrize(
    ("expect", "ended", "cause", "judged"),
    [
        ("outcome = 'failed'", "failed", KILLED, Judgement(outcome="done", reason="rank 1 was killed")),
        ("outcome = 'failed'", "failed", None, Judgement(outcome="done")),
        (
            "outcome = 'failed', cause = 'killed', rank = 1",
            "failed",
            KILLED,
            Judgement(outcome="done", reason="rank 1 was killed"),
        ),
        (
            "outcome = 'failed', cause = 'agent'",
            "failed",
            AGENT,
            Judgement(outcome="done", reason="the agent is gone"),
        ),
        ("outcome = 'failed'", "interrupted", None, Judgement(outcome="interrupted")),
        (
            "outcome = 'failed'",
            "done",
            None,
            Judgement(outcome="failed", reason="expected failed, but it ended well"),
        ),
        (
            "outcome = 'timed_out'",
            "failed",
            KILLED,
            Judgement(outcome="failed", reason="expected timed out, but failed: rank 1 was killed"),
        ),
        (
            "outcome = 'failed', rank = 0",
            "failed",
            KILLED,
            Judgement(outcome="failed", reason="expected failed by rank 0, but failed: rank 1 was killed"),
        ),
        (
            "outcome = 'failed', cause = 'hung', rank = 1",
            "failed",
            KILLED,
            Judgement(outcome="failed", reason="expected failed (hung) by rank 1, but failed: rank 1 was killed"),
        ),
        (
            "outcome = 'failed'",
            "failed",
            AGENT,
            Judgement(
                outcome="failed", reason="expected failed, but failed: the agent is gone", is_infrastructure=True
            ),
        ),
    ],
)
def test_a_fire_drill_is_done_only_if_it_ended_as_expected(
    tmp_path: Path, expect: str, ended: TrialOutcome, cause: FailureCause | None, judged: Judgement
) -> None:
    assert judge(_drill(tmp_path, expect), ended, cause) == judged
