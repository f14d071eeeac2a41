"""What `show --details` says of a run's stored prediction."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.report.run.summary import print_summaries
from bench.results.estimate import estimate
from bench.store.summary import StoredPrediction, Summary
from collectors.metrics import results
from tests.bench.made.examples import make_summary

MIB = 1 << 20
PREDICTION = StoredPrediction(
    model_version=1,
    predicted_ns=1,
    step_s=0.009,
    step_low_s=0.008,
    step_high_s=0.010,
    compute_s=0.006,
    exposed_s=0.003,
    communication_s=0.004,
    bubble_s=0.0,
    memory_bytes={"optimizer": 3 * MIB, "total": 12 * MIB},
    interval_basis="ceilings: scatter of 3 runs",
    absent={"optimizer_s": "the cost model leaves it out", "activations": "it is not covered"},
)
RUN = make_summary(
    estimates=(
        estimate(results.RUN_STEP_SECONDS, (0.010, 0.012, 0.014)),
        estimate(results.RUN_TRACED_RATIO, (0.2, 0.25, 0.3), part="exposed_communication"),
        estimate(results.RUN_PHASE_SECONDS, (0.001, 0.001, 0.001), phase="optimizer"),
        estimate(results.RUN_MEMORY_ACCOUNT_BYTES, [10 * MIB] * 3, part="total", account="measured"),
        estimate(results.RUN_MEMORY_ACCOUNT_BYTES, [4 * MIB] * 3, part="activations", account="measured"),
    ),
    prediction=PREDICTION,
)


def _shown(run: Summary, *, has_details: bool = True) -> list[str]:
    console = Console(file=(text := io.StringIO()), width=200)
    print_summaries([run], "table", console, has_details=has_details)
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def test_each_part_is_shown_with_its_error() -> None:
    lines = _shown(RUN)
    at = lines.index("ddp on 2, before its first trial predicted measured error range")
    assert lines[at + 1 : at + 9] == [
        "step 9.00 ms 12.0 ms -25.0 % 8.00 ms to 10.0 ms, outside",
        "computing 6.00 ms - - -",
        "communication 4.00 ms - - -",
        "exposed communication 3.00 ms 3.00 ms +0.0 % of the step -",
        "optimizer - 1.00 ms - -",
        "memory: optimizer 3.00 MiB - - -",
        "memory: activations - 4.00 MiB - -",
        "memory: total 12.0 MiB 10.0 MiB +20.0 % -",
    ]
    assert lines[at + 9 : at + 12] == [
        "ddp on 2: not predicted: optimizer: the cost model leaves it out",
        "ddp on 2: not predicted: memory: activations: it is not covered",
        "ddp on 2: the range rests on ceilings: scatter of 3 runs",
    ]


@pytest.mark.parametrize(("step_s", "place"), [(0.012, "inside"), (0.02, "outside")])
def test_the_step_lies_inside_or_outside_its_interval(step_s: float, place: str) -> None:
    run = replace(RUN, prediction=replace(PREDICTION, step_low_s=0.011, step_high_s=0.015))
    run = replace(run, estimates=(estimate(results.RUN_STEP_SECONDS, [step_s]),))
    assert any(line.endswith(f"11.0 ms to 15.0 ms, {place}") for line in _shown(run))


@pytest.mark.parametrize("run", [replace(RUN, prediction=None), replace(RUN, trials_done=0, outcome="failed")])
def test_a_run_without_prediction_or_trial_has_no_such_table(run: Summary) -> None:
    assert not any("before its first trial" in line for line in _shown(run))


def test_the_first_screen_leaves_the_table_to_the_details() -> None:
    assert not any("before its first trial" in line for line in _shown(RUN, has_details=False))
