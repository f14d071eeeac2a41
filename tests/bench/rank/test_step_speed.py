"""The speed of a step follows from its time by its definitions, and is absent where it cannot be known."""

from __future__ import annotations

import pytest

from bench.rank.train import StepSpeed
from bench.results.mfu import Peak, mfu
from collectors.metrics.rank import MEASURED_MFU, MFU, TOKENS_PER_SECOND
from tests.bench.made.examples import make_case
from workloads.cost_models.absent import Absent

CASE = make_case("ddp", ranks=2)
STEP_S = 0.5
NO_PEAK = Absent(reason="nobody knows")


def peak(flops_per_second: float) -> Peak:
    return Peak(
        device="a chip",
        precision="fp32",
        flops_per_second=flops_per_second,
        bandwidth_bytes_per_second=1e9,
        source="its data sheet",
    )


def figures(
    *, tokens: float = 32, peak: Peak | Absent = NO_PEAK, ceiling_flops_per_second: float | None = None
) -> dict[str, float]:
    speed = StepSpeed(CASE, tokens=tokens, peak=peak, ceiling_flops_per_second=ceiling_flops_per_second)
    return {sample.metric: sample.value for sample in speed.samples(STEP_S)}


def test_tokens_per_second_are_the_steps_tokens_over_its_time() -> None:
    assert figures(tokens=32) == {TOKENS_PER_SECOND.name: 64.0}


def test_a_rank_that_trains_on_no_batch_has_no_tokens() -> None:
    assert figures(tokens=0) == {}


def test_mfu_is_that_of_the_run_in_a_step_of_this_time() -> None:
    of_run = mfu(CASE.shape, CASE.ranks, STEP_S, peak(1e9))
    assert figures(peak=peak(1e9))[MFU.name] == of_run


def test_the_measured_ceiling_is_another_limit_of_the_same_flops() -> None:
    found = figures(peak=peak(1e9), ceiling_flops_per_second=5e8)
    assert found[MEASURED_MFU.name] == pytest.approx(2 * found[MFU.name])


def test_a_share_above_one_is_left_out() -> None:
    assert set(figures(peak=peak(1.0), ceiling_flops_per_second=1e9)) == {TOKENS_PER_SECOND.name, MEASURED_MFU.name}
