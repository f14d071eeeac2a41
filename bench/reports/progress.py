"""How far a run is: drawn on the terminal while it goes, and a line for each trial where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import progress
from rich.console import Console

from bench.case import Case
from bench.notices import say


class Progress:
    """One bar for each case, over all its trials and steps. Used in a `with`.

    is_drawn: on a terminal; else a line at the beginning of each trial. clock_s: never set back.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        is_drawn: bool | None = None,
        tell: Callable[[str], None] = say,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_drawn = sys.stderr is not None and sys.stderr.isatty() if is_drawn is None else is_drawn
        self._tell, self._clock_s = tell, clock_s
        self._begun_s = clock_s()
        self._told: set[tuple[str, int]] = set()  # Trials, by the key of their case.
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
        """Show that the slowest rank of the trial has finished so many steps, warm-up included, or measurements.

        Steps beyond those of the case are looks beside the measured ones.
        """
        if not self._is_drawn and (case.key(), trial) not in self._told:
            self._told.add((case.key(), trial))
            begun_s = self._clock_s() - self._begun_s
            self._tell(
                f"{case.strategy} on {case.ranks}: trial {trial + 1} of {case.trials} begins after {begun_s:.0f} s"
            )
        word = "step" if case.model is not None else "measurement"
        is_beside = steps > case.positions()
        done = trial * case.positions() + min(steps, case.positions())
        now = "traced and memory steps" if is_beside else f"{word} {steps} of {case.positions()}"
        place = f"trial {trial + 1} of {case.trials}, {now}"
        self.bars.update(self._tasks[case.key()], completed=done, place=place)
