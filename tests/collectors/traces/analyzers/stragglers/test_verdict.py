"""One rule says who holds the others up, of one trial and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from collectors.traces.analyzers.lateness import ACTIVITIES, Activity, Lateness, TracedLateness
from collectors.traces.analyzers.stragglers import NoStraggler, Straggler, verdict

TRACED_NS = 1_000


def _trial(
    delays_ns: Sequence[Sequence[int]], *, cause: Activity = "compute", has_steps: bool = True
) -> TracedLateness:
    """delays_ns: one row a step."""
    table_ns = np.array(delays_ns, dtype=np.int64)
    return TracedLateness(
        ranks=tuple(
            Lateness(
                rank=rank,
                collectives=len(delays_ns),
                last=int((of_rank_ns > 0).sum()),
                waits_ns={},
                doing_ns=dict.fromkeys(ACTIVITIES, 0) | {cause: int(of_rank_ns.sum())},
                delay_ns=int(of_rank_ns.sum()),
                cause=cause if of_rank_ns.any() else None,
                names=(f"event of {cause}",),
            )
            for rank, of_rank_ns in enumerate(table_ns.T)
        ),
        delays_ns=table_ns,
        traced_ns=TRACED_NS,
        has_steps=has_steps,
    )


def test_trials_count_and_not_their_steps() -> None:
    trial = _trial([[0, 0, 40], [0, 0, 60]])
    assert isinstance(verdict([trial] * 4), NoStraggler)
    found = verdict([trial] * 5)
    assert isinstance(found, Straggler)
    assert (found.rank, found.cause, found.names, found.delay_ns) == (2, "compute", ("event of compute",), 500)
    assert (found.cost_ratio, found.cost_ratios, found.delay_ratio) == (0.1, (0.1,) * 5, 1)


def test_of_one_trial_its_steps_may_be_asked() -> None:
    trials = [_trial([[0, 0, 40], [0, 0, 60]] * 3)]
    assert isinstance(verdict(trials, by="step"), Straggler)
    assert verdict(trials) == NoStraggler(
        why="rank 2 has 100 % of the lateness and is late in 1 of 1 trial, which may be chance (p <= 1; 0.02 is"
        " needed)",
        more=4,
    )


def _delays(own_ns: NDArray[np.float64]) -> list[list[int]]:
    """Of each step, how much later than the last but one the last rank is."""
    ordered_ns = np.sort(own_ns, axis=1)
    last = own_ns.argmax(axis=1)[:, None] == np.arange(own_ns.shape[1])
    return np.where(last, (ordered_ns[:, -1] - ordered_ns[:, -2])[:, None], 0).astype(int).tolist()  # type: ignore[no-any-return]


def _named(ranks: int, trials: int, *, slow_ns: float, experiments: int) -> list[int]:
    """Who is named where each rank has a lateness that sticks to a trial, and rank 1 is slow by so much besides."""
    random = np.random.default_rng(5)
    named = []
    for _ in range(experiments):
        made = []
        for _ in range(trials):
            own_ns = random.exponential(20, (1, ranks)) + random.exponential(10, (6, ranks))
            own_ns[:, 1] += slow_ns
            made.append(_trial(_delays(own_ns)))
        found = verdict(made)
        named += [found.rank] if isinstance(found, Straggler) else []
    return named


@pytest.mark.parametrize(("ranks", "trials"), [(2, 3), (2, 7), (2, 10), (4, 5), (8, 3), (8, 5)])
def test_lateness_that_sticks_to_a_trial_names_a_rank_in_2_of_100_runs_at_most(ranks: int, trials: int) -> None:
    assert len(_named(ranks, trials, slow_ns=0, experiments=150)) <= 3


@pytest.mark.parametrize(("ranks", "trials"), [(2, 10), (4, 8), (8, 6)])
def test_a_rank_that_is_slow_in_each_trial_is_named_however_late_the_others_are(ranks: int, trials: int) -> None:
    named = _named(ranks, trials, slow_ns=100, experiments=50)
    assert set(named) == {1}
    assert len(named) >= 45


def test_the_cause_is_the_largest_over_all_trials() -> None:
    small, large = _trial([[0, 40]] * 4), _trial([[0, 100]] * 4, cause="copy")
    found = verdict([small, large, small] * 4)
    assert isinstance(found, Straggler)
    assert (found.cause, found.names) == ("copy", ("event of copy",))


def test_steps_without_a_late_rank_count_as_traced() -> None:
    found = verdict([_trial([[0, 90], *[[0, 0]] * 30])], by="step")
    assert found == NoStraggler(
        why="rank 1 has 100 % of the lateness and is late in 1 of 31 steps, which may be chance (p <= 1; 0.02 is"
        " needed)"
    )


def test_too_few_steps_say_how_many_more_would_tell() -> None:
    # Of four ranks one must be late alone in four steps: 4 x 4^-4 is 1.6 %.
    found = verdict([_trial([[0, 0, 0, 90]])], by="step")
    assert isinstance(found, NoStraggler)
    assert found.why.endswith("is late in 1 of 1 step, which may be chance (p <= 1; 0.02 is needed)")
    assert found.more == 3
    assert isinstance(verdict([_trial([[0, 0, 0, 90]] * 4)], by="step"), Straggler)


def test_without_marked_steps_more_of_them_are_no_advice() -> None:
    found = verdict([_trial([[0, 90]], has_steps=False)], by="step")
    assert isinstance(found, NoStraggler)
    assert "no trace marks the steps" in found.why
    assert found.more is None


def test_a_rank_that_is_late_in_most_of_too_few_steps_is_likely() -> None:
    found = verdict([_trial([[10, 0], [0, 30], [0, 30], [0, 30]])], by="step")
    assert isinstance(found, NoStraggler)
    assert found.likely == "likely rank 1"


def test_a_rank_that_is_last_in_all_collectives_is_likely_without_steps_too() -> None:
    trial = _trial([[0, 400]], has_steps=False)
    late = replace(trial, ranks=tuple(replace(one, last=47 * one.rank, collectives=47) for one in trial.ranks))
    found = verdict([late], by="step")
    assert isinstance(found, NoStraggler)
    assert found.likely == "likely rank 1 (last in 47 of 47 collectives)"


@pytest.mark.parametrize(
    "delays_ns", [[[0, 90]], [[0, 90], *[[0, 0]] * 30], [[0, 500], [0, 0], [0, 0]], [[40, 0], [0, 50]]]
)
def test_no_rank_is_likely_that_is_late_once_or_seldom(delays_ns: list[list[int]]) -> None:
    found = verdict([_trial(delays_ns)], by="step")
    assert isinstance(found, NoStraggler)
    assert found.likely is None


def test_trials_of_other_ranks_have_no_common_straggler() -> None:
    found = verdict([_trial([[0, 90]] * 9), _trial([[0, 90, 0]] * 9)])
    assert found == NoStraggler(why="trials differ in the ranks that were found in collectives")
