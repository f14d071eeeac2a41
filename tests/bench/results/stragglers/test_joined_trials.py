"""Joined trials give a run's Estimates and its straggler, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.case import Case
from bench.machine.placement import NodePlace, write_placement
from bench.results.estimate import Estimate
from bench.results.stragglers import joined_estimates
from bench.results.timelines import save_timeline, window_path
from collectors.metrics import results
from collectors.metrics.metric import Metric
from collectors.metrics.results import (
    RUN_CLOCK_RESIDUAL_SECONDS,
    RUN_COLLECTIVE_WAIT_SECONDS,
    RUN_STRAGGLER_RATIO,
)
from collectors.sample_log import Mark, Reading, SampleLog
from tests.bench.made.examples import make_probe, small_case
from tests.bench.made.windows import STEP_NS, made_windows

LATE_NS = 100_000
CASE = small_case(ranks=4, trials=3, trace_steps=3)
WINDOW: tuple[Mark, ...] = ("traced", "traced", "traced")
ONE_CLOCK = (
    "the clocks of ranks 0 to 3 agree to 0 us, as closely as a collective ends on all ranks, so they are treated as"
    " the same clock"
)


def _keep(folder: Path, *trials: Sequence[tuple[int, int]]) -> int:
    for trial, late_by_step in enumerate(trials):
        for window in made_windows(late_by_step):
            save_timeline(window, folder, trial)
    return len(trials)


def _of(estimates: Sequence[Estimate], metric: Metric) -> list[Estimate]:
    return [one for one in estimates if one.metric == metric.name]


def test_a_straggler_that_no_trial_tells_alone_is_told_by_all_together(tmp_path: Path) -> None:
    late = [(2, LATE_NS)] * 2
    estimates, notes = joined_estimates(CASE, tmp_path, _keep(tmp_path, *[late] * 4))
    (straggler,) = _of(estimates, RUN_STRAGGLER_RATIO)
    assert straggler.labels == {"rank": "2", "cause": "compute"}
    assert straggler.trials == pytest.approx((2 * LATE_NS / (3 * STEP_NS),) * 4)
    assert notes == (
        ONE_CLOCK,
        "rank 2 holds the others up by compute (gemm): it has 100 % of the lateness in traced steps",
    )
    _, (one_clock, alone) = joined_estimates(CASE, tmp_path, 1)
    assert one_clock == ONE_CLOCK
    assert alone.startswith(
        "no straggler: rank 2 has 100 % of the lateness and is late in 1 of 1 trial, which may be chance (p <= 1;"
        " 0.02 is needed)"
    )


@pytest.mark.parametrize(
    ("hosts", "later", "named"),
    [
        (("a", "b"), None, "rank 2 on b"),
        (("a",), None, "rank 2"),
        (("a", "b"), ("a", "c"), "rank 2"),
        ((), None, "rank 2"),
    ],
)
def test_a_straggler_is_named_with_its_node(
    hosts: tuple[str, ...], later: tuple[str, ...] | None, named: str, tmp_path: Path
) -> None:
    """Unless there was but one, ranks were on others in earlier trials, or nobody wrote where they were."""
    for names in filter(None, (hosts, later)):
        each = CASE.ranks // len(names)
        places = [
            NodePlace(number=number, name=name, host=name, switch=None, first_rank=number * each, ranks=each)
            for number, name in enumerate(names)
        ]
        write_placement(tmp_path, "slurm", places)
    _, notes = joined_estimates(CASE, tmp_path, _keep(tmp_path, *[[(2, LATE_NS)] * 2] * 4))
    assert notes[-1].startswith(f"{named} holds the others up by compute")


def test_lateness_that_is_spread_blames_nobody(tmp_path: Path) -> None:
    trials = [[(rank, LATE_NS), ((rank + 1) % 4, LATE_NS)] for rank in range(4)]
    estimates, (one_clock, note) = joined_estimates(CASE, tmp_path, _keep(tmp_path, *trials))
    assert one_clock == ONE_CLOCK
    assert _of(estimates, RUN_STRAGGLER_RATIO) == []
    assert note.startswith("no straggler: lateness is spread: rank ")


def test_figures_have_one_value_a_trial(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, 2 * LATE_NS)], [(2, 3 * LATE_NS)])
    (wait,) = _of(joined_estimates(CASE, tmp_path, trials)[0], RUN_COLLECTIVE_WAIT_SECONDS)
    assert wait.trials == pytest.approx([factor * LATE_NS * 3 / 4 / 1e9 for factor in (1, 2, 3)])
    assert wait.low is not None


def test_what_one_trial_does_not_tell_is_left_out_with_the_reason(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [], [(2, LATE_NS)])
    estimates, notes = joined_estimates(CASE, tmp_path, trials)
    assert _of(estimates, RUN_COLLECTIVE_WAIT_SECONDS) == []
    assert (
        "observatory_run_collective_wait_seconds is left out where a trial's traces do not show it: that of collective"
        " all_reduce of trial 1" in notes
    )
    assert sum(note.startswith("observatory_run_last_ratio is left out") for note in notes) == 1
    assert "trial 1: no collective was found on two ranks or more, apart from each rank's first" in notes


def test_no_wait_in_one_trial_is_a_value(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, 0)], [(2, LATE_NS)])
    (wait,) = _of(joined_estimates(CASE, tmp_path, trials)[0], RUN_COLLECTIVE_WAIT_SECONDS)
    assert wait.trials == pytest.approx((LATE_NS * 3 / 4 / 1e9, 0, LATE_NS * 3 / 4 / 1e9))
    assert wait.median == wait.trials[0]
    assert wait.low == 0


def test_clocks_that_agree_fully_are_shown(tmp_path: Path) -> None:
    (residual,) = _of(
        joined_estimates(CASE, tmp_path, _keep(tmp_path, [(2, LATE_NS)] * 6))[0], RUN_CLOCK_RESIDUAL_SECONDS
    )
    assert (residual.median, residual.low) == (0, None)


def test_a_trial_without_all_windows_is_named_and_the_others_are_joined(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, LATE_NS)], [(2, 3 * LATE_NS)])
    for rank in (1, 3):
        window_path(tmp_path, 1, rank).unlink()
    estimates, notes = joined_estimates(CASE, tmp_path, trials)
    (wait,) = _of(estimates, RUN_COLLECTIVE_WAIT_SECONDS)
    assert wait.trials == pytest.approx((LATE_NS * 3 / 4 / 1e9, 3 * LATE_NS * 3 / 4 / 1e9))
    assert notes[0] == "trial 1 is left out of waits and stragglers: no window of ranks 1, 3 was kept"


def test_a_run_without_any_whole_trial_says_so(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)])
    window_path(tmp_path, 0, 2).unlink()
    estimates, notes = joined_estimates(CASE, tmp_path, trials)
    assert estimates == ()
    assert notes == ("waits and stragglers are absent: in each trial no window of rank 2 was kept",)


def test_ranks_without_a_window_are_listed_in_few_words(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, LATE_NS)])
    for trial in range(trials):
        for rank in (0, 1, 2):
            window_path(tmp_path, trial, rank).unlink()
    _, notes = joined_estimates(CASE, tmp_path, trials)
    assert notes == ("waits and stragglers are absent: in each trial no window of ranks 0 to 2 was kept",)


def test_a_trial_with_a_broken_window_is_named_with_the_file_and_the_others_are_joined(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, LATE_NS)], [(2, 3 * LATE_NS)])
    broken = window_path(tmp_path, 0, 1)
    broken.write_bytes(broken.read_bytes()[:-100])
    estimates, notes = joined_estimates(CASE, tmp_path, trials)
    (wait,) = _of(estimates, RUN_COLLECTIVE_WAIT_SECONDS)
    assert wait.trials == pytest.approx((LATE_NS * 3 / 4 / 1e9, 3 * LATE_NS * 3 / 4 / 1e9))
    assert notes[0].startswith(
        f"trial 0 is left out of waits and stragglers: {broken} is not a Timeline of this program"
    )


def test_a_trial_whose_windows_cannot_be_of_its_ranks_is_named_and_the_others_are_joined(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, LATE_NS)], [(2, LATE_NS)])
    window_path(tmp_path, 1, 0).write_bytes(window_path(tmp_path, 1, 3).read_bytes())
    estimates, notes = joined_estimates(CASE, tmp_path, trials)
    assert [len(one.trials) for one in _of(estimates, RUN_COLLECTIVE_WAIT_SECONDS)] == [2]
    assert notes[0].startswith("trial 1 is left out of waits and stragglers: rank 3 has more than one trace")


def _log_steps(folder: Path, trial: int, *marks: Mark) -> None:
    log = SampleLog(folder / "rank0.jsonl")
    for step, mark in enumerate(marks):
        log.write(Reading(trial=trial, time_ns=0, mark=mark, step=step, samples=[]))
    log.close()


def test_of_several_windows_of_a_trial_the_last_is_said_to_count(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, LATE_NS)])
    for trial in range(trials):
        _log_steps(tmp_path, trial, "warm_up", "measured", *WINDOW, "measured", *WINDOW)
    _, notes = joined_estimates(CASE, tmp_path, trials)
    assert notes[0] == "waits and stragglers are of the last of 2 windows of each trial; earlier ones are not kept"


def test_the_one_window_of_a_trial_is_no_news(tmp_path: Path) -> None:
    trials = _keep(tmp_path, [(2, LATE_NS)], [(2, LATE_NS)])
    for trial in range(trials):
        _log_steps(tmp_path, trial, "warm_up", "measured", "measured", *WINDOW)
    assert not any("windows of each trial" in note for note in joined_estimates(CASE, tmp_path, trials)[1])


@pytest.mark.parametrize(
    "case", [small_case("single", ranks=1, trace_steps=3), small_case(trace_steps=0), make_probe(trace_steps=3)]
)
def test_runs_that_have_nothing_to_join_say_nothing(case: Case, tmp_path: Path) -> None:
    assert joined_estimates(case, tmp_path, 3) == ((), ())


def test_all_that_joined_ranks_tell_is_estimated(tmp_path: Path) -> None:
    late = [(2, LATE_NS)] * 2
    estimates, _ = joined_estimates(CASE, tmp_path, _keep(tmp_path, *[late] * 4))
    assert {one.metric for one in estimates} == {
        metric.name
        for metric in (
            results.RUN_WAITING_RATIO,
            results.RUN_COLLECTIVE_WAIT_SECONDS,
            results.RUN_COLLECTIVE_TRANSFER_SECONDS,
            results.RUN_TRACED_BUS_BANDWIDTH,
            results.RUN_LAST_RATIO,
            results.RUN_HELD_UP_RATIO,
            results.RUN_STRAGGLER_RATIO,
            results.RUN_CLOCK_RESIDUAL_SECONDS,
        )
    }
