"""A run goes on with the trials that it lacks, and what an incomplete trial wrote is gone."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.rank.messages import FailureCause
from bench.session.measure import CaseOrder, TrialSettings, measure
from bench.store.resume import resume
from bench.store.run_dir import Run, case_file
from bench.store.summary import Summary
from collectors.metrics.results import RUN_STEP_SECONDS
from collectors.sample_log import Ended, Opened, SampleLog, read
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import DDP, DDP_STEPS_S, find

SETTINGS = TrialSettings(limit_s=60)
BROKEN = FailureCause(kind="agent", rank=None, step=None, text="the GPU fell off the bus")


def _measure(engine: FakeEngine, folder: Path, resumes: Path | None = None) -> Summary:
    engine.runs = folder
    measured = measure(
        [CaseOrder(case=DDP, settings=SETTINGS, resumes=resumes)],
        engine=engine,
        machine=engine.machine(),
        folder=folder,
    )
    measured.close()
    (summary,) = measured.summaries
    return summary


def _engine(breaks: dict[tuple[str, int], FailureCause | BaseException] | None = None) -> FakeEngine:
    return FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, breaks)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A run whose second trial broke."""
    summary = _measure(_engine({("ddp", 1): BROKEN}), tmp_path)
    assert (summary.trials_done, summary.outcome) == (1, "failed")
    return Path(summary.folder)


@pytest.fixture
def resumed(broken: Path) -> Iterator[tuple[Run, int]]:
    run, trials_done = resume(broken, make_machine())
    yield run, trials_done
    run.close()


def test_a_resumed_run_measures_only_the_trials_that_it_lacks(broken: Path, tmp_path: Path) -> None:
    engine = _engine()
    summary = _measure(engine, tmp_path, resumes=broken)
    assert engine.orders == [("ddp", 1), ("ddp", 2)]
    assert (summary.run, summary.outcome, summary.trials_done) == (broken.name, "done", 3)
    assert find(summary, RUN_STEP_SECONDS).trials == (0.2, 0.25, 0.21)


def test_the_resumed_run_s_figures_are_those_of_a_run_in_one_go(broken: Path, tmp_path: Path) -> None:
    summary = _measure(_engine(), tmp_path, resumes=broken)
    whole = _measure(_engine(), tmp_path / "whole")
    assert summary.estimates == whole.estimates
    assert set(summary.notes) - set(whole.notes) == {"the run was interrupted: trials from 2 on were measured later"}


def test_what_the_broken_trial_wrote_is_cut(resumed: tuple[Run, int]) -> None:
    run, trials_done = resumed
    assert trials_done == 1
    for rank in range(2):
        records = read(run.folder / f"rank{rank}.jsonl").records
        assert {record.trial for record in records if isinstance(record, (Opened, Ended))} == {0}
    assert not (run.folder / "summary.json").exists()


def test_a_half_line_of_a_dead_rank_is_cut(broken: Path) -> None:
    log = broken / "rank0.jsonl"
    log.write_bytes(log.read_bytes() + b'{"type":"ended","trial":1,"time_ns":0,"st')
    run, trials_done = resume(broken, make_machine())
    run.close()
    assert trials_done == 1
    assert not read(log).left_out


def test_a_rank_that_never_began_leaves_no_trial_complete(broken: Path) -> None:
    (broken / "rank1.jsonl").unlink()
    run, trials_done = resume(broken, make_machine())
    run.close()
    assert trials_done == 0
    assert read(broken / "rank0.jsonl").records == []


def test_case_json_tells_when_the_run_went_on(resumed: tuple[Run, int]) -> None:
    (once,) = case_file(resumed[0].folder).resumed
    assert once.trials_done == 1


def test_a_run_that_goes_on_already_is_refused(resumed: tuple[Run, int]) -> None:
    with pytest.raises(Misuse, match=r"is still active: .*; wait until it ends"):
        resume(resumed[0].folder, make_machine())


def test_another_torch_does_not_go_on_with_the_run(broken: Path) -> None:
    other = replace(make_machine(), torch_version="2.14.0")
    with pytest.raises(Misuse, match=rf"run {broken.name} cannot be continued: it began with torch .*, now 2.14.0"):
        resume(broken, other)
    run, _ = resume(broken, make_machine())  # The refusal left the run unlocked and as it was.
    run.close()


def test_a_rank_that_still_works_is_waited_for(broken: Path) -> None:
    """As one whose runner was killed a moment ago; here the test's child, which ends when it is waited for."""
    with subprocess.Popen(["sleep", "1"]) as rank:
        log = SampleLog(broken / "rank1.jsonl")
        now_ns = time.time_ns()
        log.write(Opened(run=broken.name, trial=1, rank=1, time_ns=now_ns, pid=rank.pid, host=socket.gethostname()))
        log.close()
        run, _ = resume(broken, make_machine())
        run.close()
        assert psutil.Process(rank.pid).status() == psutil.STATUS_ZOMBIE


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises((Misuse, InfrastructureFailed), match="holds no run"):
        resume(tmp_path, make_machine())


def test_a_run_whose_trials_are_all_complete_is_done_without_another(tmp_path: Path) -> None:
    summary = _measure(_engine(), tmp_path)
    engine = _engine()
    again = _measure(engine, tmp_path, resumes=Path(summary.folder))
    assert engine.orders == []
    assert (again.outcome, again.trials_done) == ("done", 3)
