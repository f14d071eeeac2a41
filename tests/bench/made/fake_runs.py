"""Runs of ranks of known speed, for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.case import ONE_RUN, Purpose
from bench.rank.messages import FailureCause
from bench.results.estimate import Estimate
from bench.session.measure import MeasuredRuns, TrialSettings, alike, measure
from bench.store.summary import Summary
from collectors.metrics.metric import Metric
from tests.bench.made.examples import SMALL, make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine

# One case on two ranks: rank 1 is the slower in every trial. Medians of it: 0.2, 0.25 and 0.21 s.
DDP_STEPS_S = [
    [[0.10, 0.12, 0.11], [0.20, 0.30, 0.20]],
    [[0.10, 0.12, 0.11], [0.25, 0.25, 0.90]],
    [[0.10, 0.12, 0.11], [0.21, 0.21, 0.21]],
]
SINGLE_STEPS_S = [[[0.15, 0.15, 0.15]], [[0.16, 0.16, 0.16]], [[0.17, 0.17, 0.17]]]
CAUSE = FailureCause(kind="killed", rank=1, step=2, text="rank 1 was killed by SIGKILL in step 2")
DDP = small_case("ddp", ranks=2, trials=3)
SINGLE = small_case("single", ranks=1, trials=3, model=replace(SMALL, batch=2))


def measure_fake(folder: Path, engine: FakeEngine, *cases: object, purpose: Purpose = ONE_RUN) -> MeasuredRuns:
    """All trials of the cases, by an engine without processes."""
    engine.runs = folder
    measured = measure(
        alike([(case, None) for case in cases], TrialSettings(limit_s=60, purpose=purpose)),  # type: ignore[misc]
        engine=engine,
        machine=engine.machine(),
        folder=folder,
    )
    measured.close()
    return measured


def ddp_summary(folder: Path) -> Summary:
    """A run of DDP that ended well."""
    (summary,) = measure_fake(folder, FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    return summary


def find(summary: Summary, metric: Metric, **labels: str) -> Estimate:
    """The only estimate of the metric with these labels."""
    (found,) = [
        estimate for estimate in summary.estimates if estimate.metric == metric.name and estimate.labels == labels
    ]
    return found
