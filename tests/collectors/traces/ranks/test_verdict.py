"""One rule says who holds the others up, of one trial and of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectors.traces.ranks.activities import ACTIVITIES, Activity
from collectors.traces.ranks.lateness import Lateness
from collectors.traces.ranks.traced_lateness import TracedLateness
from collectors.traces.ranks.verdict import Nobody, Straggler, verdict

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


def test_steps_of_all_trials_count_together() -> None:
    trial = _trial([[0, 0, 40], [0, 0, 60]])
    assert isinstance(verdict([trial]), Nobody)
    found = verdict([trial] * 3)
    assert isinstance(found, Straggler)
    assert (found.rank, found.cause, found.names, found.delay_ns) == (2, "compute", ("event of compute",), 300)
    assert (found.cost_ratio, found.cost_ratios, found.delay_ratio) == (0.1, (0.1, 0.1, 0.1), 1)


def test_the_cause_is_the_largest_over_all_trials() -> None:
    small, large = _trial([[0, 40]] * 4), _trial([[0, 100]] * 4, cause="copy")
    found = verdict([small, large, small])
    assert isinstance(found, Straggler)
    assert (found.cause, found.names) == ("copy", ("event of copy",))


def test_steps_without_a_late_rank_count_as_traced() -> None:
    found = verdict([_trial([[0, 90], *[[0, 0]] * 30])])
    assert found == Nobody(
        why="rank 1 has 100% of the lateness, but is late in 1 of 31 steps and unevenly, which may be luck (chance"
        " up to 100%)"
    )


def test_too_few_steps_say_how_many_more_would_tell() -> None:
    # Of four ranks one must be late alone in four steps: 4 x 4^-4 is 1.6 %.
    found = verdict([_trial([[0, 0, 0, 90]])])
    assert isinstance(found, Nobody)
    assert found.why.endswith("but in so few steps that it may be luck (chance up to 100%)")
    assert found.more_steps == 3
    assert isinstance(verdict([_trial([[0, 0, 0, 90]] * 4)]), Straggler)


def test_without_marked_steps_more_of_them_are_no_advice() -> None:
    found = verdict([_trial([[0, 90]], has_steps=False)])
    assert isinstance(found, Nobody)
    assert "no trace marks the steps" in found.why
    assert found.more_steps is None


def test_trials_of_other_ranks_have_no_common_straggler() -> None:
    found = verdict([_trial([[0, 90]] * 9), _trial([[0, 90, 0]] * 9)])
    assert found == Nobody(why="trials differ in the ranks that were found in collectives")
