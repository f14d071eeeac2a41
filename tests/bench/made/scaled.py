"""Runs whose step is made of known parts, for tests of scaling curves and of what is lost on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bench.case import Case, Purpose, SuiteMember
from bench.results.efficiency import scaling_efficiency
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.store.summary import Summary
from collectors.metrics import results
from tests.bench.made.examples import make_case, make_summary

SPREAD = (0.99, 1.0, 1.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Seconds of a step, by what it is made of; the rest of `step_s` is time that no trace knows of.

    profiler_s: what the profiler makes a traced step longer by, as computation.
    """

    step_s: float
    compute_s: float
    exposed_s: float = 0.0
    waiting_s: float = 0.0
    idle_s: float = 0.0
    data_s: float = 0.0
    copies_s: float = 0.0
    profiler_s: float = 0.0


def made_estimates(case: Case, made: Made, *, trials: int = 3, is_traced: bool = True) -> list[Estimate]:
    """The estimates of a run with such steps; its trials differ by 1 %."""
    factors = SPREAD[:trials] if trials > 1 else (1.0,)
    steps_s = [made.step_s * factor for factor in factors]
    found = [
        estimate(results.RUN_MEAN_STEP_SECONDS, steps_s),
        estimate(results.RUN_TOKENS_PER_SECOND, [case.shape.tokens / step_s for step_s in steps_s]),
    ]
    if made.data_s:
        found.append(estimate(results.RUN_PHASE_SECONDS, [made.data_s * factor for factor in factors], phase="data"))
    if not is_traced:
        return found
    known = (made.compute_s, made.exposed_s, made.waiting_s, made.idle_s, made.data_s, made.copies_s)
    traced_s = sum(known) + made.profiler_s
    found.append(estimate(results.RUN_TRACED_STEP_SECONDS, [traced_s * factor for factor in factors]))
    shares = {
        "compute": made.compute_s + made.profiler_s,
        "exposed_communication": made.exposed_s + made.waiting_s,
        "exposed_copy": made.copies_s,
        "idle": made.idle_s + made.data_s,
    }
    found += [
        estimate_share(results.RUN_TRACED_RATIO, [seconds / traced_s] * trials, part=part)
        for part, seconds in shares.items()
    ]
    if case.ranks > 1 and made.exposed_s + made.waiting_s:
        waiting_ratio = made.waiting_s / (made.exposed_s + made.waiting_s)
        found.append(estimate_share(results.RUN_WAITING_RATIO, [waiting_ratio] * trials))
    return found


# A suite run, as its history tells it.

SUITE_RUN = "20261123-010203-night-abc123"


def scaled_run(name: str, case: Case, step_s: float, *, exposed_s: float = 0.0, **changes: Any) -> Summary:
    """The run of a case of the suite run, whose step is computation but for its exposed communication."""
    made = Made(step_s=step_s, compute_s=step_s - exposed_s, exposed_s=exposed_s)
    summary = make_summary(
        name,
        case=case,
        estimates=tuple(made_estimates(case, made)),
        scaling=(),
        purpose=Purpose(member=SuiteMember(suite="night", id=SUITE_RUN, case=name)),
    )
    return replace(summary, **changes)


def with_baseline(run: Summary, baseline: Summary) -> Summary:
    """The run with its efficiency against the baseline that the suite declares."""
    rates = [
        next(one.trials for one in summary.estimates if one.metric == results.RUN_TOKENS_PER_SECOND.name)
        for summary in (run, baseline)
    ]
    found = scaling_efficiency(run.case, rates[0], baseline.case, rates[1], baseline.run, is_beside=True)
    return replace(run, scaling=(found,))


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeEnd:
    """How a case of the suite run ended."""

    name: str
    outcome: str | None = "done"
    reason: str | None = None
    summary: Summary | None = None

    @property
    def run(self) -> str | None:
        """The run that measured it."""
        return None if self.summary is None else self.summary.run


def ended(*runs: Summary) -> list[MadeEnd]:
    """These runs as cases that ended well."""
    return [MadeEnd(name=run.run, summary=run) for run in runs]


def weak_runs(**changes: Any) -> list[Summary]:
    """ddp on 1, 2 and 4 ranks, each with 4 sequences: a step of 100 ms, and 10 ms more with each doubling."""
    return [
        scaled_run(
            f"weak[ranks={ranks}]", make_case(ranks=ranks, batch=4 * ranks, **changes), 0.1 + more_s, exposed_s=more_s
        )
        for ranks, more_s in ((1, 0.0), (2, 0.01), (4, 0.02))
    ]


def strong_runs() -> list[Summary]:
    """ddp with 64 sequences on 1, 2 and 4 ranks, by Amdahl's law with a serial fraction of 0.1."""
    return [
        scaled_run(f"strong[ranks={ranks}]", make_case(ranks=ranks, batch=64), 0.1 + 0.9 / ranks) for ranks in (1, 2, 4)
    ]
