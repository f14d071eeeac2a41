"""The host's time on a CPU: what steps of like cases took beyond the cost models, and what it adds to another case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.choosing.here import ground_here
from bench.analysis.choosing.pricing import Candidate, Pricing
from bench.analysis.prediction.calibration import Range
from bench.analysis.prediction.forecast import Forecast, StepForecast, forecast, step_forecast
from bench.analysis.prediction.from_history import Place, history_calibration, history_rates
from bench.analysis.prediction.memory import memory_within
from bench.analysis.prediction.scoring.before_run import predict_run, predicted_steps
from bench.case import Case
from bench.machine.machine import hardware_here
from bench.results.estimate import estimate
from bench.store.hardware_baselines import PredictedStep
from bench.store.history import History
from bench.store.prediction import errors_of
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.calibrations import add_copies, add_matmul, add_sweep
from tests.bench.made.examples import make_case, make_machine, make_summary
from workloads.cost_models.absent import Absent
from workloads.spec import OptionValue

HARDWARE = hardware_here("cpu", cores=2, gpus=())
PASS_S = 0.002
"""What the host of these cases takes for forward or backward of a block and microbatch."""
LAYERS = 8


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """With all rates on 1, 2 and 4 ranks."""
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as rates:
        for ranks in (1, 2, 4):
            for add in (add_matmul, add_copies, add_sweep):
                add(rates, make_case("single", ranks=ranks), HARDWARE, run=f"{add.__name__}-{ranks}")
        yield rates


def case_of(
    strategy: str, ranks: int = 2, *, layers: int = LAYERS, batch: int = 24, options: Mapping[str, OptionValue] = {}
) -> Case:
    case = make_case(strategy, ranks=ranks, batch=batch)
    model = replace(case.shape, layers=layers, heads=4, kv_heads=4)
    return replace(case, model=model, options={**case.options, **options})


def add_run(history: History, case: Case, *steps_s: float, run: str = "like", **changes: object) -> None:
    summary = make_summary(run, case=case, hardware=HARDWARE, estimates=(estimate(RUN_STEP_SECONDS, steps_s),))
    summary = replace(summary, scaling=(), **changes)  # type: ignore[arg-type]  # Fields of a summary.
    history.add(summary, make_machine())


def without_host_s(case: Case, history: History) -> float:
    """The step by the cost models alone."""
    step_s = step_forecast(case, history_rates(Place(case=case, hardware=HARDWARE), history)).step_s
    assert isinstance(step_s, Range)
    return step_s.value


def predicted(case: Case, history: History) -> StepForecast:
    return step_forecast(case, history_calibration(Place(case=case, hardware=HARDWARE), history))


def added_s(case: Case, history: History) -> Range:
    """What the host adds to the step by the cost models."""
    step_s, without_s = predicted(case, history).step_s, without_host_s(case, history)
    assert isinstance(step_s, Range)
    return Range(
        value=step_s.value - without_s, low=step_s.low - without_s, high=step_s.high - without_s, origin=step_s.origin
    )


def host_of(step: StepForecast) -> Range | Absent:
    (host,) = [part.seconds for part in step.parts if part.name == "host"]
    return host


def test_another_case_pays_for_each_of_its_passes_what_a_like_case_paid(history: History) -> None:
    like, other = case_of("single", 1), case_of("single", 1, layers=12, batch=6)
    add_run(history, like, without_host_s(like, history) + LAYERS * 2 * PASS_S)
    assert added_s(other, history).value == pytest.approx(12 * 2 * PASS_S)
    again = case_of("single", 1, options={"checkpoint": "full"})
    assert added_s(again, history).value == pytest.approx(LAYERS * 3 * PASS_S)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("strategy", ["gpipe", "one_f_one_b"])
def test_each_pass_of_a_pipeline_holds_up_all_stages(strategy: str, ranks: int, history: History) -> None:
    """The last stage, which also has the head, is the slowest: m passes there, and one in each stage before it."""
    like, other = (case_of(strategy, ranks, options={"microbatches": count}) for count in (4, 12))
    each_s = 2 * PASS_S * LAYERS / ranks
    add_run(history, like, without_host_s(like, history) + each_s * (4 + ranks - 1))
    assert added_s(other, history).value == pytest.approx(each_s * (12 + ranks - 1))
    step = predicted(other, history)
    host = host_of(step)
    assert isinstance(host, Range)
    assert host.value == pytest.approx(each_s * 12)  # The rest is bubble.
    bubble_s, exposed_s = step.seconds("bubble"), step.seconds("communication")
    assert bubble_s is not None
    parts = (step.seconds("compute"), exposed_s, bubble_s, step.seconds("optimizer"), host.value)
    assert isinstance(step.step_s, Range)
    assert sum(part or 0.0 for part in parts) == pytest.approx(step.step_s.value)


LIKE_BATCH = 12


def test_the_range_is_that_of_the_steps_of_all_like_runs(history: History) -> None:
    case, like = case_of("single", 1), case_of("single", 1, batch=LIKE_BATCH)
    without_s = without_host_s(like, history)
    for name, trials in (("a", (0.3, 0.5, 0.4)), ("b", (0.6, 0.6, 0.6)), ("c", (0.5, 0.5, 0.9))):
        add_run(history, like, *(without_s + each for each in trials), run=name)
    added = added_s(case, history)
    assert (added.low, added.value, added.high) == pytest.approx((0.3, 0.5, 0.9))
    calibration = history_calibration(Place(case=case, hardware=HARDWARE), history)
    assert calibration.rests_on[-1] == (
        "host: 31.2 ms [18.8, 56.2] for forward or backward of a block and microbatch, which is what steps took beyond"
        " the cost models, range of 9 trials in 3 runs of single"
    )
    origin = predicted(case, history).step_s
    assert isinstance(origin, Range)
    assert origin.origin == "range of 1 trial in 1 run of matmul; range of 9 trials in 3 runs of single"


def test_a_step_that_took_no_longer_than_the_cost_models_has_no_time_of_the_host(history: History) -> None:
    case, like = case_of("single", 1), case_of("single", 1, batch=LIKE_BATCH)
    add_run(history, like, without_host_s(like, history) / 2)
    host = host_of(predicted(case, history))
    assert isinstance(host, Range)
    assert host.value == added_s(case, history).value == 0


def test_communication_that_the_host_might_hide_is_not_blamed_on_it(history: History) -> None:
    """Of many buckets, computing longer hides some: the host's own time is then at most what the step took longer."""
    case, like = (case_of("ddp", batch=batch, options={"bucket_mb": 0.01}) for batch in (24, LIKE_BATCH))
    beyond_s = 1e-4
    add_run(history, like, without_host_s(like, history) + beyond_s)
    host = host_of(predicted(case, history))
    assert isinstance(host, Range)
    assert host.value == pytest.approx(beyond_s)
    assert added_s(case, history).value < 0.9 * beyond_s


