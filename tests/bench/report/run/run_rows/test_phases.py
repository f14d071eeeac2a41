"""The rows of a step's phases: with the rest they add up to the step, or they do not claim to be its parts."""

from __future__ import annotations

import pytest

from bench.report.run.run_rows import Row, all_rows, first_rows
from bench.results.estimate import estimate
from bench.store.summary import Summary
from collectors.metrics import results
from tests.bench.made.examples import make_summary


def _summary(**phases_s: float) -> Summary:
    """A run with a mean step of 100 ms."""
    phases = [estimate(results.RUN_PHASE_SECONDS, [seconds], phase=name) for name, seconds in phases_s.items()]
    step = (estimate(results.RUN_STEP_SECONDS, [0.09]), estimate(results.RUN_MEAN_STEP_SECONDS, [0.1]))
    return make_summary(estimates=(*step, *phases), scaling=())


def _phases(rows: list[Row]) -> dict[str, tuple[str, ...]]:
    return {row.title.strip(): row.cells for row in rows if "of it" in row.title or "worst rank" in row.title}


@pytest.mark.parametrize("rows", [all_rows, first_rows])
def test_phases_and_the_rest_add_up_to_the_mean_step(rows: object) -> None:
    assert callable(rows)
    assert _phases(rows([_summary(forward=0.03, backward=0.05)])) == {
        "of it forward": ("30.0 ms",),
        "of it backward": ("50.0 ms",),
        "of it the rest": ("20.0 ms",),
    }


def test_phases_of_different_ranks_that_add_up_to_more_than_the_step_are_no_parts_of_it() -> None:
    straggler = _summary(forward=0.06, backward=0.08)  # One rank is long in forward, the other then waits in backward.
    assert _phases(all_rows([straggler])) == {
        "worst rank's forward": ("60.0 ms",),
        "worst rank's backward": ("80.0 ms",),
    }
