"""Suite runs for people and programs: what was measured, what failed and why, what did not run and why."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.machine.doctor import fleet
from bench.machine.doctor.fleet import Fleet
from bench.results.estimate import estimate
from bench.store.history import History
from bench.suite.folder import suite_run_folders
from bench.suite.form.tables import Expected
from bench.suite.report import counted, print_suite, print_suite_runs
from bench.suite.results import SuiteResult, read_result, result_of_record
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_case
from tests.bench.made.fake_runs import CAUSE
from tests.bench.made.fake_suites import FakeNight, plan_of, planned


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> FakeNight:
    """A suite run with an end of each kind."""
    night = FakeNight(tmp_path_factory.mktemp("night"), breaks=[{("fsdp", 1): CAUSE}])
    night.run(
        plan_of(
            planned("ddp", block="a", baseline="one", tags=("quick",)),
            planned("one", "single", block="a", tags=("quick",)),
            planned("drill", "fsdp", tags=("quick",), expect=Expected(outcome="failed", cause="killed")),
            planned("fsdp", tags=("quick",)),
            planned("many", "ddp", refusal="it needs 8 GPUs", tags=("quick",)),
            planned("few", "ddp", refusal="it needs 8 GPUs", tags=("quick",)),
            planned("zero1"),
        ),
        tags=["quick"],
    )
    return night


@pytest.fixture(scope="module")
def result(night: FakeNight) -> SuiteResult:
    """It, read again."""
    return read_result(next(suite_run_folders(night.runs)))


def test_what_the_check_of_nodes_could_not_measure_is_told(night: FakeNight) -> None:
    folder = next(suite_run_folders(night.runs))
    fleet.save(Fleet(engine="slurm", time_ns=1, nodes=(), absent=("copies is absent: it failed",)), folder)
    try:
        assert "pre-flight: copies is absent: it failed" in printed(read_result(folder))
    finally:
        (folder / fleet.PREFLIGHT).unlink()


def printed(result: SuiteResult, width: int = 200) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_suite(result, "table", console)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_each_measured_case_is_a_row_with_its_step_throughput_efficiency_and_run(result: SuiteResult) -> None:
    lines = printed(result)
    assert lines[0] == "case outcome step throughput efficiency run"
    (row,) = (line for line in lines if line.startswith("ddp done"))
    # 32 tokens in 0.7 / 3 s on two ranks; a rank of `single` has 16 in 0.16 s. The interval spans 0 to 100 %.
    found = re.fullmatch(r"ddp done 210 ms \[\d+, \d+\] 137 \[\d+, \d+\] tokens/s 68\.6 % weak (.+)", row)
    assert found is not None
    assert found[1] == result.cases[0].run


def test_failures_are_told_with_their_cause_and_others_with_their_reason(result: SuiteResult) -> None:
    lines = printed(result)
    assert f"fsdp: failed: {CAUSE.text}" in lines
    assert f"drill: failed as expected: {CAUSE.text}" in lines
    assert "skipped: many, few: it needs 8 GPUs" in lines
    assert "left out: zero1: without the tag quick" in lines


def test_more_trials_are_advised_in_the_words_of_suites(result: SuiteResult) -> None:
    (ddp,) = (case for case in result.cases if case.name == "ddp")
    assert ddp.summary is not None
    wide = replace(ddp.summary, estimates=(estimate(RUN_STEP_SECONDS, [0.080, 0.120]),), scaling=())
    lines = printed(replace(result, cases=(replace(ddp, summary=wide),)))
    assert any(
        line.startswith(
            "only 2 trials, so intervals wider than their figure are hidden (JSON has them); use --set"
            " defaults.trials=5"
        )
        for line in lines
    )


def test_cases_in_bf16_whose_weights_differ_are_named_by_them(result: SuiteResult) -> None:
    cases = []
    for case in result.cases:
        if case.summary is not None:
            half = make_case(case.summary.case.strategy, precision="bf16")
            cases.append(replace(case, summary=replace(case.summary, case=half)))
    lines = printed(replace(result, cases=tuple(cases)))
    (line,) = (line for line in lines if line.startswith("in bf16, cases have different weights"))
    assert line.endswith("only within autocast: ddp, one; bf16_compute: drill, fsdp")
    assert not any(line.startswith("in bf16") for line in printed(result))


def test_the_last_line_counts_the_cases(result: SuiteResult) -> None:
    counts = "3 done (1 failed as expected), 1 failed, 2 skipped, 1 left out"
    assert counted(result) == counts
    assert f"{result.id}: failed: {counts}, in " in printed(result)[-1]


def test_json_has_every_case_with_its_whole_summary(result: SuiteResult, capsys: pytest.CaptureFixture[str]) -> None:
    print_suite(result, "json")
    found = json.loads(capsys.readouterr().out)
    cases = {case["case"]: case for case in found["cases"]}
    assert list(cases) == ["ddp", "one", "drill", "fsdp", "many", "few", "zero1"]
    assert cases["ddp"]["summary"]["run"] == cases["ddp"]["run"]
    assert cases["drill"]["is_expected_failure"]
    assert (cases["many"]["summary"], cases["many"]["reason"]) == (None, "it needs 8 GPUs")


def test_csv_has_a_row_for_every_case(result: SuiteResult, capsys: pytest.CaptureFixture[str]) -> None:
    print_suite(result, "csv")
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 8
    assert rows[0].startswith("suite_run,case,outcome,reason,run,trials,step_s,")
    assert rows[1].split(",")[1:3] == ["ddp", "done"]


def test_the_list_has_a_line_for_each_suite_run(result: SuiteResult) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_suite_runs([result], "table", console)
    assert isinstance(console.file, io.StringIO)
    assert f"failed   {counted(result)}" in console.file.getvalue()


def test_a_run_whose_folder_is_gone_keeps_its_outcome(night: FakeNight, tmp_path: Path) -> None:
    shutil.copytree(night.runs, tmp_path / "runs")
    found = read_result(next(suite_run_folders(tmp_path / "runs")))
    shutil.rmtree(tmp_path / "runs" / str(found.cases[0].run))
    again = read_result(next(suite_run_folders(tmp_path / "runs")))
    assert (again.cases[0].outcome, again.cases[0].summary) == ("done", None)


def test_without_its_folder_the_history_tells_what_ran(night: FakeNight, result: SuiteResult) -> None:
    with History(night.url) as history:
        (record,) = history.suite_runs(9)
        found = result_of_record(record, history.runs(limit=99, suite_run=record.id))
    assert {case.name: case.outcome for case in found.cases} == {
        "one": "done",
        "ddp": "done",
        "drill": "failed",
        "fsdp": "failed",
    }
    assert found.counts == result.counts
    assert printed(found)[-1] == "its folder is not on this machine: only cases that ran are listed"
