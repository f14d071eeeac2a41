"""What a person sees of a suite while it runs: lines without a terminal, and two that change on one."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, Group

from bench.rank.messages import TrialEnded
from bench.store.run_dir import begin
from bench.suite.ledger import Judgement
from bench.suite.progress import SuiteProgress
from collectors.metrics.rank import OVERLAP_RATIO, RESIDENT_BYTES, TOKENS_PER_SECOND
from collectors.sample_log import Reading, SampleLog
from tests.bench.made.examples import make_machine, make_probe, make_summary
from tests.bench.made.fake_runs import CAUSE
from tests.bench.made.fake_suites import FakeClock, planned


def drawn_in_a_case(name: str, folder: Path, said: list[str], *, width: int) -> SuiteProgress:
    """The progress of a suite, drawn while a case of this name is in its second trial."""
    ddp = planned(name, "ddp", estimate_s=90)
    assert ddp.case is not None
    run = begin(ddp.case, make_machine(), folder)
    for rank in range(2):
        log = SampleLog(run.folder / f"rank{rank}.jsonl")
        samples = [TOKENS_PER_SECOND.at(1000.0 + rank), RESIDENT_BYTES.at(2.0**20 * (rank + 1))]
        log.write(Reading(trial=0, time_ns=0, mark="measured", step=2, samples=samples))
        log.write(Reading(trial=0, time_ns=0, mark="traced", step=3, samples=[OVERLAP_RATIO.at(0.5 + rank / 4)]))
        log.close()
    console = Console(file=io.StringIO(), width=width)
    progress = SuiteProgress("smoke", is_drawn=True, tell=said.append, console=console)
    progress.begins([ddp, planned("fsdp")])
    progress.case_begins(ddp, run)
    progress.steps(ddp, 1, 2)
    run.close()
    return progress


def test_without_a_terminal_each_case_is_a_line_when_it_begins_and_one_when_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    clock = FakeClock()
    ddp, fsdp = planned("ddp", estimate_s=90), planned("fsdp")
    assert ddp.case is not None
    run = begin(ddp.case, make_machine(), tmp_path)
    with SuiteProgress("smoke", is_drawn=False, tell=said.append, clock_s=clock) as progress:
        progress.begins([ddp, fsdp])
        progress.case_begins(ddp, run)
        for steps in range(9):
            progress.steps(ddp, 0, steps)
        progress.trial_ended(ddp, TrialEnded(run=run.id, trial=0, outcome="done"))
        clock.sleep(75)
        progress.case_ended(ddp, Judgement(outcome="failed", reason=CAUSE.text), make_summary(outcome="failed"))
        progress.case_ended(fsdp, Judgement(outcome="skipped", reason="no GPU"), None)
    run.close()
    assert said == [
        "suite smoke: 2 cases left, about 1 min 30 s and 1 of unknown time",
        f"ddp begins: 3 trials on 2 ranks, about 1 min 30 s; run {run.id}",
        f"ddp: failed after 1 min 15 s: {CAUSE.text}",
        "fsdp is skipped: no GPU",
    ]


def test_who_wants_to_hear_more_is_told_of_each_trial(tmp_path: Path) -> None:
    said: list[str] = []
    progress = SuiteProgress("smoke", is_drawn=False, is_long=True, tell=said.append)
    progress.trial_ended(planned("ddp"), TrialEnded(run="a", trial=0, outcome="done"))
    progress.trial_ended(planned("ddp"), TrialEnded(run="a", trial=1, outcome="failed", cause=CAUSE))
    assert said == ["ddp: trial 1 is done", f"ddp: trial 2 failed: {CAUSE.text}"]


def test_a_fire_drill_that_ended_as_expected_is_called_so() -> None:
    said: list[str] = []
    progress = SuiteProgress("smoke", is_drawn=False, tell=said.append)
    progress.case_ended(planned("ddp"), Judgement(outcome="done", reason="killed"), make_summary(outcome="failed"))
    assert said == ["ddp: failed as expected: killed"]


def test_a_probe_without_a_headline_ends_with_its_outcome() -> None:
    said: list[str] = []
    progress = SuiteProgress("smoke", is_drawn=False, tell=said.append)
    summary = make_summary(case=make_probe("pairs"), estimates=(), scaling=())
    progress.case_ended(planned("pairs", "ddp"), Judgement(outcome="done"), summary)
    assert said == ["pairs: done"]


def test_who_wants_no_lines_gets_none() -> None:
    said: list[str] = []
    progress = SuiteProgress("smoke", is_quiet=True, is_drawn=True, tell=said.append)
    progress.begins([planned("ddp")])
    progress.case_ended(planned("ddp"), Judgement(outcome="skipped", reason="no GPU"), None)
    assert said == []


def test_on_a_terminal_the_whole_and_the_present_case_are_drawn_with_its_newest_figures(tmp_path: Path) -> None:
    said: list[str] = []
    progress = drawn_in_a_case("ddp", tmp_path, said, width=80)
    assert progress.drawn().plain.splitlines() == [
        "smoke: 0 of 2 done, 0 failing, 2 cases left, about 1 min 30 s and 1 of unknown time",
        "ddp: trial 2 of 3, step 2 of 4, 2,001 tokens/s, 2.00 MiB, overlap 50.0 %",
    ]
    assert len(said) == 1


def test_no_figure_is_cut_from_beside_a_long_name_of_a_sweep(tmp_path: Path) -> None:
    progress = drawn_in_a_case("ddp[ranks=2,batch=16]", tmp_path, [], width=80)
    assert progress.drawn().plain.splitlines()[1:] == [
        "ddp[ranks=2,batch=16]: trial 2 of 3, step 2 of 4",
        "  2,001 tokens/s, 2.00 MiB, overlap 50.0 %",
    ]


def test_the_time_left_is_that_of_the_trials_that_are_left() -> None:
    progress = SuiteProgress("smoke", is_drawn=True, tell=lambda line: None)
    progress.begins([ddp := planned("ddp", estimate_s=90)])
    progress.trial_ended(ddp, TrialEnded(run="a", trial=0, outcome="done"))
    assert progress.drawn().plain == "smoke: 0 of 1 done, 0 failing, 1 case left, about 1 min"


def test_nothing_drawn_is_wider_than_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=20)
    progress = SuiteProgress("a_suite_with_a_long_name", is_drawn=True, console=console, tell=lambda line: None)
    progress.begins([planned("ddp")])
    console.print(Group(progress.drawn()))
    assert isinstance(console.file, io.StringIO)
    assert [len(line) for line in console.file.getvalue().splitlines()] == [20]
