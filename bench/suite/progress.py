"""Show the progress of a run or a suite: in place on a terminal, elsewhere as a line for each trial or case."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from rich import progress
from rich.console import Console
from rich.live import Live
from rich.text import Text

from bench.case import Case
from bench.errors import plural, say
from bench.rank.messages import TrialEnded
from bench.report.format import digits, duration, readable
from bench.report.run.run_rows import headline
from bench.session.measure import CaseOrder, Listener
from bench.store.run_dir import Run
from bench.store.summary import Summary
from bench.suite.ledger import Judgement
from bench.suite.plan import PlannedCase
from bench.suite.run import Display
from collectors.metrics.metric import Metric
from collectors.metrics.rank import ALLOCATED_BYTES, OVERLAP_RATIO, RESIDENT_BYTES, TOKENS_PER_SECOND
from collectors.sample_log import Follower, NewerSchema, Reading

# A run: its cases in turn


class Progress(Listener):
    """One bar for each case, over all its trials and steps. Use it in a `with`.

    is_drawn: draw bars instead of printing a line when each trial begins; None draws on a terminal. is_long: also print
    a line when a trial has measured all its steps. clock_s: monotonic.
    """

    def __init__(
        self,
        orders: Sequence[CaseOrder],
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
        self._announcements: set[tuple[int, int, str]] = set()  # By identity of the order, trial and text.
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
            id(order): self.bars.add_task(
                _title(order),
                total=order.case.trials * order.case.positions(),
                place="starting ranks",
            )
            for order in orders
        }

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def progressed(self, order: CaseOrder, trial: int, steps: int) -> None:
        """Show the steps (including warm-up) or measurements that the slowest rank of the trial has finished."""
        case = order.case
        self._say_once(order, trial, "begins")
        if self._is_long and steps >= case.positions():
            self._say_once(order, trial, "has measured all its steps")
        done = trial * case.positions() + min(steps, case.positions())
        self.bars.update(self._tasks[id(order)], completed=done, place=_place(case, trial, steps))

    def _say_once(self, order: CaseOrder, trial: int, what: str) -> None:
        if self._is_drawn or (id(order), trial, what) in self._announcements:
            return
        self._announcements.add((id(order), trial, what))
        elapsed_s = self._clock_s() - self._begun_s
        self._tell(
            f"{_title(order)}: trial {trial + 1} of {order.case.trials} {what}, {elapsed_s:.0f} s after the start"
        )


def _title(order: CaseOrder) -> str:
    return order.title or order.case.title


def _place(case: Case, trial: int, steps: int) -> str:
    """Return the position within a trial; steps beyond the case's own are instrumented."""
    word = "step" if case.model is not None else "measurement"
    is_instrumented = steps > case.positions()
    now = "traced and memory steps" if is_instrumented else f"{word} {steps} of {case.positions()}"
    return f"trial {trial + 1} of {case.trials}, {now}"


# A suite: the whole, and the present case

FIGURES_S = 1.0
"""Seconds between two readings of the present run's logs for its newest figures."""


class _PresentFigures:
    """The newest figures from the logs of a run's ranks: throughput, memory and overlap, if the logs have them."""

    def __init__(self, run: Run) -> None:
        self._followers = [Follower(run.folder / f"rank{rank}.jsonl") for rank in range(run.case.ranks)]
        self._newest: list[dict[str, float]] = [{} for _ in self._followers]

    def read(self) -> None:
        """Read what was appended to the logs; a log that cannot be read gives no new figures."""
        for follower, newest in zip(self._followers, self._newest, strict=True):
            with suppress(OSError, NewerSchema):
                for record in follower.newest():
                    if isinstance(record, Reading) and record.mark in ("measured", "traced"):
                        newest.update({sample.metric: sample.value for sample in record.samples if not sample.labels})

    def words(self) -> list[str]:
        """Return the figures as texts: tokens of all ranks, memory of the largest rank, and the smallest overlap."""
        words = []
        if rates := self._of(TOKENS_PER_SECOND):
            words.append(f"{digits(sum(rates))} tokens/s")
        if sizes := self._of(ALLOCATED_BYTES) or self._of(RESIDENT_BYTES):
            words.append(readable(max(sizes), "bytes"))
        if ratios := self._of(OVERLAP_RATIO):
            words.append(f"overlap {readable(min(ratios), 'ratio')}")
        return words

    def _of(self, metric: Metric) -> list[float]:
        return [newest[metric.name] for newest in self._newest if metric.name in newest]


