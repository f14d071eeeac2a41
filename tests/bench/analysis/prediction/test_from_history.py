"""Rates of a forecast that runs of the same hardware reached, and commands that measure what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.prediction.calibration import Calibration, Range
from bench.analysis.prediction.forecast import forecast, hidden_ratio
from bench.analysis.prediction.from_history import Place, history_calibration
from bench.analysis.prediction.memory import memory_within
from bench.case import Case
from bench.results.estimate import Estimate, estimate
from bench.store.history import History
from bench.store.links import bandwidth_spread
from collectors.metrics.probes import (
    RUN_COPY_BANDWIDTH,
    RUN_LINK_BANDWIDTH,
    RUN_LINK_LATENCY_SECONDS,
    RUN_MATMUL_FLOPS,
)
from collectors.metrics.results import RUN_OVERLAP_RATIO
from tests.bench.made.examples import make_case, make_machine, make_probe, make_summary
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.registry import spec_of

HARDWARE = "a CPU, 2 cores"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """An empty one."""
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as empty:
        yield empty


def add(history: History, name: str, case: Case, estimates: Sequence[Estimate], hardware: str = HARDWARE) -> None:
    case = replace(case, version=spec_of(case.strategy).version_on(case.device))
    history.add(
        make_summary(name, case=case, hardware=hardware, estimates=tuple(estimates), scaling=()), make_machine()
    )


def product(rows: int, *rates: float) -> Estimate:
    return estimate(RUN_MATMUL_FLOPS, rates, m=str(rows), n=str(rows), k=str(rows))


def add_matmul(history: History, name: str = "matmul-a", ranks: int = 2) -> None:
    add(history, name, make_probe("matmul", ranks), [product(256, 1e9, 1e9, 1e9), product(1024, 4e9, 4e9, 4e9)])


def add_copies(history: History, ranks: int = 2) -> None:
    rates = {"memory_copy": 2e9, "memory_triad": 3e9}
    estimates = [estimate(RUN_COPY_BANDWIDTH, [rate], kind=kind, size="1") for kind, rate in rates.items()]
    add(history, "copies-a", make_probe("copies", ranks), estimates)


def add_sweep(history: History, name: str = "sweep-a", rate: float = 1e9, ranks: int = 2) -> None:
    estimates = [
        estimate(RUN_LINK_LATENCY_SECONDS, [1e-4], collective="all_reduce"),
        estimate(RUN_LINK_BANDWIDTH, [rate], collective="all_reduce"),
    ]
    add(history, name, make_probe("collectives", ranks), estimates)


def rates(case: Case, history: History) -> Calibration:
    return history_calibration(Place(case=case, hardware=HARDWARE), history)


def test_a_history_without_a_run_names_each_command_that_measures_something(history: History) -> None:
    calibration = rates(make_case("ddp"), history)
    assert isinstance(calibration.products, Absent)
    commands = ("run matmul --device cpu", "run copies --device cpu", "run collectives --ranks 2", "run ddp --ranks 2")
    assert len(calibration.missing) == len(commands)
    for command, line in zip(commands, calibration.missing, strict=True):
        assert f"`observatory {command}" in line


def test_a_rank_alone_needs_neither_links_nor_anything_hidden(history: History) -> None:
    assert len(rates(make_case("single", ranks=1), history).missing) == 2


def test_the_rate_of_a_size_between_two_rungs_is_interpolated(history: History) -> None:
    add_matmul(history)
    calibration = rates(make_case("ddp"), history)
    assert calibration.rate(256, "value") == pytest.approx(1e9)
    assert calibration.rate(512, "value") == pytest.approx(2e9)
    assert calibration.rate(9999, "value") == pytest.approx(4e9)


def test_a_rung_is_the_median_of_runs_in_the_range_of_all_trials(history: History) -> None:
    for name, trials in (("matmul-a", (1e9, 1.2e9)), ("matmul-b", (2e9, 2e9)), ("matmul-c", (0.5e9, 4e9))):
        add(history, name, make_probe("matmul"), [product(256, *trials)])
    calibration = rates(make_case("ddp"), history)
    assert isinstance(calibration.products, tuple)
    ((rows, rung),) = calibration.products
    assert rows == 256
    assert (rung.value, rung.low, rung.high) == (2e9, 0.5e9, 4e9)
    assert rung.origin == "range of 6 trials in 3 runs of matmul"


def test_runs_of_other_hardware_ranks_or_precision_give_no_rate(history: History) -> None:
    add(history, "matmul-a", make_probe("matmul"), [product(256, 1e9)], hardware="another")
    add_matmul(history, "matmul-b", ranks=4)
    add(history, "matmul-c", make_probe("matmul", precision="bf16"), [product(256, 1e9)])
    assert isinstance(rates(make_case("ddp"), history).products, Absent)


def test_element_wise_kernels_take_the_bandwidth_of_a_copy(history: History) -> None:
    add_copies(history)
    memory = rates(make_case("ddp"), history).memory
    assert isinstance(memory, Range)
    assert memory.value == 2e9


def test_links_scatter_as_sweeps_in_the_same_setting_do(history: History) -> None:
    for name, rate in (("sweep-a", 0.8e9), ("sweep-b", 1.1e9)):
        add_sweep(history, name, rate)
    add_sweep(history, "sweep-c", 9e9, ranks=4)
    case = make_case("ddp")
    calibration = rates(case, history)
    assert not isinstance(calibration.links, Absent)
    bandwidths = []
    for corner in ("low", "value", "high"):
        (level,) = calibration.links[corner].levels
        assert isinstance(level.link, Link)
        bandwidths.append(level.link.bandwidth_bytes_per_second)
    newest = bandwidths[1]
    assert newest in (0.8e9, 1.1e9)
    assert bandwidths == pytest.approx([0.8e9, newest, 1.1e9])
    spread = bandwidth_spread(Place(case=case, hardware=HARDWARE), history)
    assert spread is not None
    assert (spread.runs, spread.trials) == (3, 3)


def test_a_step_of_one_rank_is_its_products_at_the_ladder_and_its_bytes_at_the_copy(history: History) -> None:
    add_matmul(history, ranks=1)
    add_copies(history, ranks=1)
    case = make_case("single", ranks=1)
    predicted = forecast(
        case,
        rates(case, history),
        memory_within(case, 10**9, 10**9),
        peak=Absent(reason="none"),
        peak_words="nothing",
    )
    assert isinstance(predicted.step_s, Range)
    # All products are far below 256 rows, whose rate they take.
    flops = case.shape.flops_per_step("palm_causal") + 0.5 * _attention_flops(case)
    optimizer_s = (28 + 12) * case.shape.parameters() / 2e9
    elementwise_s = predicted.step_s.value - flops / 1e9 - optimizer_s
    width, tokens = case.shape.width, case.shape.tokens
    assert elementwise_s * 2e9 > 3 * 4 * tokens * width * 10  # Norms and sums alone, forward and backward.
    assert predicted.seconds("optimizer") == pytest.approx(optimizer_s, rel=1e-2)


def _attention_flops(case: Case) -> float:
    """FLOPs of causal attention in forward; backward's 2.5 are a half more than the formula's 2."""
    shape = case.shape
    return 2.0 * shape.layers * shape.query_width * shape.sequence * shape.tokens


def test_what_like_runs_hid_is_a_share_of_what_the_cost_model_hides(history: History) -> None:
    case = _overlapping()
    add_matmul(history)
    add_copies(history)
    add_sweep(history)
    allowed = hidden_ratio(case, rates(case, history))
    assert allowed is not None
    assert allowed > 0.05
    for number, share in enumerate((0.25, 0.5, 0.75)):
        add(history, f"ddp-{number}", case, [estimate(RUN_OVERLAP_RATIO, [share * allowed])])
    hiding = rates(case, history).hiding
    assert (hiding.value, hiding.low, hiding.high) == pytest.approx((0.5, 0.25, 0.75))
    assert hiding.origin == "3 runs of ddp on 2 ranks"


def test_runs_on_other_ranks_show_what_is_hidden_where_none_on_as_many_does(history: History) -> None:
    case = _overlapping()
    for ranks in (2, 4):
        add_matmul(history, f"matmul-{ranks}", ranks=ranks)
        add_sweep(history, f"sweep-{ranks}", ranks=ranks)
    add_copies(history)
    allowed = hidden_ratio(case, rates(case, history))
    assert allowed is not None
    add(history, "ddp-a", case, [estimate(RUN_OVERLAP_RATIO, [allowed / 2])])
    on_four = rates(replace(case, ranks=4), history)
    assert on_four.hiding.value == pytest.approx(0.5)
    assert not any("shows how much is hidden" in line for line in on_four.missing)


def _overlapping() -> Case:
    """A case whose buckets are many enough that backward hides some."""
    case = make_case("ddp")
    return replace(case, options={**case.options, "bucket_mb": 0.01})


def test_a_pipeline_is_simulated_and_needs_no_like_run(history: History) -> None:
    assert not any("shows how much is hidden" in line for line in rates(make_case("gpipe"), history).missing)
