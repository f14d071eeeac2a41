"""A history of made-up runs, suite runs and commits, for tests of what is compared with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.case import Case, Purpose, SuiteMember
from bench.rank.messages import FailureCause
from bench.results.estimate import Estimate, estimate
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from bench.store.summary import Summary
from collectors.metrics.results import RUN_PEAK_MEMORY_BYTES, RUN_STEP_SECONDS, RUN_TOKENS_PER_SECOND
from tests.bench.made.examples import make_case, make_machine, make_summary

NIGHT_NS = 86_400 * 10**9
FIRST_NS = 1_700_000_000_000_000_000
A, B = "a" * 40, "ab12345" + "0" * 33
STEADY, SLOWER = (1.0, 1.003, 0.997, 1.001, 0.999), (1.3, 1.303, 1.297, 1.301, 1.299)
NOISY = (1.0, 1.3, 0.8, 1.2, 0.7)


def figures(steps_s: Sequence[float]) -> tuple[Estimate, ...]:
    """A run's step, its throughput and its memory."""
    return (
        estimate(RUN_STEP_SECONDS, steps_s),
        estimate(RUN_TOKENS_PER_SECOND, [64 / step_s for step_s in steps_s]),
        estimate(RUN_PEAK_MEMORY_BYTES, [1000.0] * len(steps_s), account="live_tensors"),
    )


def run_of(
    name: str, steps_s: Sequence[float] = STEADY, *, case: Case | None = None, night: int = 0, **changes: Any
) -> Summary:
    """A run that ended well on this night."""
    return make_summary(
        name,
        started_ns=FIRST_NS + night * NIGHT_NS,
        **{
            "case": replace(case or make_case(), trials=len(steps_s), steps=20, warm_up=5, trace_steps=3),
            "trials_done": len(steps_s),
            "estimates": figures(steps_s),
            "scaling": (),
            **changes,
        },
    )


def failed(summary: Summary) -> Summary:
    """The run without a complete trial."""
    cause = FailureCause(kind="killed", rank=1, step=2, text="rank 1 was killed")
    return replace(summary, outcome="failed", cause=cause, trials_done=0, estimates=())


def of_suite(summary: Summary, suite_run: str, case: str) -> Summary:
    """The run as one of a suite run."""
    member = SuiteMember(suite="tiny", id=suite_run, case=case)
    return replace(summary, purpose=Purpose(origin="nightly", member=member))


def keep(
    url: str, runs: Sequence[Summary], suite_runs: Sequence[str] = (), *, failures: Sequence[str] | None = None
) -> None:
    """Keep all in a history. failures: cases of the suite runs that failed; None as an older version has it."""
    with History(url) as history:
        for summary in runs:
            history.add(summary, replace(make_machine(), commit=summary.commit))
        for number, name in enumerate(suite_runs):
            started_ns = FIRST_NS + number * NIGHT_NS
            history.save_suite(
                SuiteRecord(
                    id=name,
                    suite="tiny",
                    started_ns=started_ns,
                    progress_ns=started_ns,
                    total=2,
                    failed=None if failures is None else tuple(failures),
                    folder="",
                )
            )


def store_in(folder: Path) -> str:
    """The URL of a store in this folder."""
    return f"sqlite:///{folder / 'history.sqlite'}"