class SuiteProgress(Display):
    """Changing lines on a terminal, for the suite and the present case; elsewhere a line when a case begins or ends.

    Use it in a `with`. is_drawn: draw on the terminal; None draws if there is one. is_long: also print a line when a
    trial ends. is_quiet: print nothing. console, tell, clock_s: as in `Progress`.
    """

    def __init__(
        self,
        suite: str,
        *,
        is_drawn: bool | None = None,
        is_long: bool = False,
        is_quiet: bool = False,
        tell: Callable[[str], None] = say,
        console: Console | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._suite, self._is_long, self._is_quiet = suite, is_long, is_quiet
        self._tell, self._clock_s = tell, clock_s
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_drawn = (is_terminal if is_drawn is None else is_drawn) and not is_quiet
        self._open_cases: dict[str, PlannedCase] = {}
        self._total = self._done = self._failing = 0
        self._begun_s: dict[str, float] = {}
        self._trials_left: dict[str, int] = {}
        self._figures: dict[str, _PresentFigures] = {}
        self._place = self._newest = ""  # Of the present case: its position, its newest figures.
        self._read_s = float("-inf")
        self._console = console or Console(stderr=True)
        self._live = Live(
            console=self._console,
            get_renderable=self.drawn,
            transient=True,
            refresh_per_second=4,
        )

    def __enter__(self) -> SuiteProgress:
        if self._is_drawn:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def drawn(self) -> Text:
        """Return the lines as they are now; figures that do not fit on the case's line get a line of their own.

        Each line is cut at the width of the terminal.
        """
        whole = f"{self._suite}: {self._done} of {self._total} done, {self._failing} failing, {self._time_left()}"
        present = ", ".join(filter(None, (self._place, self._newest)))
        if len(present) > self._console.width and self._newest:
            present = f"{self._place}\n  {self._newest}"
        return Text("\n".join(filter(None, (whole, present))), no_wrap=True, overflow="ellipsis")

    def tell(self, line: str) -> None:
        """Print a line that stays."""
        if not self._is_quiet:
            self._tell(line)

    def begins(self, cases: Sequence[PlannedCase]) -> None:
        """Count the cases to come."""
        self._open_cases = {planned.suite_case.name: planned for planned in cases}
        self._total = len(cases)
        self.tell(f"suite {self._suite}: {self._time_left()}")

    def case_begins(self, planned: PlannedCase, run: Run) -> None:
        """Print that the case begins."""
        name = planned.suite_case.name
        self._figures = {name: _PresentFigures(run)} | {
            other: figures for other, figures in self._figures.items() if other in self._open_cases
        }
        self._begun_s.setdefault(name, self._clock_s())
        if not self._is_drawn:
            about = "" if planned.estimate_s is None else f", about {duration(planned.estimate_s)}"
            size = f"{plural(run.case.trials, 'trial')} on {plural(run.case.ranks, 'rank')}"
            self.tell(f"{name} begins: {size}{about}; run {run.id}")

    def steps(self, planned: PlannedCase, trial: int, steps: int) -> None:
        """Show the position of the present case, and its newest figures."""
        case = planned.case
        if not self._is_drawn or case is None:
            return
        name, now_s = planned.suite_case.name, self._clock_s()
        figures = self._figures[name]
        if now_s - self._read_s >= FIGURES_S:
            self._read_s = now_s
            figures.read()
        self._place = f"{name}: {_place(case, trial, steps)}"
        self._newest = ", ".join(figures.words())

    def trial_ended(self, planned: PlannedCase, ended: TrialEnded) -> None:
        """Count the trial, and print a line if details are wanted."""
        if planned.case is not None:
            self._trials_left[planned.suite_case.name] = planned.case.trials - ended.trial - 1
        if self._is_long:
            how = "is done" if ended.cause is None else f"{ended.outcome.replace('_', ' ')}: {ended.cause.text}"
            self.tell(f"{planned.suite_case.name}: trial {ended.trial + 1} {how}")

    def case_ended(self, planned: PlannedCase, judgement: Judgement, summary: Summary | None) -> None:
        """Count the case, and print how it ended."""
        name = planned.suite_case.name
        self._open_cases.pop(name, None)
        self._place = self._newest = ""
        self._done += judgement.outcome == "done"
        self._failing += judgement.outcome in ("failed", "timed_out")
        if self._is_drawn and judgement.outcome == "done":
            return
        words, reason = judgement.outcome.replace("_", " "), judgement.reason
        if summary is None:
            self.tell(f"{name} is {words}: {reason}")
            return
        if judgement.outcome == "done":
            is_drill = summary.outcome != "done"
            words, reason = ("failed as expected", reason) if is_drill else (words, headline(summary))
        after = f" after {duration(self._clock_s() - self._begun_s[name])}" if name in self._begun_s else ""
        # A probe of several figures has no headline.
        self.tell(f"{name}: {words}{after}" + ("" if reason == "-" else f": {reason}"))

    def _time_left(self) -> str:
        """Return the remaining time, from the estimates of the cases that have not ended."""
        if not self._open_cases:
            return "no case left"
        known_s = [
            planned.estimate_s * self._trials_left.get(name, planned.case.trials) / planned.case.trials
            for name, planned in self._open_cases.items()
            if planned.estimate_s is not None and planned.case is not None
        ]
        unknown = len(self._open_cases) - len(known_s)
        if not known_s:
            return f"{plural(unknown, 'case')} left, of unknown time"
        more = f" and {unknown} of unknown time" if unknown else ""
        return f"{plural(len(self._open_cases), 'case')} left, about {duration(sum(known_s))}{more}"
