"""Steps made of known parts, and the division of what was lost against the base: each part is found again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from bench.case import Case
from bench.results.efficiency import Loss, loss_of, scaling_efficiency
from bench.results.estimate import estimate, estimate_share
from bench.results.step_parts import PARTS, MeasuredStep
from collectors.metrics import results
from tests.bench.made.examples import make_case
from tests.bench.made.scaled import SPREAD, Made, made_estimates

BASE = Made(step_s=0.100, compute_s=0.080, idle_s=0.010, data_s=0.005)
"""5 ms of it no trace knows of."""
ONE, TWO, FOUR = (make_case(ranks=ranks, batch=4 * ranks) for ranks in (1, 2, 4))
TWO_STRONG = make_case(ranks=2, batch=4)


def _loss(case: Case, made: Made, *, base: Made = BASE, base_case: Case = ONE, **changes: Any) -> Loss:
    found = loss_of(
        MeasuredStep(case=case, estimates=made_estimates(case, made, **changes)),
        MeasuredStep(case=base_case, estimates=made_estimates(base_case, base, **changes)),
    )
    assert isinstance(found, Loss), found
    return found


def _seconds(found: Loss) -> dict[str, float]:
    return {part.name: part.lost_s for part in found.parts}


def _only(found: Loss, expected: Mapping[str, float]) -> None:
    """Check that these parts, and no others, are lost."""
    wanted = {name: expected.get(name, 0.0) for name in _seconds(found)}
    assert _seconds(found) == pytest.approx(wanted, abs=1e-9)


def _more(seconds: float, **parts: float) -> Made:
    """The base's step, longer by so many seconds, which are in these parts."""
    return replace(BASE, step_s=BASE.step_s + seconds, **{name: getattr(BASE, name) + s for name, s in parts.items()})


@pytest.mark.parametrize(
    ("field", "part"),
    [
        ("exposed_s", "exposed_communication"),
        ("waiting_s", "waiting"),
        ("idle_s", "idle"),
        ("data_s", "data"),
        ("copies_s", "copies"),
        ("compute_s", "compute"),
    ],
)
def test_a_part_that_grows_in_weak_scaling_is_what_was_lost(field: str, part: str) -> None:
    found = _loss(TWO, _more(0.020, **{field: 0.020}))
    _only(found, {part: 0.020})
    assert found.lost_ratio == pytest.approx(0.020 / 0.120)
    assert not found.absent


def test_time_that_no_trace_knows_of_is_unexplained() -> None:
    _only(_loss(FOUR, _more(0.030)), {"unexplained": 0.030})


def test_in_strong_scaling_what_does_not_shrink_is_lost() -> None:
    """Of the base's step half would be ideal on two ranks: 50 ms, of which 40 compute. Idle time stays as it was."""
    made = Made(step_s=0.065, compute_s=0.040, exposed_s=0.010, idle_s=0.010, data_s=0.0025)
    found = _loss(TWO_STRONG, made)
    assert found.ideal_s == pytest.approx(0.050)
    _only(found, {"exposed_communication": 0.010, "idle": 0.005})


def test_a_part_that_the_base_had_more_of_is_negative() -> None:
    found = _loss(TWO, replace(BASE, step_s=0.105, exposed_s=0.010, idle_s=0.005))
    _only(found, {"exposed_communication": 0.010, "idle": -0.005})


def test_the_parts_add_up_to_the_loss_of_the_efficiency_that_is_shown() -> None:
    made = Made(step_s=0.173, compute_s=0.091, exposed_s=0.013, waiting_s=0.017, idle_s=0.011, data_s=0.007)
    found = _loss(FOUR, made)
    rates = [
        next(one for one in made_estimates(case, how) if one.metric == results.RUN_TOKENS_PER_SECOND.name).trials
        for case, how in ((FOUR, made), (ONE, BASE))
    ]
    efficiency = scaling_efficiency(FOUR, rates[0], ONE, rates[1], "base").ratio.value
    assert math.fsum(part.lost_ratio for part in found.parts) == pytest.approx(1 - efficiency, abs=1e-12)
    assert found.lost_ratio == pytest.approx(1 - efficiency, abs=1e-12)


