"""MFU by hand-made peaks, and what is said where there is none."""

from __future__ import annotations

import pytest

from bench.results.mfu import Peak, flops_per_second_per_device, mfu, peak_of
from workloads.cost_models.absent import Absent
from workloads.cost_models.shape import PRESETS

SHAPE = PRESETS["125m"]


def _peak(flops_per_second: float) -> Peak:
    return Peak(
        device="NVIDIA Made Up",
        precision="bf16",
        flops_per_second=flops_per_second,
        bandwidth_bytes_per_second=1e12,
        source="a sheet",
    )


def test_flops_are_shared_by_the_ranks() -> None:
    assert flops_per_second_per_device(SHAPE, 4, 0.5) == SHAPE.flops_per_step("palm") / 2


def test_mfu_is_the_share_of_the_peak() -> None:
    found = mfu(SHAPE, 2, 1.0, _peak(float(SHAPE.flops_per_step("palm"))))
    assert found == 0.5


def test_mfu_of_exactly_the_peak_is_allowed() -> None:
    assert mfu(SHAPE, 1, 1.0, _peak(float(SHAPE.flops_per_step()))) == 1


def test_mfu_above_the_peak_is_refused_with_its_numbers() -> None:
    found = mfu(SHAPE, 1, 1.0, _peak(SHAPE.flops_per_step() / 1.25))
    assert isinstance(found, Absent)
    for part in ("MFU would be 1.25", "palm", "NVIDIA Made Up", "bf16", "a step of 1 s"):
        assert part in found.reason
    assert "\n" not in found.reason


def test_mfu_of_an_unknown_device_is_absent_with_its_reason() -> None:
    found = mfu(SHAPE, 1, 1.0, peak_of("Voodoo 2", "fp32"))
    assert isinstance(found, Absent)
    assert '"Voodoo 2"' in found.reason


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_mfu_does_not_depend_on_how_many_share_equal_work(ranks: int) -> None:
    found = mfu(SHAPE, ranks, 1.0 / ranks, _peak(1e15))
    assert found == pytest.approx(SHAPE.flops_per_step() / 1e15)
