"""Running a suite on fake ranks: what is measured in which order, what is tried again, and what survives which end."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.rank.messages import FailureCause
from bench.session.patient_store import PatientStore
from bench.store.active_runs import lock_folder
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from bench.suite.choice import blocks_of, choose
from bench.suite.folder import begin, suite_run_folders
from bench.suite.form.tables import Expected
from bench.suite.ledger import LEDGER, CaseEnded, SuiteState, TrialEnded, fold, judge, read_ledger
from bench.suite.run import SuiteRunner
from tests.bench.made.examples import SMALL, small_case
from tests.bench.made.fake_runs import CAUSE
from tests.bench.made.fake_suites import FULL_DISK, LOST_AGENT, UNHEARD, FakeNight, plan_of, planned

KILLED = {("fsdp", 1): CAUSE}


@pytest.fixture
def night(tmp_path: Path) -> FakeNight:
    """A folder, a store and engines."""
    return FakeNight(tmp_path)


def outcomes(night: FakeNight, *names: str) -> list[str | None]:
    """How the ledger says that the cases of the newest suite run ended."""
    state = fold(read_ledger(next(suite_run_folders(night.runs)) / LEDGER).records)
    return [state.case(name).outcome for name in names]


# A suite from its beginning


def test_cases_of_a_block_take_turns_and_blocks_follow_each_other(night: FakeNight) -> None:
    plan = plan_of(planned("fsdp", block="a"), planned("zero1", block="b"), planned("ddp", block="a"))
    assert night.run(plan).outcome == "done"
    turns = [(name, trial) for trial in range(3) for name in ("fsdp", "ddp")]
    assert night.orders == [*turns, ("zero1", 0), ("zero1", 1), ("zero1", 2)]
    assert len(night.engines) == 1
    assert {found.purpose.member.case for found in night.stored() if found.purpose.member} == {"ddp", "fsdp", "zero1"}


def test_a_case_that_fails_stops_no_other_and_is_not_tried_again(night: FakeNight) -> None:
    night.breaks = [KILLED]
    end = night.run(plan_of(planned("fsdp", retries=2), planned("ddp")))
    assert end.outcome == "failed"
    assert outcomes(night, "fsdp", "ddp") == ["failed", "done"]
    assert end.state.case("fsdp").reason == CAUSE.text
    assert night.orders.count(("fsdp", 1)) == 1


def test_the_ledger_has_the_end_of_a_failed_case_before_the_next_trial_of_its_block(night: FakeNight) -> None:
    """Should the runner be killed then, what failed is not measured again by those who resume the suite run."""
    night.breaks = [KILLED]
    night.run(plan_of(planned("fsdp", block="a"), planned("ddp", block="a")))
    records = read_ledger(next(suite_run_folders(night.runs)) / LEDGER).records
    failed = next(i for i, one in enumerate(records) if isinstance(one, TrialEnded) and one.outcome == "failed")
    after = records[failed + 1]
    assert isinstance(after, CaseEnded)
    assert (after.case, after.outcome, after.reason) == ("fsdp", "failed", CAUSE.text)
    assert fold(records[: failed + 2]).missing(["fsdp", "ddp"]) == ("ddp",)


def test_a_case_that_cannot_run_here_is_skipped_with_the_reason(night: FakeNight) -> None:
    end = night.run(plan_of(planned("fsdp", refusal="it needs 8 GPUs"), planned("ddp")))
    assert end.outcome == "failed"
    assert end.state.case("fsdp").outcome == "skipped"
    assert end.state.case("fsdp").reason == "it needs 8 GPUs"


def test_the_history_has_the_record_of_the_suite_run(night: FakeNight) -> None:
    night.run(plan_of(planned("fsdp", refusal="no GPU"), planned("ddp")))
    with History(night.url) as history:
        (record,) = history.suite_runs(9)
    assert (record.suite, record.outcome, record.total, record.running) == ("smoke", "failed", 2, ())
    assert record.cases == {"skipped": 1, "done": 1}
    assert record.failed == ()
    assert record.ended_ns is not None


def test_the_record_names_the_cases_that_failed(night: FakeNight) -> None:
    night.breaks = [KILLED]
    night.run(plan_of(planned("fsdp"), planned("ddp")))
    with History(night.url) as history:
        (record,) = history.suite_runs(9)
    assert record.failed == ("fsdp",)


def test_a_step_of_a_long_trial_is_progress_of_the_suite_run(night: FakeNight, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[SuiteRecord] = []
    monkeypatch.setattr(PatientStore, "save", lambda _, record: saved.append(record))
    with begin((plan := plan_of(planned("ddp"))).suite, night.runs) as ledger, night.session() as session:
        now_s = iter(range(0, 9999, 11))
        runner = SuiteRunner(plan, ledger, session, night.display, clock_s=lambda: next(now_s))
        runner.run(choose(plan, SuiteState()))
    assert len({record.progress_ns for record in saved if record.running == ("ddp",)}) > 1 + 3  # Its begin and ends.


# Baselines


def test_efficiency_is_read_against_the_baseline_that_the_suite_names(night: FakeNight) -> None:
    plan = plan_of(planned("ddp", block="a", baseline="one"), planned("one", "single", block="a"))
    night.run(plan)
    ddp, one = (night.display.summaries[name] for name in ("ddp", "one"))
    assert ddp is not None
    assert one is not None
    (found,) = ddp.scaling
    assert (found.scaling, found.baseline_run, found.is_beside) == ("weak", one.run, True)


def test_the_block_of_a_baseline_comes_first() -> None:
    cases = [planned("ddp", baseline="one"), planned("fsdp"), planned("one", "single")]
    assert [[one.suite_case.name for one in block] for block in blocks_of(cases)] == [["one"], ["ddp"], ["fsdp"]]


def test_a_baseline_of_another_block_was_not_measured_beside_the_case(night: FakeNight) -> None:
    night.run(plan_of(planned("ddp", baseline="one"), planned("one", "single")))
    ddp = night.display.summaries["ddp"]
    assert ddp is not None
    assert [found.is_beside for found in ddp.scaling] == [False]


@pytest.mark.parametrize("changes", [{}, {"commit": "b" * 40}])
def test_a_baseline_of_before_the_resumption_serves_unless_the_software_changed(
    night: FakeNight, changes: dict[str, Any]
) -> None:
    night.breaks = [{("ddp", 0): KeyboardInterrupt()}]
    plan = plan_of(planned("one", "single"), planned("ddp", baseline="one"))
    night.run(plan)
    night.machine = replace(night.machine, **changes)
    night.resume(plan)
    ddp = night.display.summaries["ddp"]
    assert ddp is not None
    assert len(ddp.scaling) == (0 if changes else 1)
    reason = "scaling efficiency is absent: its baseline one was measured with commit unknown, now bbb"
    notes = [note for note in ddp.notes if "efficiency" in note and not note.startswith("expected ")]
    assert [note.startswith(reason) for note in notes] == [True] * bool(changes)


def test_a_baseline_of_the_same_block_that_was_finished_before_was_not_measured_beside(night: FakeNight) -> None:
    one = planned("one", "single", case=small_case("single", 1, trials=1, model=replace(SMALL, batch=2)), block="a")
    night.breaks = [{("ddp", 1): KeyboardInterrupt()}]
    plan = plan_of(one, planned("ddp", block="a", baseline="one"))
    night.run(plan)
    night.resume(plan)
    ddp = night.display.summaries["ddp"]
    assert ddp is not None
    assert [found.is_beside for found in ddp.scaling] == [False]


def test_without_its_baseline_a_case_has_no_efficiency_and_the_reason(night: FakeNight) -> None:
    night.breaks = [{("single", 0): FailureCause(kind="error", rank=0, step=1, text="rank 0 failed")}]
    night.run(plan_of(planned("ddp", baseline="one"), planned("one", "single")))
    ddp = night.display.summaries["ddp"]
    assert ddp is not None
    assert ddp.scaling == ()
    assert "scaling efficiency is absent: its baseline one was failed (rank 0 failed)" in ddp.notes


# Failures of the infrastructure


def test_after_a_lost_agent_a_new_one_measures_the_trials_that_are_missing(night: FakeNight) -> None:
    night.breaks = [{("ddp", 1): LOST_AGENT}]
    end = night.run(plan_of(planned("ddp", block="a"), planned("fsdp", block="a")))
    assert end.outcome == "done"
    assert night.engines[0].is_stopped
    assert night.engines[0].orders == [("ddp", 0), ("fsdp", 0), ("ddp", 1)]
    assert night.engines[1].orders == [("ddp", 1), ("fsdp", 1), ("ddp", 2), ("fsdp", 2)]
    assert len(night.stored()) == 2
    assert [found.trials_done for found in night.stored()] == [3, 3]


def test_a_trial_that_an_agent_ended_by_itself_runs_again(night: FakeNight) -> None:
    """The runner was stopped, as by Ctrl-Z or a laptop's lid, and its agent has not outlived the silence."""
    night.breaks = [{("ddp", 1): UNHEARD}]
    end = night.run(plan_of(planned("ddp"), planned("fsdp")))
    assert (end.outcome, end.is_interrupted) == ("done", False)
    assert outcomes(night, "ddp", "fsdp") == ["done", "done"]
    assert night.engines[0].is_stopped
    assert night.engines[1].orders[:2] == [("ddp", 1), ("ddp", 2)]