def test_a_loss_is_of_ranks_beyond_those_of_the_base() -> None:
    """A base of several ranks communicates, too: only what is more is lost."""
    base = replace(BASE, step_s=0.110, exposed_s=0.010)
    _only(_loss(FOUR, _more(0.025, exposed_s=0.025), base=base, base_case=TWO), {"exposed_communication": 0.015})


def test_what_the_profiler_takes_of_a_step_is_no_part_of_it() -> None:
    """All of it is taken from computation here, as on a CPU; communication is as long as it was traced."""
    made = Made(step_s=0.100, compute_s=0.080, exposed_s=0.020, profiler_s=0.040)
    base = Made(step_s=0.080, compute_s=0.080, profiler_s=0.040)
    found = _loss(TWO, made, base=base)
    _only(found, {"exposed_communication": 0.020})
    assert found.notes == (
        "traced steps are up to 50 % longer than measured ones: all parts except data come from steps that the profiler"
        " slows",
    )


def test_waiting_for_data_counts_once() -> None:
    """The slowest loader's wait is longer than the ranks' idle time: the others wait for it in a collective."""
    made = Made(step_s=0.140, compute_s=0.080, waiting_s=0.020, idle_s=0.010, data_s=0.025)
    estimates = [
        replace(one, median=0.045, trials=(0.045,) * 3) if one.labels == {"phase": "data"} else one
        for one in made_estimates(TWO, made)
    ]
    found = loss_of(
        MeasuredStep(case=TWO, estimates=estimates), MeasuredStep(case=ONE, estimates=made_estimates(ONE, BASE))
    )
    assert isinstance(found, Loss)
    # 35 ms of idle time are all for data; 20 ms of the others' waiting, too, stay with waiting.
    _only(found, {"data": 0.030, "idle": -0.010, "waiting": 0.020})


# Pipelines


def _pipelined(ranks: int, ratio: float, made: Made, stage_s: float) -> MeasuredStep:
    case = make_case("one_f_one_b", ranks=ranks, batch=8)
    pipeline = case.spec().pipeline(case)
    assert pipeline is not None
    stages = [
        estimate(results.RUN_STAGE_SECONDS, [stage_s * one for one in SPREAD], stage=str(stage), action=action)
        for stage in range(ranks)
        for action in ("forward", "backward")
    ]
    bubble = estimate_share(results.RUN_BUBBLE_RATIO, [ratio] * 3, account="measured")
    return MeasuredStep(case=case, estimates=[*made_estimates(case, made), *stages, bubble])


def test_a_bubble_is_taken_out_of_communication_and_idle_time() -> None:
    """On 2 ranks a stage computes 2 x 5 ms for each of its microbatches, and the bubble is a fifth of the whole."""
    case = make_case("one_f_one_b", ranks=2, batch=8)
    pipeline = case.spec().pipeline(case)
    assert pipeline is not None
    busy_s = pipeline.microbatches * 2 * 0.005
    bubble_s = busy_s / 4
    made = Made(step_s=busy_s + 2 * bubble_s, compute_s=busy_s, exposed_s=1.5 * bubble_s, idle_s=0.5 * bubble_s)
    base_case = make_case("one_f_one_b", ranks=1, batch=8)
    base = Made(step_s=2 * busy_s, compute_s=2 * busy_s)
    run = _pipelined(2, 0.2, made, 0.005)
    found = loss_of(run, replace(_pipelined(1, 0.0, base, 0.010), case=base_case))
    assert isinstance(found, Loss)
    _only(found, {"bubble": bubble_s, "exposed_communication": 0.75 * bubble_s, "idle": 0.25 * bubble_s, "data": 0.0})