def test_without_a_like_run_the_host_is_absent_and_says_what_shows_it(history: History) -> None:
    case, like = case_of("three_d", 4), case_of("three_d", 4, batch=LIKE_BATCH)
    other_mesh = replace(like, options={**like.options, "tensor_ranks": 1, "pipeline_ranks": 2})
    unlike = {
        "itself": (replace(case, steps=99), {}),
        "itself, saving": (replace(case, save_every=5), {}),
        "saving": (replace(like, save_every=5, save_mode="async"), {}),
        "itself, older": (replace(case, version=case.version - 1), {}),
        "compiled": (replace(like, options={**like.options, "compile": "default"}), {}),
        "drill": (like, {"drill": "slow@1:7"}),
        "mesh": (other_mesh, {}),
        "precision": (replace(like, precision="bf16"), {}),
        "threads": (replace(like, threads=2), {}),
        "hardware": (like, {"hardware": "another"}),
        "failed": (like, {"outcome": "failed"}),
    }
    for name, (run_case, changes) in unlike.items():
        add_run(history, run_case, 9.0, run=name, **changes)
    host = host_of(predicted(case, history))
    assert isinstance(host, Absent)
    assert host.reason == (
        "no run of another case of three_d on this mesh, in fp32 with 1 thread per rank, shows what steps take beyond"
        " the cost models; `observatory run three_d` with the same options but another --batch does"
    )
    add_run(history, like, 9.0, run="alike")
    assert isinstance(host_of(predicted(case, history)), Range)


def shown(case: Case, history: History) -> Forecast:
    return forecast(
        case,
        history_calibration(Place(case=case, hardware=HARDWARE), history),
        memory_within(case, 10**9, 10**9),
        peak=Absent(reason="none"),
        peak_words="nothing",
    )


def test_the_host_decides_where_it_takes_most(history: History) -> None:
    case, like = case_of("single", 1), case_of("single", 1, batch=LIKE_BATCH)
    add_run(history, like, without_host_s(like, history) + 9 * without_host_s(case, history))
    decides = shown(case, history).decides
    words = "the host's time, which earlier runs took beyond the cost models, is 90 % of the step"
    assert (decides.about, decides.words) == ("host", words)


def test_what_is_stored_before_a_run_has_the_host_apart(history: History) -> None:
    case, like = case_of("one_f_one_b"), case_of("one_f_one_b", batch=LIKE_BATCH)
    before, host = predict_run(case, HARDWARE, history), host_of(predicted(case, history))
    assert before is not None
    assert isinstance(host, Absent)
    assert (before.host_s, before.absent["host_s"]) == (None, host.reason)
    add_run(history, like, 2 * without_host_s(like, history))
    stored = predict_run(case, HARDWARE, history)
    assert stored is not None
    parts = (stored.compute_s, stored.optimizer_s, stored.exposed_s, stored.bubble_s, stored.host_s)
    assert sum(part or 0.0 for part in parts) == pytest.approx(stored.step_s)
    assert stored.compute_s == pytest.approx(before.compute_s)
    assert " of host, " in stored.step_basis
    assert stored.calibrations[-1] == "like"
    summary = make_summary("run", case=case, hardware=HARDWARE, prediction=stored)
    (shown,) = [part for part in errors_of(summary) if part.name == "host"]
    assert (shown.predicted, shown.measured, shown.error) == (stored.host_s, None, None)
    step, now = (predicted_steps([each], history)[each.run] for each in (summary, replace(summary, prediction=None)))
    assert isinstance(step, PredictedStep)
    assert step == now
    assert step.has_host


def test_choose_compares_setups_without_the_host_which_only_those_that_ran_have(history: History) -> None:
    case = case_of("ddp", 4)
    alone_s = without_host_s(case, history)
    add_run(history, case_of("ddp", 4, batch=LIKE_BATCH), 9.0)
    ground = ground_here([case], {}, history, cores=2, gpus=())
    chosen = Pricing(ground=ground).candidate(case)
    assert isinstance(chosen, Candidate)
    assert chosen.step_s == pytest.approx(alone_s)
    assert ground.origin.endswith("; a CPU's host time is left out, because only strategies that have run have it")
