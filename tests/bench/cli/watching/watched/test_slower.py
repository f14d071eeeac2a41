"""Windows that a job gets when its steps become slower than its own past: made steps, and two real ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.results.watched.windows import traced_windows
from bench.session.watched.session import WatchRequest, watch
from bench.session.watched.slower import LEAST_STEPS, Slowdown, SlowerSteps
from bench.session.watched.windows import SLOW_S, JobWindows
from tests.bench.results.watched.made_jobs import (
    BLOCKS,
    SLOW_FROM,
    Times,
    begin_of,
    blocks_until_seen,
    correlated,
    follow,
    heavy_tailed,
    noisy_from_its_start,
    pausing,
    rank_lines,
    single_slow_step,
    slowdowns,
    steady,
    two_modes,
    warming_up,
    with_checkpoints,
    with_evaluations,
)


@pytest.mark.parametrize("make", [steady, single_slow_step, with_checkpoints, with_evaluations, warming_up, pausing])
def test_a_job_that_only_pauses_is_not_slower(make: Callable[[int], Times]) -> None:
    assert [slowdowns(make(seed)) for seed in range(2)] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("make", [steady, correlated, heavy_tailed, two_modes])
def test_of_many_jobs_without_a_change_none_has_a_window(make: Callable[[int, int], Times]) -> None:
    """docs/measured/watched.md has the rate of more jobs: 20 times as many as a test has time for."""
    assert [seed for seed in range(12) if slowdowns(make(seed, 100))] == []


@pytest.mark.parametrize("make", [steady, with_checkpoints, with_evaluations, heavy_tailed])
def test_a_lasting_slowdown_is_seen_once_with_its_size_and_its_first_step(make: Callable[[int], Times]) -> None:
    steps = make(3)
    steps[SLOW_FROM * LEAST_STEPS :] *= 1.2
    (slowdown,) = slowdowns(steps)
    assert slowdown.ratio == pytest.approx(0.2, abs=0.05)
    assert abs(slowdown.since - SLOW_FROM * LEAST_STEPS) <= 2 * LEAST_STEPS
    assert not slowdown.per_token


def test_a_job_that_is_noisy_from_its_start_does_not_hide_a_large_slowdown() -> None:
    """`slower_steps.py` beside the made jobs counts more. With one probability for all sizes, 2 of these are seen."""
    seen = [blocks_until_seen(noisy_from_its_start(seed), 14) for seed in range(20)]
    assert sum(blocks is not None and blocks <= 9 for blocks in seen) >= 8


def test_a_slowdown_is_told_in_words() -> None:
    assert Slowdown(ratio=0.234, since=1200).words() == "the step became 23 % slower than its past (since step 1,200)"
    words = Slowdown(ratio=0.234, since=1200, per_token=True).words()
    assert words == "the step became 23 % slower per token than its past (since step 1,200)"


def test_a_job_that_becomes_faster_is_not_slower() -> None:
    steps = steady(4)
    steps[SLOW_FROM * LEAST_STEPS :] *= 0.7
    assert slowdowns(steps) == []


def test_steps_of_a_window_and_next_to_it_are_left_out() -> None:
    steps = steady(5)
    first, last = SLOW_FROM * LEAST_STEPS, SLOW_FROM * LEAST_STEPS + 6 * LEAST_STEPS
    steps[first - 1 : last + 2] *= 2
    assert slowdowns(steps, traced=((first, last),)) == []
    assert len(slowdowns(steps)) == 1


def test_with_declared_tokens_the_time_of_a_token_counts() -> None:
    steps, tokens = steady(6), np.full(BLOCKS * LEAST_STEPS, 128.0)
    later = slice(SLOW_FROM * LEAST_STEPS, None)
    steps[later] *= 2
    tokens[later] *= 2
    assert slowdowns(steps, tokens) == []
    (slowdown,) = slowdowns(steps, np.full(BLOCKS * LEAST_STEPS, 128.0))
    assert slowdown.per_token


def test_a_rank_that_begins_again_begins_a_new_past() -> None:
    slower = SlowerSteps(block_ns=1)
    slower.begin(begin_of())
    assert follow(slower, rank_lines(steady(7, SLOW_FROM))) == []
    slower.begin(begin_of())
    assert follow(slower, rank_lines(1.5 * steady(8, SLOW_FROM))) == []


def test_steps_that_another_rule_finds_begin_a_new_past() -> None:
    slower = SlowerSteps(block_ns=1)
    slower.begin(begin_of())
    assert follow(slower, rank_lines(steady(7, SLOW_FROM))) == []
    marked = [
        msgspec.structs.replace(line, rule="mark")
        for line in rank_lines(1.5 * steady(8, SLOW_FROM), first=SLOW_FROM * LEAST_STEPS)
    ]
    assert follow(slower, marked) == []


def test_the_job_is_as_slow_as_its_slowest_rank() -> None:
    slower = SlowerSteps(block_ns=1)
    ranks = [steady(9), steady(10)]
    ranks[1][SLOW_FROM * LEAST_STEPS :] *= 1.3
    for rank in range(2):
        slower.begin(begin_of(rank, 2))
    seen = []
    for lines in zip(*map(rank_lines, ranks), strict=True):
        for rank, line in enumerate(lines):
            slower.take(rank, line)
            slower.judge()
            seen += [] if slower.slowdown is None else [slower.slowdown]
            slower.slowdown = None
    assert len(seen) == 1
    assert slower.world_size == 2


# Requests for windows.


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "hook").mkdir()
    for rank in range(2):
        (tmp_path / f"watch_rank{rank}.jsonl").write_text("")
    return tmp_path


def _request(job: Path) -> dict[str, object] | None:
    path = job / "hook" / "window.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_a_slowdown_asks_for_a_window_as_attach_does_and_once_in_ten_minutes(job: Path) -> None:
    now_s, slower = [0.0], SlowerSteps()
    slower.begin(begin_of(0, 2))
    windows = JobWindows(job, steps=5, slower=slower, clock_s=lambda: now_s[0])
    windows.beat()
    assert _request(job) is None
    slower.slowdown = Slowdown(ratio=0.5, since=700)
    windows.beat()
    why = "the step became 50 % slower than its past (since step 700)"
    assert _request(job) == {"id": 1, "steps": 5, "why": why}
    (job / "hook" / "window.json").unlink()
    (job / "windows" / "1" / "result.json").write_text(json.dumps({"number": 1, "why": why, "dropped": "too late"}))
    slower.slowdown = Slowdown(ratio=0.2, since=900)
    for now_s[0] in (1.0, SLOW_S - 1):
        windows.beat()
        assert _request(job) is None
    assert windows.line() == f"{why}; not traced: too late"
    now_s[0] = SLOW_S
    windows.beat()
    request = _request(job)
    assert request is not None
    assert request["why"] == "the step became 20 % slower than its past (since step 900)"


def test_a_slowdown_asks_for_nothing_where_ranks_report_elsewhere(job: Path) -> None:
    slower = SlowerSteps()
    slower.begin(begin_of(0, 4))
    slower.slowdown = Slowdown(ratio=0.5, since=700)
    JobWindows(job, slower=slower).beat()
    assert _request(job) is None


def test_the_line_says_why_a_window_was_traced(job: Path) -> None:
    why = "the step became 50 % slower than its past (since step 700)"
    result = {"number": 1, "why": why, "first": 800, "last": 804, "exposed_ratio": 0.14, "waiting_ratio": 0.5}
    (job / "windows" / "1").mkdir(parents=True)
    (job / "windows" / "1" / "result.json").write_text(json.dumps(result))
    windows = JobWindows(job)
    windows.beat()
    assert windows.line() == f"{why}; traced: exposed 14 %, waiting 50 %"


# Two real ranks.

PROGRAM = Path(__file__).parent / "programs" / "slower.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.alone
@pytest.mark.parametrize(("steps", "slow_from"), [(450, 300), (400, 1000)])
def test_a_job_of_two_ranks_has_a_window_where_it_became_slower_and_none_where_it_did_not(
    steps: int, slow_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    request = WatchRequest(
        command=(*TORCHRUN, str(PROGRAM), str(steps), str(slow_from)),
        name="job",
        runs=tmp_path / "runs",
        store_url=f"sqlite:///{tmp_path}/history.sqlite",
        block_ns=400_000_000,
    )
    assert watch(request) == 0, capfd.readouterr().err
    (run,) = (tmp_path / "runs").iterdir()
    windows = traced_windows(run)
    if slow_from > steps:
        assert windows == ()
        return
    (window,) = windows
    assert window.dropped is None
    assert window.first is not None
    assert window.first > slow_from
    assert window.why.startswith("the step became ")
    assert window.late is not None
    assert window.late.rank in (None, 1)