def test_a_pipeline_without_times_of_its_stages_has_no_bubble_told() -> None:
    case, base_case = (make_case("one_f_one_b", ranks=ranks, batch=8) for ranks in (2, 1))
    found = _loss(case, Made(step_s=0.06, compute_s=0.05, exposed_s=0.01), base_case=base_case)
    assert "bubble" not in _seconds(found)
    assert "has no times of its stages" in found.absent["bubble"]


# What cannot be known


def test_without_a_trace_all_but_data_is_unexplained() -> None:
    found = _loss(TWO, _more(0.020, data_s=0.015, exposed_s=0.005), is_traced=False)
    _only(found, {"data": 0.015, "unexplained": 0.005})
    assert set(found.absent) == set(PARTS) - {"data", "unexplained"}
    assert found.absent["idle"] == ("no step of ddp on 1 was traced, so it is in unexplained; use trace_steps = 3")


def test_waiting_that_is_unknown_stays_in_communication() -> None:
    made = _more(0.020, exposed_s=0.005, waiting_s=0.015)
    estimates = [one for one in made_estimates(TWO, made) if one.metric != results.RUN_WAITING_RATIO.name]
    found = loss_of(
        MeasuredStep(case=TWO, estimates=estimates), MeasuredStep(case=ONE, estimates=made_estimates(ONE, BASE))
    )
    assert isinstance(found, Loss)
    _only(found, {"exposed_communication": 0.020})
    assert "so it is in exposed communication" in found.absent["waiting"]


def test_a_part_that_the_base_does_not_tell_is_absent() -> None:
    found = loss_of(
        MeasuredStep(case=TWO, estimates=made_estimates(TWO, _more(0.020, data_s=0.020))),
        MeasuredStep(case=ONE, estimates=made_estimates(ONE, replace(BASE, data_s=0.0, idle_s=0.015))),
    )
    assert isinstance(found, Loss)
    _only(found, {"idle": 0.020})
    assert found.absent == {"data": "ddp on 1 has no time of the phase data, so it is in idle"}


def test_a_run_without_throughput_has_no_loss() -> None:
    found = loss_of(MeasuredStep(case=TWO, estimates=()), MeasuredStep(case=ONE, estimates=made_estimates(ONE, BASE)))
    assert found == "ddp on 2 has no throughput"


def test_one_trial_has_no_interval() -> None:
    found = _loss(TWO, _more(0.020, exposed_s=0.020), trials=1)
    assert {(part.low_s, part.high_s) for part in found.parts} == {(None, None)}


def test_each_part_with_noise_has_an_interval_that_holds_it() -> None:
    found = _loss(TWO, _more(0.020, exposed_s=0.020))
    by_name = {part.name: part for part in found.parts}
    for name in ("exposed_communication", "compute", "unexplained"):
        part = by_name[name]
        assert part.low_s is not None
        assert part.high_s is not None
        assert part.low_s <= part.lost_s <= part.high_s
        assert part.low_ratio == pytest.approx(part.low_s / 0.120)
    # Three trials that differ by 1 %, on both sides.
    assert by_name["compute"].high_ratio == pytest.approx(0.080 * 0.01 * 2.776 * math.sqrt(2 / 3) / 0.12, rel=0.01)


def test_a_straggler_is_named_with_what_waiting_it_causes() -> None:
    straggler = estimate_share(results.RUN_STRAGGLER_RATIO, [0.1, 0.11, 0.12], rank="1", cause="compute")
    estimates = [*made_estimates(TWO, _more(0.02, waiting_s=0.02)), straggler]
    found = loss_of(
        MeasuredStep(case=TWO, estimates=estimates), MeasuredStep(case=ONE, estimates=made_estimates(ONE, BASE))
    )
    assert isinstance(found, Loss)
    assert found.notes == (
        "ddp on 2: rank 1 holds the others up for 11.0 % of the traced time by compute, which counts as waiting",
    )
