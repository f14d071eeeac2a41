"""Memory expected beside memory measured, from plain figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.results.estimate import Estimate
from bench.results.results import memory_estimates
from bench.results.trials import Trial
from collectors.metrics.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_MEMORY_PREDICTED_RATIO
from workloads.cost_models.absent import Absent
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.terms import States

STATES = States(parameters_bytes=400, gradients_bytes=400, optimizer_bytes=804)
PAPER_ACTIVATIONS_BYTES = 7000
PAPER = States(parameters_bytes=200, gradients_bytes=200, optimizer_bytes=1200)
PEAK = Prediction(
    parameters_bytes=400,
    buffers_bytes=6,
    gradients_bytes=0,
    optimizer_bytes=804,
    activations_bytes=5000,
    temporary_bytes=90,
)


TRIAL = Trial(
    number=0,
    step_s=1.0,
    step_spread_ratio=0.0,
    mean_step_s=1.0,
    phases_s={},
    data_wait_s=None,
    peak_bytes={"live_tensors": 6300.0, "resident": 9e9},
    state_bytes={"parameters": 400.0, "gradients": 400.0, "optimizer": 804.0},
    activation_bytes=5000.0,
    other_bytes=0.0,
    stage_activation_bytes={},
    loss=None,
    observer_ratio=0.0,
    traced=None,
    timed_steps=(),
)


def judge(
    *trials: Trial, states: States = STATES, paper: States = PAPER, peak: Prediction | Absent = PEAK
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    return memory_estimates(
        trials or (TRIAL,),
        states=states,
        paper=paper,
        paper_activations=PAPER_ACTIVATIONS_BYTES,
        peak=peak,
    )


def accounts(estimates: tuple[Estimate, ...], account: str) -> dict[str, float]:
    return {
        found.labels["part"]: found.median
        for found in estimates
        if found.metric == RUN_MEMORY_ACCOUNT_BYTES.name and found.labels["account"] == account
    }


def ratios(estimates: tuple[Estimate, ...]) -> dict[str, float]:
    return {
        found.labels["part"]: found.median for found in estimates if found.metric == RUN_MEMORY_PREDICTED_RATIO.name
    }


def test_the_metric_promises_no_sum_that_its_parts_do_not_make() -> None:
    measured = accounts(judge()[0], "measured")
    assert sum(measured[part] for part in measured if part not in ("total", "unexplained")) > measured["total"]
    assert "need not add up" in RUN_MEMORY_ACCOUNT_BYTES.help


def test_each_account_gives_the_parts_that_it_knows() -> None:
    estimates, notes = judge()
    assert accounts(estimates, "paper") == {
        "parameters": 200,
        "gradients": 200,
        "optimizer": 1200,
        "activations": 7000,
    }
    states = {"parameters": 400, "gradients": 400, "optimizer": 804, "activations": 5000}
    assert accounts(estimates, "implementation") == states | {"total": 6300}
    assert accounts(estimates, "measured") == states | {"total": 6300}
    assert notes == ()


def test_a_right_prediction_has_the_ratio_1() -> None:
    estimates, _ = judge()
    assert ratios(estimates) == dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "total"), 1.0)


def test_a_ratio_is_predicted_over_measured() -> None:
    estimates, _ = judge(replace(TRIAL, activation_bytes=4000.0))
    assert ratios(estimates)["activations"] == 1.25


def test_each_trial_has_its_value() -> None:
    estimates, _ = judge(replace(TRIAL, activation_bytes=5000.0), replace(TRIAL, activation_bytes=4000.0))
    (measured,) = (found for found in estimates if found.labels == {"part": "activations", "account": "measured"})
    assert measured.trials == (5000.0, 4000.0)
    assert measured.low is not None


def test_on_a_gpu_the_total_is_the_allocators() -> None:
    estimates, _ = judge(replace(TRIAL, peak_bytes={"allocator": 7000.0}))
    assert accounts(estimates, "measured")["total"] == 7000


def test_the_process_is_no_total_of_tensors() -> None:
    estimates, _ = judge(replace(TRIAL, peak_bytes={"resident": 9e9}))
    assert "total" not in accounts(estimates, "measured")
    assert "total" not in ratios(estimates)


def test_a_prediction_that_cannot_be_made_is_absent_with_its_reason() -> None:
    estimates, notes = judge(peak=Absent(reason="the law knows no compiled blocks"))
    assert set(accounts(estimates, "implementation")) == {"parameters", "gradients", "optimizer"}
    assert set(ratios(estimates)) == {"parameters", "gradients", "optimizer"}
    assert notes == ("predicted activations and total memory are absent: the law knows no compiled blocks",)


def test_activations_that_nobody_tracked_are_absent_with_a_reason() -> None:
    estimates, notes = judge(replace(TRIAL, activation_bytes=None))
    assert "activations" not in accounts(estimates, "measured")
    (note,) = notes
    assert note.startswith("measured activations are absent: live tensors were not tracked")


def test_state_that_one_trial_lacks_is_absent_by_name() -> None:
    lacking = replace(TRIAL, state_bytes={"parameters": 400.0})
    estimates, notes = judge(TRIAL, lacking)
    assert set(accounts(estimates, "measured")) == {"parameters", "activations", "total"}
    (note,) = notes
    assert note.startswith("measured gradients, optimizer are absent")


@pytest.mark.parametrize("account", ["paper", "implementation"])
def test_a_part_of_no_bytes_is_left_out_of_its_account(account: str) -> None:
    none = States(parameters_bytes=400, gradients_bytes=0, optimizer_bytes=804)
    estimates, _ = judge(states=none, paper=none)
    assert "gradients" not in accounts(estimates, account)
    assert "gradients" not in ratios(estimates)


def test_what_outlives_a_step_stands_beside_its_law() -> None:
    estimates, _ = judge(replace(TRIAL, other_bytes=400.0), peak=replace(PEAK, other_bytes=400))
    assert accounts(estimates, "measured")["other"] == accounts(estimates, "implementation")["other"] == 400
    assert ratios(estimates)["other"] == 1.0
    assert "unexplained" not in accounts(estimates, "measured")


def test_what_no_law_explains_is_a_part_of_its_own() -> None:
    estimates, _ = judge(
        replace(TRIAL, other_bytes=700.0), replace(TRIAL, other_bytes=720.0), peak=replace(PEAK, other_bytes=400)
    )
    assert accounts(estimates, "measured")["unexplained"] == pytest.approx(310.0)
    estimates, _ = judge(replace(TRIAL, other_bytes=300.0))
    assert (accounts(estimates, "measured")["other"], accounts(estimates, "measured")["unexplained"]) == (300.0, 300.0)


def test_what_outlives_a_step_is_not_unexplained_where_no_law_covers_it() -> None:
    estimates, _ = judge(replace(TRIAL, other_bytes=300.0), peak=Absent(reason="nobody knows"))
    assert "unexplained" not in accounts(estimates, "measured")
    assert accounts(estimates, "measured")["other"] == 300.0


def test_nothing_that_outlives_a_step_is_no_part() -> None:
    estimates, _ = judge(TRIAL)
    assert not {"other", "unexplained"} & {found.labels.get("part") for found in estimates}
