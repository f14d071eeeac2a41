"""How far a run is, drawn on the terminal while it goes; silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich import progress
from rich.console import Console

from bench.case import Case


class Progress:
    """One bar for each case, over all its trials and steps. Used in a `with`."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[place]}"),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._tasks = {
            case.key(): self._bars.add_task(
                f"{case.strategy} on {case.ranks}",
                total=case.trials * case.positions(),
                place="waits for its ranks",
            )
            for case in cases
        }

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, case: Case, trial: int, steps: int) -> None:
        """Show that the slowest rank of the trial has finished so many steps, warm-up included, or measurements."""
        word = "step" if case.model is not None else "measurement"
        done = trial * case.positions() + steps
        place = f"trial {trial + 1} of {case.trials}, {word} {steps} of {case.positions()}"
        self._bars.update(self._tasks[case.key()], completed=done, place=place)
