"""Shows how far a run is: bars on a terminal, and a line for each trial elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import progress
from rich.console import Console

from bench.case import Case
from bench.errors import say


class Progress:
    """One bar for each case, over all its trials and steps; to be used in a `with`.

    is_drawn: draw bars, else tell when each trial begins; None draws on a terminal. is_long: also tell when a trial has
    measured all its steps. clock_s: monotonic.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        is_drawn: bool | None = None,
        is_long: bool = False,
        tell: Callable[[str], None] = say,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_drawn = sys.stderr is not None and sys.stderr.isatty() if is_drawn is None else is_drawn
        self._is_long = is_long
        self._tell, self._clock_s = tell, clock_s
        self._begun_s = clock_s()
        self._told: set[tuple[str, int, str]] = set()  # What was said, by case key and trial.
        self.bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[place]}"),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not self._is_drawn,
            transient=True,
        )
        self._tasks = {
            case.key(): self.bars.add_task(
                f"{case.strategy} on {case.ranks}",
                total=case.trials * case.positions(),
                place="waits for its ranks",
            )
            for case in cases
        }

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def update(self, case: Case, trial: int, steps: int) -> None:
        """Show how many steps, warm-up included, or measurements the slowest rank of the trial has finished.

        Steps beyond those of the case are instrumented: traced and memory steps.
        """
        self._say_once(case, trial, "begins")
        if self._is_long and steps >= case.positions():
            self._say_once(case, trial, "has measured all its steps")
        word = "step" if case.model is not None else "measurement"
        is_beside = steps > case.positions()
        done = trial * case.positions() + min(steps, case.positions())
        now = "traced and memory steps" if is_beside else f"{word} {steps} of {case.positions()}"
        place = f"trial {trial + 1} of {case.trials}, {now}"
        self.bars.update(self._tasks[case.key()], completed=done, place=place)

    def _say_once(self, case: Case, trial: int, what: str) -> None:
        if self._is_drawn or (case.key(), trial, what) in self._told:
            return
        self._told.add((case.key(), trial, what))
        begun_s = self._clock_s() - self._begun_s
        self._tell(f"{case.strategy} on {case.ranks}: trial {trial + 1} of {case.trials} {what} after {begun_s:.0f} s")
