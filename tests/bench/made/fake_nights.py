"""A history of made-up nights of a suite, whose figures have a known change."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from bench.case import Case, Purpose, SuiteMember
from bench.machine.machine import Machine
from bench.results.efficiency import ScalingEfficiency, scaling_efficiency
from bench.results.estimate import Estimate, estimate, per_second
from bench.store.history import History
from bench.store.suite_record import SuiteOutcome, SuiteRecord
from bench.store.summary import Summary
from collectors.metrics.results import (
    RUN_MEAN_STEP_SECONDS,
    RUN_STEP_SECONDS,
    RUN_TOKENS_PER_SECOND,
    RUN_TOKENS_PER_SECOND_PER_DEVICE,
)
from tests.bench.made.examples import make_case, make_machine, make_summary

DAY_NS = 86_400 * 10**9
FIRST_NS = 20_000 * DAY_NS
"""A midnight in UTC."""
STEP_S = 0.1


@dataclass
class FakeNights:
    """Writes nights into a history. sd_ratio: of a night, and of a trial within it."""

    history: History
    suite: str = "nightly"
    sd_ratio: float = 0.004
    seed: int = 1
    hosts: tuple[str, ...] = ("node0",)
    first_ns: int = FIRST_NS
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def trials(self, level_s: float, count: int = 3) -> tuple[float, ...]:
        """Step times of the trials of a night with this level."""
        night = self._random.gauss(0, self.sd_ratio)
        return tuple(level_s * (1 + night + self._random.gauss(0, self.sd_ratio)) for _ in range(count))

    def add(self, number: int, levels_s: Mapping[str, float], **changes: Any) -> str:
        """Add the night of this number, with a case of each name; return the suite run's id."""
        suite_run = f"night{number:04}"
        for name, level_s in levels_s.items():
            self.add_run(number, name, self.trials(level_s), **changes)
        self.add_record(number, done=len(levels_s))
        return suite_run

    def add_record(self, number: int, *, done: int, outcome: SuiteOutcome = "done", **changes: Any) -> None:
        """Add the record of the night alone."""
        started_ns = self.first_ns + number * DAY_NS
        record = SuiteRecord(
            id=f"night{number:04}",
            suite=self.suite,
            started_ns=started_ns,
            progress_ns=started_ns + DAY_NS // 24,
            ended_ns=None if outcome == "running" else started_ns + DAY_NS // 24,
            outcome=outcome,
            period_s=86_400.0,
            cases={"done": done},
            total=done,
            folder=f"/runs/suites/night{number:04}",
        )
        self.history.save_suite(msgspec.structs.replace(record, **changes))

    def add_run(
        self,
        number: int,
        name: str,
        steps_s: Sequence[float],
        *,
        is_rerun: bool = False,
        case: Case | None = None,
        baseline_rate: float | None = None,
        machine: Machine | None = None,
        parts: Sequence[Estimate] = (),
        **changes: Any,
    ) -> Summary:
        """Add the run of a case with these step times. baseline_rate: tokens per second of the baseline's one rank.

        machine: that it ran on. parts: more estimates, as of what its step is made of.
        """
        case = case or make_case("ddp", 2)
        tokens = case.shape.tokens
        rates = [tokens / step_s for step_s in steps_s]
        scaling: tuple[ScalingEfficiency, ...] = ()
        if baseline_rate is not None:
            baseline_case = make_case("single", 1, case.shape.batch // 2)
            scaling = (
                scaling_efficiency(
                    case, rates, baseline_case, [baseline_rate] * 3, baseline_run="base", is_beside=True
                ),
            )
        suffix = "-again" if is_rerun else ""
        summary = make_summary(
            f"run{number:04}-{name}{suffix}",
            started_ns=self.first_ns + number * DAY_NS + (DAY_NS // 48 if is_rerun else 1),
            case=case,
            estimates=(
                estimate(RUN_STEP_SECONDS, steps_s),
                estimate(RUN_MEAN_STEP_SECONDS, steps_s),
                per_second(RUN_TOKENS_PER_SECOND, tokens, steps_s),
                per_second(RUN_TOKENS_PER_SECOND_PER_DEVICE, tokens / case.ranks, steps_s),
                *parts,
            ),
            scaling=scaling,
            trials_done=len(steps_s),
            step_spreads=(0.01,) * len(steps_s),
            hosts=self.hosts,
            purpose=Purpose(
                origin="nightly",
                member=SuiteMember(suite=self.suite, id=f"night{number:04}", case=name, is_rerun=is_rerun),
            ),
        )
        summary = replace(summary, **changes)
        self.history.add(summary, machine or make_machine())
        return summary


Levels = Callable[[int], Mapping[str, float]]


def fill(nights: FakeNights, count: int, levels_s: Levels = lambda number: {"ddp": STEP_S}) -> None:
    """Add so many nights, each with the levels that it has."""
    for number in range(count):
        nights.add(number, levels_s(number))
