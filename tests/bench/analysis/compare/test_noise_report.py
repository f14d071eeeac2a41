"""What `observatory compare --aa` and `suite plan` make of a series' nights."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench.analysis.compare.aa import CasePair, report_of
from bench.analysis.compare.report import NoiseReport, false_differences, print_noise
from bench.case import Purpose
from bench.results.noise import TrialNoise
from bench.session.persist import PersistedRuns
from bench.store.history import History
from bench.store.nights import nights_of, noise_of_series
from bench.store.summary import Summary
from bench.suite.plan_report import print_plan
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.analysis.compare.made import STEADY, failed, keep, of_suite, run_of, store_in
from tests.bench.made.fake_suites import plan_of, planned
from workloads.cost_models.absent import Absent

TRIAL, NIGHT = 0.004, 0.003


def _nights(count: int, seed: int = 4) -> list[Summary]:
    """A series of known noise, one run of three trials a night."""
    random = np.random.default_rng(seed)
    runs = []
    for night in range(count):
        level = random.normal(0.0, NIGHT)
        steps_s = [float(step_s) for step_s in np.exp(level + random.normal(0.0, TRIAL, 3))]
        runs.append(of_suite(run_of(f"night-{night}", steps_s, night=night), f"suite-{night}", "ddp"))
    return runs


def test_runs_of_one_day_are_one_night_and_ad_hoc_ones_none() -> None:
    first, second, third = _nights(3)
    again = of_suite(run_of("again", night=1), "suite-1b", "ddp")
    ad_hoc = replace(run_of("ad hoc", night=2), purpose=Purpose(note="look"))
    shorter = of_suite(run_of("shorter", night=2), "suite-2b", "ddp")
    shorter = replace(shorter, case=replace(shorter.case, steps=3))
    found = nights_of(first.case, [shorter, ad_hoc, third, again, second, first])
    assert [[run.run for run in night] for night in found] == [["night-0"], ["again", "night-1"], ["night-2"]]


def test_the_noise_of_a_series_is_found_in_its_nights() -> None:
    runs = _nights(80)
    noise = noise_of_series(runs[0].case, runs[::-1], RUN_STEP_SECONDS)
    assert isinstance(noise, TrialNoise)
    assert noise.trial == pytest.approx(TRIAL, rel=0.2)
    assert noise.night == pytest.approx(NIGHT, rel=0.35)
    assert noise.nights == 80


def _report(tmp_path: Path, nights: list[Summary], *pairs: tuple[str, Summary, Summary]) -> NoiseReport:
    keep(store_in(tmp_path), nights)
    with History(store_in(tmp_path)) as history:
        measured = [
            CasePair(name=name, runs=PersistedRuns(summaries=(first, second), failures=()))
            for name, first, second in pairs
        ]
        return report_of("tiny", measured, history, ["drill is a fire drill and is left out"])


def _printed(found: NoiseReport, width: int = 160) -> list[str]:
    file = io.StringIO()
    print_noise(found, "table", Console(file=file, width=width))
    return file.getvalue().splitlines()


def test_a_suite_measured_twice_tells_what_its_trials_can_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(8)
    first, second = (
        run_of(name, [float(step_s) for step_s in np.exp(random.normal(0.0, TRIAL, 3))]) for name in ("one", "two")
    )
    found = _report(tmp_path, _nights(30), ("ddp", first, second))
    lines = _printed(found)
    (step,) = [line for line in lines if "median step" in line]
    assert step.split()[:4] == ["ddp", "median", "step", "3"]
    assert step.rstrip().endswith("trials")
    assert any(line.startswith("measured twice: ") for line in lines)
    assert lines[-1] == "drill is a fire drill and is left out"
    print_noise(found, "json")
    (row, *_) = json.loads(capsys.readouterr().out)["series"]
    assert row["nights"] == 30
    assert row["trial_deviation_ratio"] == pytest.approx(TRIAL, rel=0.3)
    assert row["night_change_ratio"] == pytest.approx(3.57 * (NIGHT**2 + TRIAL**2 / 3) ** 0.5, rel=0.4)
    assert row["trials_for_3_percent"] == 1
    print_noise(found, "csv")
    assert capsys.readouterr().out.splitlines()[0].startswith("case,metric,labels,main,trials,trial_deviation_ratio")


def test_few_nights_are_the_reason_for_what_is_absent(tmp_path: Path) -> None:
    found = _report(tmp_path, _nights(2), ("ddp", run_of("one", (1.0, 1.01)), run_of("two", (1.0, 1.02))))
    assert any(
        line == "trials for 3 % are absent: ddp: 2 nights in the history, but 3 are needed" for line in _printed(found)
    )
    assert found.series[0].noise != Absent(reason="no run of it has two trials")


def test_a_case_without_two_complete_trials_tells_nothing_and_says_so(tmp_path: Path) -> None:
    found = _report(tmp_path, [], ("ddp", run_of("one", STEADY), failed(run_of("two"))))
    assert found.series == ()
    assert found.missing[-1] == "ddp has only 0 complete trials of the 2 that noise needs (rank 1 was killed)"


def test_exact_figures_that_differ_between_two_of_the_same_are_told(tmp_path: Path) -> None:
    first, second = run_of("one", STEADY), run_of("two", STEADY)
    grown = tuple(
        replace(one, trials=(1001.0,) * 3, median=1001.0) if "memory" in one.metric else one for one in second.estimates
    )
    found = _report(tmp_path, [], ("ddp", first, replace(second, estimates=grown)))
    assert false_differences(found.judged)["exact"] == 1


def _plan_lines(noise: TrialNoise | None) -> list[str]:
    plan = plan_of(replace(planned("ddp", estimate_s=3.0), noise=noise), planned("fsdp", estimate_s=3.0))
    file = io.StringIO()
    print_plan(plan, {}, "table", console=Console(file=file, width=160))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_plan_tells_what_a_night_shows_and_which_case_needs_more_trials() -> None:
    lines = _plan_lines(TrialNoise(trial=0.03, night=0.002, trials=90, nights=30))
    (row,) = [line for line in lines if line.startswith("ddp ")]
    assert row.endswith("6.4 %")
    assert any(line.startswith("a night shows: smallest change of the step time") for line in lines)
    assert "to detect 3 % in one night, use more trials: ddp 14" in lines


def test_a_plan_tells_where_no_number_of_trials_would_do() -> None:
    lines = _plan_lines(TrialNoise(trial=0.01, night=0.05, trials=90, nights=30))
    assert "nights differ too much to detect 3 % in one: ddp" in lines


def test_a_plan_without_nights_has_no_such_column() -> None:
    for noise in (None, TrialNoise(trial=0.01, night=Absent(reason="few"), trials=6, nights=2)):
        assert not any("a night" in line for line in _plan_lines(noise))
