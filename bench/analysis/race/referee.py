"""The referee of a race: reads trials at each look, drops cases, and ends the race when it is won or out of budget.

Knows neither engines nor the ledger: the suite's runner reports events to it, and asks it which cases continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from bench.analysis.race.looks import LOOKS, MOST_ROUNDS, Standing, rounds_to_tell, stand
from bench.report.format import duration
from bench.results.results import TOTALS
from bench.results.trials import Trial, read_trials
from bench.store import run_dir
from bench.suite.choice import Referee
from bench.suite.ledger import Judgement

Objective = Literal["throughput", "memory"]
"""throughput: the most tokens per second. memory: the smallest peak on the rank with the largest peak."""
FEWEST = 2
"""Minimum number of cases in a race."""


@dataclass(slots=True)
class RaceReferee(Referee):
    """Drops the cases of one race.

    names: of all its cases; if not all fit the budget, the last are left out.
    budget_s: counts from the start of the first case; None for no limit.
    known: run folders of cases that have begun, by name, also those from before a resume.
    failed_rounds: number of complete rounds of each failed case. left_out: reason for each case that was left out.
    clock_s: monotonic.
    """

    names: Sequence[str]
    objective: Objective = "throughput"
    budget_s: float | None = None
    known: dict[str, Path] = field(default_factory=dict)
    failed_rounds: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    clock_s: Callable[[], float] = time.monotonic
    standing: Standing = field(default_factory=lambda: stand({}))
    _is_new: bool = False
    _rounds: int = 0
    _begun_s: float | None = None
    _last_s: float = 0.0
    _took_s: dict[str, list[float]] = field(default_factory=dict)
    _ended_by: str | None = None  # Why the race ended without a winner.

    # Events that the runner reports

    def begun(self, name: str, run: run_dir.Run) -> None:
        """The run of the case begins or resumes."""
        self.known[name] = run.folder
        self._last_s = self.clock_s()
        self._begun_s = self._last_s if self._begun_s is None else self._begun_s
        self._is_new = True

    def trial_ended(self, name: str) -> None:
        """A trial of the case has ended; the time since the previous event was its own."""
        now_s = self.clock_s()
        self._took_s.setdefault(name, []).append(now_s - self._last_s)
        self._last_s = now_s

    def failed(self, name: str) -> None:
        """The case has failed; its complete rounds count."""
        if name not in self.failed_rounds:
            self.failed_rounds[name] = len(costs(self.known[name], self.objective)) if name in self.known else 0

    def round_ended(self, rounds: int, collect: Callable[[], None]) -> Sequence[tuple[str, str]]:
        """Return the cases that are dropped now, with reasons; trials are read only at looks."""
        self._rounds = max(self._rounds, rounds)
        dropped: Sequence[tuple[str, str]] = ()
        if rounds in LOOKS or len(self.living) < FEWEST:
            collect()
            before = self.standing.dropped
            self._look()
            dropped = [
                (name, f"{drop.by} is {better(drop.ratio, self.objective)} after {drop.rounds} rounds")
                for name, drop in self.standing.dropped.items()
                if name not in before
            ]
        self._mind_the_budget()
        return dropped

    # Answers to the runner

    @property
    def living(self) -> list[str]:
        """Names of the cases that are still in the race."""
        gone = self.standing.dropped.keys() | self.failed_rounds.keys() | self.left_out.keys()
        return [name for name in self.names if name not in gone and name in self.known]

    def is_over(self, name: str) -> bool:
        """Whether the case needs no further trial: it is out, or the race is over."""
        if self._is_new:  # A resumed race may already be decided.
            self._is_new = False
            self._look()
        return self.is_race_over or name not in self.living

    @property
    def is_race_over(self) -> bool:
        """Whether the race needs no further round."""
        return (
            self.standing.winner is not None
            or self.standing.is_same
            or self._ended_by is not None
            or self._rounds >= MOST_ROUNDS
            or (self._rounds >= LOOKS[0] and len(self.living) < FEWEST)
        )

    def judgement(self, name: str) -> Judgement:
        """Return the judgement of a case whose trials all succeeded; one that the budget left out may resume later."""
        if (drop := self.standing.dropped.get(name)) is not None:
            reason = f"{drop.by} is {better(drop.ratio, self.objective)} after {drop.rounds} rounds"
            return Judgement(outcome="dropped", reason=reason)
        if name in self.left_out:
            return Judgement(outcome="left_out", reason=self.left_out[name])
        if self._ended_by is not None:
            return Judgement(outcome="left_out", reason=self._ended_by)
        return Judgement(outcome="done")

    @property
    def starters(self) -> int:
        """The number of cases at the first look."""
        return sum(
            self.failed_rounds.get(name, MOST_ROUNDS) >= LOOKS[0] for name in self.known if name not in self.left_out
        )

    @property
    def more_s(self) -> float | None:
        """About how many more seconds would separate the first two; None if no allowed number of rounds would."""
        rounds = rounds_to_tell(self.standing, self.starters) if self.standing.rounds else LOOKS[0]
        if rounds is None or not all(self._took_s.get(name) for name in self.living):
            return None
        return max(1, rounds - self._rounds) * self._round_s(self.living)

    # Looking, and time

    def _look(self) -> None:
        measured = {name: costs(self.known[name], self.objective) for name in self.names if name in self.known}
        self._rounds = max([self._rounds, *(len(measured[name]) for name in self.living)])
        raced = {name: trials for name, trials in measured.items() if name not in self.left_out}
        self.standing = stand(raced, self.failed_rounds)

    def _round_s(self, names: Sequence[str]) -> float:
        """Return how long a round of these cases takes."""
        return sum(median(self._took_s[name]) for name in names if self._took_s.get(name))

    def _mind_the_budget(self) -> None:
        """Leave out cases that the budget cannot bring to the first look, and end the race if no further round fits."""
        if self.budget_s is None or self.is_race_over:
            return
        left_s = self.budget_s - (self.clock_s() - (self._begun_s or 0.0))
        living = self.living
        if self._rounds < LOOKS[0]:
            whole_s = (LOOKS[0] - self._rounds) * self._round_s(living)
            for name in reversed(self.living):
                if whole_s > left_s and len(living) > FEWEST:
                    whole_s -= (LOOKS[0] - self._rounds) * self._round_s([name])
                    living.remove(name)
                    self.left_out[name] = f"--budget: {LOOKS[0]} rounds of this case no longer fit"
        if (round_s := self._round_s(living)) > left_s:
            self._ended_by = f"--budget: a round takes {duration(round_s)}, and {duration(max(0.0, left_s))} is left"


def better(ratio: float, objective: Objective) -> str:
    """Return in words how much better a case is. ratio: the other's cost divided by its own."""
    return f"{ratio:.2f}x as fast" if objective == "throughput" else f"{100 * (1 - 1 / ratio):.0f} % smaller"


def costs(folder: Path, objective: Objective) -> list[float]:
    """Return the costs of a run's complete trials: seconds per token, or peak bytes.

    Raises:
        Misuse: the folder holds no training run, or a newer version wrote it.
    """
    case = run_dir.case_file(folder).case
    trials = read_trials(folder, case.ranks).trials
    if objective == "throughput":
        return [trial.mean_step_s / case.shape.tokens for trial in trials]
    return [_peak_bytes(trial) for trial in trials]


def _peak_bytes(trial: Trial) -> float:
    return next(trial.peak_bytes[account] for account in (*TOTALS, *trial.peak_bytes) if account in trial.peak_bytes)


def least_budget_s(trial_s: Sequence[float]) -> float:
    """Return the time in which the two cases with the shortest trials reach the first look."""
    return LOOKS[0] * sum(sorted(trial_s)[:FEWEST])