def test_a_case_whose_trials_agents_end_too_often_is_a_failure_of_the_infrastructure(night: FakeNight) -> None:
    night.breaks = [{("ddp", 1): UNHEARD}] * 2
    end = night.run(plan_of(planned("ddp", retries=1), planned("fsdp")))
    assert end.outcome == "failed"
    assert outcomes(night, "ddp", "fsdp") == ["failed", "done"]
    assert end.state.case("ddp").is_infrastructure


def test_a_case_that_loses_its_agent_too_often_fails_and_the_next_one_runs(night: FakeNight) -> None:
    night.breaks = [{("ddp", 0): LOST_AGENT}, {("ddp", 0): LOST_AGENT}]
    end = night.run(plan_of(planned("ddp", retries=1), planned("fsdp")))
    assert outcomes(night, "ddp", "fsdp") == ["failed", "done"]
    assert end.state.case("ddp").is_infrastructure
    assert end.failure is None


def test_a_case_that_loses_its_agent_each_time_uses_up_no_attempt_of_those_beside_it(night: FakeNight) -> None:
    night.breaks = [{("ddp", 1): LOST_AGENT}, {("ddp", 1): LOST_AGENT}]
    night.run(plan_of(planned("ddp", block="a", retries=1), planned("fsdp", block="a", retries=0)))
    assert outcomes(night, "ddp", "fsdp") == ["failed", "done"]
    assert [order for order in night.orders if order[0] == "fsdp"] == [("fsdp", 0), ("fsdp", 1), ("fsdp", 2)]


