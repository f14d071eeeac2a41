"""The figures of a watched job: a step of the slowest rank, its quantiles, rates by tokens, and honest intervals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.results.estimate import Estimate
from bench.results.watched import job as jobs
from bench.results.watched.figures import estimates_of
from bench.results.watched.job import Job, read_job, work_of
from bench.results.watched.run import layout, read_run
from tests.bench.results.watched.made_ranks import (
    Fault,
    MadeSteps,
    begin_line,
    made_steps,
    steps_line,
    write_lines,
    write_run,
)


def _by_name(estimates: tuple[Estimate, ...]) -> dict[str, Estimate]:
    return {" ".join([each.metric.removeprefix("observatory_run_"), *each.labels.values()]): each for each in estimates}


def _even(step_ms: float, steps: int, ranks: int = 2) -> MadeSteps:
    """Steps of one length, in which each phase takes a tenth, on both ranks."""
    step = np.full((ranks, steps), step_ms)
    return MadeSteps(
        phases=dict.fromkeys(("data", "forward", "backward", "optimizer"), step / 10),
        step=step,
        end=np.cumsum(step, axis=1),
    )


def test_a_step_is_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    made = _even(10.0, 210)
    made.step[1, 100::2] = 30.0
    made.step[0, 101::2] = 20.0
    job = read_job(write_run(tmp_path / "run", made))
    assert (job.common, job.warm_up, len(job.step_s)) == (210, 10, 200)
    found = _by_name(estimates_of(job)[0])
    assert sorted(set(np.round(job.step_s, 6))) == [0.01, 0.02, 0.03]
    assert found["step_seconds"].median == pytest.approx(np.median(job.step_s))
    assert found["mean_step_seconds"].median == pytest.approx(job.step_s.mean())
    assert found["step_quantile_seconds p99"].median == pytest.approx(0.03)
    assert found["phase_seconds data"].median == pytest.approx(0.001)
    assert found["observer_ratio"].median == pytest.approx(20e-6 * 2 / 0.02, rel=0.5)
    assert found["peak_memory_bytes resident"].trials == (300_000_001.0,)


def test_ten_stretches_give_the_interval_and_fewer_steps_give_none(tmp_path: Path) -> None:
    long = estimates_of(read_job(write_run(tmp_path / "long", made_steps("ddp", steps=150))))
    short = estimates_of(read_job(write_run(tmp_path / "short", made_steps("ddp", steps=60))))
    step = _by_name(long[0])["step_seconds"]
    assert len(step.trials) == len(long[1]) == 10
    assert step.low is not None
    assert step.high is not None
    assert step.low <= step.median <= step.high
    assert len(_by_name(short[0])["step_seconds"].trials) == 1
    assert any(note.startswith("intervals are absent: 54 measured steps") for note in short[2])


def test_a_step_that_drifts_has_no_interval(tmp_path: Path) -> None:
    made = made_steps("ddp", steps=210)
    made.step[:] *= np.linspace(1, 2, 210)
    estimates, _, notes = estimates_of(read_job(write_run(tmp_path / "run", made)))
    assert _by_name(estimates)["step_seconds"].low is None
    assert any("drifted" in note for note in notes)


def test_intervals_hold_the_median_of_steps_that_remember_each_other(tmp_path: Path) -> None:
    """Each step resembles the one before it by half; an interval of single steps would hold it in three of five."""
    job = read_job(write_run(tmp_path / "run", made_steps("ddp", steps=110)))
    random = np.random.default_rng(7)
    held = shown = 0
    for _ in range(200):
        noise = random.standard_normal(400)
        for number in range(1, 400):
            noise[number] += 0.5 * noise[number - 1]
        step = _by_name(estimates_of(_with_steps(job, 0.1 * np.exp(0.1 * noise)))[0])["step_seconds"]
        if step.low is not None and step.high is not None:
            shown += 1
            held += step.low <= 0.1 <= step.high
    assert shown >= 180
    assert held / shown >= 0.9


def _with_steps(job: Job, steps_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Job:
    unknown = np.full((2, len(steps_s)), np.nan)
    return replace(job, step_s=steps_s, rank_s=dict.fromkeys(job.rank_s, unknown))


def test_tokens_make_a_rate_and_say_whether_work_is_even(tmp_path: Path) -> None:
    made = _even(10.0, 110)
    equal = read_job(write_run(tmp_path / "equal", made, steps={"tokens": [500] * 110}))
    unequal = read_job(write_run(tmp_path / "unequal", made, steps={"tokens": [400 + 2 * n for n in range(110)]}))
    found = _by_name(estimates_of(equal)[0])
    assert found["tokens_per_second"].median == pytest.approx(2 * 500 / 0.01)
    assert found["device_tokens_per_second"].median == pytest.approx(500 / 0.01)
    assert (work_of(equal)[0], work_of(unequal)[0]) == ("even", "by tokens")


def test_without_tokens_a_wide_spread_is_uneven_work_and_few_steps_tell_nothing(tmp_path: Path) -> None:
    made = _even(10.0, 110)
    assert work_of(read_job(write_run(tmp_path / "even", made)))[0] == "even"
    made.step[:, ::2] = 20.0
    assert work_of(read_job(write_run(tmp_path / "uneven", made)))[0] == "uneven"
    assert work_of(read_job(write_run(tmp_path / "few", _even(10.0, 15))))[0] == "unknown"


def test_the_devices_clock_is_taken_where_every_rank_has_it(tmp_path: Path) -> None:
    made = _even(10.0, 60)
    folder = write_run(
        tmp_path / "run", made, steps={"device_ns": [7_000_000] * 60}, begin={"device": "cuda:0", "device_name": "H100"}
    )
    run = read_run(folder)
    assert run.details.device_clock
    assert _by_name(run.estimates)["step_seconds"].median == pytest.approx(0.007)
    assert "data_wait_seconds" in _by_name(run.estimates)
    assert "phase_seconds forward" not in _by_name(run.estimates)
    assert run.hardware == "1 x H100"  # Both ranks name the same device of one host.


def test_of_many_steps_each_so_many_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_CELLS", 50)
    made = made_steps("ddp", steps=110)
    job = read_job(write_run(tmp_path / "run", made, batch=7))
    assert job.each == 8
    # Of steps 10 to 109 those of the run that begins at 64.
    assert job.step_s == pytest.approx(made.step[:, 64:72].max(axis=0) / 1e3, rel=1e-6)


def test_steps_are_those_that_all_ranks_have(tmp_path: Path) -> None:
    made = made_steps("ddp", steps=100)
    folder = write_run(tmp_path / "run", made)
    write_lines(folder / "watch_rank1.jsonl", [begin_line(1), steps_line(made, 1, 0, 60)])
    run = read_run(folder)
    assert (run.details.steps, run.case.steps, run.case.warm_up) == (60, 54, 6)
    assert run.died == (1,)
    assert any("1 rank ended without an end line" in note for note in run.notes)


def test_a_restart_is_said_and_the_longer_attempt_counts(tmp_path: Path) -> None:
    made = made_steps("ddp", steps=100)
    folder = write_run(tmp_path / "run", made)
    for rank in range(2):
        path = folder / f"watch_rank{rank}.jsonl"
        path.write_text(path.read_text().replace('{"kind": "end"', '{"kind": "gone"'))
        again = tmp_path / "again.jsonl"
        write_lines(again, [begin_line(rank), steps_line(made, rank, 0, 30)])
        with path.open("a") as file:
            file.write(again.read_text())
    details = read_run(folder).details
    assert (details.attempts, details.attempt, details.steps) == (2, 1, 100)


def test_missing_ranks_are_named_and_take_the_rate_with_them(tmp_path: Path) -> None:
    made = made_steps("ddp", ranks=4, steps=60)
    folder = write_run(tmp_path / "run", made, steps={"tokens": [100] * 60})
    (folder / "watch_rank2.jsonl").unlink()
    run = read_run(folder)
    assert (run.details.missing, run.details.missing_ranks, run.case.ranks) == (1, (2,), 4)
    assert "tokens_per_second" not in _by_name(run.estimates)
    assert any("no steps of 1 rank: 2" in note for note in run.notes)


def test_who_is_late_is_a_figure_and_a_detail(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", made_steps("ddp", fault=Fault(rank=1, phase="data"))))
    assert run.details.late.rank == 1
    assert _by_name(run.estimates)["late_ratio 1 data"].median == run.details.late.step_ratio


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([[0, 1, 2, 3]], "0-3"),
        ([[0, 1], [2, 3], [0, 2], [1, 3], [1, 0]], "0-1 0-2/2 1-3/2 2-3"),
        ([[0, 1, 3], [2]], "0,1,3 2"),
        ([], ""),
    ],
)
def test_groups_have_one_name_for_each_layout(groups: list[list[int]], words: str) -> None:
    assert layout(groups) == words


def test_a_layout_of_many_groups_is_short() -> None:
    assert len(layout([[rank, rank + 512] for rank in range(512)])) < 40
