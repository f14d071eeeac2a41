"""The forecast of a case: its parts add up to the step of the cost models, and the right fact decides."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.prediction.calibration import (
    ATTENTION_SPREAD,
    LINK_EFFICIENCY,
    LINK_SPREAD,
    MEMORY_EFFICIENCY,
    MEMORY_SPREAD,
    PRODUCTS_SPREAD,
    Range,
    sheet_calibration,
)
from bench.analysis.prediction.forecast import Forecast, forecast, forecast_on, work_of
from bench.analysis.prediction.memory import memory_fit
from bench.case import Case
from bench.machine.machines import machine_file
from bench.machine.machines.machine_file import read_machine
from bench.session.case_args import CaseArgs, case_of_args, node_on
from workloads.cost_models.absent import Absent
from workloads.cost_models.step_time import StepTime

MACHINE = read_machine("h100x8x2")
CASES = {
    "single": ("single", ()),
    "ddp": ("ddp", ()),
    "fsdp": ("fsdp", ("checkpoint=full",)),
    "hsdp": ("hsdp", ("shard_ranks=8",)),
    "tensor": ("tensor_parallel", ()),
    "ulysses": ("ulysses", ()),
    "ring": ("ring_attention", ()),
    "1f1b": ("one_f_one_b", ("microbatches=16",)),
    "interleaved": ("interleaved", ("microbatches=16",)),
    "three_d": ("three_d", ("tensor_ranks=2", "pipeline_ranks=2", "microbatches=4", "checkpoint=full")),
}


def made(strategy: str, *options: str, ranks: int | None = None, shape: str = "1b", **dimensions: Any) -> Case:
    """A case in bf16 on the two nodes."""
    args = CaseArgs(
        strategy=strategy, shape_name=shape, dimensions={"batch": 32, **dimensions}, options=options, ranks=None
    )
    return case_of_args(args, ranks, node_on(MACHINE))


def ranks_of(name: str) -> int:
    return {"single": 1, "tensor": 4, "ulysses": 4, "ring": 4, "1f1b": 2, "interleaved": 2}.get(name, 16)


def made_of(name: str) -> Case:
    strategy, options = CASES[name]
    return made(strategy, *options, ranks=ranks_of(name), layers=24)


def seconds(predicted: Forecast, name: str) -> Range:
    (part,) = [part for part in predicted.parts if part.name == name]
    assert isinstance(part.seconds, Range)
    return part.seconds


@pytest.mark.parametrize("name", CASES)
def test_parts_add_up_to_the_step(name: str) -> None:
    predicted = forecast_on(made_of(name), MACHINE)
    step = predicted.step
    assert isinstance(step, StepTime)
    assert isinstance(predicted.step_s, Range)
    assert predicted.step_s.value == step.step_s
    names = {part.name for part in predicted.parts} - {"host"}
    assert sum(predicted.seconds(part) or 0.0 for part in names) == pytest.approx(step.step_s)
    assert predicted.seconds("communication") == pytest.approx(step.exposed_s)
    assert all(
        part.seconds.low <= part.seconds.value <= part.seconds.high
        for part in predicted.parts
        if isinstance(part.seconds, Range)
    )


def test_exposed_communication_is_divided_by_the_level_that_it_crosses() -> None:
    predicted = forecast_on(made_of("three_d"), MACHINE)
    levels = [part.level for part in predicted.parts if part.name == "communication"]
    assert sorted(map(str, levels)) == ["InfiniBand", "NVLink"]


def test_each_kind_of_work_takes_its_share_of_the_data_sheet_at_either_end() -> None:
    case = made_of("single")
    predicted, work = forecast_on(case, MACHINE), work_of(case)
    compute, optimizer = seconds(predicted, "compute"), seconds(predicted, "optimizer")
    peak, bandwidth = 989.4e12, 3350e9
    products = 3 * sum(each.flops for each in (*work.products, work.head))
    for end, place in ((compute.high, 0), (compute.low, 1)):
        by_hand_s = (
            products / (PRODUCTS_SPREAD[place] * peak)
            + 3.5 * work.attention.flops / (ATTENTION_SPREAD[place] * peak)
            + 3 * 0.77 * work.elementwise_bytes / (MEMORY_SPREAD[place] * bandwidth)
        )
        assert end == pytest.approx(by_hand_s)
    low, high = MEMORY_SPREAD
    assert optimizer.low == pytest.approx(optimizer.value * MEMORY_EFFICIENCY / high)
    assert optimizer.high == pytest.approx(optimizer.value * MEMORY_EFFICIENCY / low)


def test_a_machine_without_a_memory_bandwidth_has_no_step_and_says_what_to_add(tmp_path: Path) -> None:
    shipped = Path(machine_file.__file__).parent / "shipped" / "h100x8.toml"
    text = shipped.read_text().replace("NVIDIA H100 80GB HBM3", "ACME 9")
    (tmp_path / "acme.toml").write_text(f"{text}\n[peak_flops_per_second]\nsource = 'its sheet'\nbf16 = 400e12\n")
    predicted = forecast_on(made("fsdp", ranks=8), read_machine(str(tmp_path / "acme.toml")))
    assert isinstance(predicted.step_s, Absent)
    assert "add gpu.memory_bandwidth_bytes_per_second" in predicted.step_s.reason
    assert predicted.memory.total_bytes > 0


def test_a_compiled_block_moves_fewer_bytes_and_selective_checkpointing_repeats_them() -> None:
    plain, compiled, selective = (
        seconds(forecast_on(made("single", *options, ranks=1), MACHINE), "compute").value
        for options in ((), ("compile=default",), ("checkpoint=selective",))
    )
    assert compiled < plain < selective


def test_exposed_communication_takes_the_spread_of_links_where_nothing_is_hidden() -> None:
    predicted = forecast_on(made_of("tensor"), MACHINE)
    exposed = seconds(predicted, "communication")
    low, high = LINK_SPREAD
    assert exposed.value * LINK_EFFICIENCY / high <= exposed.low < exposed.value  # Latency has no spread.
    assert exposed.value < exposed.high <= exposed.value * LINK_EFFICIENCY / low


def test_the_optimizer_of_a_replica_is_its_bytes_over_the_bandwidth() -> None:
    case = made_of("single")
    weights = case.shape.parameters()
    moved = 28 * weights + 3 * 4 * weights  # AdamW, and clipping.
    bandwidth = MEMORY_EFFICIENCY * 3350e9
    assert seconds(forecast_on(case, MACHINE), "optimizer").value == pytest.approx(moved / bandwidth, rel=1e-3)


def test_what_was_hidden_less_than_the_model_allows_is_exposed() -> None:
    case = made_of("fsdp")
    calibration, memory = sheet_calibration(case, MACHINE), memory_fit(case, MACHINE)

    def exposed_s(hiding: float) -> float:
        reached = Range(value=hiding, low=hiding, high=hiding, origin="here")
        predicted = forecast(
            case, replace(calibration, hiding=reached), memory, peak=Absent(reason="none"), peak_words="nothing"
        )
        return predicted.seconds("communication") or 0.0

    step = forecast_on(case, MACHINE).step
    assert isinstance(step, StepTime)
    assert exposed_s(0.0) == pytest.approx(step.communication_s)
    assert exposed_s(0.5) == pytest.approx((step.communication_s + exposed_s(1.0)) / 2)


# The fact that decides.


def test_states_that_a_gpu_cannot_hold_decide() -> None:
    decides = forecast_on(made("ddp", shape="8b"), MACHINE).decides
    assert decides.about == "memory"
    assert decides.words == "states need 120 GiB, a GPU has 79.1 GiB"


def test_activations_that_a_gpu_cannot_hold_decide() -> None:
    decides = forecast_on(made("fsdp", shape="70b", ranks=16), MACHINE).decides
    assert decides.about == "memory"
    assert "; activations take " in decides.words


def test_a_link_that_most_of_the_step_waits_for_decides() -> None:
    decides = forecast_on(made("tensor_parallel", ranks=4, sequence=512), MACHINE).decides
    assert decides.about == "communication"
    assert decides.words.startswith("the all_reduce over tensor crosses NVLink at 360 GB/s a rank: ")
    assert " % of the step, and all exposed communication " in decides.words


def test_a_bubble_decides_where_microbatches_are_few() -> None:
    decides = forecast_on(made("gpipe", "microbatches=2", ranks=8, layers=24), MACHINE).decides
    assert decides.about == "bubble"
    assert decides.words.startswith("8 stages with 2 microbatches are idle in their bubble for ")


def test_the_optimizer_decides_where_a_step_has_few_tokens() -> None:
    decides = forecast_on(made("single", ranks=1, batch=1, sequence=128), MACHINE).decides
    assert decides.about == "optimizer"


def test_computing_decides_where_nothing_else_is_a_fifth() -> None:
    decides = forecast_on(made("fsdp", "checkpoint=full", batch=256), MACHINE).decides
    assert decides.about == "compute"
    assert decides.words.endswith(" % of the step, including recomputation for checkpointing")


# Whole figures.


def test_days_follow_from_the_rate_and_so_does_their_range() -> None:
    predicted = forecast_on(made_of("fsdp"), MACHINE)
    days, rate = predicted.days(1e12), predicted.tokens_per_second
    assert isinstance(days, Range)
    assert isinstance(rate, Range)
    assert days.value == pytest.approx(1e12 / rate.value / 86400)
    assert days.low == pytest.approx(1e12 / rate.high / 86400)
    assert days.high == pytest.approx(1e12 / rate.low / 86400)


def test_offloaded_states_have_no_step_as_nothing_is_known_of_the_host_s_optimizer() -> None:
    predicted = forecast_on(made("fsdp", "offload=true", ranks=8), MACHINE)
    assert predicted.step_s == Absent(reason="the host updates offloaded states, and nothing measures at which rate")
    assert predicted.memory.total_bytes > 0


def test_a_rate_that_no_sheet_gives_leaves_the_memory_and_says_why() -> None:
    predicted = forecast_on(made("fsdp", "weights=fp8", ranks=8), MACHINE)
    assert isinstance(predicted.step_s, Absent)
    assert predicted.memory.total_bytes > 0
    assert predicted.decides.about == "nothing"
    assert predicted.days(1e12) == predicted.step_s


def test_no_torch_is_imported() -> None:
    lines = (
        "import sys",
        "import bench.analysis.prediction.forecast",
        "assert 'torch' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
