"""Whoever follows a log learns of each warm-up and measured step once, however few records are decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics.metric import Sample
from collectors.metrics.rank import LOSS, PHASE_SECONDS, STEP_SECONDS, TRACED_STEP_SECONDS
from collectors.sample_log import Ended, Follower, LoggedStep, Mark, Opened, Reading, Record, SampleLog, read

OPENED = Opened(run="r", trial=0, rank=1, time_ns=1, pid=2, host="here")


def _write(path: Path, *records: Record) -> None:
    log = SampleLog(path)
    for record in records:
        log.write(record)
    log.close()


def _reading(mark: Mark, step: int, *samples: Sample, trial: int = 0) -> Reading:
    return Reading(trial=trial, time_ns=100 + step, mark=mark, step=step, samples=list(samples))


def _step(mark: Mark, step: int, step_s: float | None, trial: int = 0) -> LoggedStep:
    return LoggedStep(mark=mark, trial=trial, step=step, time_ns=100 + step, step_s=step_s)


def test_each_step_is_told_with_its_time_wherever_that_stands_among_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    follower = Follower(path)
    forward = PHASE_SECONDS.at(0.125, phase='["observatory_step_seconds",9.0]')
    _write(path, OPENED, _reading("warm_up", 0, STEP_SECONDS.at(2.5e-05)), _reading("measured", 1, forward))
    _write(path, _reading("measured", 2, forward, STEP_SECONDS.at(1.0), LOSS.at(2.0)))
    assert follower.newest_and_steps().steps == [
        _step("warm_up", 0, 2.5e-05),
        _step("measured", 1, None),
        _step("measured", 2, 1.0),
    ]
    assert follower.newest_and_steps().steps == []
    _write(path, _reading("measured", 0, STEP_SECONDS.at(0.5), trial=1), Ended(trial=1, time_ns=3, step=1))
    assert follower.newest_and_steps().steps == [_step("measured", 0, 0.5, trial=1)]


def test_the_records_beside_the_steps_are_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    _write(path, OPENED, *(_reading("measured", step, STEP_SECONDS.at(0.5)) for step in range(9)))
    assert Follower(path).newest_and_steps().records == Follower(path).newest()


@pytest.mark.parametrize("mark", ["traced", "memory", "probe", "nccl_log"])
def test_instrumented_steps_and_probes_are_no_steps(mark: Mark, tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    _write(path, _reading(mark, 0, TRACED_STEP_SECONDS.at(0.5), STEP_SECONDS.at(0.5)))
    assert Follower(path).newest_and_steps().steps == []


@pytest.mark.parametrize("step_s", [1e-9, 0.1, 1 / 3, 12345.678, 1e300, 0.0, -1.5])
def test_a_time_is_read_as_it_was_measured(step_s: float, tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    _write(path, _reading("measured", 0, STEP_SECONDS.at(step_s)))
    assert [step.step_s for step in Follower(path).newest_and_steps().steps] == [step_s]


def test_a_step_whose_line_was_cut_off_is_none_until_its_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    _write(path, _reading("measured", 0, STEP_SECONDS.at(0.5)), _reading("measured", 1, STEP_SECONDS.at(0.5)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    follower = Follower(path)
    assert [step.step for step in follower.newest_and_steps().steps] == [0]
    path.write_bytes(whole)
    assert [step.step for step in follower.newest_and_steps().steps] == [1]
    path.write_bytes(whole[:-4] + b"\n" + whole)
    anew = Follower(path).newest_and_steps()
    assert [step.step for step in anew.steps] == [0, 0, 1]


def test_of_a_log_that_became_shorter_it_is_said_and_its_steps_are_told_anew(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    follower = Follower(path)
    _write(path, *(_reading("measured", step, STEP_SECONDS.at(0.5)) for step in range(3)))
    first = follower.newest_and_steps()
    assert (len(first.steps), first.is_anew) == (3, False)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    second = follower.newest_and_steps()
    assert ([step.step for step in second.steps], second.is_anew) == ([0], True)
    assert not follower.newest_and_steps().is_anew


def test_the_steps_of_ten_thousand_are_those_of_the_whole_log(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    log, follower, told = SampleLog(path), Follower(path), list[LoggedStep]()
    for step in range(10_000):
        log.write(_reading("measured", step, STEP_SECONDS.at(0.1 + step / 7e4)))
        if step % 333 == 0:
            told += follower.newest_and_steps().steps
    log.close()
    told += follower.newest_and_steps().steps
    records = read(path).records
    times = [sample.value for record in records if isinstance(record, Reading) for sample in record.samples]
    assert [step.step_s for step in told] == times
    assert len(told) == 10_000
