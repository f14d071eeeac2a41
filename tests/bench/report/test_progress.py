"""What a person sees of a run while it goes, on a terminal and without one."""

from __future__ import annotations

from bench.session.measure import TrialSettings, alike
from bench.suite.progress import Progress
from tests.bench.made.examples import small_case

SETTINGS = TrialSettings(limit_s=60)


class FakeClock:
    """Ten seconds later each time that it is looked at."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 10.0
        return self._now_s


def test_without_a_terminal_each_trial_is_a_line_with_the_time() -> None:
    said: list[str] = []
    (order,) = alike([(small_case(trials=2), None)], SETTINGS)
    with Progress([order], is_drawn=False, tell=said.append, clock_s=FakeClock()) as progress:
        for trial in range(2):
            for steps in range(order.case.positions() + 3):
                progress.progressed(order, trial, steps)
    assert said == [
        "ddp on 2: trial 1 of 2 begins, 10 s after the start",
        "ddp on 2: trial 2 of 2 begins, 20 s after the start",
    ]


def test_who_wants_to_hear_more_is_told_when_a_trial_has_measured_its_steps() -> None:
    said: list[str] = []
    (order,) = alike([(small_case(trials=1), None)], SETTINGS)
    with Progress([order], is_drawn=False, is_long=True, tell=said.append, clock_s=FakeClock()) as progress:
        for steps in range(order.case.positions() + 3):
            progress.progressed(order, 0, steps)
    assert said == [
        "ddp on 2: trial 1 of 1 begins, 10 s after the start",
        "ddp on 2: trial 1 of 1 has measured all its steps, 20 s after the start",
    ]


def test_steps_beside_the_measured_ones_are_not_counted_beyond_them() -> None:
    (order,) = alike([(small_case(trials=2), None)], SETTINGS)
    progress = Progress([order], is_drawn=True)
    (task,) = progress.bars.tasks
    progress.progressed(order, 0, 2)
    assert (task.completed, task.fields["place"]) == (2, "trial 1 of 2, step 2 of 4")
    progress.progressed(order, 0, 7)
    assert (task.completed, task.fields["place"]) == (4, "trial 1 of 2, traced and memory steps")