def test_a_disk_that_stays_full_ends_the_suite_and_the_case_goes_on_later(night: FakeNight) -> None:
    night.breaks = [{("fsdp", 1): FULL_DISK}, {("fsdp", 1): FULL_DISK}]
    plan = plan_of(planned("ddp"), planned("fsdp", retries=1), planned("zero1"))
    end = night.run(plan)
    assert end.outcome == "interrupted"
    assert "No space left on device" in str(end.failure)
    assert outcomes(night, "ddp", "fsdp", "zero1") == ["done", "interrupted", None]
    before = len(night.orders)
    assert night.resume(plan).outcome == "done"
    assert night.orders[before:] == [("fsdp", 1), ("fsdp", 2), ("zero1", 0), ("zero1", 1), ("zero1", 2)]


def test_an_engine_that_never_opens_ends_the_suite(night: FakeNight, monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeAbsence(FakeNight):
        def open_engine(self) -> object:  # type: ignore[override]
            raise InfrastructureFailed("no agent starts here")

    end = FakeAbsence(night.folder).run(plan_of(planned("ddp")))
    assert (end.outcome, str(end.failure)) == ("interrupted", "no agent starts here")
    assert outcomes(night, "ddp") == [None]


# Interruptions, and going on


def test_an_interrupted_suite_goes_on_with_exactly_what_is_missing(night: FakeNight) -> None:
    night.breaks = [{("fsdp", 1): KeyboardInterrupt()}]
    plan = plan_of(planned("ddp"), planned("fsdp"), planned("zero1"))
    end = night.run(plan)
    assert end.is_interrupted
    assert outcomes(night, "ddp", "fsdp", "zero1") == ["done", "interrupted", None]
    before = len(night.orders)
    assert night.resume(plan).outcome == "done"
    assert night.orders[before:] == [("fsdp", 1), ("fsdp", 2), ("zero1", 0), ("zero1", 1), ("zero1", 2)]
    assert sorted(found.trials_done for found in night.stored()) == [3, 3, 3]


def test_a_suite_run_whose_runner_died_goes_on_with_the_trials_that_its_runs_have(night: FakeNight) -> None:
    """The ledger ends in the middle of a case, as SIGKILL leaves it."""
    plan = plan_of(planned("ddp"), planned("fsdp"))
    night.run(plan)
    path = next(suite_run_folders(night.runs)) / LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    second = next(number for number, line in enumerate(lines) if b'"case":"fsdp"' in line and b"trial_ended" in line)
    path.write_bytes(b"".join(lines[: second + 1]) + lines[second + 1][:9])
    before = len(night.orders)
    assert night.resume(plan).outcome == "done"
    assert night.orders[before:] == []  # The run's own logs say that no trial of it is missing.
    assert [record.run for record in read_ledger(path).records if isinstance(record, CaseEnded)] == [
        found.run for found in reversed(night.stored())
    ]


def test_only_repeat_failed_runs_a_failed_case_again_and_as_a_new_run(night: FakeNight) -> None:
    night.breaks = [KILLED]
    plan = plan_of(planned("ddp"), planned("fsdp"))
    night.run(plan)
    before = len(night.orders)
    assert night.resume(plan).outcome == "failed"
    assert night.orders[before:] == []
    assert night.resume(plan, is_failed_repeated=True).outcome == "done"
    assert night.orders[before:] == [("fsdp", 0), ("fsdp", 1), ("fsdp", 2)]
    assert len(night.stored()) == 3


def test_what_an_interrupted_case_has_measured_outlives_its_being_left_out(night: FakeNight) -> None:
    night.breaks = [{("fsdp", 1): KeyboardInterrupt()}]
    plan = plan_of(planned("fsdp"), planned("ddp", tags=("quick",)))
    night.run(plan)
    (folder,) = suite_run_folders(night.runs)
    night.resume(plan, folder.name, tags=["quick"])
    assert outcomes(night, "fsdp", "ddp") == ["left_out", "done"]
    before = len(night.orders)
    assert night.resume(plan, folder.name).outcome == "done"
    assert night.orders[before:] == [("fsdp", 1), ("fsdp", 2)]


@pytest.mark.parametrize("choice", [{"tags": ["quick"]}, {"budget_s": 20}, {"budget_s": 45}])
def test_a_failed_case_that_is_not_repeated_after_all_has_failed_still(
    night: FakeNight, choice: dict[str, Any]
) -> None:
    """Left out by its tag, by the budget from the beginning, and by what is left of the budget at its turn."""
    night.breaks = [{("fsdp", 1): CAUSE, ("ddp", 1): CAUSE}]
    plan = plan_of(planned("fsdp", estimate_s=30), planned("ddp", estimate_s=15, tags=("quick",), importance=1))
    night.run(plan)
    night.trial_s = 10
    assert night.resume(plan, is_failed_repeated=True, **choice).outcome == "failed"
    assert outcomes(night, "fsdp", "ddp") == ["failed", "done"]


def test_a_run_on_which_a_process_works_ends_the_suite_and_is_gone_on_with_later(night: FakeNight) -> None:
    night.breaks = [{("ddp", 1): KeyboardInterrupt()}]
    plan = plan_of(planned("fsdp"), planned("ddp"))
    night.run(plan)
    (folder,) = (one.folder for one in night.stored() if one.case.strategy == "ddp")
    lock = lock_folder(Path(folder))
    assert lock is not None
    end = night.resume(plan)
    os.close(lock)
    assert (end.outcome, end.is_interrupted) == ("interrupted", False)
    assert f"{folder} is still active" in str(end.failure)
    before = len(night.orders)
    assert night.resume(plan).outcome == "done"
    assert night.orders[before:] == [("ddp", 1), ("ddp", 2)]


def test_a_run_that_is_gone_begins_again(night: FakeNight) -> None:
    night.breaks = [{("ddp", 1): KeyboardInterrupt()}]
    plan = plan_of(planned("ddp"))
    night.run(plan)
    (record,) = (
        one for one in read_ledger(next(suite_run_folders(night.runs)) / LEDGER).records if isinstance(one, TrialEnded)
    )
    shutil.rmtree(night.runs / record.run)
    before = len(night.orders)
    assert night.resume(plan).outcome == "done"
    assert night.orders[before:] == [("ddp", 0), ("ddp", 1), ("ddp", 2)]
    assert any("ddp begins a new run" in line for line in night.display.lines)


def test_a_run_over_other_nodes_begins_again(night: FakeNight) -> None:
    night.breaks = [{("ddp", 1): KeyboardInterrupt()}]
    night.run(plan_of(planned("ddp")))
    night.resume(plan_of(planned("ddp", case=small_case("ddp", 2, trials=3, nodes=2))))
    assert night.orders[-3:] == [("ddp", 0), ("ddp", 1), ("ddp", 2)]
    assert any(line.endswith("it began as ddp on 2, and is ddp on 2 over 2 nodes now") for line in night.display.lines)


# Tags and budgets


def test_cases_without_the_tag_are_left_out_and_no_failure(night: FakeNight) -> None:
    end = night.run(plan_of(planned("ddp"), planned("fsdp", tags=("extra",))), tags=["extra"])
    assert end.outcome == "done"
    assert outcomes(night, "ddp", "fsdp") == ["left_out", "done"]


def test_what_is_extra_runs_only_where_it_is_asked_for(night: FakeNight) -> None:
    plan = plan_of(planned("ddp"), planned("fsdp", tags=("extra",), refusal="it is not installed"))
    assert night.run(plan).outcome == "done"
    assert outcomes(night, "ddp", "fsdp") == ["done", "left_out"]
    (folder,) = suite_run_folders(night.runs)
    assert night.resume(plan, folder.name, tags=["all"]).outcome == "failed"
    assert outcomes(night, "ddp", "fsdp") == ["done", "skipped"]


def test_a_tag_that_no_case_has_is_refused_with_those_that_some_have() -> None:
    plan = plan_of(planned("ddp", tags=("quick",)), planned("fsdp", tags=("extra",)))
    with pytest.raises(Misuse, match=r"no case has the tag \"extras\"; did you mean \"extra\"\?"):
        choose(plan, SuiteState(), tags=["extras"])


def test_what_matters_most_comes_first_and_what_does_not_fit_is_left_out(night: FakeNight) -> None:
    plan = plan_of(planned("ddp", estimate_s=60), planned("fsdp", estimate_s=60, importance=1))
    end = night.run(plan, budget_s=90)
    assert end.outcome == "done"
    assert outcomes(night, "ddp", "fsdp") == ["left_out", "done"]
    assert end.state.case("ddp").reason == "beyond the budget of 90 s"


def test_of_a_case_that_goes_on_only_the_missing_trials_count_against_the_budget(night: FakeNight) -> None:
    night.breaks = [{("ddp", 2): KeyboardInterrupt()}]
    plan = plan_of(planned("ddp", estimate_s=90))
    night.run(plan)
    with pytest.raises(Misuse, match="not one case fits"):
        night.run(plan, budget_s=40)
    (folder,) = suite_run_folders(night.runs)
    assert night.resume(plan, folder.name, budget_s=40).outcome == "done"


def test_within_a_budget_what_matters_most_is_measured_first(night: FakeNight) -> None:
    night.run(plan_of(planned("ddp", estimate_s=30), planned("fsdp", estimate_s=30, importance=1)), budget_s=90)
    assert [name for name, trial in night.orders if trial == 0] == ["fsdp", "ddp"]


def test_a_block_that_no_longer_fits_is_left_out_when_its_turn_comes(night: FakeNight) -> None:
    night.trial_s = 25  # Three trials take 75 s, and 30 were estimated.
    end = night.run(plan_of(planned("ddp", estimate_s=30), planned("fsdp", estimate_s=30)), budget_s=90)
    assert outcomes(night, "ddp", "fsdp") == ["done", "left_out"]
    assert end.state.case("fsdp").reason == "--budget: it takes about 30 s, and 15 s were left"


def test_a_budget_in_which_no_case_fits_is_refused() -> None:
    with pytest.raises(Misuse, match="not one case fits into a budget of 9 s"):
        choose(plan_of(planned("ddp", estimate_s=60), planned("fsdp", estimate_s=60)), SuiteState(), budget_s=9)


# Fire drills


@pytest.mark.parametrize(
    ("expected", "outcome", "reason"),
    [
        (Expected(outcome="failed"), "done", CAUSE.text),
        (Expected(outcome="failed", cause="killed", rank=1), "done", CAUSE.text),
        (
            Expected(outcome="failed", cause="killed", rank=0),
            "failed",
            f"expected failed (killed) by rank 0, but failed: {CAUSE.text}",
        ),
        (Expected(outcome="timed_out"), "failed", f"expected timed out, but failed: {CAUSE.text}"),
    ],
)
def test_a_fire_drill_is_done_where_it_ended_as_expected(
    night: FakeNight, expected: Expected, outcome: str, reason: str
) -> None:
    night.breaks = [KILLED]
    end = night.run(plan_of(planned("fsdp", expect=expected)))
    found = end.state.case("fsdp")
    assert (found.outcome, found.reason) == (outcome, reason)


@pytest.mark.parametrize(("cause", "outcome"), [(None, "failed"), ("agent", "done")])
def test_a_lost_agent_is_no_fault_that_was_found(night: FakeNight, cause: str | None, outcome: str) -> None:
    night.breaks = [{("fsdp", 1): LOST_AGENT}] * 2
    end = night.run(plan_of(planned("fsdp", retries=0, expect=Expected(outcome="failed", cause=cause))))
    assert end.state.case("fsdp").outcome == outcome


def test_a_fire_drill_that_ends_well_has_failed(night: FakeNight) -> None:
    night.run(plan_of(drill := planned("ddp", expect=Expected(outcome="failed", cause="hung"))))
    summary = night.display.summaries["ddp"]
    assert summary is not None
    assert judge(drill.suite_case, summary.outcome, summary.cause).reason == "expected failed (hung), but it ended well"
